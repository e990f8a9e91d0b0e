//! Idempotency gates: one run of an operation, whatever number of times it is asked for.
//!
//! `begin` → *proceed* with a token, or *in progress* elsewhere, or *done* with the stored result; `finish` stores the
//! result for a while; `fail` opens the gate again. A gate whose worker is gone opens when its session ends or its
//! pending time is over.

use serde::{Deserialize, Serialize};

use crate::Data;
use crate::level::Level;

/// `POST /v1/gates/{key}/begin`. With the `Lockkeeper-Session` header the gate opens again when that session ends;
/// without it only the pending time frees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// What the operation is, such as a hash of its arguments; at most 256 bytes. Another one under the same key is
    /// refused.
    pub fingerprint: String,
    /// How long the work may take before another may begin it, in milliseconds; from 1 to 24 hours' worth. One minute
    /// where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_ms: Option<u64>,
    /// Who works, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// `forever` if `finish` is to keep the result for ever. Where that is not possible, `begin` is refused, before the
    /// work is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// The `keep_ms` that `finish` is to have: a time that it would refuse is refused before the work is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
}

/// How a gate stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Gate {
    /// The caller must do the work. Only in the answer to `begin`.
    Proceed {
        /// Goes with `finish` and `fail`; a fencing token for what the work touches.
        token: u64,
        /// From when on another may begin it, in milliseconds since 1970 by the replicated clock.
        until_ms: u64,
    },
    /// Another caller does the work.
    InProgress {
        /// With this token.
        token: u64,
        /// Whose session it is, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<u64>,
        /// Who it is, for people.
        label: String,
        /// Since when, in milliseconds since 1970 by the replicated clock.
        since_ms: u64,
        /// From when on another may begin it.
        until_ms: u64,
    },
    /// The work is done.
    Done {
        /// The token under which it was done.
        token: u64,
        /// What `finish` stored.
        result: Data,
        /// When, in milliseconds since 1970 by the replicated clock.
        since_ms: u64,
        /// Until when the result is kept; missing if it is kept until the gate is reset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
    },
}

/// The answer to `begin` and to `GET /v1/gates/{key}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GateView {
    /// The key.
    pub key: String,
    /// How it stands.
    #[serde(flatten)]
    pub gate: Gate,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// `POST /v1/gates/{key}/finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// The token that `begin` gave.
    pub token: u64,
    /// What later callers are given; at most 64 KiB.
    #[serde(default)]
    pub result: Data,
    /// How long it is kept, in milliseconds; from 1 to a year's worth. A day where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// `forever` keeps it until the gate is reset, instead of `keep_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
}

/// How long a result is kept where it is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Until the gate is reset.
    Forever,
}

/// `POST /v1/gates/{key}/fail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The token that `begin` gave.
    pub token: u64,
}

/// The gate was finished or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Settled {
    /// The key.
    pub key: String,
    /// The token.
    pub token: u64,
    /// The zxid of the change.
    pub zxid: u64,
}

/// Whether the operation of a gate is under way or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// A caller does the work.
    InProgress,
    /// The work is done, and its result is kept.
    Done,
}

/// A line of `GET /v1/gates`. The result itself is left out: `GET /v1/gates/{key}` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GateSummary {
    /// The key.
    pub key: String,
    /// Whether the work is under way or done.
    pub state: GateState,
    /// The token of the run.
    pub token: u64,
    /// The worker's session, while the work is under way and if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<u64>,
    /// The principal to which that session belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The worker's label, for people.
    pub label: String,
    /// When the work was begun, or done, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// When another worker may begin, or until when the result is kept; missing if it is kept until the gate is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// The length of the kept result in bytes; missing while the work is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
}

/// `GET /v1/gates?prefix=&after=&limit=`: gates whose operation is under way or done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gates {
    /// In the order of their keys. A page may have fewer than asked for, or none, and yet a next one.
    pub gates: Vec<GateSummary>,
    /// Where the next page starts (`?after=`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// Which page of gates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct GatesQuery {
    /// Gates whose keys start with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Gates after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most so many, from 1 to 1,000; 100 where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}

/// `DELETE /v1/gates/{key}?token=`: opens the gate, whoever works or has worked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ResetQuery {
    /// Only if the operation that is under way, or the result, has this token: a later run stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// The gate was reset: the next caller does the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GateReset {
    /// The key.
    pub key: String,
    /// The token of the run that was reset.
    pub token: u64,
    /// Whether its operation was under way or done. A worker that was under way may still act.
    pub was: GateState,
    /// The zxid of the change.
    pub zxid: u64,
}
