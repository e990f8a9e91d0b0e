//! Checks the configured bounds ([`Rules`](crate::Rules)) before anything is changed: how many ephemeral nodes a
//! session may own, and how large the state may grow.
//!
//! Nothing that frees something is ever refused here: deletions, releases, ends of sessions, and their consequences.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_mutants::mutant;

use super::State;
use super::namespaces::Added;
use super::session::Session;
use super::size;
use super::transaction::Transaction;
use super::tree::Node;
use crate::acl::AclEntry;
use crate::command::{Actor, Op};
use crate::gate::GateKey;
use crate::ids::SessionId;
use crate::limits::MAX_GATE_RESULT_BYTES;
use crate::lock::{Request, SEQUENCE_DIGITS};
use crate::path::NodePath;
use crate::reply::Refusal;
use crate::rules::Rules;

/// What adds to the state. Locks may use a tenth more than the bound, so that a state full of data does not stop
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adds {
    /// Anything else.
    Data,
    /// Sessions, lock requests and gates.
    Lock,
}

/// What a gate grows by at most when it is finished: its result, and numbers of its record.
pub(crate) const LARGEST_RESULT: u64 = MAX_GATE_RESULT_BYTES as u64 + 32;

/// Refuses to add to a state that holds so much already, remembered replies aside.
fn check_room(rules: &Rules, bytes: u64, added: u64, adds: Adds) -> Result<(), Refusal> {
    let limit = rules.max_state_bytes;
    let most = match adds {
        Adds::Data => limit,
        Adds::Lock => limit.saturating_add(limit / 10),
    };
    if added > 0 && bytes.saturating_add(added) > most {
        return Err(Refusal::StateFull { bytes, limit });
    }
    Ok(())
}

impl State {
    /// The refusal of an operation for which there is no room, as of this state. Nodes ask first, so that clients which
    /// repeat what is refused take no room in the log. `None` is no promise: the state decides when it applies the
    /// operation.
    pub fn full_for(&self, actor: &Actor, rules: &Rules, op: &Op) -> Option<Refusal> {
        if !self.may_be_full_for(actor, rules, op) {
            return None;
        }
        // On a clone, which costs little, so that an answer from memory comes before any refusal.
        self.clone().perform(actor, rules, op).reply.err().filter(is_full)
    }

    /// Whether there may be no room for an operation. This costs little, and is at worst true too early.
    pub fn may_be_full_for(&self, actor: &Actor, rules: &Rules, op: &Op) -> bool {
        /// More than a node takes beside its data, its missing parents included.
        const BESIDE_DATA: usize = 64 * 1024;
        let (added, bytes) =
            op.data_added().fold((0, 0), |(added, bytes), data| (added + 1, bytes + data + BESIDE_DATA));
        let owner = actor.session.filter(|_| added > 0).and_then(|id| self.sessions.get(&id));
        let owned = owner.map_or(0, |session| session.ephemerals.len());
        added > 0
            && (self.bytes().saturating_add(bytes as u64) > rules.max_state_bytes
                || owned + added > rules.ephemerals() as usize)
            || self.is_limited(op)
    }

    /// Whether there is room for the largest result of a gate, if that is open and its work would be done, beside the
    /// largest results of all work that is under way: a result is not refused once its work is done.
    ///
    /// # Errors
    /// There is not.
    pub fn check_room_for_result(&self, rules: &Rules, key: &GateKey) -> Result<(), Refusal> {
        // Why nothing can be a gate there is for the beginning to say.
        if !matches!(self.gate(key), Ok(None)) {
            return Ok(());
        }
        let to_come = LARGEST_RESULT.saturating_mul(self.tree.pending_gates as u64);
        let bytes = self.tree.bytes.saturating_add(self.session_bytes).saturating_add(to_come);
        check_room(rules, bytes, LARGEST_RESULT, Adds::Lock)
    }
}

/// Whether it says that there is no room at the moment.
pub(crate) fn is_full(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::StateFull { .. } | Refusal::NamespaceFull { .. } | Refusal::TooManyEphemerals { .. } => true,
        Refusal::MultiFailed { cause, .. } => is_full(cause),
        _ => false,
    }
}

