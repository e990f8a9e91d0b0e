//! The size of the state in memory, a number that every replica computes alike: an estimate of the stored bytes and a
//! fixed overhead for each item. Kept up to date with each change; only `validate` counts afresh.
//!
//! The outcomes of each node's last batch are not part of it: there is one batch per node, and its size is bounded.

use super::State;
use super::session::{Remembered, Session};
use super::tree::Node;
use crate::acl::{AclEntry, Identity};
use crate::gate::GateStanding;
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

/// The overhead of a node: the record, its entries in maps, and the allocations.
const NODE: usize = 512;
/// The overhead of an entry of an access control list.
const ENTRY: usize = 64;
/// The overhead of a session.
const SESSION: usize = 512;
/// The overhead of the count of a lock that is held more than once.
const HOLDS: usize = 64;
/// The overhead of a remembered reply.
const REPLY: usize = 320;
/// The overhead of one answer within the reply to a multi.
const PART: usize = 128;

/// The size of a node.
pub(crate) fn of_node(path: &NodePath, node: &Node) -> u64 {
    of_new(path.as_str().len(), path.name().len(), node.data.len()) + of_acl(&node.acl)
}

/// The size of a node with the usual access control list, from the lengths of its path, name and data.
pub(crate) fn of_new(path: usize, name: usize, data: usize) -> u64 {
    (NODE + path + name + data) as u64
}

/// Nearly all nodes share one access control list.
pub(crate) fn of_acl(acl: &[AclEntry]) -> u64 {
    let is_shared = matches!(acl, [only] if only.is_open());
    let own = acl.iter().filter(|_| !is_shared);
    own.map(|entry| (ENTRY + entry.scheme.len() + entry.id.len()) as u64).sum()
}

/// The size of the count of a lock that a session holds more than once.
pub(crate) fn of_holds(request: &NodePath) -> u64 {
    (HOLDS + request.as_str().len()) as u64
}

/// The size of a session without its remembered replies.
pub(crate) fn of_session(session: &Session) -> u64 {
    (SESSION + session.label.len()) as u64 + session.identity.as_ref().map_or(0, of_identity)
}

/// The size of the identity that a session belongs to.
pub(crate) fn of_identity(identity: &Identity) -> u64 {
    (identity.scheme.len() + identity.id.len()) as u64
}

/// The size of a remembered reply.
pub(crate) fn of_remembered(remembered: &Remembered) -> u64 {
    (REPLY + of_answer(&remembered.answer)) as u64
}

fn of_answer(answer: &Result<Reply, Refusal>) -> usize {
    match answer {
        Ok(reply) => of_reply(reply),
        Err(_) => PART,
    }
}

fn of_reply(reply: &Reply) -> usize {
    match reply {
        Reply::Created { path, .. } | Reply::Downgraded { path } | Reply::Reentered { path, .. } => path.as_str().len(),
        Reply::Queued { paths, .. } => paths.iter().map(|path| path.as_str().len()).sum(),
        Reply::Multi(parts) => parts.iter().map(|part| PART + of_reply(part)).sum(),
        Reply::Gate(GateStanding::Done { result, .. }) => result.len(),
        _ => 0,
    }
}

impl State {
    /// The size of the state in memory, in bytes: an estimate that is the same on every replica.
    pub fn bytes(&self) -> u64 {
        self.tree.bytes.saturating_add(self.session_bytes).saturating_add(self.remembered_bytes)
    }
}
