//! A transaction being carried out: its zxid, its events, and the basic changes that every operation is made of.
//!
//! An operation must find every reason for a refusal before its first change; only a multi is rolled back.

use std::sync::Arc;

use imbl::OrdMap;
use lockkeeper_mutants::{invariant, mutant};

use super::State;
use super::access::Access;
use super::session::Session;
use super::size;
use super::tree::{Node, Tree};
use crate::access::{Need, Rights};
use crate::acl::{AclEntry, Permissions};
use crate::command::Actor;
use crate::event::{Event, NodeEventKind};
use crate::ids::{SessionId, Zxid};
use crate::path::NodePath;
use crate::reply::{Outcome, Refusal, Reply};
use crate::rules::Rules;

/// Borrows the parts of the state that a transaction may change.
pub(crate) struct Transaction<'a> {
    pub(crate) zxid: Zxid,
    pub(crate) clock_ms: u64,
    pub(crate) tree: &'a mut Tree,
    pub(crate) sessions: &'a mut OrdMap<SessionId, Arc<Session>>,
    pub(crate) session_bytes: &'a mut u64,
    pub(crate) remembered_bytes: &'a mut u64,
    pub(crate) access: &'a mut Access,
    pub(crate) events: Vec<Event>,
    /// Whether it changed anything, and so takes a zxid.
    pub(crate) changed: bool,
    /// The caller whose rights are checked; `None` for the cluster itself.
    pub(crate) who: Option<&'a Actor>,
    /// The configured bounds.
    pub(crate) rules: &'a Rules,
}

/// The state before, for a rollback.
pub(crate) struct Savepoint {
    tree: Tree,
    sessions: OrdMap<SessionId, Arc<Session>>,
    events: usize,
    changed: bool,
}

impl State {
    /// Runs one transaction of the cluster itself. It takes the next zxid if, and only if, it changes something.
    pub(crate) fn transact(&mut self, work: impl FnOnce(&mut Transaction<'_>) -> Result<Reply, Refusal>) -> Outcome {
        self.transact_as(None, &Rules::default(), work)
    }

    /// Runs one transaction of a caller.
    pub(crate) fn transact_as(
        &mut self,
        who: Option<&Actor>,
        rules: &Rules,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<Reply, Refusal>,
    ) -> Outcome {
        let mut transaction = Transaction {
            zxid: Zxid(self.zxid.0 + 1),
            clock_ms: self.clock_ms,
            tree: &mut self.tree,
            sessions: &mut self.sessions,
            session_bytes: &mut self.session_bytes,
            remembered_bytes: &mut self.remembered_bytes,
            access: &mut self.access,
            events: Vec::new(),
            changed: false,
            who,
            rules,
        };
        let reply = work(&mut transaction);
        let Transaction { zxid, events, changed, .. } = transaction;
        assert!(reply.is_ok() || !changed, "a refused operation changed the state");
        invariant!(changed || events.is_empty(), "a transaction without a change has no events");
        if changed {
            self.zxid = zxid;
        }
        Outcome { zxid: self.zxid, reply, changed, events }
    }
}

impl Transaction<'_> {
    /// Checks that the node's access control list allows this to the caller.
    pub(crate) fn check_access(&self, path: &NodePath, node: &Node, wanted: Permissions) -> Result<(), Refusal> {
        match self.who {
            Some(who) if !who.principals.may(wanted, &node.acl) => Err(Refusal::NoAuth { path: path.clone(), wanted }),
            _ => Ok(()),
        }
    }

    /// Whether the caller may take this from another session: by the configuration of its node, and by its roles.
    pub(crate) fn may_force(&self, path: &NodePath) -> bool {
        self.who.is_none_or(|actor| {
            let need = Need::at(path, Rights::FORCE);
            actor.may_force && self.access.allows(&actor.principals, self.clock_ms, &need)
        })
    }

    fn publish(&mut self, kind: NodeEventKind, path: &NodePath, acl: Arc<[AclEntry]>) {
        self.events.push(Event::Node { zxid: self.zxid, kind, path: path.clone(), acl });
    }

    /// The same for an existing node.
    fn publish_of(&mut self, kind: NodeEventKind, path: &NodePath) {
        if let Some(acl) = self.tree.get(path).map(|node| node.acl.clone()) {
            self.publish(kind, path, acl);
        }
    }

    fn publish_parent(&mut self, path: &NodePath) {
        if let Some(parent) = path.parent() {
            self.publish_of(NodeEventKind::ChildrenChanged, &parent);
        }
    }

    /// Creates a node; everything has been checked.
    pub(crate) fn create(&mut self, path: &NodePath, mut node: Node) {
        self.changed = true;
        (node.czxid, node.mzxid) = (self.zxid, self.zxid);
        (node.ctime_ms, node.mtime_ms) = (self.clock_ms, self.clock_ms);
        if let Some(owner) = node.owner {
            invariant!(owner.0 < self.zxid.0, "a session is older than the nodes it owns");
            self.change_session(owner, |session| {
                session.ephemerals.insert(path.clone());
            });
        }
        let acl = node.acl.clone();
        self.tree.attach(path, node, self.zxid);
        self.publish(NodeEventKind::Created, path, acl);
        self.publish_parent(path);
    }

    /// The access control list of a node that the service creates: that of its directory. The root's list is for
    /// nodes that clients create there.
    pub(crate) fn inherited_acl(&self, directory: &NodePath) -> Arc<[AclEntry]> {
        match self.tree.get(directory).filter(|_| !directory.is_root()) {
            Some(node) => node.acl.clone(),
            None => self.tree.share_acl(&[AclEntry::open()]),
        }
    }

