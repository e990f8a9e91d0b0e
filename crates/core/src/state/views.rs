//! Views of a state for its readers. Nothing here changes the state, and no answer about one node or request scans
//! others.

use std::ops::Bound;

use super::State;
use super::lock_queue::{Place, Queue, place_of};
use super::locks::request_of;
use super::session::Session;
use super::standing::{Standing, standing_of};
use super::tree::Tree;
use crate::access::without_hash;
use crate::acl::AclEntry;
use crate::command::NodeKind;
use crate::data::NodeData;
use crate::feature::FeatureLevel;
use crate::ids::{ClusterUid, FencingToken, RequestId, SessionId, Zxid};
use crate::lock::{LOCKS_ROOT, LockMode, LockName, RequestName, parse_name};
use crate::namespace::namespace_of;
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};
use crate::stat::Stat;

/// A node, as readers see it.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    /// Its data.
    pub data: &'a NodeData,
    /// Its bookkeeping.
    pub stat: Stat,
    /// Its access control list.
    pub acl: &'a [AclEntry],
    /// Its kind.
    pub kind: NodeKind,
}

/// A request in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Its node.
    pub path: NodePath,
    /// The token of its grant.
    pub token: FencingToken,
    /// Its place in the queue.
    pub sequence: u64,
    /// How it asks.
    pub mode: LockMode,
    /// How many may hold a semaphore at a time.
    pub permits: Option<u16>,
    /// The lock delay that it asked for, in milliseconds; 0 is none.
    pub delay_ms: u32,
    /// For a kept place: when it ends, by the replicated clock. A kept place has no session, and holds nothing.
    pub delayed_until_ms: Option<u64>,
    /// Its session; `None` for a hand-made node that is not ephemeral.
    pub session: Option<SessionId>,
    /// Its description, for operators.
    pub label: String,
    /// When it entered the queue.
    pub since_ms: u64,
    /// Whether it holds, or what it waits for.
    pub standing: Standing,
    /// How often its session holds the lock by it: more than once by re-entry.
    pub holds: u32,
}

/// A lock's queue.
#[derive(Clone, Debug)]
pub struct LockView<'a> {
    tree: &'a Tree,
    directory: NodePath,
    queue: &'a Queue,
}

/// A lock in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSummary {
    /// Its name.
    pub name: LockName,
    /// How many hold it.
    pub holders: usize,
    /// How many wait for it.
    pub waiters: usize,
}

impl<'a> LockView<'a> {
    /// The requests in queue order.
    pub fn requests(&self) -> impl Iterator<Item = LockRequest> + use<'a> {
        let (tree, directory, queue) = (self.tree, self.directory.clone(), self.queue);
        queue.iter().filter_map(move |(place, mode)| tree.request(&directory, queue, place, mode))
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many hold.
    pub fn holders(&self) -> usize {
        self.queue.holders()
    }

    /// When the first request that waits entered the queue, by the replicated clock; `None` if none waits.
    pub fn waiting_since_ms(&self) -> Option<u64> {
        self.tree.waiting_since_ms(self.queue)
    }
}

impl State {
    /// The principal to which a session belongs, without the hash of a password; `None` for nobody's, and where its
    /// credential does not count any more.
    pub fn principal_of_session(&self, session: &Session) -> Option<String> {
        let principal = self.access.principal_of(session.identity.as_ref()?, self.clock_ms)?;
        Some(without_hash(&principal).to_owned())
    }
}

impl Tree {
    fn waiting_since_ms(&self, queue: &Queue) -> Option<u64> {
        let (_, path) = queue.first_waiter()?;
        Some(self.get(path)?.ctime_ms)
    }

