//! The HTTP frontend: the API, the session stream, and the listener of peers.
//!
//! `serve` is what the process starts. `axum::serve` has no timers and no caps, so `listener` accepts connections
//! within bounds, and `connection` drives each by hyper in a task of its own, from its first byte to its end. A request
//! passes `middleware` and becomes, by `extract` and `routes`, or by `stream` on a WebSocket, an `api::Call` of typed,
//! bounded values, which `lockkeeper_service` carries out; `response` makes its answer JSON or a problem document. No
//! input of a client reaches the node unbounded, and nothing in here decides anything about locks, sessions or nodes of
//! the tree.

mod connection;
mod connections;
mod context;
mod extract;
#[doc(hidden)]
pub mod fuzzing;
mod https_hint;
mod lanes;
mod listener;
mod middleware;
mod origin;
mod paths;
mod peer;
mod phase;
mod response;
mod routes;
mod serve;
mod stream;
mod upgrade;

pub use context::WriteMetrics;
pub use serve::{serve_clients, serve_peers};

/// The description of the API as JSON, as `/openapi.json` serves it.
pub fn openapi() -> String {
    routes::document().to_string()
}
