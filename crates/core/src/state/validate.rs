//! Checks every invariant of the state by looking at everything: for a state that was read from a snapshot, for
//! tests, and on demand; never for a write.

use std::collections::BTreeSet;

use imbl::OrdSet;

use super::lock_queue::Queue;
use super::nodes::check_acl;
use super::session::Session;
use super::size;
use super::tree::{Holds, Node};
use super::{Applied, State};
use crate::gate::is_pending;
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::limits::{
    MAX_BATCHES_IN_FLIGHT, MAX_DATA_BYTES, MAX_HOLDS, MAX_REMEMBERED_BYTES, MAX_REMEMBERED_REPLIES,
    MAX_SESSION_TIMEOUT_MS, MIN_SESSION_TIMEOUT_MS,
};
use crate::lock::{LockMode, LockName, is_delay, parse_name, parse_request, sequence_of};
use crate::path::NodePath;

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// What the nodes add up to.
#[derive(Default)]
struct Census<'a> {
    bytes: u64,
    children: usize,
    ephemerals: usize,
    pending_gates: usize,
    deadlines: Vec<(u64, &'a NodePath)>,
}

impl<'a> Census<'a> {
    fn add(&mut self, path: &'a NodePath, node: &Node) {
        self.bytes += size::of_node(path, node);
        self.children += node.children().len();
        self.ephemerals += usize::from(node.is_ephemeral());
        self.pending_gates += usize::from(is_pending(path, &node.data));
        self.deadlines.extend(node.deadline_ms().map(|at_ms| (at_ms, path)));
    }
}

/// Each node is known to its parent.
fn validate_in(directory: &Node, path: &NodePath, node: &Node) -> Result<(), String> {
    ensure!(!directory.is_ephemeral(), "it is the child of an ephemeral");
    ensure!(directory.children().contains(path), "its parent does not list it");
    ensure!(node.czxid <= directory.pzxid(), "it is newer than its parent's pzxid {}", directory.pzxid());
    Ok(())
}

/// Whether an index has what was counted; otherwise the first place at which it does not.
fn same_times(what: &str, index: &OrdSet<(u64, NodePath)>, counted: &[(u64, &NodePath)]) -> Result<(), String> {
    ensure!(index.len() == counted.len(), "{} {what}, not {}", index.len(), counted.len());
    let other = index.iter().zip(counted).find(|((at_ms, path), counted)| (*at_ms, path) != **counted);
    ensure!(other.is_none(), "of {what} the index and a node: {other:?}");
    Ok(())
}

impl State {
    /// Checks every invariant.
    ///
    /// # Errors
    /// Names the first one that does not hold, and where.
    pub fn validate(&self) -> Result<(), String> {
        ensure!(self.tree.contains(&NodePath::root()), "there is no root");
        self.validate_nodes()?;
        self.access.validate().map_err(|why| format!("access control: {why}"))?;
        self.validate_namespaces()?;
        self.validate_holds()?;
        let bytes: u64 = self.sessions().map(|(_, session)| size::of_session(session)).sum();
        ensure!(bytes == self.session_bytes, "its sessions take {bytes} bytes, not {}", self.session_bytes);
        let bytes: u64 = self.sessions().map(|(_, session)| session.memory.bytes()).sum();
        ensure!(bytes == self.remembered_bytes, "its replies take {bytes} bytes, not {}", self.remembered_bytes);
        for (id, session) in self.sessions() {
            self.validate_session(id, session).map_err(|why| format!("session {id}: {why}"))?;
        }
        self.validate_origins()
    }

    /// Looks at each node once: a start with a million nodes waits for it.
    fn validate_nodes(&self) -> Result<(), String> {
        let mut counted = Census::default();
        let mut queues = self.tree.queues.iter();
        // Siblings mostly come one after the other.
        let mut last: Option<(&str, &Node)> = None;
        for (path, node) in &self.tree.nodes {
            let named = |why: String| format!("{path}: {why}");
            if let Some(parent) = path.parent_str() {
                let directory = match last.filter(|(of, _)| *of == parent) {
                    Some((_, directory)) => directory,
                    None => self.tree.nodes.get(parent).ok_or_else(|| named("it has no parent".into()))?,
                };
                last = Some((parent, directory));
                validate_in(directory, path, node).map_err(named)?;
            }
            self.validate_owner(path, node).map_err(named)?;
            self.validate_numbers(node).map_err(named)?;
            self.validate_children(path, node).map_err(named)?;
            if !node.queue().is_empty() {
                let next = queues.next();
                ensure!(next == Some(path), "the next queue is {next:?} instead of {path}");
            }
            counted.add(path, node);
        }
        if let Some(empty) = queues.next() {
            return Err(format!("{empty} is said to have a queue"));
        }
        self.validate_counts(counted)
    }

