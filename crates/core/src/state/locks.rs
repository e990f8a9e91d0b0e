//! The lock commands (`ARCHITECTURE.md`, Locks). Each decides at the moment when it is applied, so no grant is lost
//! in between.
//!
//! One request may be in several queues. Its nodes are created in one transaction, so they share their zxid, which is
//! its token.

use std::ops::Bound;
use std::sync::Arc;

use super::arguments::{bad, check_label};
use super::bounds::Adds;
use super::lock_queue::{Newcomer, check_kind};
use super::nodes::{Maker, check_sequence, next_version};
use super::session::Session;
use super::size;
use super::standing::Standing;
use super::transaction::Transaction;
use super::tree::{Holds, Node, Tree};
use lockkeeper_mutants::{invariant, mutant};

use crate::acl::Permissions;
use crate::command::{IfHolding, NodeKind, Sequential};
use crate::ids::{FencingToken, RequestId, SessionId};
use crate::limits::{MAX_DELAY_MS, MAX_HOLDS, MAX_LOCKS_TOGETHER, MAX_PERMITS};
use crate::lock::{
    LockMode, LockName, Request, RequestForm, RequestName, downgraded_name, is_delay, parse_name, parse_request,
};
use crate::path::{NodePath, check_readable};
use crate::reply::{Refusal, Reply};
use crate::rules::ForeignNames;

/// A request found in a queue.
pub(crate) struct Found {
    pub(crate) path: NodePath,
    pub(crate) owner: Option<SessionId>,
    pub(crate) held: bool,
}

impl Tree {
    /// The requests of a lock with this token; hardly ever more than one.
    pub(crate) fn requests(&self, directory: &NodePath, token: FencingToken) -> impl Iterator<Item = Found> {
        let queue = self.get(directory).map(|node| node.queue());
        queue.into_iter().flat_map(move |queue| {
            queue.with_token(token).filter_map(|(place, mode)| {
                let path = place.1.clone();
                let owner = self.get(&path)?.owner;
                Some(Found { path, owner, held: queue.blocker(place, mode).is_none() })
            })
        })
    }

    /// The request that holds the lock with this token. A kept place holds nothing.
    pub(crate) fn holder(&self, directory: &NodePath, token: FencingToken) -> Option<Found> {
        self.requests(directory, token).find(|found| found.held && !is_delay(found.path.name()))
    }

    /// Whether the head of a queue is this request, if that excludes all others.
    fn is_head(&self, path: &NodePath) -> bool {
        let Some((_, LockMode::Exclusive | LockMode::Write)) = parse_request(path.name()) else { return true };
        self.queue_of(path).and_then(|(_, queue)| queue.iter().next()).is_some_and(|((_, head), _)| head == path)
    }
}

/// The request that a session has made under this uuid, waiting or holding. One whose caller has given its hold back
/// is not meant, though its node is still there for others.
pub(crate) fn request_of<'a>(
    tree: &Tree,
    session: &'a Session,
    directory: &NodePath,
    uuid: RequestId,
) -> Option<&'a NodePath> {
    let prefix = format!("{directory}/_c_{uuid}-");
    let mut own = session.ephemerals.range::<_, str>((Bound::Included(prefix.as_str()), Bound::Unbounded));
    // Below a node with such a name there may be another lock, with a request of the same name.
    let is_here = |path: &&NodePath| !path.as_str()[prefix.len()..].contains('/');
    let mut here = own.by_ref().take_while(|path| path.as_str().starts_with(&prefix)).filter(is_here);
    here.find(|path| form_of(path, uuid).is_some() && !tree.base_is_gone(path))
}

/// The beginning of a request's name, up to its uuid: that of all nodes of a request for several locks. `None` for a
/// node that was made by hand.
fn mark_of(name: &str) -> Option<&str> {
    name.get(..MARK_BYTES).filter(|mark| mark.starts_with("_c_") && mark.ends_with('-'))
}

/// Bytes of `_c_<uuid>-`.
const MARK_BYTES: usize = 40;

