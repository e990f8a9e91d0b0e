//! The session stream, `GET /v1/sessions/{id}/stream`: one WebSocket that carries what a session asks and hears, in one order.
//!
//! Each text message is one JSON object. A request on the stream is a request of the HTTP interface without the HTTP: the same
//! methods, paths and bodies, the same answers and problem documents. See `docs/stream.md`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::Problem;
use crate::watch::ChangeKind;

/// What a client sends. Exactly one of the shapes; an unknown field ends the stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromClient {
    /// Ask something.
    Request(Request),
    /// Give up a lock request that is not answered yet. It is answered all the same: with what came of it, if that was on its way
    /// already; with problem `cancelled` once it is decided that nothing is or will be held by it; or with `unknown_outcome` if that
    /// could not be decided. Requests of other kinds go on to their answer.
    Cancel(u64),
    /// A sign of life. Answered with [`FromServer::Alive`] and the same number.
    Keepalive(u64),
    /// Begin a watch.
    Watch(Watch),
    /// End a watch.
    Unwatch(u64),
}

/// A request of the HTTP interface. Requests are begun in the order in which they are sent, and answered as they are done.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Chosen by the client; names the answer. Not in use by another open request of this stream.
    pub id: u64,
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: String,
    /// Path and query, such as `/v1/locks/orders%2F42/acquire`.
    pub path: String,
    /// Makes a retry safe, on this stream or another (promise P9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// Earlier requests whose answers the client has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledge: Vec<Uuid>,
    /// The body, for methods that take one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Box<RawValue>>,
}

/// A watch, as `GET /v1/watch` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Chosen by the client; names what the watch says. Not in use by another watch of this stream.
    pub id: u64,
    /// The node.
    pub path: String,
    /// With everything below it.
    #[serde(default)]
    pub recursive: bool,
    /// Changes after this zxid; from now on where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// What the server sends. A client skips kinds that it does not know.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromServer {
    /// The first message. The session lives for `timeout_ms` from when the *handshake* was sent, and these are the locks it holds:
    /// one that the client believes to hold and that is not among them is lost.
    Hello {
        /// The session's timeout.
        timeout_ms: u32,
        /// The zxid at which this is true. It has seen everything that was acknowledged before the handshake.
        zxid: u64,
        /// What the session holds, in no particular order; their losses are told on this stream.
        held: Vec<Held>,
    },
    /// The answer to a request.
    Answer(Answer),
    /// The keepalive with this number was acknowledged: the session lives for `timeout_ms` from when it was *sent*.
    Alive {
        /// The client's number.
        number: u64,
        /// The session's timeout.
        timeout_ms: u32,
    },
    /// The keepalive with this number was not acknowledged; try again. Says nothing about the session.
    NotConfirmed {
        /// The client's number.
        number: u64,
        /// Why.
        problem: Box<Problem>,
    },
    /// The watch has begun at this zxid.
    Watching {
        /// The watch.
        id: u64,
        /// Everything after this is told.
        zxid: u64,
    },
    /// One transaction as a watch sees it. Comes before any answer that could reveal it.
    Changes {
        /// The watch.
        id: u64,
        /// When.
        zxid: u64,
        /// What, in order.
        changes: Vec<Change>,
    },
    /// Nothing more happened up to this zxid: resume from here.
    Bookmark {
        /// The watch.
        id: u64,
        /// The zxid.
        zxid: u64,
    },
    /// The watch was refused, or has ended (`compacted`: read anew, then watch from there).
    WatchEnded {
        /// The watch.
        id: u64,
        /// Why.
        problem: Box<Problem>,
    },
    /// A lock that was granted on this stream, or named in its `hello`, is no longer held, without having been released on it: broken
    /// by force, or its node was deleted. Never before the answer that grants it.
    LockLost {
        /// The lock.
        lock: String,
        /// Its token.
        token: u64,
        /// When.
        zxid: u64,
    },
    /// The session is over, or this stream is; the last message. The close code says which, see `docs/stream.md`.
    Goodbye(Box<Problem>),
}

/// A lock that the session holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The lock.
    pub lock: String,
    /// Its token.
    pub token: u64,
}

/// One change of a transaction; its zxid is that of the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What.
    pub kind: ChangeKind,
    /// Where.
    pub path: String,
}

/// The answer to a request: what the HTTP interface would have answered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The request.
    pub id: u64,
    /// HTTP's status.
    pub status: u16,
    /// The zxid at which it is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zxid: Option<u64>,
    /// The body: the result, or from 400 on a problem document.
    pub body: Box<RawValue>,
}

/// Close codes of the stream (RFC 6455 section 7.4.2 leaves 4000–4999 to applications).
pub mod close {
    /// The node goes down; come back to another.
    pub const GOING_DOWN: u16 = 1001;
    /// A message that is not one of this protocol.
    pub const BAD_MESSAGE: u16 = 1008;
    /// A message larger than the server takes.
    pub const TOO_LARGE: u16 = 1009;
    /// The session has ended.
    pub const SESSION_OVER: u16 = 4001;
    /// The client left unread what was sent to it for too long; come back and resume by zxid.
    pub const TOO_SLOW: u16 = 4002;
    /// Nothing was heard from the client for as long as the session's timeout. The session may live on; its waiting lock requests left
    /// their queues.
    pub const SILENT: u16 = 4003;
}
