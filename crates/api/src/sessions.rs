//! Sessions: open, keep alive, look at, close.

use serde::{Deserialize, Serialize};

use crate::level::Level;

/// `POST /v1/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// How long the session lives without a sign of life, in milliseconds. The server clamps it to its limits and says
    /// what it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// Who this is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The answer to [`OpenSession`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionOpened {
    /// The session.
    pub session_id: u64,
    /// What goes into the `Lockkeeper-Session` header: `<id>.<secret>`. It is shown this once.
    pub credential: String,
    /// The timeout that holds, in milliseconds.
    pub timeout_ms: u32,
    /// The replicated order when the session opened.
    pub zxid: u64,
    /// Where clients reach the leader, `host:port`; left out where the node does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}

/// `POST /v1/sessions/{id}/keepalive`: the cluster will not expire the session before `timeout_ms` have passed since
/// the keepalive was *sent*. Count from the sending, on a monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeptAlive {
    /// The session.
    pub session_id: u64,
    /// Its timeout in milliseconds.
    pub timeout_ms: u32,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// `GET /v1/sessions/{id}`; needs no secret and shows none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// The session.
    pub session_id: u64,
    /// Its timeout in milliseconds.
    pub timeout_ms: u32,
    /// The principal to which it belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Who it is.
    pub label: String,
    /// When it was opened, in milliseconds since 1970 by the replicated clock.
    pub opened_ms: u64,
    /// Age in milliseconds of its last sign of life, as the node that answers knows it. Left out where it knows none:
    /// front nodes, and a node for some time after its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// How long it lives, in milliseconds, if nothing more is heard of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// How many ephemeral nodes it owns.
    pub ephemeral_count: u64,
    /// The first of them (at most 100).
    pub ephemerals: Vec<String>,
}

/// `GET /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sessions {
    /// In the order in which they were opened.
    pub sessions: Vec<Session>,
    /// Where the next page starts (`?after=`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// Which page of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct SessionsQuery {
    /// Sessions after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most so many, from 1 to 1,000; 100 where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}

/// The session and all it owned are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Closed {
    /// The session.
    pub session_id: u64,
    /// The zxid of its end.
    pub zxid: u64,
}