/// The form of the request with this uuid; `None` for any other node.
fn form_of(path: &NodePath, uuid: RequestId) -> Option<RequestForm> {
    let RequestName { sequence, form, .. } = parse_name(path.name())?;
    (path.name() == format!("{}{sequence:010}", form.prefix(uuid))).then_some(form)
}

impl Transaction<'_> {
    /// Enqueues the request. If the session has a request under this uuid already, it retries because it lost the
    /// first answer (Curator's protection mode): the answer is how that request stands.
    pub(crate) fn acquire(&mut self, session: Option<SessionId>, request: &Request<'_>) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_request(request)?;
        if let Some(known) = self.known(session, request)? {
            return self.queued(known);
        }
        for lock in request.locks {
            self.check_directory(lock, request.form.mode)?;
        }
        self.check_lock_request(session, request)?;
        if let [lock] = request.locks {
            let path = self.enter(session, lock, request)?;
            return self.queued(vec![path]);
        }
        let before = self.save();
        let entered = request.locks.iter().map(|lock| self.enter(session, lock, request)).collect();
        match entered {
            Ok(paths) => self.queued(paths),
            Err(refusal) => {
                self.roll_back(before);
                Err(refusal)
            }
        }
    }

    /// Counts one more hold if the session holds the lock, and enqueues the request otherwise. Decided when applied: a
    /// session whose first request still waits has two in the queue, of which the second waits for the first.
    pub(crate) fn acquire_reentrant(
        &mut self,
        session: Option<SessionId>,
        lock: &LockName,
        request: &Request<'_>,
    ) -> Result<Reply, Refusal> {
        let owner = session.ok_or(Refusal::SessionRequired)?;
        check_request(request)?;
        if self.known(owner, request)?.is_some() {
            return self.acquire(session, request);
        }
        let Some((path, mode)) = self.held_in(owner, &lock.directory()) else { return self.acquire(session, request) };
        if mode != LockMode::Exclusive {
            return Err(Refusal::LockMismatch {
                lock: lock.clone().into(),
                detail: "this session holds it in another mode, and only a lock in mode exclusive can be re-entered"
                    .into(),
            });
        }
        if self.is_joint(owner, &path) {
            // Its locks are held and given back together, so none of them can count by itself.
            return Err(Refusal::LockMismatch {
                lock: lock.clone().into(),
                detail: "this session holds it together with other locks by one request, and only a lock that was \
                         asked for alone can be re-entered"
                    .into(),
            });
        }
        let directory = lock.directory();
        self.check_access(&directory, self.node(&directory)?, Permissions::CREATE)?;
        let holds = self.tree.holds_of(&path);
        if holds.count >= MAX_HOLDS {
            return Err(bad(format!("a session holds a lock at most {MAX_HOLDS} times at once; release it as often")));
        }
        if holds == Holds::ONCE {
            self.check_room(size::of_holds(&path), Adds::Lock)?;
        }
        let count = holds.count + 1;
        self.changed = true;
        self.tree.set_holds(&path, Holds { count, ..holds });
        let token = self.node(&path)?.czxid.into();
        Ok(Reply::Reentered { path, token, holds: count })
    }

    /// Whether the session has another node of the request that made this one.
    fn is_joint(&self, session: SessionId, path: &NodePath) -> bool {
        let (Some(mark), Some(node)) = (mark_of(path.name()), self.tree.get(path)) else { return false };
        let Some(session) = self.sessions.get(&session) else { return false };
        // A session can own many nodes: comparing the beginning of the name rules out nearly all.
        session.ephemerals.iter().any(|other| {
            other != path
                && mark_of(other.name()) == Some(mark)
                && parse_request(other.name()).is_some()
                && self.tree.get(other).is_some_and(|other| other.czxid == node.czxid)
        })
    }

    /// The request by which a session holds the lock of this directory, and its mode.
    fn held_in(&self, session: SessionId, directory: &NodePath) -> Option<(NodePath, LockMode)> {
        let below = format!("{directory}/");
        let own =
            self.sessions.get(&session)?.ephemerals.range::<_, str>((Bound::Included(&below[..]), Bound::Unbounded));
        let mut held = own.take_while(|path| path.as_str().starts_with(&below)).filter(|path| {
            !path.as_str()[below.len()..].contains('/') && matches!(self.tree.standing(path), Standing::Holds { .. })
        });
        held.find_map(|path| Some((path.clone(), parse_request(path.name())?.1)))
    }

    /// Gives one hold of a request back; true if it was the last, which removes the request.
    fn give_back(&mut self, path: &NodePath) -> bool {
        match self.tree.holds_of(path) {
            Holds { count, .. } if count <= 1 || mutant!(ReleaseAllHolds) => {
                self.remove(path);
                true
            }
            holds => {
                self.changed = true;
                self.tree.set_holds(path, Holds { count: holds.count - 1, ..holds });
                false
            }
        }
    }

    /// The nodes of this request, if it was enqueued before.
    fn known(&self, session: SessionId, request: &Request<'_>) -> Result<Option<Vec<NodePath>>, Refusal> {
        let Some(session) = self.sessions.get(&session) else { return Ok(None) };
        let (mut known, mut missing, mut tokens) = (Vec::new(), None, Vec::new());
        for lock in request.locks {
            match request_of(self.tree, session, &lock.directory(), request.uuid) {
                Some(path) if form_of(path, request.uuid) == Some(request.form) => {
                    tokens.push(FencingToken::from(self.node(path)?.czxid));
                    known.push(path.clone());
                }
                Some(_) => return Err(Refusal::RequestMismatch),
                None => missing = Some(lock),
            }
        }
        let Some(&token) = tokens.first() else { return Ok(None) };
        // A session can own many nodes: comparing the beginning of the name rules out nearly all.
        let mark = format!("_c_{}-", request.uuid);
        let of_this = |path: &&NodePath| {
            path.name().starts_with(&mark)
                && form_of(path, request.uuid).is_some()
                && self.tree.get(path).is_some_and(|node| FencingToken::from(node.czxid) == token)
        };
        if tokens.iter().any(|other| *other != token) || session.ephemerals.iter().filter(of_this).count() > known.len()
        {
            return Err(Refusal::RequestMismatch);
        }
        match missing {
            None => Ok(Some(known)),
            // A part was broken by force or released: the request can never hold as a whole.
            Some(lock) => Err(Refusal::NotQueued { lock: lock.clone().into(), token }),
        }
    }

    /// Checks everything that could refuse a request in this directory, before anything is created.
    fn check_directory(&self, lock: &LockName, mode: LockMode) -> Result<(), Refusal> {
        let directory = lock.directory();
        let mut path = directory.clone();
        loop {
            match self.tree.get(&path) {
                // The root's access control list does not apply to locks.
                Some(_) if path.is_root() => return Ok(()),
                Some(node) => {
                    self.check_access(&path, node, Permissions::CREATE)?;
                    if node.is_ephemeral() {
                        return Err(Refusal::NoChildrenForEphemerals(path));
                    }
                    if path == directory {
                        check_sequence(&path, node.children_made())?;
                        check_kind(lock, node.queue(), mode)?;
                        return self.check_names(lock, node, Newcomer::Native);
                    }
                    return Ok(());
                }
                None => path = path.parent().unwrap_or_else(NodePath::root),
            }
        }
    }

    /// Enqueues a request in one queue.
    fn enter(&mut self, session: SessionId, lock: &LockName, request: &Request<'_>) -> Result<NodePath, Refusal> {
        let directory = lock.directory();
        self.make_directories(&directory)?;
        let acl = self.inherited_acl(&directory);
        let node = Node::new(request.label.as_bytes(), acl, NodeKind::Ephemeral, Some(session));
        let prefix = directory.child(&request.form.prefix(request.uuid)).map_err(|e| bad(e.to_string()))?;
        match self.create_checked(&prefix, Sequential::Suffix, node, Maker::Service)? {
            Reply::Created { path, .. } => {
                let is_last = self.node(&directory)?.queue().is_last(&path, self.zxid.into());
                invariant!(is_last, "a request enters its queue behind all others, with a larger token");
                Ok(path)
            }
            _ => Err(Refusal::NoNode(prefix)),
        }
    }

    /// Creates a directory and its missing ancestors as containers, each with its parent's access control list.
    pub(crate) fn make_directories(&mut self, directory: &NodePath) -> Result<(), Refusal> {
        if self.tree.contains(directory) {
            return Ok(());
        }
        let parent = directory.parent().unwrap_or_else(NodePath::root);
        self.make_directories(&parent)?;
        let acl = self.inherited_acl(&parent);
        self.create(directory, Node::new([], acl, NodeKind::Container, None));
        Ok(())
    }

    /// The answer to a request that is in its queues. Here it gets its **fencing token**: the zxid of the transaction
    /// in which [`enter`](Self::enter) created its nodes. A queue is in the order of the log, so each later grant of a
    /// lock has a larger token (promise P1), and a request keeps its token while it waits and holds.
    fn queued(&self, paths: Vec<NodePath>) -> Result<Reply, Refusal> {
        let first = paths.first().ok_or_else(|| bad("a request names at least one lock"))?;
        let token = self.node(first)?.czxid.into();
        let held = paths.iter().all(|path| matches!(self.tree.standing(path), Standing::Holds { .. }));
        let is_granted_in_turn = !held || paths.iter().all(|path| self.tree.is_head(path));
        invariant!(is_granted_in_turn, "the holder of an exclusive lock is the head of its queue");
        Ok(Reply::Queued { paths, token, held })
    }

    /// Withdraws a request, or answers that it holds. If a part of the request is gone, the rest is removed.
    pub(crate) fn withdraw(
        &mut self,
        session: Option<SessionId>,
        locks: &[LockName],
        token: FencingToken,
        if_holding: IfHolding,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_locks(locks)?;
        let found: Vec<Found> = locks.iter().filter_map(|lock| self.own_base(session, lock, token)).collect();
        if if_holding == IfHolding::Keep && hold_as_a_whole(&found, locks) {
            return Ok(Reply::HeldInstead);
        }
        if mutant!(LeaveWithdrawnInQueue) && !hold_as_a_whole(&found, locks) {
            return Ok(Reply::Withdrawn);
        }
        self.leave(&found, locks, token)
    }

    /// Removes the nodes that were found of a request.
    fn leave(&mut self, found: &[Found], locks: &[LockName], token: FencingToken) -> Result<Reply, Refusal> {
        if found.is_empty() {
            return Err(not_queued(locks, token));
        }
        let held = hold_as_a_whole(found, locks);
        for request in found {
            if !self.give_back(&request.path) {
                // Another call of the session still holds it. A repetition of this command must not give that one's
                // hold back, nor may a retry of the call that has gone claim it.
                let holds = self.tree.holds_of(&request.path);
                self.tree.set_holds(&request.path, Holds { base_gone: true, ..holds });
                self.touch(&request.path);
            }
        }
        Ok(self.left(found).unwrap_or(if held { Reply::Released } else { Reply::Withdrawn }))
    }

    /// The answer if some of these requests are still held.
    fn left(&self, found: &[Found]) -> Option<Reply> {
        let left = found.iter().filter(|found| self.tree.contains(&found.path));
        Some(Reply::StillHeld { holds: left.map(|found| self.tree.holds(&found.path)).max()? })
    }

    /// Claims a request for the caller.
    pub(crate) fn claim(
        &mut self,
        session: Option<SessionId>,
        locks: &[LockName],
        token: FencingToken,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_locks(locks)?;
        let own = |lock: &LockName| {
            let found = self.own_base(session, lock, token);
            found.map(|found| found.path).ok_or_else(|| Refusal::NotQueued { lock: lock.clone().into(), token })
        };
        let paths = locks.iter().map(own).collect::<Result<Vec<_>, _>>()?;
        let versions = paths.iter().map(|path| self.touch(path)).collect();
        Ok(Reply::Claimed { versions })
    }

    /// Sets a node's data to the same value, to raise its version.
    fn touch(&mut self, path: &NodePath) -> i32 {
        let (zxid, clock_ms) = (self.zxid, self.clock_ms);
        let mut version = 0;
        self.change(path, |node| {
            node.version = next_version(node.version);
            (node.mzxid, node.mtime_ms) = (zxid, clock_ms);
            version = node.version;
        });
        self.publish_data_changed(path);
        version
    }

    /// Removes the nodes of a request that still have these versions.
    pub(crate) fn abandon(
        &mut self,
        locks: &[LockName],
        token: FencingToken,
        versions: &[i32],
    ) -> Result<Reply, Refusal> {
        check_locks(locks)?;
        if versions.len() != locks.len() {
            return Err(bad(format!("{} versions for {} locks", versions.len(), locks.len())));
        }
        let unclaimed = |(lock, version): (&LockName, &i32)| {
            let is_meant = |found: &Found| {
                let node = self.tree.get(&found.path);
                found.owner.is_some()
                    && !self.tree.base_is_gone(&found.path)
                    && node.is_some_and(|node| node.version == *version || mutant!(AbandonIgnoresVersions))
            };
            self.tree.requests(&lock.directory(), token).find(is_meant)
        };
        let found: Vec<Found> = locks.iter().zip(versions).filter_map(unclaimed).collect();
        self.leave(&found, locks, token)
    }

    /// Releases locks. A lock that the session holds more than once is released once.
    pub(crate) fn release(
        &mut self,
        session: Option<SessionId>,
        locks: &[LockName],
        token: FencingToken,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_locks(locks)?;
        let held = locks.iter().map(|lock| self.own_holder(session, lock, token)).collect::<Result<Vec<_>, _>>()?;
        for request in &held {
            invariant!(self.tree.is_head(&request.path), "the holder of an exclusive lock is the head of its queue");
            self.give_back(&request.path);
        }
        Ok(self.left(&held).unwrap_or(Reply::Released))
    }

    /// Turns a writer that holds into a reader. A reader stays as it is, so a retry is safe.
    pub(crate) fn downgrade(
        &mut self,
        session: Option<SessionId>,
        lock: &LockName,
        token: FencingToken,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        let held = self.own_holder(session, lock, token)?;
        match parse_request(held.path.name()) {
            Some((_, LockMode::Write)) => {}
            Some((_, LockMode::Shared)) => return Ok(Reply::Downgraded { path: held.path }),
            _ => return Err(bad(format!("lock {lock} is not held in mode write, and nothing else can be downgraded"))),
        }
        let path = lock.directory().child(&downgraded_name(held.path.name())).map_err(|e| bad(e.to_string()))?;
        if self.tree.contains(&path) {
            return Err(Refusal::NodeExists(path));
        }
        self.rename(&held.path, &path);
        Ok(Reply::Downgraded { path })
    }

    /// Takes a lock from its holder, or ends the delay with this token. A hand-made holder that is not ephemeral, and
    /// a kept place, have no session: the answer names session 0.
    pub(crate) fn force_release(&mut self, lock: &LockName, token: FencingToken) -> Result<Reply, Refusal> {
        // A kept place behind readers that still hold blocks others all the same.
        let is_meant = |found: &Found| found.held || is_delay(found.path.name());
        let directory = lock.directory();
        let held = self.tree.requests(&directory, token).find(is_meant);
        let held = held.ok_or_else(|| not_held(lock, token))?;
        self.check_access(&directory, self.node(&directory)?, Permissions::DELETE)?;
        if !self.may_force(&directory) {
            let why = "forced release is switched off at this node (admin.allow_force_release); close the holder's \
             session instead, or wait for it to expire";
            return Err(Refusal::Forbidden(why.into()));
        }
        if !self.node(&held.path)?.children().is_empty() {
            return Err(Refusal::NotEmpty(held.path));
        }
        self.remove(&held.path);
        Ok(Reply::ForceReleased { holder: held.owner.unwrap_or_default() })
    }

    /// Whether the lock is held with this token.
    pub(crate) fn check_lock(&self, lock: &LockName, token: FencingToken) -> Result<Reply, Refusal> {
        let held = self.tree.holder(&lock.directory(), token);
        held.map(|_| Reply::Checked).ok_or_else(|| not_held(lock, token))
    }

    /// The session's request with this token, waiting or holding, unless its caller has given its hold back.
    fn own_base(&self, session: SessionId, lock: &LockName, token: FencingToken) -> Option<Found> {
        let is_meant = |found: &Found| found.owner == Some(session) && !self.tree.base_is_gone(&found.path);
        self.tree.requests(&lock.directory(), token).find(is_meant)
    }

    fn own_holder(&self, session: SessionId, lock: &LockName, token: FencingToken) -> Result<Found, Refusal> {
        let is_own = |found: &Found| found.held && found.owner == Some(session);
        let own = self.tree.requests(&lock.directory(), token).find(is_own);
        own.ok_or_else(|| not_held(lock, token))
    }
}

