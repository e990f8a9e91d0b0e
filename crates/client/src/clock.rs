//! The clock of a lock holder: monotonic, and running while the machine sleeps.
//!
//! `Instant` stops during suspend on Linux, while the cluster's clock does not; so this reads `CLOCK_BOOTTIME` there.
//! Timers of the runtime still stop during a suspend, so waiting code reads this clock at least once a second.

use std::ops::Add;
use std::time::Duration;

/// A point on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self(since_boot())
    }

    /// How long until `later`; zero if it has passed.
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }

    /// Milliseconds since the machine started; the same in every process on it.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// The reverse of [`as_millis`](Self::as_millis).
    pub fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, more: Duration) -> Self {
        Self(self.0.saturating_add(more))
    }
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => time.into(),
        // Linux has this clock since 2.6.39. Without it no client is better than a clock that stops.
        Err(why) => panic!("CLOCK_BOOTTIME cannot be read: {why}"),
    }
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}
