//! Lockkeeper's client: the cluster's HTTP interface with what a careful caller adds to it.
//!
//! [`Client`] goes to the next endpoint where one cannot serve, repeats a change only where a request id makes that safe,
//! and reports an outcome that is not known as unknown. [`Session`] keeps a session alive in the background and says
//! that it is lost *before* the cluster can give its locks to another (promise P11).
//!
//! It must never depend on the server, never guess an outcome, and never count a session's life from anything but the
//! sending of an acknowledged keepalive.

mod client;
mod clock;
mod context;
mod endpoints;
mod error;
pub mod fencing;
mod keepalive;
mod lease;
pub mod locks;
pub mod recipes;
mod request_spec;
mod retry;
mod routes;
mod session;
mod sse;
mod stream;
mod transport;
mod watch;

pub use client::Client;
pub use clock::Moment;
pub use context::Options;
pub use endpoints::{Endpoint, EndpointError};
pub use error::{Error, Tried};
pub use lease::safety_margin;
pub use lockkeeper_api as api;
pub use locks::{Guard, Lock, Sharing};
pub use routes::{Paging, Reading};
pub use session::{Session, SessionOptions, SessionState, Transport};
pub use sse::{SseEvent, SseParser, SseTooLong};
pub use watch::{Watch, WatchItem, WatchOptions};

/// The code in these pages is compiled with that of the documentation.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/clients.md")]
    struct Clients;
    #[doc = include_str!("../../../docs/recipes.md")]
    struct Recipes;
}
