//! Locks: acquire, release, verify, look at, break.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::level::Level;

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other readers.
    Shared,
    /// Alone, under the name that Curator's read-write lock gives to writers. Queues as `exclusive`.
    Write,
    /// One of `permits` permits of a semaphore. Everyone in the queue states the same number.
    Permit,
}

/// `POST /v1/locks/{name}/acquire`. With the `Lockkeeper-Session` header the lock belongs to that session;
/// without it `ttl_ms` has a session made, whose credential the answer carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// Alone or shared.
    #[serde(default)]
    pub mode: Mode,
    /// How long to wait in the queue, in milliseconds; 0 only tries. At most 10 minutes.
    #[serde(default)]
    pub wait_ms: u64,
    /// Makes a retry find the same place in the queue (promise P9). Drawn by the server where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// Who asks, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Further locks to take together with the one in the path: all of them or none, in one transaction and under one
    /// token. At most 255; the order does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// For mode `permit`, and only for it: how many may hold at a time, from 1 to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u16>,
    /// Should the session *expire* while it holds, nobody is granted the lock for so many milliseconds (Chubby's
    /// lock-delay); a release and a closed session have no delay. At most 10 minutes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u32,
    /// If the session holds this lock in mode `exclusive` already, hold it once more under the same token, instead of
    /// waiting for itself: it is free after as many releases. Send a `request_id`, so that a retry counts once. Not
    /// with `also` or another mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reentrant: bool,
    /// Do not stand in the queue: try while `wait_ms` lasts, with random pauses that grow from 10 ms to 1 s, and take
    /// the lock only when nobody waits for it. Everyone in the queue goes first, so it may never be granted. For work
    /// that may be left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfair: bool,
    /// Have a session with this timeout made for the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u32>,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// How often a lock is held that was not re-entered.
fn once() -> u32 {
    1
}

fn is_once(holds: &u32) -> bool {
    *holds == 1
}

/// The lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Acquired {
    /// The lock.
    pub lock: String,
    /// The locks that were taken together with it, in the order of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Alone or shared.
    pub mode: Mode,
    /// The fencing token: larger than that of every earlier grant of this lock. Show it to the resource.
    pub token: u64,
    /// The request's node in the tree.
    pub path: String,
    /// The nodes of the locks that were taken together with it, in the same order as `also`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_paths: Vec<String>,
    /// How often the session holds it now, if more than once (`reentrant`).
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub holds: u32,
    /// The session that holds it.
    pub session_id: u64,
    /// The credential of the session that was made for it (`ttl_ms`); shown this once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The session's timeout in milliseconds.
    pub session_timeout_ms: u32,
    /// How long the session lives, in milliseconds, if nothing more is heard of it.
    pub session_remaining_ms: u64,
    /// The request id, to be used in a retry.
    pub request_id: Uuid,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// `POST /v1/locks/{name}/release`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The fencing token of the grant.
    pub token: u64,
    /// The locks that were taken together with it: all are given back, or none, unless `even_in_part`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// For callers that give up: takes whatever is left of the request out of its queues, in one transaction, whether
    /// it holds or waits. `not_queued` then says that nothing was left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_in_part: bool,
}

/// `POST /v1/locks/{name}/downgrade`: the holder of a `write` becomes a reader without letting go. The token stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Downgraded {
    /// The lock.
    pub lock: String,
    /// The token, as it was.
    pub token: u64,
    /// The request's node, under its new name.
    pub path: String,
    /// The zxid of the downgrade.
    pub zxid: u64,
}

/// `POST /v1/locks/{name}/verify` and `POST /v1/locks/{name}/downgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The fencing token of the grant.
    pub token: u64,
}

/// The lock was given back, or taken from its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Released {
    /// The lock.
    pub lock: String,
    /// The grant that ended.
    pub token: u64,
    /// How often the session still holds it, where it was re-entered: then the grant has not ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub still_held: u32,
    /// The zxid of the release.
    pub zxid: u64,
}

/// Whether a token still holds (Chubby's `CheckSequencer`), linearizable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Verified {
    /// The lock.
    pub lock: String,
    /// The token asked about.
    pub token: u64,
    /// Whether the lock is held with it.
    pub held: bool,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// One request in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Request {
    /// The fencing token that its grant carries.
    pub token: u64,
    /// Its place in the order of requests.
    pub sequence: u64,
    /// Alone or shared.
    pub mode: Mode,
    /// For mode `permit`: how many may hold at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u16>,
    /// The delay that it asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u32,
    /// For the place of a dead holder that is kept free (lock delay): until when, in milliseconds since 1970 by the
    /// replicated clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until_ms: Option<u64>,
    /// The session that asks.
    #[serde(default)]
    pub session_id: Option<u64>,
    /// The principal to which the session belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Who asks.
    pub label: String,
    /// Since when it stands in the queue, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// The request's node.
    pub path: String,
    /// The node it waits for; none for a holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// How often its session holds it, if more than once (`reentrant`).
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub holds: u32,
}

/// `GET /v1/locks/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lock {
    /// The lock.
    pub lock: String,
    /// Those who hold it: one exclusive, or several shared.
    pub holders: Vec<Request>,
    /// Those who wait, first come first (at most 1,000; see `waiting`).
    pub queue: Vec<Request>,
    /// How many wait.
    pub waiting: u64,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// A line of `GET /v1/locks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockSummary {
    /// The lock.
    pub lock: String,
    /// How many hold it.
    pub holding: u64,
    /// How many wait.
    pub waiting: u64,
    /// Since when the first of those who wait stands in the queue, in milliseconds since 1970 by the replicated clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since_ms: Option<u64>,
    /// The first holder, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Request>,
}

/// `GET /v1/locks?prefix=&after=&limit=`: locks with somebody in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Locks {
    /// In the order of their names.
    pub locks: Vec<LockSummary>,
    /// Where the next page starts (`?after=`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// Which page of locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct LocksQuery {
    /// Locks whose names start with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Locks after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most so many, from 1 to 1,000; 100 where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}
