//! Whether an engine fails too often, and whether it is well again. Pure: times are arguments.
//!
//! There is hysteresis: an engine fails once a share of its calls in a window has failed. It then counts as failing
//! until less than half of that share fails, or until probes have succeeded without a break for the hold-off, whichever
//! comes first: a process that makes no calls has probes alone. Few calls decide nothing.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_client::Moment;

use super::state::SwitchMode;

/// When to switch without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrading {
    /// Calls of this last stretch of time count.
    pub window: Duration,
    /// An engine fails if so many of 100 calls did, by not being reached or with an unknown outcome.
    pub percent: u8,
    /// Fewer calls decide nothing.
    pub minimum_calls: u32,
    /// How long probes of the main engine must succeed, without a break, before it serves again.
    pub hold_off: Duration,
    /// How often the main engine is probed while another one serves, and each engine that counts as failing, by taking
    /// a lock that nobody else takes.
    pub probe_interval: Duration,
    /// How to switch.
    pub mode: SwitchMode,
}

impl Default for Degrading {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(10),
            percent: 50,
            minimum_calls: 10,
            hold_off: Duration::from_secs(60),
            probe_interval: Duration::from_secs(5),
            mode: SwitchMode::Drain { patience: None },
        }
    }
}

const SLICES: u32 = 10;

#[derive(Clone, Copy, Debug)]
struct Slice {
    begun: Moment,
    calls: u32,
    failures: u32,
}

/// What a call has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    Failing,
    Well,
}

/// The outcomes of one engine's calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    slices: VecDeque<Slice>,
    failing: bool,
    /// Since when every probe has succeeded.
    well_since: Option<Moment>,
}

impl Health {
    /// Notes a call, and returns what has changed with it.
    pub(super) fn note(&mut self, rule: &Degrading, now: Moment, failed: bool) -> Option<HealthChange> {
        while self.slices.front().is_some_and(|slice| slice.begun.until(now) > rule.window) {
            self.slices.pop_front();
        }
        let fresh = |slice: &&mut Slice| slice.begun.until(now) < rule.window / SLICES;
        match self.slices.back_mut().filter(fresh) {
            Some(slice) => {
                slice.calls = slice.calls.saturating_add(1);
                slice.failures = slice.failures.saturating_add(u32::from(failed));
            }
            None => self.slices.push_back(Slice { begun: now, calls: 1, failures: u32::from(failed) }),
        }
        if failed {
            self.well_since = None;
        }
        let sum = |count: fn(&Slice) -> u32| self.slices.iter().map(|slice| u64::from(count(slice))).sum::<u64>();
        let (calls, failures) = (sum(|slice| slice.calls), sum(|slice| slice.failures));
        if calls < u64::from(rule.minimum_calls.max(1)) {
            return None;
        }
        let limit = calls * u64::from(rule.percent);
        if failed && !self.failing && failures * 100 >= limit {
            self.failing = true;
            return Some(HealthChange::Failing);
        }
        if !failed && self.failing && failures * 200 < limit {
            self.failing = false;
            return Some(HealthChange::Well);
        }
        None
    }

    /// Notes a probe, and returns whether the engine has become well with it.
    pub(super) fn probe(&mut self, rule: &Degrading, now: Moment, failed: bool) -> bool {
        if failed {
            self.well_since = None;
            return false;
        }
        let since = *self.well_since.get_or_insert(now);
        let well = self.failing && since.until(now) >= rule.hold_off;
        if well {
            self.failing = false;
            self.slices.clear();
        }
        well
    }

    /// What was probed before a switch says nothing after it.
    pub(super) fn forget_probes(&mut self) {
        self.well_since = None;
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Whether it is not failing, and probes have succeeded for the hold-off.
    pub(super) fn is_well(&self, rule: &Degrading, now: Moment) -> bool {
        !self.failing && self.well_since.is_some_and(|since| since.until(now) >= rule.hold_off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Degrading = Degrading {
        window: Duration::from_secs(10),
        percent: 50,
        minimum_calls: 4,
        hold_off: Duration::from_secs(60),
        probe_interval: Duration::from_secs(5),
        mode: SwitchMode::Drain { patience: None },
    };

    fn at(second: u64) -> Moment {
        Moment::from_millis(second * 1_000)
    }

    /// Notes these calls at one moment, and returns what changed.
    fn noted(health: &mut Health, second: u64, calls: &[bool]) -> Vec<HealthChange> {
        calls.iter().filter_map(|failed| health.note(&RULE, at(second), *failed)).collect()
    }

    #[test]
    fn few_calls_decide_nothing_and_half_of_many_do() {
        let mut health = Health::default();
        assert_eq!(noted(&mut health, 0, &[true, true]), []);
        assert_eq!(noted(&mut health, 1, &[false]), []);
        assert_eq!(noted(&mut health, 2, &[true]), [HealthChange::Failing], "three of four");
        assert_eq!(noted(&mut health, 2, &[true]), [], "reported once");
        assert!(health.is_failing());
    }

    #[test]
    fn a_share_below_the_limit_never_trips() {
        let mut health = Health::default();
        for call in 0..1_000 {
            assert_eq!(health.note(&RULE, at(call / 10), call % 3 == 2), None, "call {call}");
        }
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut health = Health::default();
        noted(&mut health, 0, &[true; 3]);
        assert_eq!(noted(&mut health, 20, &[true]), [], "one call in the window");
    }

    #[test]
    fn successes_of_its_own_end_it_once_less_than_half_of_the_limit_fails() {
        let mut health = Health::default();
        assert_eq!(noted(&mut health, 0, &[true; 4]), [HealthChange::Failing]);
        assert_eq!(noted(&mut health, 1, &[false; 12]), [], "4 of 16 is half of the limit");
        assert_eq!(noted(&mut health, 1, &[false]), [HealthChange::Well]);
        assert!(!health.is_failing() && !health.is_well(&RULE, at(1)), "to go back takes probes");
        assert_eq!(noted(&mut health, 2, &[true; 8]), [], "12 of 25");
        assert_eq!(noted(&mut health, 2, &[true]), [HealthChange::Failing], "it can fail again");
        // Failures that are older than the window do not keep it, few successes do not end it.
        assert_eq!(noted(&mut health, 30, &[false; 3]), []);
        assert_eq!(noted(&mut health, 31, &[false]), [HealthChange::Well]);
    }

    #[test]
    fn an_unbroken_row_of_probes_ends_it() {
        let mut health = Health::default();
        noted(&mut health, 0, &[true; 4]);
        noted(&mut health, 1, &[false]);
        assert!(health.is_failing(), "one success is not enough");
        assert!(!health.probe(&RULE, at(10), false) && !health.probe(&RULE, at(50), true));
        assert!(!health.probe(&RULE, at(60), false) && !health.probe(&RULE, at(119), false));
        assert!(!health.is_well(&RULE, at(119)));
        assert!(health.probe(&RULE, at(120), false) && !health.is_failing() && health.is_well(&RULE, at(120)));
        assert_eq!(noted(&mut health, 121, &[true]), [], "what happened before does not count again");
        assert!(!health.is_well(&RULE, at(121)));
    }
}