    fn validate_counts(&self, counted: Census<'_>) -> Result<(), String> {
        let Census { bytes, children, ephemerals, pending_gates: pending, mut deadlines } = counted;
        let tree = &self.tree;
        let bytes = bytes + tree.holds.keys().map(size::of_holds).sum::<u64>();
        ensure!(bytes == tree.bytes, "its nodes take {bytes} bytes, not {}", tree.bytes);
        // Each node but the root is the child of its parent, so no more children than these are listed.
        ensure!(children + 1 == tree.nodes.len(), "{} nodes, but {children} children", tree.nodes.len());
        ensure!(ephemerals == tree.ephemeral_count, "{} ephemerals, not {ephemerals}", tree.ephemeral_count);
        ensure!(pending == tree.pending_gates, "{} gates are pending, not {pending}", tree.pending_gates);
        deadlines.sort_unstable();
        same_times("deadlines", &tree.deadlines, &deadlines)?;
        deadlines.retain(|(_, path)| is_delay(path.name()));
        same_times("delays", &tree.delays, &deadlines)
    }

    /// The owner of an ephemeral knows it.
    fn validate_owner(&self, path: &NodePath, node: &Node) -> Result<(), String> {
        ensure!(node.is_ephemeral() == node.owner.is_some(), "kind {:?}, owner {:?}", node.kind, node.owner);
        if let Some(owner) = node.owner {
            let session = self.session(owner).ok_or_else(|| format!("its session {owner} is gone"))?;
            ensure!(session.ephemerals.contains(path), "its session {owner} does not list it");
            ensure!(owner.0 < node.czxid.0, "it is older than its session {owner}");
        }
        Ok(())
    }

    fn validate_numbers(&self, node: &Node) -> Result<(), String> {
        ensure!(node.czxid <= node.mzxid && node.mzxid <= self.zxid, "czxid {}, mzxid {}", node.czxid, node.mzxid);
        let pzxid = node.pzxid();
        ensure!(node.czxid <= pzxid && pzxid <= self.zxid, "czxid {}, pzxid {pzxid}", node.czxid);
        ensure!(
            node.ctime_ms <= node.mtime_ms && node.mtime_ms <= self.clock_ms,
            "times {} {}",
            node.ctime_ms,
            node.mtime_ms
        );
        ensure!(node.version != -1 && node.aversion != -1, "a version of -1");
        ensure!(node.data.len() <= MAX_DATA_BYTES, "{} bytes of data", node.data.len());
        check_acl(&node.acl).map_err(|refusal| refusal.to_string())?;
        Ok(())
    }

    fn validate_children(&self, path: &NodePath, node: &Node) -> Result<(), String> {
        let (made, children) = (node.children_made(), node.children());
        ensure!(children.len() as u64 <= made, "{} children, but {made} made", children.len());
        match node.empty_since_ms() {
            Some(since) => {
                ensure!(children.is_empty() && made > 0 && since <= self.clock_ms, "said to be empty since {since}")
            }
            None => ensure!(made == 0 || !children.is_empty(), "not known since when it is empty"),
        }
        let mut queue = Queue::default();
        // Only names that end in a sequence count in a queue.
        for at in children.iter().filter(|at| sequence_of(at.name()).is_some()) {
            let child = self.tree.get(at).ok_or_else(|| format!("child {at} is not there"))?;
            queue.insert(at, child.czxid.into(), child.is_ephemeral());
        }
        ensure!(queue == *node.queue(), "its queue is {:?}, its children make {queue:?}", node.queue());
        if LockName::text_of_directory(path.as_str()).is_some() {
            self.validate_lock(node)?;
        }
        Ok(())
    }

    /// Only a request in exclusive mode, of a session, can hold more than once.
    fn validate_holds(&self) -> Result<(), String> {
        for (path, holds) in &self.tree.holds {
            let count = holds.count;
            let is_kept = (1..=MAX_HOLDS).contains(&count) && *holds != Holds::ONCE;
            ensure!(is_kept, "{path} is said to hold {count} times");
            let is_owned = self.tree.get(path).is_some_and(|node| node.owner.is_some());
            ensure!(is_owned, "{path} is said to hold {count} times, and no session owns it");
            let is_lock = path.parent().is_some_and(|directory| LockName::of_directory(&directory).is_some());
            let is_exclusive = matches!(parse_request(path.name()), Some((_, LockMode::Exclusive)));
            ensure!(is_lock && is_exclusive, "{path} is said to hold {count} times, and is no exclusive request");
        }
        Ok(())
    }

