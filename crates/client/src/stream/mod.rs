//! A session's stream: one WebSocket to one node at a time, over which the session asks, is told, and keeps itself alive.
//!
//! [`StreamHandle`] is what the rest of the client holds; one task, [`reconnect`], owns the connection and finds another node
//! when it breaks. Requests that are not answered then are sent again under the same request ids, so that nothing is applied
//! twice (promise P9); watches are taken up again where they broke off (P8).
//!
//! It must never wait for a caller (one that does not listen would stall all the others), never send anything twice that has
//! no request id, and never let an answered grant fall on the floor: what a caller gave up is taken back.

mod connect;
mod connection;
mod frames;
mod handle;
mod lock_loss;
mod pending;
#[cfg(test)]
mod pending_tests;
mod reconnect;
mod watches;

pub(crate) use handle::{Renewal, Reply, SENT, StreamHandle, StreamOutcome};
pub(crate) use watches::{WatchMessage, WatchSubscription};
