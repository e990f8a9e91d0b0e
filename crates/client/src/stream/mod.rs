//! A session's stream: one WebSocket to one node at a time. The session sends its requests over it, keeps itself alive
//! over it, and receives its events.
//!
//! The rest of the client holds a [`StreamHandle`]; one task (`reconnect.rs`) owns the connection and finds another
//! node when the connection breaks. Requests that are unanswered then are sent again under the same request ids, so
//! that nothing is applied twice (promise P9); watches resume where they broke off (P8).
//!
//! It must never wait for a caller (a caller that does not listen would stall all the others), never send a request
//! twice that has no request id, and never lose a grant that was answered: a grant whose caller gave up is released.

mod connect;
mod connection;
mod frames;
mod handle;
mod leader_move;
mod loss_reports;
mod pending;
#[cfg(test)]
mod pending_tests;
mod reconnect;
mod watches;

pub(crate) use handle::{DetachedRequest, Renewal, SENT, StreamHandle, StreamOutcome, WatchSubscription};
pub(crate) use pending::Reply;
pub(crate) use watches::WatchMessage;