    /// In a lock's queue the counter gives the sequences, so tokens rise with them (promises P1 and P2).
    fn validate_lock(&self, node: &Node) -> Result<(), String> {
        let mut last = FencingToken(0);
        for ((sequence, path), mode) in node.queue().iter() {
            let (name, child) = (path.name(), self.tree.get(path).ok_or("a request is not there")?);
            ensure!(*sequence < node.children_made(), "{name} has a sequence that was never given");
            ensure!(node.queue().mismatch(mode).is_none(), "{name} stands in a queue of another kind");
            if is_delay(name) {
                // It has the sequence of an older request, and holds nothing.
                ensure!(child.owner.is_none() && child.deadline_ms().is_some(), "the delay {name} never ends");
                continue;
            }
            let token = FencingToken::from(child.czxid);
            ensure!(last < token, "{name} has token {token}, after {last}");
            last = token;
        }
        Ok(())
    }

    /// Nodes of one request share their token, and there is at most one of them in each queue.
    fn validate_requests(&self, session: &Session) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for path in &session.ephemerals {
            let is_lock = |directory: &&str| LockName::text_of_directory(directory).is_some();
            let Some(directory) = path.parent_str().filter(is_lock) else { continue };
            let Some(node) = self.tree.get(path).filter(|_| parse_name(path.name()).is_some()) else { continue };
            ensure!(seen.insert((directory, node.czxid)), "{path} shares its token with another in the same queue");
        }
        Ok(())
    }

    fn validate_session(&self, id: SessionId, session: &Session) -> Result<(), String> {
        ensure!(Zxid(id.0) <= self.zxid && id.0 > 0, "it has yet to be opened");
        ensure!(session.opened_ms <= self.clock_ms, "it opened in the future");
        ensure!((Zxid(id.0)..=self.zxid).contains(&session.acted), "it acted at {}", session.acted);
        let attachment = session.attachment;
        ensure!((Zxid(id.0)..=session.acted).contains(&attachment), "it was attached at {attachment}");
        ensure!(
            (MIN_SESSION_TIMEOUT_MS..=MAX_SESSION_TIMEOUT_MS).contains(&session.timeout_ms),
            "its timeout is {}",
            session.timeout_ms
        );
        self.validate_requests(session)?;
        for path in &session.ephemerals {
            let owner = self.tree.get(path).and_then(|node| node.owner);
            ensure!(owner == Some(id), "it lists {path}, which is owned by {owner:?}");
        }
        let memory = &session.memory;
        for of_lock in [false, true] {
            let of_kind = || memory.answers.values().filter(|answer| answer.of_lock == of_lock);
            let (count, bytes): (_, u64) =
                (of_kind().count(), of_kind().map(|answer| size::of_remembered(answer)).sum());
            let counted = memory.bytes_of(of_lock);
            ensure!(bytes == counted, "its memory takes {bytes} bytes, not {counted}");
            ensure!(bytes <= MAX_REMEMBERED_BYTES || count == 1, "its {count} replies take {bytes} bytes");
            ensure!(count == memory.count(of_lock), "it counts {} replies, not {count}", memory.count(of_lock));
            ensure!(count <= MAX_REMEMBERED_REPLIES, "it remembers {count} replies");
        }
        let by_age: BTreeSet<_> = memory.by_age.iter().map(|(age, id)| (*age, *id)).collect();
        let answers: BTreeSet<_> =
            memory.answers.iter().map(|(id, answer)| ((answer.of_lock, answer.age), *id)).collect();
        ensure!(by_age == answers, "its memory is not in order");
        Ok(())
    }

    fn validate_origins(&self) -> Result<(), String> {
        for (node, recent) in &self.origins {
            ensure!((1..=MAX_BATCHES_IN_FLIGHT).contains(&recent.len()), "of node {node} are {} batches", recent.len());
            let rising = |pair: &[Applied]| {
                let (one, next) = (pair[0].origin, pair[1].origin);
                one.incarnation == next.incarnation && one.sequence < next.sequence
            };
            ensure!(recent.windows(2).all(rising), "the batches of node {node} are out of order");
            for applied in recent.iter() {
                ensure!(applied.origin.node == *node, "the origin of node {node} is {:?}", applied.origin);
                for outcome in applied.outcomes.iter() {
                    ensure!(outcome.events.is_empty(), "a batch of node {node} kept its events");
                    ensure!(outcome.zxid <= self.zxid, "a batch of node {node} is of the future");
                }
            }
        }
        Ok(())
    }
}
