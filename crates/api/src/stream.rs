//! The session stream, `GET /v1/sessions/{id}/stream`: one WebSocket that carries a session's keepalives, requests,
//! watches and lost locks in one order.
//!
//! Each text message is one JSON object. A request carries a [`Call`], and its answer is the JSON that the same call
//! has over HTTP. See `docs/stream.md`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::watch::ChangeKind;
use crate::{Call, Problem};

/// The version of the protocol, which `hello` names.
pub const VERSION: u32 = 1;

/// A client's message. An unknown kind or field ends the stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromClient {
    /// A request.
    Request(StreamRequest),
    /// Cancels a lock request that is not answered yet. It is answered all the same: with its outcome, if that was on
    /// its way already; with problem `cancelled` once the cluster has decided that it holds nothing and never will; or
    /// with `unknown_outcome` if that could not be decided. Other requests are not affected.
    Cancel(u64),
    /// A sign of life. Answered with [`FromServer::Alive`] and the same number.
    Keepalive(u64),
    /// Begins a watch.
    Watch(Watch),
    /// Ends a watch.
    Unwatch(u64),
}

/// A [`Call`] on behalf of the stream's session. Requests are begun in the order in which they are sent, and answered
/// as they are done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRequest {
    /// Chosen by the client; names the answer. Not in use by another open request of this stream.
    pub id: u64,
    /// Makes a retry safe, on this stream or another (promise P9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// Earlier requests whose answers the client has received.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledge: Vec<Uuid>,
    /// The caller's span, as the header `traceparent` of W3C Trace Context has it. Only for a server that sent
    /// [`TRACES_HEADER`](crate::TRACES_HEADER); a malformed one counts as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The call.
    pub call: Call,
}

/// A watch, as `GET /v1/watch` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Chosen by the client; names the messages of the watch. Not in use by another watch of this stream.
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

/// A server's message. A client skips kinds that it does not know.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromServer {
    /// The first message. The session lives for `timeout_ms` from when the *handshake* was sent. A lock that the client
    /// was granted before and that is not in `held` is lost.
    Hello {
        /// The version of the protocol.
        version: u32,
        /// The session's timeout.
        timeout_ms: u32,
        /// The zxid at which this is true. It covers everything that was acknowledged before the handshake.
        zxid: u64,
        /// The locks that the session holds, in no particular order; the stream reports their loss.
        held: Vec<Held>,
        /// The cluster, as the header [`CLUSTER_HEADER`](crate::CLUSTER_HEADER) names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// Where clients reach the leader, `host:port`; left out where the node does not know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
    },
    /// The answer to a request.
    Answer(StreamAnswer),
    /// The keepalive with this number was acknowledged: the session lives for `timeout_ms` from when it was *sent*.
    Alive {
        /// The client's number.
        number: u64,
        /// The session's timeout.
        timeout_ms: u32,
        /// Where clients reach the leader, if the stream has not named that leader yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
    },
    /// The keepalive with this number was not acknowledged; retry. This says nothing about the session.
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
        /// Every change after this is reported.
        zxid: u64,
    },
    /// One transaction as a watch sees it. Comes before any answer that could reveal it.
    Changes {
        /// The watch.
        id: u64,
        /// When.
        zxid: u64,
        /// What, in order.
        changes: Vec<WatchChange>,
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
    /// A lock that was granted on this stream, or named in its `hello`, is no longer held, and was not released on it:
    /// it was broken by force, or its node was deleted. Never comes before the answer that grants it.
    LockLost {
        /// The lock.
        lock: String,
        /// Its token.
        token: u64,
        /// When.
        zxid: u64,
    },
    /// The last message: the session or the stream has ended. The close code says which, see `docs/stream.md`.
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
pub struct WatchChange {
    /// What.
    pub kind: ChangeKind,
    /// Where.
    pub path: String,
}

/// The answer to a request: an [`Answer`](crate::Answer), or why there is none.
#[derive(Debug, Serialize, Deserialize)]
pub struct StreamAnswer {
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
    /// The node shuts down; open a stream at another one.
    pub const GOING_DOWN: u16 = 1001;
    /// A message that is not one of this protocol.
    pub const BAD_MESSAGE: u16 = 1008;
    /// A message larger than the server takes.
    pub const TOO_LARGE: u16 = 1009;
    /// The session has ended.
    pub const SESSION_OVER: u16 = 4001;
    /// The client left output unread for too long; open a new stream and resume by zxid.
    pub const TOO_SLOW: u16 = 4002;
    /// No message of the client for the session's timeout. The session may live on; its waiting lock requests have left
    /// their queues.
    pub const SILENT: u16 = 4003;
    /// The JWT with which the stream was opened has expired. The session lives on; open a new stream with a new JWT.
    pub const CREDENTIAL_EXPIRED: u16 = 4004;
}
