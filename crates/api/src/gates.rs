//! Idempotency gates: one run of an operation, whatever number of times it is asked for.
//!
//! `begin` → *proceed* with a token, or *in progress* elsewhere, or *done* with the stored result; `finish` stores the
//! result for a while; `fail` opens the gate again. A gate whose worker is gone opens when its session ends or its
//! pending time is over.

use serde::{Deserialize, Serialize};

use crate::Data;

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
        /// Until when the result is kept.
        until_ms: u64,
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