    /// Deletes a node; everything has been checked.
    pub(crate) fn remove(&mut self, path: &NodePath) {
        let Some(node) = self.tree.detach(path, self.zxid, self.clock_ms) else { return };
        self.changed = true;
        if let Some(owner) = node.owner {
            self.change_session(owner, |session| {
                invariant!(session.ephemerals.remove(path).is_some(), "a session lists each node it owns");
            });
        }
        self.publish(NodeEventKind::Deleted, path, node.acl.clone());
        self.publish_parent(path);
    }

    /// Deletes everything that an ended session owned. The nodes of one directory are deleted together, and the
    /// directory changes once.
    ///
    /// This happens at once. The alternative, to mark the nodes as gone and delete them little by little, would add a
    /// second kind of absence everywhere: reads, lists and counts of children, the sequence index and the blockers of
    /// queues, bounds, and snapshots and checksums (which must agree between a replica that has deleted a node and
    /// one that has not), while each watch fires now. The events, half of the remaining work, would come at this
    /// point all the same (promise P6). With `limits.ephemerals_per_session` at 10,000 there is too little to gain:
    /// see `benches/endings.rs` for the time.
    pub(super) fn remove_all(&mut self, session: &Session) {
        let left = if mutant!(LeaveNodesOfLargeSessions) { 1_000 } else { usize::MAX };
        let owned: Vec<&NodePath> = session.ephemerals.iter().take(left).collect();
        // If each is in a directory of its own, there are two of each.
        self.events.reserve(2 * owned.len() + 1);
        for siblings in owned.chunk_by(|a, b| a.directory() == b.directory()) {
            let gone = self.tree.detach_siblings(siblings, self.zxid, self.clock_ms);
            invariant!(gone.is_some(), "a node that a session lists is there");
            let Some(gone) = gone else { continue };
            for (path, node) in siblings.iter().zip(gone.nodes) {
                self.publish(NodeEventKind::Deleted, path, node.acl.clone());
            }
            self.publish(NodeEventKind::ChildrenChanged, &gone.directory, gone.acl);
        }
    }

    /// Renames a node within its directory. It stays the same node: only the directory's stat changes.
    pub(crate) fn rename(&mut self, from: &NodePath, to: &NodePath) {
        let Some(node) = self.tree.detach(from, self.zxid, self.clock_ms) else { return };
        self.changed = true;
        if let Some(owner) = node.owner {
            self.change_session(owner, |session| {
                invariant!(session.ephemerals.remove(from).is_some(), "a session lists each node it owns");
                session.ephemerals.insert(to.clone());
            });
        }
        let acl = node.acl.clone();
        self.tree.attach(to, Arc::unwrap_or_clone(node), self.zxid);
        self.publish(NodeEventKind::Deleted, from, acl.clone());
        self.publish(NodeEventKind::Created, to, acl);
        self.publish_parent(to);
    }

    /// Changes a node in place.
    pub(crate) fn change(&mut self, path: &NodePath, change: impl FnOnce(&mut Node)) {
        self.changed = true;
        self.tree.update(path, change);
    }

    /// Adds the event of changed data.
    pub(crate) fn publish_data_changed(&mut self, path: &NodePath) {
        self.publish_of(NodeEventKind::DataChanged, path);
    }

    fn change_session(&mut self, id: SessionId, change: impl FnOnce(&mut Session)) {
        let session = self.sessions.get_mut(&id);
        invariant!(session.is_some(), "the session that owns a node is open");
        if let Some(session) = session {
            change(Arc::make_mut(session));
        }
    }

    /// Opens a session whose id is this transaction's zxid.
    pub(crate) fn open_session(&mut self, session: Session) -> SessionId {
        self.changed = true;
        let id = SessionId(self.zxid.0);
        let timeout_ms = session.timeout_ms;
        *self.session_bytes += size::of_session(&session);
        self.tree.namespaces.add_session(session.namespace.as_deref(), id);
        let same = self.sessions.insert(id, Arc::new(session));
        invariant!(same.is_none(), "no session id is given twice");
        self.events.push(Event::SessionOpened { zxid: self.zxid, session: id, timeout_ms });
        id
    }

    /// Attaches a session to another connection.
    pub(crate) fn attach_session(&mut self, id: SessionId) -> Result<Reply, Refusal> {
        let timeout_ms = self.sessions.get(&id).ok_or(Refusal::SessionExpired(id))?.timeout_ms;
        let attachment = self.zxid;
        self.changed = true;
        self.change_session(id, |session| {
            invariant!(session.attachment < attachment, "an attachment is newer than the one before");
            (session.attachment, session.acted) = (attachment, attachment);
        });
        self.events.push(Event::SessionAttached { zxid: attachment, session: id });
        Ok(Reply::SessionAttached { attachment, timeout_ms })
    }

    /// Saves the state for a rollback. O(1).
    pub(crate) fn save(&self) -> Savepoint {
        Savepoint {
            tree: self.tree.clone(),
            sessions: self.sessions.clone(),
            events: self.events.len(),
            changed: self.changed,
        }
    }

    /// Restores the saved state.
    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        *self.tree = to.tree;
        *self.sessions = to.sessions;
        self.events.truncate(to.events);
        self.changed = to.changed;
    }
}
