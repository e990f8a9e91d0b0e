//! A node as a process: configuration, its listeners (HTTP for clients, ZooKeeper's protocol, peers), telemetry, start
//! and shutdown.
//!
//! The calls and what guards them are `lockkeeper_service`; each protocol is a frontend in a crate of its own
//! (`lockkeeper_http`, `lockkeeper_zookeeper_frontend`). Here the listeners of the configuration are wired to them.
//!
//! [`run`] serves one node until it is told to stop. Run it on a tokio runtime of its own. With the peers and the load
//! on the same two cores, a current-thread runtime was measured fastest; on larger machines give it a few workers.

pub mod backup;
#[cfg(any(mutants, debug_assertions))]
mod clock_control;
mod error;
mod exposition;
pub mod local;
mod log_lines;
mod metric_table;
mod open_files;
mod process_metrics;
mod queue_age;
mod server;
mod service_manager;
pub mod telemetry;

pub use error::ServeError;
pub use lockkeeper_config::{self as config, Config, ConfigError};
pub use lockkeeper_http::openapi;
pub use lockkeeper_service::otlp::CommandTrace;
pub use open_files::OpenFiles;
pub use server::{Server, check_config, open_files, run};
