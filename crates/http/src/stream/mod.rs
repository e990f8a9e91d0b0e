//! The session stream: keepalives, requests, watches and lock events of one session on one WebSocket, in one order.
//!
//! The connection's own task serves a stream: it reads messages, polls the requests at work, and writes everything that
//! is ready at once. It must never write an answer before the events that the answer could reveal (`ARCHITECTURE.md`,
//! The way of a write), so it drains the watch queues between the two. The rules of locks are not here; `service`
//! carries out the requests.
//!
//! Messages are JSON alone: it was measured at 1 to 2.5 µs of a lock cycle that costs three servers 150 µs and more, so
//! that a binary encoding would not show.

mod close;
mod frame;
pub(crate) mod fuzzing;
mod grants;
mod metrics;
mod request;
mod session_task;
mod socket;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::Principals;
use lockkeeper_node::{At, Credential, SessionEvents};
use lockkeeper_service::admission::Lane;
use lockkeeper_service::audit::Requester;
use lockkeeper_service::bounds::Room;
use lockkeeper_service::budget::Holder;
use lockkeeper_service::caller::{ClientAddress, address_of};
use lockkeeper_service::context::Context;
use lockkeeper_service::failure::Failure;
use lockkeeper_service::socket::Socket;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::middleware::failed_authentication;
use crate::upgrade::allow_unread_for;
use socket::StreamSocket;

/// Most unanswered requests of a stream; further ones are refused. Reading goes on: a keepalive may follow, or the
/// cancel that makes room.
const MAX_OPEN: usize = 1_024;
/// Most unanswered keepalives of a stream.
const MAX_KEEPALIVES: usize = 64;
/// Most watches of a stream.
const MAX_WATCHES: usize = 1_024;
/// Bytes written and not flushed beyond which the stream flushes before it reads on.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// Room in a message beside the body that it carries.
const ENVELOPE_BYTES: usize = 64 * 1024;
/// Longest time that waiting lock requests of a broken connection keep their places for a client that reconnects.
const GRACE: Duration = Duration::from_secs(5);

/// The session of a stream, and its connection's caller.
pub(crate) struct Session {
    pub(crate) context: Arc<Context>,
    pub(crate) from: ClientAddress,
    pub(crate) principals: Principals,
    /// Whether the request that opened the stream had an `Authorization` header.
    pub(crate) has_authorization: bool,
    /// When the JWT with which the stream was opened stops to count.
    pub(crate) expires: Option<Instant>,
    pub(crate) credential: Credential,
    pub(crate) timeout_ms: u32,
    /// The lane of requests that keep or give back something.
    pub(crate) lane: Lane,
    /// Longest time that the client may leave its output unread.
    pub(crate) write_timeout: Duration,
    /// Most bytes that a message carries.
    pub(crate) body_bytes: usize,
}

impl Session {
    /// The holder of the stream's shares of budgets.
    fn holder(&self) -> Holder {
        Holder::session(address_of(Some(&self.from)), self.credential.session.0)
    }

    /// Records that something was refused because the credentials of the stream prove nothing, as over HTTP.
    fn note_refusal(&self, failure: &Failure) {
        if let Some(method) = failed_authentication(Some(failure.code()), self.has_authorization) {
            let ClientAddress { address, .. } = self.from;
            let requester = Requester { session: Some(self.credential.session), ..Requester::at(address.ip()) };
            self.context.audit.authentication_failed(requester, method);
        }
    }

    /// Whether the caller's JWT counts no more.
    fn has_expired(&self) -> bool {
        self.expires.is_some_and(|at| Instant::now() >= at)
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.into())
    }
}

/// Each stream has this buffer, also while it is idle, and reads as much at a time. A longer message gets a buffer of
/// its size, filled by as many reads as it takes. With 256 tasks on three streams, 8 KiB saved no measurable CPU time.
const READ_BUFFER_BYTES: usize = 1024;

/// Serves a stream until its end.
pub(crate) async fn serve(session: Session, session_events: At<SessionEvents>, socket: Socket, read: Bytes) {
    let write_timeout = session.write_timeout;
    allow_unread_for(socket.tcp(), write_timeout * 2 + close::LONGEST);
    let message_bytes = session.body_bytes + ENVELOPE_BYTES;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(64 * 1024)
        .max_message_size(Some(message_bytes))
        .max_frame_size(Some(message_bytes));
    let room = Room::of(&session.context.admission.request_bytes, session.holder());
    let socket = StreamSocket::new(socket, room);
    let socket = WebSocketStream::from_partially_read(socket, read.into(), Role::Server, Some(config)).await;
    let _counted = metrics::Streams::enter();
    let task = session_task::SessionTask::new(Arc::new(session), session_events, socket, message_bytes);
    // On its own, so that an idle stream does not keep the room that beginning it took.
    Box::pin(task.run()).await;
}
