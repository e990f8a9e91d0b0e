//! When cycles are due in an open loop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Cycles at a constant rate, for all clients together.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    began: Instant,
    next: AtomicU64,
}

impl Rate {
    pub(crate) fn from_now(per_second: f64) -> Self {
        Self { per_second, began: Instant::now(), next: AtomicU64::new(0) }
    }

    /// When the next cycle is due, which no other client begins. That may be in the past.
    pub(crate) fn take(&self) -> Instant {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.began + Duration::from_secs_f64(number as f64 / self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_due_at_equal_distances() {
        let rate = Rate::from_now(4.0);
        let due: Vec<Duration> = (0..4).map(|_| rate.take() - rate.began).collect();
        assert_eq!(due, [0, 250, 500, 750].map(Duration::from_millis));
    }
}
