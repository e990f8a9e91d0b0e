//! A metrics recorder for this thread that keeps the one figure that a check needs: how many waiters the nodes have
//! woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// What the nodes call it.
const NOTIFICATIONS: &str = "lockkeeper_lock_notifications_total";

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
pub struct NotificationCounter {
    sum: Arc<Sum>,
}

impl NotificationCounter {
    /// Nobody was woken.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waiters that all nodes have woken so far.
    pub fn count(&self) -> u64 {
        self.sum.0.load(Ordering::Relaxed)
    }
}

impl Recorder for NotificationCounter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == NOTIFICATIONS { Counter::from_arc(self.sum.clone()) } else { Counter::noop() }
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
    fn only_notifications_of_this_thread_are_counted() {
        let woken = NotificationCounter::new();
        let _counting = metrics::set_default_local_recorder(&*woken);
        metrics::counter!("lockkeeper_lock_notifications_total").increment(2);
        metrics::counter!("other").increment(5);
        std::thread::spawn(|| metrics::counter!("lockkeeper_lock_notifications_total").increment(9)).join().unwrap();
        assert_eq!(woken.count(), 2);
    }
}
