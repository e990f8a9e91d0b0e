//! How long a session may be relied on: arithmetic over times that are arguments. Reads no clock.
//!
//! The cluster does not expire a session before `timeout` has passed since the *sending* of a keepalive that it
//! acknowledged (promise P5). The client calls it lost a margin earlier (promise P11).

use std::time::Duration;

use lockkeeper_mutants::invariant;

use crate::clock::Moment;

const LARGEST_MARGIN: Duration = Duration::from_millis(500);

/// How long before its earliest expiry a session counts as lost: a tenth of its timeout, at most 500 ms. This covers
/// the time that a holder needs to react, and clocks that run at slightly different speeds.
pub fn safety_margin(timeout: Duration) -> Duration {
    (timeout / 10).min(LARGEST_MARGIN)
}

/// How long to wait for one endpoint before the next is asked too.
pub(crate) fn hedge_after(timeout: Duration) -> Duration {
    (timeout / 12).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

/// The last acknowledged keepalive, and the deadlines that follow from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    sent: Moment,
    timeout: Duration,
}

impl Lease {
    pub(crate) fn new(sent: Moment, timeout: Duration) -> Self {
        Self { sent, timeout }
    }

    /// A keepalive that was sent at `sent` was acknowledged. Answers may arrive out of order: the newest keepalive
    /// counts.
    pub(crate) fn acknowledged(&mut self, sent: Moment, timeout: Duration) {
        if sent >= self.sent {
            *self = Self { sent, timeout };
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When to send the next keepalive.
    pub(crate) fn renew_at(&self) -> Moment {
        self.sent + self.timeout / 3
    }

    /// When to report that acknowledgements are missing.
    pub(crate) fn failing_at(&self) -> Moment {
        self.sent + self.timeout / 2
    }

    /// When the session counts as lost.
    pub(crate) fn lost_at(&self) -> Moment {
        let lost_at = self.sent + (self.timeout - safety_margin(self.timeout));
        invariant!(lost_at <= self.expires_at(), "a session counts as lost before the cluster may expire it");
        lost_at
    }

    /// The cluster does not grant the session's locks to others before this.
    pub(crate) fn expires_at(&self) -> Moment {
        self.sent + self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn everything_counts_from_the_sending() {
        let lease = Lease::new(at(1_000), Duration::from_secs(3));
        assert_eq!(lease.renew_at(), at(2_000));
        assert_eq!(lease.failing_at(), at(2_500));
        assert_eq!(lease.lost_at(), at(3_700));
        assert_eq!(lease.expires_at(), at(4_000));
        assert_eq!(at(3_000).until(lease.lost_at()), Duration::from_millis(700));
        assert_eq!(at(9_000).until(lease.lost_at()), Duration::ZERO);
    }

    #[test]
    fn an_answer_that_was_overtaken_does_not_turn_the_clock_back() {
        let mut lease = Lease::new(at(1_000), Duration::from_secs(3));
        lease.acknowledged(at(2_000), Duration::from_secs(3));
        lease.acknowledged(at(1_500), Duration::from_secs(3));
        assert_eq!(lease.expires_at(), at(5_000));
        lease.acknowledged(at(2_100), Duration::from_secs(6));
        assert_eq!(lease.expires_at(), at(8_100));
    }

    #[test]
    fn hedging_leaves_room_for_a_third_endpoint_before_the_next_renewal() {
        for timeout_ms in [500, 2_000, 10_000, 60_000] {
            let timeout = Duration::from_millis(timeout_ms);
            assert!(hedge_after(timeout) * 3 < timeout / 3);
        }
    }

    #[test]
    fn lost_always_comes_before_expiry() {
        for timeout_ms in [1, 10, 500, 1_000, 4_999, 5_000, 10_000, 3_600_000] {
            let lease = Lease::new(at(7), Duration::from_millis(timeout_ms));
            assert!(lease.renew_at() < lease.failing_at() && lease.failing_at() < lease.lost_at(), "{timeout_ms}");
            assert!(lease.lost_at() < lease.expires_at());
            assert!(lease.lost_at().until(lease.expires_at()) <= LARGEST_MARGIN);
        }
    }
}
