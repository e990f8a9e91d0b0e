//! Clocks that are handed in. Nothing else in this crate may ask the operating system for the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// A wall clock, a monotonic clock, and a way to wait.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970. May jump: only the replicated clock follows it, and slowly (see `replicated_clock`).
    fn wall_ms(&self) -> u64;

    /// Time since some fixed moment. Never goes back. Every timer uses it.
    fn now(&self) -> Duration;

    /// Returns when `now()` has reached `at`.
    async fn sleep_until(&self, at: Duration);
}

/// The clocks of the machine.
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

/// The next multiple of `every` on the monotonic clock. Loops with the same interval wait for the same moments, so that
/// an idle node wakes once for all of them.
pub(crate) fn next_tick(now: Duration, every: Duration) -> Duration {
    let passed = now.as_nanos().checked_rem(every.as_nanos()).unwrap_or(0);
    now + every.saturating_sub(Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX)))
}

/// A clock for tests, which stands still until it is advanced.
#[cfg(test)]
pub(crate) struct ManualClock {
    now: tokio::sync::watch::Sender<Duration>,
    ahead: Duration,
}

#[cfg(test)]
impl Default for ManualClock {
    fn default() -> Self {
        Self { now: tokio::sync::watch::Sender::new(Duration::from_secs(100)), ahead: Duration::ZERO }
    }
}

#[cfg(test)]
impl ManualClock {
    /// A clock that advances with this one and shows so much more.
    pub(crate) fn ahead(&self, by: Duration) -> Self {
        Self { now: self.now.clone(), ahead: by }
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.now.send_modify(|now| *now += Duration::from_millis(ms));
    }
}

#[cfg(test)]
#[async_trait]
impl Clock for ManualClock {
    fn wall_ms(&self) -> u64 {
        1
    }

    fn now(&self) -> Duration {
        *self.now.borrow() + self.ahead
    }

    async fn sleep_until(&self, at: Duration) {
        let _ = self.now.subscribe().wait_for(|now| *now + self.ahead >= at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_with_the_same_interval_tick_at_the_same_moments() {
        let ms = Duration::from_millis;
        let ticks = [200, 201, 299].map(|now| next_tick(ms(now), ms(100)));
        assert_eq!(ticks, [ms(300); 3], "each later than now");
        assert_eq!(next_tick(ms(7), Duration::ZERO), ms(7), "an interval of nothing is no division by zero");
    }
}
