//! How current a reading has to be.

use serde::{Deserialize, Serialize};

/// How current a reading has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Sees everything acknowledged before it began.
    #[default]
    Linearizable,
    /// This node's replica as it is.
    Stale,
}
