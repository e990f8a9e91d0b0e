//! Time, handed in. Nothing else in this crate may ask the operating system what time it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// A wall clock, a monotonic clock, and a way to wait.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970. May jump: the replicated clock is pulled gently by it (see `replicated_clock`), and nothing else is.
    fn wall_ms(&self) -> u64;

    /// Time since some fixed moment. Never goes back. Everything that is timed is timed by this.
    fn now(&self) -> Duration;

    /// Returns when `now()` has reached `at`.
    async fn sleep_until(&self, at: Duration);
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// A monotonic clock that starts now.
    pub fn new() -> Self {
        Self { started: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn sleep_until(&self, at: Duration) {
        tokio::time::sleep_until((self.started + at).into()).await;
    }
}

/// Whole milliseconds, rounded down.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
