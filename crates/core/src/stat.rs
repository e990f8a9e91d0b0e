//! A node's `Stat`, field by field as ZooKeeper has it.

use serde::{Deserialize, Serialize};

use crate::command::NodeKind;
use crate::ids::{SessionId, Zxid};

/// ZooKeeper's `Stat`. Times are milliseconds of the replicated clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Transaction that created the node; a lock request's fencing token.
    pub czxid: Zxid,
    /// Transaction that last set the data.
    pub mzxid: Zxid,
    /// Transaction that last added or removed a child.
    pub pzxid: Zxid,
    /// Time of creation.
    pub ctime_ms: u64,
    /// Time of the last change of data.
    pub mtime_ms: u64,
    /// Changes of data; skips −1, which means "any" in a request.
    pub version: i32,
    /// Changes of the list of children (creations and deletions).
    pub cversion: i32,
    /// Changes of the ACL.
    pub aversion: i32,
    /// The session that owns an ephemeral node.
    pub ephemeral_owner: Option<SessionId>,
    /// Length of the data in bytes.
    pub data_length: u32,
    /// Number of children.
    pub num_children: u32,
    /// The node's lifetime, which ZooKeeper shows in the owner field of nodes without an owner.
    pub kind: NodeKind,
}
