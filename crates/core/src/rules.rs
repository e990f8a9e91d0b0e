//! The configured bounds that the state obeys. The proposing node stamps its own configuration on each batch, so that
//! every replica, and every replay of the log, decides alike. Applying a batch never reads the configuration of the
//! node that applies it.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_EPHEMERALS_PER_SESSION;

/// The bounds from the proposing node's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Most ephemeral nodes that one session may own; lock requests and pending gates are ephemeral nodes. Never more
    /// than [`MAX_EPHEMERALS_PER_SESSION`], even if this is larger.
    pub max_ephemerals_per_session: u32,
    /// Size in bytes beyond which nothing is added to the state.
    pub max_state_bytes: u64,
    /// Whether a queue with names of one family accepts a sequential create with a name of another.
    pub foreign_names: ForeignNames,
}

/// What a queue does with a sequential create whose name is of another family than those in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForeignNames {
    /// Refuses it: clients of the two families do not see each other's requests, and both would hold.
    #[default]
    Refuse,
    /// Accepts it.
    Allow,
}

impl Default for Rules {
    /// The defaults of the configuration.
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
