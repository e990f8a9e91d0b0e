//! Events for watchers. They come in zxid order, and within one zxid in the order in which the transaction made them.

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
        /// For a deleted node, its last access control list: a caller that may not read the node gets no event
        /// (ZooKeeper since 3.9.2, CVE-2024-23944).
        acl: Arc<[AclEntry]>,
    },
    /// A session other than the owner deleted a lock request, a kept place or a gate. The deletion, with the same
    /// zxid, comes before this event.
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
    /// A session was attached to another connection.
    SessionAttached {
        /// When: the new attachment.
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

/// What happened at a path. A `ChildrenChanged` of the parent follows each creation or deletion. When a session ends,
/// each directory gets one `ChildrenChanged`, after the last deletion in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeEventKind {
    /// The node was created.
    Created,
    /// The node was deleted.
    Deleted,
    /// Its data was set.
    DataChanged,
    /// A child was created or deleted.
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
