//! The end of a stream: the last message, the close frame, and time for the client to read them.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use lockkeeper_api::stream::{FromServer, close};
use lockkeeper_api::{Code, Problem};
use lockkeeper_service::budget::Exceeded;
use lockkeeper_service::failure::{Failure, shutting_down};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::frame;
use super::socket::StreamSocket;

/// Longest time to send the last message and the close frame.
pub(super) const LONGEST: Duration = Duration::from_secs(5);
/// Longest time for the client to close its side.
const CLOSING: Duration = Duration::from_secs(1);

/// The refusal of what comes after the caller's JWT has expired.
pub(super) fn credential_expired() -> Failure {
    let detail = "the JWT with which this stream was opened has expired; open a new stream with a new one";
    Failure::new(Code::Unauthenticated, detail)
}

/// Why a stream ends.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// The client closed it and is done.
    ClientDone,
    /// The client closed it and may come back.
    Moved,
    /// The connection broke.
    Broken(String),
    /// A message that is not one of this protocol.
    BadMessage(String),
    /// A message larger than this.
    TooLarge(usize),
    /// The session has ended.
    SessionOver(Box<Problem>),
    /// The JWT with which it was opened counts no more.
    CredentialExpired,
    /// The node goes down.
    GoingDown,
    /// The client left its output unread for so long.
    TooSlow(Duration),
    /// No room for the client's messages, or for its unread output.
    NoRoom(Box<Exceeded>),
    /// The client was silent for so long.
    Silent(Duration),
}

impl CloseReason {
    /// For the metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::ClientDone => "left",
            Self::Moved => "moved",
            Self::Broken(_) => "broken",
            Self::BadMessage(_) => "bad_message",
            Self::TooLarge(_) => "too_large",
            Self::SessionOver(_) => "session_over",
            Self::CredentialExpired => "credential_expired",
            Self::GoingDown => "going_down",
            Self::TooSlow(_) => "too_slow",
            Self::NoRoom(_) => "no_room",
            Self::Silent(_) => "silent",
        }
    }

    /// For the log.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::ClientDone | Self::Moved => "the client closed it".into(),
            Self::Broken(why) => format!("the connection broke: {why}"),
            other => other.message().map(|(.., problem)| problem.detail).unwrap_or_default(),
        }
    }

    /// Whether the client sent a close frame.
    pub(super) fn is_closed_by_client(&self) -> bool {
        matches!(self, Self::ClientDone | Self::Moved)
    }

    /// Whether the client may come back for the lock requests that wait.
    pub(super) fn may_return(&self) -> bool {
        matches!(self, Self::Moved | Self::Broken(_) | Self::TooSlow(_) | Self::NoRoom(_) | Self::CredentialExpired)
    }

    /// The close code, its reason in a few words, and the problem document.
    fn message(&self) -> Option<(u16, &'static str, Problem)> {
        Some(match self {
            Self::ClientDone | Self::Moved | Self::Broken(_) => return None,
            Self::BadMessage(detail) => {
                (close::BAD_MESSAGE, "bad message", Problem::new(Code::BadRequest, detail.clone()))
            }
            Self::TooLarge(bytes) => {
                let detail =
                    format!("a message is at most {bytes} bytes long (limits.body_bytes and a little); send less");
                (close::TOO_LARGE, "message too large", Problem::new(Code::TooLarge, detail))
            }
            Self::SessionOver(problem) => (close::SESSION_OVER, "session over", (**problem).clone()),
            Self::CredentialExpired => {
                (close::CREDENTIAL_EXPIRED, "credential expired", credential_expired().into_problem())
            }
            Self::GoingDown => (close::GOING_DOWN, "going down", shutting_down().into_problem()),
            Self::TooSlow(time) => {
                let detail = format!(
                    "the client left output unread for {} ms (limits.stream_write_timeout_ms); open a new stream, \
                     send the unanswered requests again under the same request ids, and resume the watches by zxid",
                    time.as_millis()
                );
                (close::TOO_SLOW, "too slow", Problem::new(Code::TooSlow, detail))
            }
            Self::NoRoom(exceeded) => {
                let detail = format!("{exceeded}; read faster, send less at a time, and open a new stream");
                (close::TOO_SLOW, "no room", Problem::new(Code::Overloaded, detail))
            }
            Self::Silent(time) => {
                let detail = format!(
                    "no message for {} ms, the session's timeout; send keepalives; the session may have expired",
                    time.as_millis()
                );
                (close::SILENT, "silent", Problem::new(Code::TooSlow, detail))
            }
        })
    }
}

/// Sends the reason, and closes.
pub(super) async fn close(mut socket: WebSocketStream<StreamSocket>, why: &CloseReason) {
    let Some((code, reason, problem)) = why.message() else {
        // Answers the client's close frame.
        let _ = timeout(CLOSING, socket.flush()).await;
        return;
    };
    let text = String::from_utf8(frame::message(&FromServer::Goodbye(Box::new(problem)))).unwrap_or_default();
    let last_words = async {
        socket.feed(Message::Text(text.into())).await?;
        socket.close(Some(CloseFrame { code: code.into(), reason: reason.into() })).await
    };
    if !matches!(timeout(LONGEST, last_words).await, Ok(Ok(()))) {
        return;
    }
    // Closing with input unread would reset the connection before the client reads the reason.
    let _ = timeout(CLOSING, drain(socket)).await;
}

async fn drain(mut socket: WebSocketStream<StreamSocket>) {
    // A message for which there was no room is not gathered after all.
    if socket.get_ref().exceeded().is_none() {
        while let Some(Ok(_)) = socket.next().await {}
    }
    // What could not be read as messages may have more behind it.
    let raw = socket.get_mut();
    let mut rest = [0; 4096];
    if raw.shutdown().await.is_ok() {
        while raw.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    }
}