/// Whether a request holds: all its nodes exist and hold.
fn hold_as_a_whole(found: &[Found], locks: &[LockName]) -> bool {
    found.len() == locks.len() && found.iter().all(|found| found.held)
}

fn not_queued(locks: &[LockName], token: FencingToken) -> Refusal {
    let lock = locks.first().map_or_else(|| Arc::from(""), |lock| lock.clone().into());
    Refusal::NotQueued { lock, token }
}

fn not_held(lock: &LockName, token: FencingToken) -> Refusal {
    Refusal::NotHeld { lock: lock.clone().into(), token }
}

impl Transaction<'_> {
    /// Refuses a newcomer that does not see all names in the queue.
    pub(crate) fn check_names(&self, lock: &LockName, directory: &Node, newcomer: Newcomer) -> Result<(), Refusal> {
        if self.rules.foreign_names == ForeignNames::Allow || mutant!(ForeignNamesAllowed) {
            return Ok(());
        }
        let Some(unseen) = directory.queue().unseen_by(newcomer) else { return Ok(()) };
        let detail = format!(
            "its queue has {unseen}, and {newcomer} cannot share it, because the two do not see each other; use one \
             family of names for one lock (docs/zookeeper.md, \"One queue\"), or another lock, or set \
             locks.foreign_names = \"allow\" where every client has been told of the others' names"
        );
        Err(Refusal::ForeignNames { lock: lock.clone().into(), detail: detail.into() })
    }
}

