//! What the state takes in memory, as a number that every replica computes alike: an estimate, made of what is stored and of a fixed
//! overhead for each thing that stores it. Kept up with each change, never counted afresh but in `validate`.
//!
//! The answers that each node's last batch was given are not part of it: there is one batch a node, and its size is bounded.

use super::State;
use super::session::{Remembered, Session};
use super::tree::Node;
use crate::acl::AclEntry;
use crate::gate::GateStanding;
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

/// A node without its path, its name, its data and its list: the record, its entries in maps, and what allocation adds.
const NODE: usize = 512;
/// An entry of a list without its texts.
const ENTRY: usize = 64;
/// A session without its label and what it remembers.
const SESSION: usize = 512;
/// A remembered reply without the texts in it.
const REPLY: usize = 320;
/// An answer of its own within the reply to a transaction.
const PART: usize = 128;

/// What a node takes.
pub(crate) fn of_node(path: &NodePath, node: &Node) -> u64 {
    of_new(path.as_str().len(), path.name().len(), node.data.len()) + of_acl(&node.acl)
}

/// What a node with the usual list takes, by the bytes of its path, its name and its data.
pub(crate) fn of_new(path: usize, name: usize, data: usize) -> u64 {
    (NODE + path + name + data) as u64
}

/// The list that nearly every node has is shared by all of them.
pub(crate) fn of_acl(acl: &[AclEntry]) -> u64 {
    let is_shared = matches!(acl, [only] if only.is_open());
    let own = acl.iter().filter(|_| !is_shared);
    own.map(|entry| (ENTRY + entry.scheme.len() + entry.id.len()) as u64).sum()
}

/// What a session takes, without what it remembers.
pub(crate) fn of_session(session: &Session) -> u64 {
    (SESSION + session.label.len()) as u64
}

/// What a remembered reply takes.
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
        Reply::Created { path, .. } | Reply::Downgraded { path } => path.as_str().len(),
        Reply::Queued { paths, .. } => paths.iter().map(|path| path.as_str().len()).sum(),
        Reply::Multi(parts) => parts.iter().map(|part| PART + of_reply(part)).sum(),
        Reply::Gate(GateStanding::Done { result, .. }) => result.len(),
        _ => 0,
    }
}

impl State {
    /// What the state takes in memory, in bytes: an estimate that is the same on every replica.
    pub fn bytes(&self) -> u64 {
        self.tree.bytes.saturating_add(self.session_bytes).saturating_add(self.remembered_bytes)
    }
}
