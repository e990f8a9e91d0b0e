//! Lockkeeper's client: the cluster's HTTP interface, with retries, sessions, locks and recipes.
//!
//! [`Client`] moves to the next endpoint when one cannot serve, repeats a change only where a request id makes that
//! safe, and reports an unknown outcome as unknown. [`Session`] keeps a session alive in the background and reports
//! its loss *before* the cluster can grant its locks to another (promise P11).
//!
//! It must never depend on the server, never guess an outcome, and never count a session's life from any time but that
//! of sending an acknowledged keepalive.

mod access_token;
mod backup;
mod client;
mod clock;
mod context;
mod endpoints;
mod error;
pub mod fencing;
mod keepalive;
mod known_cluster;
mod label;
mod lease;
pub mod locks;
mod one_cluster;
pub mod recipes;
mod request_spec;
mod retry;
mod routes;
mod session;
mod sse;
mod stream;
mod tls;
mod traces;
mod tracked_change;
mod transport;
mod watch;

pub use access_token::{AccessToken, AccessTokenError};
pub use backup::BackupDownload;
pub use client::Client;
pub use clock::Moment;
pub use context::Options;
pub use endpoints::{Endpoint, EndpointError, PreferredNode};
pub use error::{Error, SPEAKS_TLS, Tried};
pub use label::process_label;
pub use lease::safety_margin;
pub use lockkeeper_api as api;
pub use lockkeeper_tls::{TlsError, TlsFiles};
pub use locks::{Guard, Lock, Sharing};
pub use routes::{Paging, Reading};
pub use session::{Session, SessionOptions, SessionState, Transport};
pub use sse::{SseEvent, SseParser, SseTooLong};
pub use tls::Tls;
pub use watch::{Watch, WatchItem, WatchOptions};

/// Compiles the code of these pages with the documentation tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/clients.md")]
    struct Clients;
    #[doc = include_str!("../../../docs/recipes.md")]
    struct Recipes;
}