fn check_request(request: &Request<'_>) -> Result<(), Refusal> {
    check_locks(request.locks)?;
    for lock in request.locks {
        check_readable(lock.as_str()).map_err(|error| bad(format!("the name of a lock: {error}")))?;
    }
    check_label(request.label)?;
    let RequestForm { mode, delay_ms } = request.form;
    if mode.permits().is_some_and(|permits| !(1..=MAX_PERMITS).contains(&permits)) {
        return Err(bad(format!("a semaphore has from 1 to {MAX_PERMITS} permits")));
    }
    if delay_ms > MAX_DELAY_MS {
        return Err(bad(format!("a lock delay is at most {MAX_DELAY_MS} ms, this one {delay_ms}")));
    }
    request.locks.iter().try_for_each(check_parts)
}

/// Checks that the locks are sorted, so that a set has one form, and that each is named once.
fn check_locks(locks: &[LockName]) -> Result<(), Refusal> {
    if !(1..=MAX_LOCKS_TOGETHER).contains(&locks.len()) {
        return Err(bad(format!("a request names from 1 to {MAX_LOCKS_TOGETHER} locks, this one {}", locks.len())));
    }
    match locks.windows(2).find(|pair| pair[0] >= pair[1]) {
        None => Ok(()),
        Some(pair) => Err(bad(format!("the locks of a request are sorted, each once: {} after {}", pair[1], pair[0]))),
    }
}

/// Refuses a lock whose name reads as a request in the queue of the lock above it, because its directory would stay
/// in that queue for ever, or that lies below the name of a kept place.
fn check_parts(lock: &LockName) -> Result<(), Refusal> {
    if let Some(part) = lock.as_str().split('/').find(|part| is_delay(part)) {
        return Err(bad(format!("'{part}' reads as the kept place of a dead holder; choose another name")));
    }
    let inner = lock.as_str().split('/').skip(1).find(|part| parse_request(part).is_some());
    match inner {
        None => Ok(()),
        Some(part) => {
            Err(bad(format!("'{part}' reads as a place in the queue of the lock above it; choose another name")))
        }
    }
}
