//! Watching a path or a subtree: `GET /v1/watch?path=&recursive=&from=` as server-sent events.
//!
//! The SSE `id` of each message is its zxid, so a client that reconnects with `Last-Event-ID` (or `from`) misses
//! nothing. Message names: `change` ([`Change`]), `bookmark` ([`Bookmark`]), and, as the last one, `compacted` (a
//! [`Problem`](crate::Problem)).

use serde::{Deserialize, Serialize};

/// What happened at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The node came to be.
    Created,
    /// The node went.
    Deleted,
    /// Its data was set.
    DataChanged,
    /// A child came or went (not in recursive watches, which see the child itself).
    ChildrenChanged,
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// When, in the replicated order.
    pub zxid: u64,
    /// What.
    pub kind: ChangeKind,
    /// Where.
    pub path: String,
}

/// Nothing more happened up to this zxid: resume from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bookmark {
    /// The zxid.
    pub zxid: u64,
}
