//! What clients count: their cycles of acquire and release.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Largest latency that a histogram distinguishes.
const HIGHEST_US: u64 = 120_000_000;

/// Result of one client or of several.
#[derive(Clone, Debug, Default)]
pub struct ClientResult {
    /// The cycles.
    pub cycles: Cycles,
    /// Cycles whose lock another client had held before.
    pub hand_overs: u64,
    /// Grants whose token was not larger than every earlier one of the same lock. Must be 0.
    pub tokens_not_rising: u64,
}

impl ClientResult {
    /// Adds the result of another client or of another measurement.
    pub fn add(&mut self, other: &Self) {
        self.cycles.add(&other.cycles);
        self.hand_overs += other.hand_overs;
        self.tokens_not_rising += other.tokens_not_rising;
    }
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

    pub(crate) fn succeeded(&mut self, acquire: Duration, cycle: Duration) {
        self.acquire.saturating_record(micros(acquire));
        self.cycle.saturating_record(micros(cycle));
    }

    fn add(&mut self, other: &Self) {
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
