//! The replicated state. [`State::apply`] is the only way to change it.
//!
//! All of it is in persistent maps: cloning a state of a million nodes costs a few reference counts, so a snapshot is
//! built from a clone while the original changes. Nothing here may depend on anything but the log.

mod access;
mod apply;
mod arguments;
mod authorise;
mod bounds;
mod children;
mod counters;
mod delays;
mod gates;
mod lock_queue;
mod locks;
mod namespaces;
mod new_cluster;
mod nodes;
mod ops;
mod owned_nodes;
mod rates;
mod session;
mod session_end;
pub(crate) mod size;
mod standing;
#[cfg(test)]
mod tests;
mod token_uses;
mod transaction;
mod tree;
mod validate;
mod views;

use std::sync::Arc;

use imbl::OrdMap;

use crate::command::Origin;
use crate::feature::FeatureLevel;
use crate::ids::{ClusterUid, NodeId, SessionId, Zxid};
use crate::reply::Outcome;

pub use access::{Access, Role, Token};
pub use new_cluster::{SEQUENCE_GAP, ZXID_GAP, ZxidsUsedUp};
pub use rates::{RatePage, RateView};
pub(crate) use session::Remembered;
pub use session::Session;
pub use standing::Standing;
pub(crate) use tree::{Holds, Node, Tree};
pub use views::{LockRequest, LockSummary, LockView, NodeView};

/// Everything that is replicated. `Clone` is O(1).
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub(crate) zxid: Zxid,
    pub(crate) clock_ms: u64,
    pub(crate) tree: Tree,
    pub(crate) sessions: OrdMap<SessionId, Arc<Session>>,
    /// The memory of the sessions, without their remembered replies.
    pub(crate) session_bytes: u64,
    /// The memory of the remembered replies. They have a bound per session and take no room from others.
    pub(crate) remembered_bytes: u64,
    pub(crate) access: Access,
    /// The last batches of each node, oldest first: at least one, at most `MAX_BATCHES_IN_FLIGHT`.
    pub(crate) origins: OrdMap<NodeId, Arc<[Applied]>>,
    pub(crate) feature_level: FeatureLevel,
    pub(crate) cluster_uid: Option<ClusterUid>,
}

/// A batch that was applied, and its outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The batch.
    pub origin: Origin,
    /// Without events: only the first application has them.
    pub outcomes: Arc<[Outcome]>,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// A root without children, and no sessions.
    pub fn new() -> Self {
        Self {
            zxid: Zxid(0),
            clock_ms: 0,
            tree: Tree::new(),
            sessions: OrdMap::new(),
            session_bytes: 0,
            remembered_bytes: 0,
            access: Access::default(),
            origins: OrdMap::new(),
            feature_level: FeatureLevel::FIRST,
            cluster_uid: None,
        }
    }
}
