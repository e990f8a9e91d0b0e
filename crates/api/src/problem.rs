//! Errors as RFC 9457 problem documents (`application/problem+json`) with a code that programs may rely on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The cause, as a stable word. Three classes: *refused* (nothing changed; a retry gets the same answer), *try again*
/// (not executed; the cluster was not able to), *unknown* (it may or may not have been executed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// 400: the request cannot be understood, or breaks a bound.
    BadRequest,
    /// 400: the path breaks a rule.
    BadPath,
    /// 400: the ACL is empty or breaks a rule.
    InvalidAcl,
    /// 401: this needs a session (`Lockkeeper-Session`), and none was given.
    SessionRequired,
    /// 401: this needs a caller who is known, and what was shown proves nothing, or nothing was shown.
    Unauthenticated,
    /// 403: the secret is not the session's.
    WrongSecret,
    /// 403: the caller has not the right to do this.
    Forbidden,
    /// 404: no such resource.
    NotFound,
    /// 404: no node at this path.
    NoNode,
    /// 405: the resource does not take this method.
    MethodNotAllowed,
    /// 409: a node exists at this path.
    NodeExists,
    /// 409: the node has children.
    NotEmpty,
    /// 409: the node has another version.
    BadVersion,
    /// 409: an ephemeral node cannot have children.
    NoChildrenForEphemerals,
    /// 409: the lock is not held with this token by this session.
    NotHeld,
    /// 409: the lock request no longer stands in the queue (withdrawn, released or broken since).
    NotQueued,
    /// 409: the lock's queue has another shape: a semaphore with another number of permits, or a lock where a semaphore
    /// was asked for.
    LockMismatch,
    /// 409: the lock's queue holds names of another client's recipe, and the two would not exclude each other.
    ForeignNames,
    /// 409: the gate is not pending under this token (any more).
    GateNotPending,
    /// 409: another operation uses the same gate: the fingerprint differs.
    GateMismatch,
    /// 409: the request id was used before with another payload.
    RequestMismatch,
    /// 409: an operation of the transaction was refused; `operation` and `cause` say which and why.
    TransactionFailed,
    /// 409: the session owns as many ephemeral nodes, lock requests and pending gates as it may
    /// (`limits.ephemerals_per_session`).
    TooManyEphemerals,
    /// 409: the replicated state is as large as it may be (`limits.state_mib`).
    StateFull,
    /// 409: the namespace has as much as its limit allows.
    NamespaceFull,
    /// 409: this needs a higher feature level than the cluster has, because a member still runs an older program.
    FeatureLevelTooLow,
    /// 409: the sum would be beyond a bound; nothing was added.
    OutOfBounds,
    /// 409: the data of the node are not a decimal number of 64 bits.
    NotANumber,
    /// 409: the rate limit is in use with another rate.
    RateMismatch,
    /// 409: the membership change is not possible now.
    MembershipConflict,
    /// 410: the session has expired or was closed; all it owned is gone.
    SessionExpired,
    /// 410: the watch history no longer reaches back to the zxid asked for; read anew, then watch from there.
    Compacted,
    /// 413: the body, or what it carries, is too large.
    TooLarge,
    /// 415: the body is not JSON, or it is compressed.
    UnsupportedMediaType,
    /// 423: the wait is over and the lock is still held by another.
    LockBusy,
    /// 408: the client was too slow to send its request.
    TooSlow,
    /// 421: a peer call came from, or to, the wrong cluster, node or data directory.
    WrongPeer,
    /// 421: the request names another cluster than that of this node; certainly not carried out.
    OtherCluster,
    /// 429: too much is waiting; come back after `Retry-After`.
    Overloaded,
    /// 429: the namespace has more requests a second at this node than its limit allows; come back after `Retry-After`.
    RateLimited,
    /// 431: the header is too large.
    HeaderTooLarge,
    /// 499: the client gave the request up, and nothing came of it (session stream only).
    Cancelled,
    /// 500: a defect of the server; the log has more.
    Internal,
    /// 503: no leader that a quorum confirms; certainly not carried out.
    NoLeader,
    /// 503: the node is shutting down; ask another.
    ShuttingDown,
    /// 504: **unknown outcome**: it may or may not have taken place; ask again with the same request id.
    UnknownOutcome,
}

