//! Judges by its latest syncs whether a disk is fast and steady enough for a caller to wait for it. Durations come from
//! the caller; no clock of its own.

use std::time::Duration;

/// A sync of so long costs less than to have another thread do it and to be woken by it, all in all.
const FAST: Duration = Duration::from_micros(300);
/// Of the latest 64 syncs so many must have been fast. Not all: on a loaded machine some are late because the processor
/// is, which a thread of its own would not change.
const FAST_OF_64: u32 = 48;
/// A sync of so long is a stall. An entry may take as long to apply, on the same thread.
const STALL: Duration = Duration::from_millis(20);
/// Syncs without a stall after which callers wait themselves, first and at most.
const STEADY_AFTER: (u32, u32) = (64, 65_536);

/// See the module's text.
///
/// Each stall that a caller waited out doubles the number of steady syncs that must follow. So of a disk that stalls
/// once in fewer syncs than the most of them, callers wait out about ten stalls and no more.
pub(crate) struct SyncPace {
    /// One bit for each of the latest syncs: whether it was fast.
    recent: u64,
    /// Syncs since the last stall.
    steady: u32,
    /// How many of them it takes.
    needed: u32,
}

impl SyncPace {
    /// Of a disk of which nothing is known: it counts as slow.
    pub(crate) fn new() -> Self {
        Self { recent: 0, steady: 0, needed: STEADY_AFTER.0 }
    }

    /// A sync took so long; `inline`: a caller waited for it.
    pub(crate) fn note(&mut self, took: Duration, inline: bool) {
        self.recent = self.recent << 1 | u64::from(took <= FAST);
        if took < STALL {
            self.steady = self.steady.saturating_add(1);
            if self.steady >= STEADY_AFTER.1 {
                self.needed = STEADY_AFTER.0;
            }
            return;
        }
        self.steady = 0;
        if inline {
            self.needed = (2 * self.needed).min(STEADY_AFTER.1);
        }
    }

    /// Whether a caller may wait for the next sync itself.
    pub(crate) fn is_fast(&self) -> bool {
        self.steady >= self.needed && self.recent.count_ones() >= FAST_OF_64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(150);

    /// How many quick syncs it takes until callers wait themselves.
    fn until_fast(pace: &mut SyncPace) -> u32 {
        let mut syncs = 0;
        while !pace.is_fast() {
            pace.note(QUICK, false);
            syncs += 1;
            assert!(syncs <= STEADY_AFTER.1, "never fast");
        }
        syncs
    }

    #[test]
    fn a_disk_counts_as_fast_after_64_fast_syncs() {
        let mut pace = SyncPace::new();
        assert_eq!(until_fast(&mut pace), 64);
        (0..1_000).for_each(|_| pace.note(QUICK, true));
        assert!(pace.is_fast());
    }

    #[test]
    fn a_disk_that_is_usually_slow_is_left_to_the_thread() {
        let mut pace = SyncPace::new();
        until_fast(&mut pace);
        let slow = Duration::from_micros(301);
        (0..16).for_each(|_| pace.note(slow, true));
        assert!(pace.is_fast(), "one of four may be");
        pace.note(slow, true);
        assert!(!pace.is_fast());
        (0..100).for_each(|at| pace.note(if at % 2 == 0 { slow } else { QUICK }, false));
        assert!(!pace.is_fast());
        assert_eq!(until_fast(&mut pace), 31, "half of 64 were fast, and three of four must be");
    }

    #[test]
    fn after_a_stall_callers_wait_again_when_the_disk_was_steady_for_long_enough() {
        let mut pace = SyncPace::new();
        until_fast(&mut pace);
        for expected in [128, 256, 512] {
            pace.note(STALL, true);
            assert!(!pace.is_fast(), "after one stall");
            // One that nobody waited out makes it no longer.
            (0..20).for_each(|_| pace.note(QUICK, false));
            pace.note(STALL, false);
            assert_eq!(until_fast(&mut pace), expected);
        }
        // A disk without stalls is trusted as at first.
        (0..STEADY_AFTER.1).for_each(|_| pace.note(QUICK, true));
        pace.note(STALL, true);
        assert_eq!(until_fast(&mut pace), 128);
    }

    #[test]
    fn a_disk_that_stalls_now_and_then_holds_callers_up_a_few_times_only() {
        for every in [100, 1_000, 10_000, 60_000] {
            let (mut pace, mut waited_out) = (SyncPace::new(), 0);
            for sync in 1..40 * every {
                let inline = pace.is_fast();
                let stalls = sync % every == 0;
                waited_out += u32::from(stalls && inline);
                pace.note(if stalls { Duration::from_secs(1) } else { QUICK }, inline);
            }
            assert!(waited_out <= 10, "one stall in {every} syncs: {waited_out} were waited out");
        }
    }
}
