//! The replicated clock, as a worker knows it without relying on a wall clock of its own.
//!
//! A reading comes with two moments of this machine's monotonic clock: the cluster read its clock after the request was
//! sent and before the answer was received. So the clock shows at least the reading plus the time since the answer.
//! Monotonic clocks drift, and the replicated clock may run 1 % slower or faster while it is corrected, so 2 % of that
//! time are taken off. What is left, [`earliest_ms`](Reading::earliest_ms), is behind the clock by at most the round
//! trip and 4 % of the reading's age; the reading is renewed so often that the age is at most a second where it counts.
//!
//! It must never say that a time has come before the replicated clock shows it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::client::Client;
use crate::clock::Moment;
use crate::error::Error;
use crate::session::Session;

/// How much slower than this machine's clock the replicated clock may run: a fiftieth.
const SLOWER_BY: u64 = 50;
/// A reading is at most so old while a wait is longer than twice that.
const LONGEST_AGE: Duration = Duration::from_secs(60);
/// No reading is renewed more often.
const SHORTEST_AGE: Duration = Duration::from_secs(1);
/// Without a newer reading, an older one counts no longer.
const USELESS_AFTER: Duration = Duration::from_secs(600);
/// Timers do not count the time that a machine sleeps: this machine's clock is read at least this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);
const SHORTEST_NAP: Duration = Duration::from_millis(1);

/// One reading.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    clock_ms: u64,
    received: Moment,
}

impl ClockReading {
    /// The clock shows at least this.
    fn earliest_ms(&self, now: Moment) -> u64 {
        let age_ms = millis(self.received.until(now));
        self.clock_ms.saturating_add(age_ms - age_ms.div_ceil(SLOWER_BY))
    }
}

/// What all schedules of a session know about the clock.
#[derive(Debug, Default)]
pub(super) struct ClusterTime(Mutex<Option<ClockReading>>);

impl ClusterTime {
    /// The clock shows at least this; 0 without a reading.
    pub(super) fn earliest_ms(&self) -> u64 {
        self.0.lock().map_or(0, |reading| reading.earliest_ms(Moment::now()))
    }

    fn age(&self) -> Option<Duration> {
        self.0.lock().map(|reading| reading.received.until(Moment::now()))
    }

    /// Reads the clock if the latest reading is older than that. If no node can be asked, an older one counts on.
    pub(super) async fn renew(&self, client: &Client, max_age: Duration) -> Result<(), Error> {
        let age = self.age();
        if age.is_some_and(|age| age <= max_age) {
            return Ok(());
        }
        match client.cluster_clock().await {
            Ok(clock) => {
                *self.0.lock() = Some(ClockReading { clock_ms: clock.clock_ms, received: Moment::now() });
                Ok(())
            }
            Err(error) if age.is_some_and(|age| age < USELESS_AFTER) => {
                tracing::debug!(%error, ?age, "the cluster's clock was not read");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the clock shows that time for certain.
    pub(super) async fn reach(&self, session: &Session, at_ms: u64) -> Result<(), Error> {
        loop {
            let left = Duration::from_millis(at_ms.saturating_sub(self.earliest_ms()));
            if left.is_zero() {
                return Ok(());
            }
            let max_age = (left / 2).clamp(SHORTEST_AGE, LONGEST_AGE);
            if self.age().is_none_or(|age| age > max_age) {
                self.renew(session.client(), max_age).await?;
                continue_after_failure(self.age(), max_age).await;
                continue;
            }
            tokio::select! {
                because = session.lost() => return Err(Error::Lost(because)),
                () = sleep(left.clamp(SHORTEST_NAP, LONGEST_NAP)) => {}
            }
        }
    }
}

/// A pause if the reading is still too old, since no node could be asked.
async fn continue_after_failure(age: Option<Duration>, max_age: Duration) {
    if age.is_none_or(|age| age > max_age) {
        sleep(SHORTEST_NAP.max(SHORTEST_AGE / 4)).await;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_never_ahead_of_a_clock_that_runs_one_percent_slower() {
        let received = Moment::from_millis(5_000);
        let reading = ClockReading { clock_ms: 1_000_000, received };
        assert_eq!(reading.earliest_ms(received), 1_000_000);
        for age_ms in [1, 10, 99, 1_000, 60_000] {
            let estimate = reading.earliest_ms(received + Duration::from_millis(age_ms)) - 1_000_000;
            assert!(estimate <= age_ms * 99 / 100, "{age_ms}: {estimate}");
            assert!(estimate + age_ms / 50 + 1 >= age_ms, "{age_ms}: {estimate}");
        }
    }

    #[test]
    fn without_a_reading_no_time_has_come() {
        assert_eq!(ClusterTime::default().earliest_ms(), 0);
    }
}
