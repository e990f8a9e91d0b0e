//! A node as a process: configuration, its listeners (HTTP for clients, ZooKeeper's protocol, peers), telemetry, start
//! and shutdown.
//!
//! A request becomes an `api::Call` of typed, bounded values (`routes`, `stream`), a call of the node (`calls`), and a
//! reply or problem document. Nothing in here decides anything about locks, sessions or nodes of the tree, and no input
//! of a client reaches the node unbounded.
//!
//! [`run`] serves one node until it is told to stop. Run it on a tokio runtime of its own. With the peers and the load
//! on the same two cores, a current-thread runtime was measured fastest; on larger machines give it a few workers.

mod admission;
mod audit;
pub mod backup;
mod bounds;
mod budget;
mod caller;
mod calls;
#[cfg(any(mutants, debug_assertions))]
mod clock_control;
pub mod config;
mod context;
mod error;
mod exposition;
mod extract;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod hangup;
mod http;
mod jwt;
pub mod local;
mod log_lines;
mod middleware;
mod otlp;
mod peer;
mod principals;
mod process_metrics;
mod queue_age;
mod reply;
mod routes;
mod server;
mod service_manager;
mod socket;
mod stream;
mod system_nodes;
pub mod telemetry;
mod throttle;
mod tls;
mod zookeeper;

pub use config::{Config, ConfigError};
pub use error::ServeError;
pub use http::limits::OpenFiles;
pub use otlp::CommandTrace;
pub use server::{Server, check_config, open_files, run};

/// The description of the API as JSON, as `/openapi.json` serves it.
pub fn openapi() -> String {
    routes::document().to_string()
}
