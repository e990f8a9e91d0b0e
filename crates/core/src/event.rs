//! What watchers are told. Events come in zxid order, and within one zxid in the order in which the transaction made them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::acl::AclEntry;
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::path::NodePath;

/// Something that happened to the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Something happened at a path.
    Node {
        /// When, in the replicated order.
        zxid: Zxid,
        /// What.
        kind: NodeEventKind,
        /// Where.
        path: NodePath,
        /// The node's access control list, of a node that went its last: whoever may not read it is not to be told (ZooKeeper since
        /// 3.9.2, CVE-2024-23944).
        acl: Arc<[AclEntry]>,
    },
    /// A lock request, a kept place or a gate was deleted by somebody to whom it does not belong; its deletion, with the same zxid,
    /// comes before this.
    ForcedDeletion {
        /// When.
        zxid: Zxid,
        /// Which node.
        path: NodePath,
        /// Its token.
        token: FencingToken,
    },
    /// A session opened.
    SessionOpened {
        /// When.
        zxid: Zxid,
        /// Which.
        session: SessionId,
        /// Its timeout.
        timeout_ms: u32,
    },
    /// A session is tied to another connection than before.
    SessionAttached {
        /// When; it names the tie.
        zxid: Zxid,
        /// Which.
        session: SessionId,
    },
    /// A session ended; the deletions of its ephemerals, with the same zxid, come before this.
    SessionEnded {
        /// When.
        zxid: Zxid,
        /// Which.
        session: SessionId,
        /// Why.
        cause: SessionEnd,
    },
}

/// What happened at a path. A creation or deletion also gives the parent a `ChildrenChanged`, after it; where a session ends, what it
/// owned in one directory gives one, after the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeEventKind {
    /// The node came to be.
    Created,
    /// The node went.
    Deleted,
    /// Its data was set.
    DataChanged,
    /// A child came or went.
    ChildrenChanged,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was silent for too long.
    Expired,
}
