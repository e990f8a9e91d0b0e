//! The load generator: clients that acquire and release locks, or begin and finish gates, over HTTP, the session stream
//! or the client library, each as fast as it can (closed loop), or all together at a given rate (open loop).
//!
//! It shares the machine with the servers that it measures, so it is lean: one open connection per client, and no
//! retries. Every error is counted and reported, never retried silently. It must never touch a lock or a gate whose
//! name does not start with [`LOCK_PREFIX`].
//!
//! [`measure()`] is one measurement of any [`LockSystem`]: `lockkeeper bench` has [`Lockkeeper`] measured,
//! `lockkeeper-cycles` that and its peers, in turns.

mod client;
mod connection;
mod cycles;
mod gates;
mod idle;
mod lockkeeper;
mod measure;
mod pace;
mod plot;
mod stream;
mod time_charts;
mod usage;

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

pub use client::{LockClient, LockSystem};
pub use connection::Security;
pub use cycles::{ClientResult, Cycles};
pub use gates::{GatesMeasured, run_gates};
pub use idle::{IdleMeasured, IdlePlan, ServerCost, run_idle};
pub use lockkeeper::{Lockkeeper, run, run_with};
pub use measure::{Measurement, Workload, measure};
pub use pace::Edges;
pub use plot::{Figures, PlotError, charts, svg};
pub use time_charts::{TimeChart, time_charts};
pub use usage::{Used, children_of, resident_bytes, spent_us};

/// Prefix of the load generator's locks and gates.
pub const LOCK_PREFIX: &str = "lockkeeper-bench";

/// The locks that clients acquire: own ones show the throughput without waiting, one the hand-over to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Locks {
    /// A separate lock per client
    Own,
    /// One lock for all clients
    One,
}

impl Locks {
    /// Title of their charts.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Own => "a lock for each client",
            Self::One => "one lock for all clients",
        }
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own locks",
            Self::One => "one lock",
        })
    }
}

/// The transport that clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// One request at a time on an open HTTP connection.
    Http,
    /// The session stream, one per client. A release is sent together with the next acquire, like the release of a
    /// dropped guard in the client library, without waiting for its answer.
    Stream,
    /// The client library. Clients are tasks that share one session, and so one stream, per endpoint. Each waits for
    /// the answer to its release.
    Library,
}

/// Parameters of one measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Base URLs; clients are spread over them.
    pub endpoints: Vec<String>,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Locks to acquire.
    pub locks: Locks,
    /// Transport to use.
    pub transport: Transport,
    /// Cycles begun each second by all clients together; each client begins as soon as it can if there is none. The
    /// latency of a cycle that begins late, since all clients are busy, counts from when it was due.
    pub rate: Option<f64>,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measure: Duration,
    /// Processes on this machine whose CPU time is counted.
    pub server_pids: Vec<u32>,
}

#[cfg(test)]
impl Plan {
    /// Four clients, for half a second.
    fn short(endpoints: Vec<String>, locks: Locks, transport: Transport) -> Self {
        let (warm_up, measure) = (Duration::from_millis(200), Duration::from_millis(500));
        Self { endpoints, clients: 4, locks, transport, rate: None, warm_up, measure, server_pids: Vec::new() }
    }
}

/// A distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p99_9_us: u64,
    /// Maximum.
    pub max_us: u64,
}

impl Latency {
    /// Summarizes a histogram of microseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            mean_us: histogram.mean(),
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p99_9_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

/// Result of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Number of concurrent clients.
    pub clients: u32,
    /// Locks acquired.
    pub locks: Locks,
    /// Transport used.
    pub transport: Transport,
    /// Cycles that were due each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Completed cycles of acquire and release.
    pub cycles: u64,
    /// Completed cycles per second.
    pub cycles_per_second: f64,
    /// Latency from sending the acquire to the answer to the release.
    pub cycle: Latency,
    /// Latency from sending the acquire to its answer.
    pub acquire: Latency,
    /// Cycles that failed.
    pub errors: u64,
    /// Message of the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// CPU time of all server processes per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us_per_cycle: Option<f64>,
    /// CPU time of this process per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cpu_us_per_cycle: Option<f64>,
    /// Grants whose token was not larger than every earlier one of the same lock. Must be 0.
    pub tokens_not_rising: u64,
}

impl Measured {
    /// Whether as many cycles were completed as were due, but for a tenth.
    pub fn kept_rate(&self) -> bool {
        self.rate.is_none_or(|rate| self.cycles_per_second >= 0.9 * rate)
    }
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An endpoint could not be used.
    #[error("{endpoint}: {why}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// The error.
        why: String,
    },
    /// A server's CPU time cannot be read.
    #[error("cannot read the CPU time of process {pid}: {why}; check --server-pids")]
    Process {
        /// The process.
        pid: u32,
        /// The error.
        why: String,
    },
    /// Every cycle failed.
    #[error("no cycle succeeded: {0}")]
    NothingWorked(String),
}

impl BenchError {
    /// An endpoint could not be used.
    pub fn endpoint(endpoint: &str, why: impl fmt::Display) -> Self {
        Self::Endpoint { endpoint: endpoint.to_owned(), why: why.to_string() }
    }
}
