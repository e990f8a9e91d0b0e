//! The session stream: keepalives, requests, watches and lock events of one session on one WebSocket, in one order.
//!
//! One task serves a stream, the connection's own: it reads, polls what is at work, and writes all that is ready at
//! once. It must never write an answer before the events that the answer could reveal (`ARCHITECTURE.md`, The way of a
//! write): the watch queues are drained between the two. Nothing of the locks' rules is here; see `request` for the way
//! to them.
//!
//! Messages are JSON and nothing else: reading and writing it was measured at 1 to 2.5 µs of a lock cycle that costs
//! three servers 150 µs and more, so a binary encoding would not show.

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

use axum::Router;
use bytes::Bytes;
use lockkeeper_core::Principals;
use lockkeeper_node::{At, Credential, SessionEvents};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::admission::{Lane, address_of};
use crate::budget::Holder;
use crate::context::Context;
use crate::extract::Room;
use crate::http::connection::ClientAddress;
use crate::http::upgrade::allow_unread_for;
use socket::StreamSocket;

/// Most requests of a stream that are not answered yet; more are refused. Reading goes on all the same: behind them may come a
/// keepalive, or the cancel that makes room.
const MAX_OPEN: usize = 1_024;
/// Most keepalives of a stream that are not answered yet.
const MAX_KEEPALIVES: usize = 64;
/// Most watches of a stream.
const MAX_WATCHES: usize = 1_024;
/// Once so much is written and not flushed, nothing more is taken in before it is.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// What a message has beside the body that it carries.
const ENVELOPE_BYTES: usize = 64 * 1024;
/// Longest time for which the waiting lock requests of a broken connection keep their places for a client that comes back.
const GRACE: Duration = Duration::from_secs(5);

/// On whose behalf a stream runs.
pub(crate) struct Session {
    pub(crate) context: Arc<Context>,
    pub(crate) router: Router,
    pub(crate) from: ClientAddress,
    pub(crate) principals: Principals,
    pub(crate) credential: Credential,
    pub(crate) timeout_ms: u32,
    /// Requests that keep or give back what the session has.
    pub(crate) lane: Lane,
}

impl Session {
    /// Whose share of budgets this takes.
    fn holder(&self) -> Holder {
        Holder::session(address_of(Some(&self.from)), self.credential.session.0)
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.into())
    }
}

/// Serves a stream until its end.
pub(crate) async fn serve(session: Session, session_events: At<SessionEvents>, socket: TcpStream, read: Bytes) {
    let write_timeout = session.context.stream_write_timeout;
    allow_unread_for(&socket, write_timeout * 2 + close::LONGEST);
    let message_bytes = session.context.body.max_bytes + ENVELOPE_BYTES;
    let config = WebSocketConfig::default()
        .read_buffer_size(8 * 1024)
        .write_buffer_size(64 * 1024)
        .max_message_size(Some(message_bytes))
        .max_frame_size(Some(message_bytes));
    let room = Room::of(&session.context.admission.request_bytes, session.holder());
    let socket = StreamSocket::new(socket, room);
    let socket = WebSocketStream::from_partially_read(socket, read.into(), Role::Server, Some(config)).await;
    let _counted = metrics::Streams::enter();
    session_task::SessionTask::new(Arc::new(session), session_events, socket, message_bytes).run().await;
}