impl Transaction<'_> {
    /// Refuses to add `bytes` to a full state. Remembered replies do not count: they have a bound of their own, and
    /// requests that change nothing must not fill the state.
    pub(crate) fn check_room(&self, added: u64, adds: Adds) -> Result<(), Refusal> {
        check_room(self.rules, self.tree.bytes.saturating_add(*self.session_bytes), added, adds)
    }

    /// Checks before a session opens.
    pub(crate) fn check_new_session(&self, session: &Session) -> Result<(), Refusal> {
        self.tree.namespaces.check(session.namespace.as_deref(), &Added::session())?;
        self.check_room(size::of_session(session), Adds::Lock)
    }

    /// Refuses a session more ephemeral nodes than it may own.
    fn check_ephemerals(&self, session: SessionId, added: usize) -> Result<(), Refusal> {
        let Some(known) = self.sessions.get(&session) else { return Ok(()) };
        let (owned, limit) = (known.ephemerals.len(), self.rules.ephemerals());
        if owned + added > limit as usize && !mutant!(NoEphemeralBound) {
            return Err(Refusal::TooManyEphemerals { session, owned: owned as u32, limit });
        }
        Ok(())
    }

    /// Checks before a node is created in an existing directory.
    pub(crate) fn check_new(&self, path: &NodePath, node: &Node, adds: Adds) -> Result<(), Refusal> {
        if let Some(owner) = node.owner {
            self.check_ephemerals(owner, 1)?;
        }
        self.check_namespace(path, &Added::node(path, node))?;
        self.check_room(size::of_node(path, node), adds)
    }

    /// Checks before a node grows.
    pub(crate) fn check_growth(&self, path: &NodePath, bytes: u64) -> Result<(), Refusal> {
        self.check_namespace(path, &Added { bytes, ..Added::default() })?;
        self.check_room(bytes, Adds::Data)
    }

    /// Checks before a gate is begun, or a bucket is stored; directories may be missing.
    pub(crate) fn check_new_below(&self, path: &NodePath, node: &Node, adds: Adds) -> Result<(), Refusal> {
        let old = self.tree.get(path);
        if let Some(owner) = node.owner.filter(|owner| old.is_none_or(|old| old.owner != Some(*owner))) {
            self.check_ephemerals(owner, 1)?;
        }
        let mut missing = BTreeMap::new();
        self.add_missing(path.parent(), &mut missing);
        let gate = Added::node(path, node).in_place_of(path, old);
        let added = gate.bytes + missing.values().sum::<u64>();
        self.check_namespaces(directories(missing).chain([(path.clone(), gate)]))?;
        self.check_room(added, adds)
    }

    /// Checks before the nodes of a lock request, and missing directories, are created.
    pub(crate) fn check_lock_request(&self, session: SessionId, request: &Request<'_>) -> Result<(), Refusal> {
        self.check_ephemerals(session, request.locks.len())?;
        let name_bytes = request.form.prefix(request.uuid).len() + SEQUENCE_DIGITS;
        let (mut missing, mut nodes) = (BTreeMap::new(), Vec::with_capacity(request.locks.len()));
        for lock in request.locks {
            let directory = lock.directory();
            let own = size::of_new(directory.as_str().len() + 1 + name_bytes, name_bytes, request.label.len());
            let bytes = own + self.add_missing(Some(directory.clone()), &mut missing);
            let added = Added { session: Some(session), lock_requests: 1, nodes: 1, bytes, ..Added::default() };
            nodes.push((directory, added));
        }
        let added = nodes.iter().map(|(_, added)| added.bytes).sum::<u64>() + missing.values().sum::<u64>();
        self.check_namespaces(directories(missing).chain(nodes))?;
        self.check_room(added, Adds::Lock)
    }

    /// Adds the missing directories, with the size of each. Gives the size of the access control list that a node
    /// below them inherits.
    fn add_missing(&self, directory: Option<NodePath>, missing: &mut BTreeMap<NodePath, u64>) -> u64 {
        let Some(directory) = directory else { return 0 };
        let of_list = match self.tree.get(&directory) {
            Some(_) => size::of_acl(&self.inherited_acl(&directory)),
            None => size::of_acl(&self.acl_above(&directory)),
        };
        let mut above = Some(directory);
        while let Some(path) = above.filter(|path| !self.tree.contains(path)) {
            above = path.parent();
            let bytes = size::of_new(path.as_str().len(), path.name().len(), 0) + of_list;
            missing.insert(path, bytes);
        }
        of_list
    }

    /// The access control list that a node made by the service inherits here, once the missing directories exist.
    pub(crate) fn acl_above(&self, path: &NodePath) -> Arc<[AclEntry]> {
        let mut above = path.parent();
        while let Some(directory) = above.as_ref().filter(|directory| !self.tree.contains(directory)) {
            above = directory.parent();
        }
        self.inherited_acl(&above.unwrap_or_else(NodePath::root))
    }
}

/// Missing directories as what is added to their namespaces.
fn directories(missing: BTreeMap<NodePath, u64>) -> impl Iterator<Item = (NodePath, Added)> {
    missing.into_iter().map(|(path, bytes)| (path, Added { nodes: 1, bytes, ..Added::default() }))
}
