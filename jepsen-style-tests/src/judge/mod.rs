//! Judges: pure functions from a history to a verdict. The tests of each feed it histories that it must reject.
//!
//! There are two kinds of history: what the log did to nodes ([`lockkeeper_checkers::lives`], from watches) and what
//! clients were told ([`grants`], [`gates`], [`pauses`], [`streaks`]). A judge reads no clock and no network, and
//! trusts the client library on trial only for what the library told its caller.

pub mod counts;
pub mod gates;
pub mod grants;
pub mod pauses;
pub mod streaks;

use crate::disk_latency::Syncs;
use crate::verdict::Failed;

/// Checks that something happened no earlier than one moment and no later than another; all three are milliseconds of
/// one clock.
pub fn in_time(what: &str, at_ms: u64, earliest_ms: u64, latest_ms: u64) -> Result<(), String> {
    if at_ms < earliest_ms {
        return Err(format!("{what} came {} ms too early", earliest_ms - at_ms));
    }
    if at_ms > latest_ms {
        return Err(format!("{what} came {} ms later than it had to", at_ms - latest_ms));
    }
    Ok(())
}

/// Something that must come between two moments, milliseconds of the boot clock. While the disk is busy the later one
/// moves on: no cluster is faster than its disk.
#[derive(Clone, Copy, Debug)]
pub struct Due<'a> {
    /// What.
    pub what: &'a str,
    /// Not before.
    pub earliest_ms: u64,
    /// Not later, with a disk that takes no time.
    pub latest_ms: u64,
    /// From when on the disk counts, in microseconds.
    pub since_us: u64,
}

/// How long after the earliest moment it came, in milliseconds, and for how many of them the disk was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// So late.
    pub late_ms: u64,
    /// The disk was busy for so long.
    pub busy_ms: u64,
}

impl Due<'_> {
    /// Judges when it came.
    pub fn judge(&self, at_us: u64, disk: &Syncs) -> Result<Lateness, Failed> {
        let (at_ms, busy_ms) = (at_us / 1_000, disk.ms_within(self.since_us, at_us));
        let latest_ms = self.latest_ms.saturating_add(busy_ms);
        in_time(self.what, at_ms, self.earliest_ms, latest_ms).map_err(Failed::Broken)?;
        Ok(Lateness { late_ms: at_ms - self.earliest_ms, busy_ms })
    }
}

impl Lateness {
    /// The longer of each of both.
    pub fn worst(self, other: Self) -> Self {
        Self { late_ms: self.late_ms.max(other.late_ms), busy_ms: self.busy_ms.max(other.busy_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_and_late_are_caught() {
        assert_eq!(in_time("it", 10, 10, 20), Ok(()));
        assert_eq!(in_time("it", 20, 10, 20), Ok(()));
        assert!(in_time("it", 9, 10, 20).unwrap_err().contains("1 ms too early"));
        assert!(in_time("it", 25, 10, 20).unwrap_err().contains("5 ms later"));
    }
    #[test]
    fn a_busy_disk_moves_only_the_later_moment() {
        let due = Due { what: "it", earliest_ms: 10, latest_ms: 20, since_us: 5_000 };
        let idle = Syncs::default();
        assert_eq!(due.judge(12_000, &idle).unwrap(), Lateness { late_ms: 2, busy_ms: 0 });
        assert!(due.judge(9_000, &idle).is_err() && due.judge(22_000, &idle).is_err());
        let busy = Syncs::of(vec![(0, 8_000)]);
        assert_eq!(due.judge(22_000, &busy).unwrap(), Lateness { late_ms: 12, busy_ms: 3 });
        assert!(due.judge(9_000, &busy).is_err() && due.judge(24_000, &busy).is_err());
    }
}
