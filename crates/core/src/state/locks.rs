//! The lock commands (DESIGN section 5): each decides at the moment at which it is applied, so no grant is lost in between.

use std::ops::Bound;
use std::sync::Arc;

use super::apply::{bad, check_label};
use super::ops::check_sequence;
use super::read::Standing;
use super::session::Session;
use super::transaction::Transaction;
use super::tree::{Node, Tree};
use crate::acl::AclEntry;
use crate::command::{IfHolding, NodeKind};
use crate::ids::{FencingToken, RequestId, SessionId};
use crate::lock::{LockMode, LockName, parse_request, request_prefix};
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

/// How many digits end the name of a sequential node.
const SEQUENCE_DIGITS: usize = 10;

/// A request found in a queue.
pub(crate) struct Found {
    pub(crate) path: NodePath,
    pub(crate) owner: Option<SessionId>,
    pub(crate) held: bool,
}

impl Tree {
    /// The requests of a lock that carry this token; hardly ever more than one.
    pub(crate) fn requests(&self, directory: &NodePath, token: FencingToken) -> impl Iterator<Item = Found> {
        let queue = self.get(directory).map(|node| &node.queue);
        queue.into_iter().flat_map(move |queue| {
            queue.with_token(token).filter_map(|(place, mode)| {
                let path = directory.child(&place.1).ok()?;
                let owner = self.get(&path)?.owner;
                Some(Found { path, owner, held: queue.blocker(place, mode).is_none() })
            })
        })
    }
}

/// The request that a session has made under this uuid, waiting or holding.
pub(crate) fn request_of<'a>(session: &'a Session, directory: &NodePath, uuid: RequestId) -> Option<&'a NodePath> {
    let prefix = format!("{directory}/_c_{uuid}-");
    let mut own = session.ephemerals.range::<_, str>((Bound::Included(prefix.as_str()), Bound::Unbounded));
    own.by_ref().take_while(|path| path.as_str().starts_with(&prefix)).find(|path| {
        let stem = path.name().len().checked_sub(SEQUENCE_DIGITS).and_then(|end| path.name().get(..end));
        parse_request(path.name()).is_some_and(|(_, mode)| stem == Some(&request_prefix(uuid, mode)))
    })
}

impl Transaction<'_> {
    /// Enters a queue. A session that stands there already under this uuid is told so: it asks again because it lost the
    /// first answer (Curator's protection mode).
    pub(crate) fn acquire(
        &mut self,
        session: Option<SessionId>,
        lock: &LockName,
        mode: LockMode,
        uuid: RequestId,
        label: &Arc<str>,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        check_label(label)?;
        check_parts(lock)?;
        let directory = lock.directory();
        if let Some(known) = self.sessions.get(&session).and_then(|s| request_of(s, &directory, uuid)).cloned() {
            let (_, asked_before) = parse_request(known.name()).ok_or(Refusal::RequestMismatch)?;
            return if asked_before == mode { self.queued(known) } else { Err(Refusal::RequestMismatch) };
        }
        self.check_directory(&directory)?;
        self.make_directories(&directory)?;
        let acl = self.tree.share_acl(&[AclEntry::open()]);
        let node = Node::new(Arc::from(label.as_bytes()), acl, NodeKind::Ephemeral, Some(session));
        let prefix = directory.child(&request_prefix(uuid, mode)).map_err(|e| bad(e.to_string()))?;
        match self.create_checked(&prefix, true, node)? {
            Reply::Created { path, .. } => self.queued(path),
            other => Ok(other),
        }
    }

    /// Finds every reason why a request could not be made below this directory, before anything is made.
    fn check_directory(&self, directory: &NodePath) -> Result<(), Refusal> {
        let mut path = directory.clone();
        loop {
            match self.tree.get(&path) {
                Some(node) if node.is_ephemeral() => return Err(Refusal::NoChildrenForEphemerals(path)),
                Some(node) if path == *directory => return check_sequence(&path, node.children_made),
                Some(_) => return Ok(()),
                None => path = path.parent().unwrap_or_else(NodePath::root),
            }
        }
    }

    fn make_directories(&mut self, directory: &NodePath) -> Result<(), Refusal> {
        if self.tree.contains(directory) {
            return Ok(());
        }
        if let Some(parent) = directory.parent() {
            self.make_directories(&parent)?;
        }
        let acl = self.tree.share_acl(&[AclEntry::open()]);
        self.create(directory, Node::new(Arc::from([]), acl, NodeKind::Container, None));
        Ok(())
    }

    fn queued(&self, path: NodePath) -> Result<Reply, Refusal> {
        match self.tree.standing(&path) {
            Standing::Holds { token } => Ok(Reply::Queued { path, token, held: true }),
            Standing::Waits { .. } => {
                let token = self.node(&path)?.czxid.into();
                Ok(Reply::Queued { path, token, held: false })
            }
            Standing::Gone => Err(Refusal::NoNode(path)),
        }
    }

    /// Leaves the queue, or says that it is too late.
    pub(crate) fn withdraw(
        &mut self,
        session: Option<SessionId>,
        lock: &LockName,
        token: FencingToken,
        if_holding: IfHolding,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        let found = self.tree.requests(&lock.directory(), token).find(|found| found.owner == Some(session));
        let found = found.ok_or_else(|| Refusal::NotQueued { lock: lock.clone().into(), token })?;
        match (found.held, if_holding) {
            (true, IfHolding::Keep) => Ok(Reply::HeldInstead),
            (held, _) => {
                self.remove(&found.path);
                Ok(if held { Reply::Released } else { Reply::Withdrawn })
            }
        }
    }

    /// Gives a lock back.
    pub(crate) fn release(
        &mut self,
        session: Option<SessionId>,
        lock: &LockName,
        token: FencingToken,
    ) -> Result<Reply, Refusal> {
        let session = session.ok_or(Refusal::SessionRequired)?;
        let held = self.holder(lock, token, |owner| owner == Some(session))?;
        self.remove(&held.path);
        Ok(Reply::Released)
    }

    /// Takes a lock from whoever holds it with this token. A hand-made holder that is no ephemeral belongs to no session,
    /// which is said as session 0.
    pub(crate) fn force_release(&mut self, lock: &LockName, token: FencingToken) -> Result<Reply, Refusal> {
        let held = self.holder(lock, token, |_| true)?;
        if !self.node(&held.path)?.children.is_empty() {
            return Err(Refusal::NotEmpty(held.path));
        }
        self.remove(&held.path);
        Ok(Reply::ForceReleased { holder: held.owner.unwrap_or_default() })
    }

    /// Whether anybody holds the lock with this token.
    pub(crate) fn check_lock(&self, lock: &LockName, token: FencingToken) -> Result<Reply, Refusal> {
        self.holder(lock, token, |_| true).map(|_| Reply::Checked)
    }

    fn holder(
        &self,
        lock: &LockName,
        token: FencingToken,
        is_meant: impl Fn(Option<SessionId>) -> bool,
    ) -> Result<Found, Refusal> {
        let found = self.tree.requests(&lock.directory(), token).find(|found| found.held && is_meant(found.owner));
        found.ok_or_else(|| Refusal::NotHeld { lock: lock.clone().into(), token })
    }
}

/// A lock below another lock must not read as a request in that one's queue: its directory would stand there for ever.
fn check_parts(lock: &LockName) -> Result<(), Refusal> {
    let inner = lock.as_str().split('/').skip(1).find(|part| parse_request(part).is_some());
    match inner {
        None => Ok(()),
        Some(part) => {
            Err(bad(format!("'{part}' reads as a place in the queue of the lock above it; choose another name")))
        }
    }
}