    fn request(&self, directory: &NodePath, queue: &Queue, place: &Place, mode: LockMode) -> Option<LockRequest> {
        let path = place.1.clone();
        let node = self.get(&path)?;
        let RequestName { form, keeps_place_of, .. } = parse_name(path.name())?;
        Some(LockRequest {
            token: node.czxid.into(),
            sequence: place.0,
            mode,
            permits: mode.permits(),
            delay_ms: form.delay_ms,
            delayed_until_ms: keeps_place_of.and_then(|_| node.deadline_ms()),
            session: node.owner,
            label: String::from_utf8_lossy(&node.data).into_owned(),
            since_ms: node.ctime_ms,
            standing: standing_of(node, directory, queue.blocker(place, mode)),
            holds: self.holds(&path),
            path,
        })
    }
}

/// The bound at which the page after `last` begins.
fn beyond<T: ?Sized>(last: Option<&T>) -> Bound<&T> {
    last.map_or(Bound::Unbounded, Bound::Excluded)
}

impl State {
    /// The last transaction that changed anything.
    pub fn zxid(&self) -> Zxid {
        self.zxid
    }

    /// The replicated clock, in milliseconds since 1970.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// The feature level of the cluster.
    pub fn feature_level(&self) -> FeatureLevel {
        self.feature_level
    }

    /// The uid of the cluster; `None` until a leader has given it one.
    pub fn cluster_uid(&self) -> Option<ClusterUid> {
        self.cluster_uid
    }

