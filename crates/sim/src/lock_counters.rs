//! A metrics recorder for this thread that keeps the figures of locks that a run needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

#[derive(Debug, Default)]
struct Sum(AtomicU64);

impl CounterFn for Sum {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct LockCounters {
    woken: Arc<Sum>,
    delayed: Arc<Sum>,
}

impl LockCounters {
    /// Nothing was counted.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waiters that all nodes have woken so far.
    pub fn woken(&self) -> u64 {
        self.woken.0.load(Ordering::Relaxed)
    }

    /// Requests behind many others that have waited for another command.
    pub fn delayed(&self) -> u64 {
        self.delayed.0.load(Ordering::Relaxed)
    }
}

impl Recorder for LockCounters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "lockkeeper_lock_notifications_total" => Counter::from_arc(self.woken.clone()),
            "lockkeeper_delayed_requests_total" => Counter::from_arc(self.delayed.clone()),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_thread_does_to_locks_is_counted() {
        let counters = LockCounters::new();
        let _counting = metrics::set_default_local_recorder(&*counters);
        metrics::counter!("lockkeeper_lock_notifications_total").increment(2);
        metrics::counter!("lockkeeper_delayed_requests_total", "ended" => "when_due").increment(3);
        metrics::counter!("other").increment(5);
        std::thread::spawn(|| metrics::counter!("lockkeeper_lock_notifications_total").increment(9)).join().unwrap();
        assert_eq!((counters.woken(), counters.delayed()), (2, 3));
    }
}
