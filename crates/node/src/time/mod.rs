//! The replicated clock of this node, kept by its clocks; and the log lines about a wall clock that is far off.

pub(crate) mod clock;
mod replicated_clock;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_consensus::{ClockReport, MAX_CLOCK_MS, Timekeeper};
use lockkeeper_mutants::mutant;
use parking_lot::Mutex;

use crate::time::clock::{Clock, whole_ms};
use crate::time::replicated_clock::ReplicatedClock;

/// A wall clock that is off by more is logged.
const FAR_OFF_MS: u64 = 10_000;
/// The least time between two such lines.
const SAY_AGAIN_MS: u64 = 600_000;

/// Keeps the replicated clock. Its lock is held only for arithmetic.
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    replicated: Mutex<ReplicatedClock>,
    said_ms: Mutex<Option<u64>>,
    said_unbelievable_ms: Mutex<Option<u64>>,
}

impl Time {
    pub(crate) fn new(node: u64, clock: Arc<dyn Clock>) -> Self {
        let replicated = Mutex::new(ReplicatedClock::new(node));
        Self { clock, replicated, said_ms: Mutex::new(None), said_unbelievable_ms: Mutex::new(None) }
    }

    /// The replicated clock, as far as this node knows it.
    pub(crate) fn shows(&self) -> u64 {
        self.replicated.lock().shows(self.now_ms())
    }

    /// The clock of the state after an entry or a snapshot.
    pub(crate) fn applied(&self, clock_ms: u64) {
        self.replicated.lock().applied(clock_ms, self.now_ms());
    }

    fn now_ms(&self) -> u64 {
        whole_ms(self.clock.now())
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms().min(MAX_CLOCK_MS)
    }

    /// How far this node's wall clock is ahead of the replicated clock; negative if behind, `None` while the cluster
    /// has no time.
    pub(crate) fn skew_ms(&self) -> Option<i64> {
        let shows_ms = self.shows();
        let skew_ms = i64::try_from(self.wall_ms()).unwrap_or(i64::MAX) - i64::try_from(shows_ms).unwrap_or(i64::MAX);
        (shows_ms > 0).then_some(skew_ms)
    }

    /// Reports how far the wall clock is off: in a metric, and at intervals in the log if it is far off.
    pub(crate) fn look_at_skew(&self) {
        let Some(skew_ms) = self.skew_ms() else { return };
        metrics::gauge!("lockkeeper_clock_skew_ms").set(skew_ms as f64);
        let (now_ms, mut said_ms) = (self.now_ms(), self.said_ms.lock());
        if skew_ms.unsigned_abs() < FAR_OFF_MS {
            *said_ms = None;
        } else if said_ms.is_none_or(|said_ms| now_ms - said_ms >= SAY_AGAIN_MS) {
            *said_ms = Some(now_ms);
            tracing::warn!(
                skew_ms,
                "this machine's wall clock and the cluster's clock are far apart; time in the cluster goes on at its \
                 usual pace: check the clocks of the machines"
            );
        }
    }

    /// Logs, at intervals, that this node does not follow the leader's clock.
    fn say_unbelievable(&self, leader_ms: u64) {
        let (shows_ms, now_ms, mut said_ms) = (self.shows(), self.now_ms(), self.said_unbelievable_ms.lock());
        if said_ms.is_none_or(|said_ms| now_ms.saturating_sub(said_ms) >= SAY_AGAIN_MS) {
            *said_ms = Some(now_ms);
            tracing::warn!(
                ahead_ms = leader_ms.saturating_sub(shows_ms),
                "the leader's time is further ahead than a restart may set the cluster's clock: this node goes on at \
                 its own pace; check the leader's machine"
            );
        }
    }
}

impl Timekeeper for Time {
    fn lead(&self) -> u64 {
        if mutant!(TrustWallClock) {
            return self.wall_ms();
        }
        self.replicated.lock().lead(self.wall_ms(), self.now_ms()).min(MAX_CLOCK_MS)
    }

    fn reading_to_send(&self) -> u64 {
        self.replicated.lock().time_to_send(self.wall_ms(), self.now_ms()).min(MAX_CLOCK_MS)
    }

    fn follow(&self, leader_ms: u64, ago: Duration) {
        let at = self.clock.now().saturating_sub(ago);
        if !self.replicated.lock().follow(leader_ms, whole_ms(at)) {
            self.say_unbelievable(leader_ms);
        }
    }

    fn report(&self) -> ClockReport {
        let report = self.replicated.lock().report(self.wall_ms(), self.now_ms());
        ClockReport { clock_ms: report.clock_ms.map(|clock_ms| clock_ms.min(MAX_CLOCK_MS)), ..report }
    }

    fn reported(&self, node: u64, report: ClockReport) {
        self.replicated.lock().reported(node, report, self.now_ms());
    }

    fn set_voters(&self, voters: BTreeSet<u64>) {
        self.replicated.lock().set_voters(voters);
    }
}