    /// The node at a path.
    pub fn get(&self, path: &NodePath) -> Option<NodeView<'_>> {
        let node = self.tree.get(path)?;
        Some(NodeView { data: &node.data, stat: node.stat(), acl: &node.acl, kind: node.kind })
    }

    /// The names of a node's children, in order.
    pub fn children(&self, path: &NodePath) -> Option<impl ExactSizeIterator<Item = &str> + use<'_>> {
        Some(self.tree.get(path)?.children().iter().map(NodePath::name))
    }

    /// The names of a node's children that come after `after`, in order; found in O(log n).
    pub fn children_after(&self, path: &NodePath, after: Option<&str>) -> Option<impl Iterator<Item = &str> + use<'_>> {
        let after = format!("{}/{}", path.top(), after.unwrap_or_default());
        Some(self.tree.get(path)?.children().after(after).map(NodePath::name))
    }

    /// A live session.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id).map(|session| &**session)
    }

    /// Who a lock request or a gate is from, for display: its own label, or else the one of its session.
    pub fn label_or_session(&self, label: &str, session: Option<SessionId>) -> String {
        let Some(id) = session.filter(|_| label.is_empty()) else { return label.to_owned() };
        match self.session(id) {
            Some(session) if !session.label.is_empty() => session.label.to_string(),
            _ => format!("session {id}"),
        }
    }

    /// All live sessions, oldest first.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, &**session))
    }

    /// The live sessions that were opened after `after`, oldest first; found in O(log n).
    pub fn sessions_after(&self, after: Option<SessionId>) -> impl Iterator<Item = (SessionId, &Session)> + use<'_> {
        let later = self.sessions.range::<_, SessionId>((beyond(after.as_ref()), Bound::Unbounded));
        later.map(|(id, session)| (*id, &**session))
    }

    /// How many nodes there are, with the root.
    pub fn node_count(&self) -> usize {
        self.tree.nodes.len()
    }

    /// How many sessions live.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// How many nodes are ephemeral.
    pub fn ephemeral_count(&self) -> usize {
        self.tree.ephemeral_count
    }

    /// The remembered answer to a request id of a session.
    pub fn remembered_reply(&self, session: SessionId, request: RequestId) -> Option<&Result<Reply, Refusal>> {
        Some(&self.session(session)?.memory.answers.get(&request)?.answer)
    }

    /// The nodes that a [`Reap`](crate::Command::Reap) would remove at `now_ms`, longest due first; at most `limit`.
    pub fn reapable(&self, now_ms: u64, limit: usize) -> Vec<NodePath> {
        let due = self.tree.deadlines.iter().take_while(|(at_ms, _)| *at_ms <= now_ms);
        due.take(limit).map(|(_, path)| path.clone()).collect()
    }

    /// When the next lock delay ends, by the replicated clock.
    pub fn next_delay_end_ms(&self) -> Option<u64> {
        self.tree.delays.get_min().map(|(at_ms, _)| *at_ms)
    }

    /// A lock's queue; `None` if the lock has no directory.
    pub fn lock(&self, lock: &LockName) -> Option<LockView<'_>> {
        let directory = lock.directory();
        let queue = self.tree.get(&directory)?.queue();
        Some(LockView { tree: &self.tree, directory, queue })
    }

    /// How many requests in the queue of a lock's directory hold alone when they hold, the holder included if it does.
    /// O(log n).
    pub fn exclusive_requests(&self, directory: &NodePath) -> usize {
        self.tree.get(directory).map_or(0, |directory| directory.queue().exclusive_requests())
    }

    /// How often a session holds a lock by this request: once, or more often by re-entry.
    pub fn holds(&self, request: &NodePath) -> u32 {
        self.tree.holds(request)
    }

    /// The request that a session has made under this uuid, waiting or holding.
    pub fn request_of(&self, session: SessionId, lock: &LockName, uuid: RequestId) -> Option<LockRequest> {
        let path = request_of(&self.tree, self.session(session)?, &lock.directory(), uuid)?;
        self.request_at(path)
    }

    /// The node by which a session holds a lock with this token. Its name changes with a downgrade.
    pub fn held_by_token(&self, session: SessionId, lock: &LockName, token: FencingToken) -> Option<NodePath> {
        let directory = lock.directory();
        let mut found = self.tree.requests(&directory, token);
        found.find(|found| found.held && found.owner == Some(session)).map(|found| found.path)
    }

    /// The locks that a session holds, in order of their names.
    pub fn held_by(&self, session: SessionId) -> impl Iterator<Item = LockRequest> {
        let own = self.session(session).into_iter().flat_map(|session| session.ephemerals.iter());
        own.filter(|path| path.parent().is_some_and(|directory| LockName::of_directory(&directory).is_some()))
            .filter_map(|path| self.request_at(path))
            .filter(|request| matches!(request.standing, Standing::Holds { .. }))
    }

    /// The locks with a non-empty queue, in order of their names: those that start with `prefix` and come after
    /// `after`, at most `limit`.
    pub fn locks(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Vec<LockSummary> {
        let prefix = format!("{LOCKS_ROOT}/{prefix}");
        let after = after.map(LockName::directory);
        let from = match &after {
            Some(after) if after.as_str() >= prefix.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix.as_str()),
        };
        let queues = self.tree.queues.range::<_, str>((from, Bound::Unbounded));
        let below = queues.take_while(|path| path.as_str().starts_with(&prefix));
        below.filter_map(|path| self.summary(path)).take(limit).collect()
    }

    /// The locks for which somebody waits: each with its namespace, and when its first waiter entered the queue. Looks
    /// at every queue of the state: call it on a clone, outside of any lock.
    pub fn queues_waiting(&self) -> impl Iterator<Item = (&str, u64)> {
        let below = format!("{LOCKS_ROOT}/");
        let queues = self.tree.queues.range::<_, str>((Bound::Included(below.as_str()), Bound::Unbounded));
        let of_locks = queues.take_while(move |path| path.as_str().starts_with(&below));
        of_locks.filter_map(|path| {
            let since_ms = self.tree.waiting_since_ms(self.tree.get(path)?.queue())?;
            Some((namespace_of(path)?, since_ms))
        })
    }

    fn summary(&self, directory: &NodePath) -> Option<LockSummary> {
        let name = LockName::of_directory(directory)?;
        let queue = self.tree.get(directory)?.queue();
        let holders = queue.holders();
        Some(LockSummary { name, holders, waiters: queue.len() - holders })
    }

    fn request_at(&self, path: &NodePath) -> Option<LockRequest> {
        let (directory, queue) = self.tree.queue_of(path)?;
        let (place, mode) = place_of(path)?;
        self.tree.request(directory, queue, &place, mode)
    }
}
