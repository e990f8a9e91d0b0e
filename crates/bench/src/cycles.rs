//! What clients count: their cycles of acquire and release in a phase of a measurement.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Pause of a client after a failed cycle.
pub const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// Largest latency that a histogram distinguishes.
const HIGHEST_US: u64 = 120_000_000;

/// Phase of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Cycles do not count yet.
    WarmUp,
    /// Cycles count.
    Measure,
    /// Clients end.
    Done,
}

/// Cycles of one client or of several.
#[derive(Clone, Debug)]
pub struct Cycles {
    /// Latency from sending the acquire to its answer, in microseconds.
    pub acquire: Histogram<u64>,
    /// Latency from sending the acquire to the answer to the release, in microseconds.
    pub cycle: Histogram<u64>,
    /// Cycles that failed.
    pub errors: u64,
    /// Message of the first failure.
    pub first_error: Option<String>,
}

impl Default for Cycles {
    fn default() -> Self {
        // The bounds are constants, so this cannot fail.
        let empty = || Histogram::new_with_bounds(1, HIGHEST_US, 3).unwrap_or_else(|_| unreachable!("constant bounds"));
        Self { acquire: empty(), cycle: empty(), errors: 0, first_error: None }
    }
}

impl Cycles {
    /// Counts a cycle that failed.
    pub fn failed(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }

    /// Counts a completed cycle.
    pub fn succeeded(&mut self, acquire: Duration, cycle: Duration) {
        self.acquire.saturating_record(micros(acquire));
        self.cycle.saturating_record(micros(cycle));
    }

    /// Adds the cycles of another client.
    pub fn add(&mut self, other: &Self) {
        // The bounds are the same, so this cannot fail.
        let _ = self.acquire.add(&other.acquire);
        let _ = self.cycle.add(&other.cycle);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
    }
}

fn micros(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}
