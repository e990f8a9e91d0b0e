//! What is counted: a connection's requests by operation, looked up once for each; and how long answers took, for monitoring tools.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_zookeeper::RequestHeader;
use metrics::Counter;

/// The counters of one connection, by the number of the operation.
#[derive(Default)]
pub(super) struct Requests(HashMap<i32, Counter>);

impl Requests {
    /// Counts a request. Numbers that nobody knows are counted together.
    pub(super) fn count(&mut self, header: RequestHeader) {
        let operation = header.operation();
        let number = if operation.is_some() { header.opcode } else { i32::MIN };
        let counter = self.0.entry(number).or_insert_with(|| {
            let name =
                operation.map_or_else(|| "unknown".to_owned(), |operation| format!("{operation:?}").to_lowercase());
            metrics::counter!("lockkeeper_zookeeper_requests_total", "operation" => name)
        });
        counter.increment(1);
    }
}

/// How long answers took since the node started: from a request's last byte to when its answer could be sent.
#[derive(Debug)]
pub(super) struct Latency {
    count: AtomicU64,
    sum_us: AtomicU64,
    least_us: AtomicU64,
    most_us: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { count: zero(), sum_us: zero(), least_us: AtomicU64::new(u64::MAX), most_us: zero() }
    }
}

impl Latency {
    pub(super) fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.least_us.fetch_min(us, Ordering::Relaxed);
        self.most_us.fetch_max(us, Ordering::Relaxed);
    }

    /// Least, mean and most, in milliseconds; zeroes before the first.
    pub(super) fn ms(&self) -> (u64, f64, u64) {
        match self.count.load(Ordering::Relaxed) {
            0 => (0, 0.0, 0),
            count => (
                self.least_us.load(Ordering::Relaxed) / 1_000,
                self.sum_us.load(Ordering::Relaxed) as f64 / count as f64 / 1_000.0,
                self.most_us.load(Ordering::Relaxed) / 1_000,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_least_mean_and_most() {
        let latency = Latency::default();
        assert_eq!(latency.ms(), (0, 0.0, 0));
        for ms in [3, 1, 8] {
            latency.record(Duration::from_millis(ms));
        }
        assert_eq!(latency.ms(), (1, 4.0, 8));
    }
}
