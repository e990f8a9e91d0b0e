//! What clients of locks tell: the names of their operations and the types of what goes with them. The checkers of
//! [`crate::check`] read the same types.
//!
//! | operation | asked with | answer |
//! |---|---|---|
//! | `acquire` | [`AcquireRequest`] | [`Granted`]; `fail` where the wait was over or the cluster refused |
//! | `release` | [`TokenRef`] | nothing; with the zxid of the release where the call tells it |
//! | `downgrade` | [`TokenRef`] | nothing |
//! | `verify` | [`TokenRef`] | whether it holds |
//! | `steal` | [`TokenRef`], with another's token | whether it was given back, which must not be |
//! | `force` | [`TokenRef`], with the holder's token and session | whether it was taken from it |
//! | `look` | [`TokenRef`] | whether the guard says that it is lost. The invocation is stamped before it is asked |
//! | `view` | a lock's name | [`QueueView`] |
//!
//! | `mark` | [`TokenRef`] | [`ClockReading`]: the replicated clock at a moment at which it held |
//! | `read`, `write` | [`TokenRef`], [`NumberWrite`] | the number; whether the store took it, where `fail` is that it refused |
//! | `taken` | a lock's name | [`StoreContents`]: the store's own list |
//!
//! Told beside: `opened`, `closing`, `abandoned` ([`SessionRef`]), `closed`, `sure` ([`AliveUntil`]), `session_lost`
//! ([`SessionEnded`]), `kept` ([`KeptPlace`]).

use lockkeeper_client::api::locks::Mode;
use serde::{Deserialize, Serialize};

/// Asks for locks.
pub const ACQUIRE: &str = "acquire";
/// Gives them back.
pub const RELEASE: &str = "release";
/// Makes a writer a reader.
pub const DOWNGRADE: &str = "downgrade";
/// Asks whether a token holds.
pub const VERIFY: &str = "verify";
/// Tries to give back what another holds.
pub const STEAL: &str = "steal";
/// Takes a lock from its holder, with the permission to do so.
pub const FORCE: &str = "force";
/// Asks the guard.
pub const LOOK: &str = "look";
/// Looks at a lock's queue.
pub const VIEW: &str = "view";
/// Note: a session is open.
pub const OPENED: &str = "opened";
/// Note: a session is about to be closed.
pub const CLOSING: &str = "closing";
/// Note: it was closed.
pub const CLOSED: &str = "closed";
/// Note: nothing renews the session from here on, as if its process had died.
pub const ABANDONED: &str = "abandoned";
/// Note: until when the cluster does not end the session, as far as its client knows.
pub const SURE: &str = "sure";
/// Note: the session is lost.
pub const SESSION_LOST: &str = "session_lost";

/// Argument of an acquire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireRequest {
    /// The lock; several are to be held together.
    pub locks: Vec<String>,
    /// In which mode.
    pub mode: Mode,
    /// How long it waits at most; 0 only tries.
    pub wait_ms: u64,
    /// For this session.
    pub session: u64,
    /// For permits: how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u16>,
    /// The lock delay, 0 for none.
    #[serde(default)]
    pub delay_ms: u32,
}

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Under this token.
    pub token: u64,
}

/// Argument of operations on a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRef {
    /// The locks.
    pub locks: Vec<String>,
    /// The token.
    pub token: u64,
    /// The session that does it.
    pub session: u64,
}

/// Which session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRef {
    /// Its number.
    pub session: u64,
}

/// Until when a session certainly lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveUntil {
    /// Its number.
    pub session: u64,
    /// The cluster does not end it before this, in milliseconds of the boot clock.
    pub until_ms: u64,
}

/// How a session ended, by its client's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnded {
    /// Its number.
    pub session: u64,
    /// Why.
    pub why: String,
}

/// The state of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// The holders' tokens.
    pub holders: Vec<u64>,
    /// How many wait.
    pub waiting: u64,
}

/// Reads the number under a token.
pub const READ: &str = "read";
/// Writes it: [`NumberWrite`].
pub const WRITE: &str = "write";
/// Asks the store for all writes that it accepted: [`StoreContents`].
pub const TAKEN: &str = "taken";
/// Note: the store could not be reached.
pub const STORE_FAILED: &str = "store_failed";

/// A number is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberWrite {
    /// The lock of the number.
    pub lock: String,
    /// Under which token.
    pub token: u64,
    /// The new value.
    pub value: i64,
    /// Whether it is sent on purpose after the lock was released or lost.
    pub late: bool,
}

/// All writes that a store accepted, by its own list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreContents {
    /// Which kind of store.
    pub store: String,
    /// Value and token of each write, in the store's own order.
    pub writes: Vec<(i64, i64)>,
}

/// Reads the replicated clock under a grant.
pub const MARK: &str = "mark";
/// Note: a dead holder's place is seen to be kept.
pub const KEPT: &str = "kept";
/// Below this each session has an ephemeral node `s<number>`, so that the log shows when it ended.
pub const SESSIONS: &str = "/jepsen-sessions";

/// A reading of the replicated clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// In milliseconds since 1970.
    pub clock_ms: u64,
}

/// A dead holder's place, as the lock's view shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPlace {
    /// The lock.
    pub lock: String,
    /// The dead holder's token.
    pub dead: u64,
    /// From when on, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// Until when, by the same clock.
    pub until_ms: u64,
}
