//! The configured bounds that the state obeys. The node that proposes a batch stamps it with its own configuration, so that every
//! replica, and every replay of the log, decides alike. Nothing here is ever read from a node's configuration while a batch is applied.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_EPHEMERALS_PER_SESSION;

/// What the proposing node's configuration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Most ephemeral nodes that one session owns; lock requests and pending gates are ephemeral nodes. Never more than
    /// [`MAX_EPHEMERALS_PER_SESSION`], whatever stands here.
    pub max_ephemerals_per_session: u32,
    /// Size of the state, in bytes, beyond which nothing is added to it.
    pub max_state_bytes: u64,
    /// Whether a queue that holds names of one family takes a sequential create of another.
    pub foreign_names: ForeignNames,
}

/// What a queue does with a sequential create whose name belongs to another family than those that stand there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForeignNames {
    /// Refuses it: clients of the two families do not see each other's requests, and both would hold.
    #[default]
    Refuse,
    /// Takes it.
    Allow,
}

impl Default for Rules {
    /// What a node uses whose configuration says nothing.
    fn default() -> Self {
        Self {
            max_ephemerals_per_session: 10_000,
            max_state_bytes: 1024 * 1024 * 1024,
            foreign_names: ForeignNames::Refuse,
        }
    }
}

impl Rules {
    /// How many ephemeral nodes one session may own.
    pub(crate) fn ephemerals(&self) -> u32 {
        self.max_ephemerals_per_session.min(MAX_EPHEMERALS_PER_SESSION)
    }
}
