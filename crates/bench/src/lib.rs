//! The load generator: clients that acquire and release in a closed loop, over HTTP or the session stream, and what that cost.
//!
//! It shares the machine with the servers that it measures, so it is lean: one connection for each client, kept open, and no
//! retries. Whatever goes wrong is counted and shown, never repeated in silence. It must never write to a lock whose name does
//! not begin with [`LOCK_PREFIX`].

mod connection;
mod cpu;
mod library;
mod plot;
mod run;
mod stream;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

pub use cpu::spent_us;
pub use plot::{PlotError, svg};
pub use run::run;

/// Locks of the load generator begin so.
pub const LOCK_PREFIX: &str = "lockkeeper-bench";

/// Which locks the clients take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Locks {
    /// Each its own: what the cluster can do when nobody waits.
    Own,
    /// All the same: hand-over from holder to waiter.
    One,
}

/// How the clients talk to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// One request after the other on a kept-open HTTP connection.
    Http,
    /// The session's stream. A release goes out together with the next acquire, as a guard's drop does it in the client library: it
    /// is posted, and nobody waits for its answer before going on. One stream for each client.
    Stream,
    /// The client library, as a program uses it: the clients are tasks that share one session, and with it one stream, for each
    /// endpoint. Each waits for the answer to its release.
    Library,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Base URLs; clients are spread over them.
    pub endpoints: Vec<String>,
    /// Clients at a time.
    pub clients: u32,
    /// Which locks.
    pub locks: Locks,
    /// How they talk.
    pub transport: Transport,
    /// Before anything is counted.
    pub warm_up: Duration,
    /// While it is.
    pub measure: Duration,
    /// Processes of this machine whose processor time is counted.
    pub server_pids: Vec<u32>,
}

/// A distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half were as fast or faster.
    pub p50_us: u64,
    /// All but one in 100.
    pub p99_us: u64,
    /// All but one in 1,000.
    pub p99_9_us: u64,
    /// The slowest.
    pub max_us: u64,
}

impl Latency {
    /// What a histogram of microseconds shows.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p99_9_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

/// What one measurement found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Clients at a time.
    pub clients: u32,
    /// Which locks.
    pub locks: Locks,
    /// How they talked.
    pub transport: Transport,
    /// How long it was measured.
    pub seconds: f64,
    /// Acquire and release, completed.
    pub cycles: u64,
    /// Per second.
    pub cycles_per_second: f64,
    /// From sending the acquire to the answer of the release.
    pub cycle: Latency,
    /// From sending the acquire to its answer.
    pub acquire: Latency,
    /// Cycles that failed.
    pub errors: u64,
    /// The first failure in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Processor time of all server processes together, per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us_per_cycle: Option<f64>,
    /// Processor time of this process, per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cpu_us_per_cycle: Option<f64>,
    /// Grants whose token was not above the one before it on the same lock, as each client saw them. Must be 0.
    pub tokens_not_rising: u64,
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An endpoint could not be used.
    #[error("{endpoint}: {why}")]
    Endpoint {
        /// Which.
        endpoint: String,
        /// What happened.
        why: String,
    },
    /// A server's processor time cannot be read.
    #[error("processor time of process {pid} cannot be read: {why}; check --server-pids")]
    Process {
        /// Which.
        pid: u32,
        /// What happened.
        why: String,
    },
    /// Every cycle failed.
    #[error("no cycle succeeded: {0}")]
    NothingWorked(String),
}