impl Code {
    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::BadPath | Self::InvalidAcl => 400,
            Self::SessionRequired | Self::Unauthenticated => 401,
            Self::WrongSecret | Self::Forbidden => 403,
            Self::NotFound | Self::NoNode => 404,
            Self::MethodNotAllowed => 405,
            Self::TooSlow => 408,
            Self::NodeExists
            | Self::NotEmpty
            | Self::BadVersion
            | Self::NoChildrenForEphemerals
            | Self::NotHeld
            | Self::NotQueued
            | Self::LockMismatch
            | Self::ForeignNames
            | Self::GateNotPending
            | Self::GateMismatch
            | Self::RequestMismatch
            | Self::TransactionFailed
            | Self::TooManyEphemerals
            | Self::StateFull
            | Self::NamespaceFull
            | Self::FeatureLevelTooLow
            | Self::OutOfBounds
            | Self::NotANumber
            | Self::RateMismatch
            | Self::MembershipConflict => 409,
            Self::SessionExpired | Self::Compacted => 410,
            Self::TooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::WrongPeer | Self::OtherCluster => 421,
            Self::LockBusy => 423,
            Self::Overloaded | Self::RateLimited => 429,
            Self::HeaderTooLarge => 431,
            Self::Cancelled => 499,
            Self::Internal => 500,
            Self::NoLeader | Self::ShuttingDown => 503,
            Self::UnknownOutcome => 504,
        }
    }

    /// A title for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::BadRequest => "bad request",
            Self::BadPath => "bad path",
            Self::InvalidAcl => "invalid ACL",
            Self::SessionRequired => "session required",
            Self::Unauthenticated => "unauthenticated",
            Self::WrongSecret => "wrong session secret",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not found",
            Self::NoNode => "no such node",
            Self::MethodNotAllowed => "method not allowed",
            Self::NodeExists => "node exists",
            Self::NotEmpty => "node has children",
            Self::BadVersion => "version does not match",
            Self::NoChildrenForEphemerals => "ephemeral nodes have no children",
            Self::NotHeld => "lock not held",
            Self::NotQueued => "request not in the queue",
            Self::LockMismatch => "queue of another shape",
            Self::ForeignNames => "queue of another recipe",
            Self::GateNotPending => "gate not pending under this token",
            Self::GateMismatch => "gate used for another operation",
            Self::RequestMismatch => "request id reused",
            Self::TransactionFailed => "transaction refused",
            Self::TooManyEphemerals => "too many ephemeral nodes",
            Self::StateFull => "state full",
            Self::NamespaceFull => "namespace full",
            Self::FeatureLevelTooLow => "feature level too low",
            Self::OutOfBounds => "sum out of bounds",
            Self::NotANumber => "data are not a number",
            Self::RateMismatch => "rate limit with another rate",
            Self::MembershipConflict => "membership change not possible",
            Self::SessionExpired => "session expired",
            Self::Compacted => "history compacted",
            Self::TooLarge => "too large",
            Self::UnsupportedMediaType => "unsupported media type",
            Self::LockBusy => "lock busy",
            Self::TooSlow => "request too slow",
            Self::WrongPeer => "wrong peer",
            Self::OtherCluster => "another cluster",
            Self::Overloaded => "overloaded",
            Self::RateLimited => "too many requests in this namespace",
            Self::HeaderTooLarge => "header too large",
            Self::Cancelled => "given up by the client",
            Self::Internal => "internal error",
            Self::NoLeader => "no leader",
            Self::ShuttingDown => "shutting down",
            Self::UnknownOutcome => "outcome unknown",
        }
    }

    /// Whether the same request may succeed later, and certainly did not take place now.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Overloaded | Self::RateLimited | Self::NoLeader | Self::ShuttingDown)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A problem document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `about:blank`; [`code`](Self::code) is what tells problems apart.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: Code,
    /// What happened here, why, and what to do.
    pub detail: String,
    /// When to try again, in milliseconds, where trying again makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// In `transaction_failed`: which operation, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<u32>,
    /// In `transaction_failed`: why that operation was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Code>,
    /// In `compacted`: the oldest zxid that can be resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_zxid: Option<u64>,
    /// In `lock_busy`, and in `not_held` of a forced release: those who hold the lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<crate::locks::Request>,
    /// In `lock_busy`: the place that the request had among those that wait, from 1; at most a thousand are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
}

impl Problem {
    /// A problem with nothing but its code and what happened.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: code.title().into(),
            status: code.status(),
            code,
            detail: detail.into(),
            retry_after_ms: None,
            operation: None,
            cause: None,
            oldest_zxid: None,
            holders: Vec::new(),
            place: None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_words() {
        assert_eq!(Code::UnknownOutcome.to_string(), "unknown_outcome");
        let problem = Problem::new(Code::NoLeader, "no leader since 2 s");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["code"], "no_leader");
        assert_eq!(json["type"], "about:blank");
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }
}
