//! Keeps the log within its limits in bytes. openraft has limits in entries alone, and an entry has a hundred bytes or
//! some megabytes: the disk would hold 50,000 batches of a busy time, however large.
//!
//! While nothing is applied the limits are lower: every follower has the log by then, and the log of a busy time is not
//! kept for hours.
//!
//! Safety does not depend on this: it asks openraft for a snapshot, or to purge what a snapshot covers, and openraft
//! purges nothing that no snapshot holds.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::SnapshotStorage;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::application::StateMachine;
use crate::raft::log::log_size::LogSize;
use crate::raft::state_machine::Raft;
use crate::raft::types::{LogId, TypeConfig};

/// How often the log is checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A log to which nothing has been added for this long is quiet.
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// Less log than this is not worth a snapshot while it is quiet.
const QUIET_BYTES: u64 = 1024 * 1024;

/// See the module's text.
pub(crate) struct LogCompactor {
    size: Arc<Mutex<LogSize>>,
    snapshots: Arc<dyn SnapshotStorage>,
    busy: LogLimits,
    stillness: QuietTimer,
}

/// Since when nothing has been applied.
struct QuietTimer {
    applied: Option<u64>,
    since: Instant,
}

impl QuietTimer {
    fn is_long(&mut self, applied: Option<u64>, now: Instant) -> bool {
        if self.applied != applied {
            *self = Self { applied, since: now };
        }
        now.duration_since(self.since) >= QUIET_AFTER
    }
}

/// How much log there may be, where a snapshot has no more than that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimits {
    pub(crate) snapshot_every_bytes: u64,
    pub(crate) keep_bytes: u64,
}

impl LogLimits {
    const QUIET: Self = Self { snapshot_every_bytes: QUIET_BYTES, keep_bytes: 0 };

    fn or_less(self, other: Self) -> Self {
        Self {
            snapshot_every_bytes: self.snapshot_every_bytes.min(other.snapshot_every_bytes),
            keep_bytes: self.keep_bytes.min(other.keep_bytes),
        }
    }
}

/// What to ask openraft for now.
#[derive(Debug, PartialEq, Eq)]
struct CompactionPlan {
    snapshot: bool,
    /// Purge up to this index.
    purge: Option<u64>,
}

/// How far this node is.
#[derive(Clone, Copy)]
struct Reached {
    applied: Option<u64>,
    snapshot: Option<u64>,
    purged: Option<u64>,
}

/// How large a snapshot is.
#[derive(Clone, Copy, Debug)]
struct SnapshotBytes {
    /// The last one.
    last: u64,
    /// One that were taken now.
    now: u64,
}

impl LogCompactor {
    pub(crate) fn new(size: Arc<Mutex<LogSize>>, snapshots: Arc<dyn SnapshotStorage>, busy: LogLimits) -> Self {
        let stillness = QuietTimer { applied: None, since: Instant::now() };
        Self { size, snapshots, busy, stillness }
    }

    /// Runs until consensus stops. A task of its own: openraft acts on a request when it gets to it.
    pub(crate) async fn run(mut self, raft: Raft, machine: Arc<dyn StateMachine>) {
        while self.look(&raft, machine.snapshot_bytes()).await.is_ok() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks for a snapshot, or for a purge of the log too far behind it, when due. Asking again while one is under way
    /// does nothing. `state_bytes`: how large a snapshot would be now.
    async fn look(&mut self, raft: &Raft, state_bytes: u64) -> Result<(), Fatal<TypeConfig>> {
        let reached = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            let index = |id: &Option<LogId>| id.as_ref().map(LogId::index);
            Reached {
                applied: index(&metrics.last_applied),
                snapshot: index(&metrics.snapshot),
                purged: index(&metrics.purged),
            }
        };
        let bytes = SnapshotBytes { last: self.snapshots.latest().map_or(0, |latest| latest.bytes), now: state_bytes };
        let is_quiet = self.stillness.is_long(reached.applied, Instant::now());
        let bounds = if is_quiet { self.busy.or_less(LogLimits::QUIET) } else { self.busy };
        let plan = plan(&self.size.lock(), bounds, reached, bytes);
        if plan.snapshot {
            raft.trigger().snapshot().await?;
        }
        match plan.purge {
            Some(upto) => raft.trigger().purge_log(upto).await,
            None => Ok(()),
        }
    }
}

/// A large state is not written again and again: if it is larger than the limit, its size is the limit. A state that
/// was large and is small now is written soon, for the log still holds all changes.
fn plan(size: &LogSize, bounds: LogLimits, reached: Reached, bytes: SnapshotBytes) -> CompactionPlan {
    let Reached { applied, snapshot, purged } = reached;
    let enough = bounds.snapshot_every_bytes.max(bytes.last.min(bytes.now));
    let beyond = size.last_beyond(bounds.keep_bytes.max(bytes.last));
    CompactionPlan {
        snapshot: applied > snapshot && size.after(snapshot) > enough,
        // `None` is less than any index.
        purge: beyond.min(snapshot).filter(|upto| Some(*upto) > purged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;
    const BUSY: LogLimits = LogLimits { snapshot_every_bytes: 16 * MIB, keep_bytes: 4 * MIB };

    /// Entries of a MiB, from 1.
    fn log(entries: u64) -> LogSize {
        let mut size = LogSize::default();
        (1..=entries).for_each(|index| size.push(index, MIB as usize));
        size
    }

    fn reached(applied: u64, snapshot: u64, purged: u64) -> Reached {
        let index = |index| Some(index).filter(|index| *index > 0);
        Reached { applied: index(applied), snapshot: index(snapshot), purged: index(purged) }
    }

    #[test]
    fn a_snapshot_is_wanted_by_bytes() {
        let wants_of = |entries, applied, snapshot, last, now| {
            plan(&log(entries), BUSY, reached(applied, snapshot, 0), SnapshotBytes { last, now }).snapshot
        };
        let wants = |entries, applied, snapshot, bytes| wants_of(entries, applied, snapshot, bytes, bytes);
        assert!(!wants(15, 15, 0, 0) && wants(17, 17, 0, 0));
        assert!(!wants(17, 17, 17, 0) && !wants(30, 30, 17, 0) && wants(40, 40, 17, 0));
        assert!(!wants(40, 40, 17, 100 * MIB), "a large state is not written again for so little");
        assert!(wants_of(40, 40, 17, 100 * MIB, MIB), "a state that is small by now is");
        assert!(wants_of(40, 40, 17, MIB, 100 * MIB), "one that has grown is, too");
        assert!(!wants(40, 17, 17, 0), "nothing has been applied since");
    }

    #[test]
    fn what_a_snapshot_covers_goes_by_bytes_and_nothing_else() {
        let goes = |snapshot, purged, last| {
            plan(&log(40), BUSY, reached(40, snapshot, purged), SnapshotBytes { last, now: 0 }).purge
        };
        assert_eq!(goes(0, 0, 0), None, "no snapshot holds anything");
        assert_eq!(goes(20, 0, 0), Some(20), "what comes after the snapshot stays, however much it is");
        assert_eq!(goes(40, 0, 0), Some(36));
        assert_eq!(goes(40, 36, 0), None, "it is gone already");
        assert_eq!(goes(40, 0, 30 * MIB), Some(10), "sending the snapshot would be no less to send");
    }

    #[test]
    fn while_it_is_quiet_no_more_is_kept_than_the_snapshot_has() {
        let wants = |bounds| plan(&log(40), bounds, reached(40, 35, 0), SnapshotBytes { last: MIB, now: MIB });
        assert!(!wants(BUSY).snapshot && wants(LogLimits::QUIET).snapshot);
        let goes = |bounds, last| plan(&log(40), bounds, reached(40, 40, 35), SnapshotBytes { last, now: 0 }).purge;
        assert_eq!(
            (goes(BUSY, 0), goes(LogLimits::QUIET, 0), goes(LogLimits::QUIET, 2 * MIB)),
            (Some(36), Some(40), Some(38))
        );
        let sparing = LogLimits { snapshot_every_bytes: MIB / 2, keep_bytes: 4 * MIB };
        assert_eq!(sparing.or_less(LogLimits::QUIET).snapshot_every_bytes, MIB / 2, "what is configured may be less");
    }

    #[test]
    fn it_is_quiet_when_nothing_has_been_applied_for_a_while() {
        let (began, mut stillness) = (Instant::now(), QuietTimer { applied: None, since: Instant::now() });
        let mut at = |ms, applied| stillness.is_long(Some(applied), began + Duration::from_millis(ms));
        assert!(!at(0, 39) && !at(4_999, 39) && at(5_000, 39) && at(9_000, 39));
        assert!(!at(9_001, 40), "something has happened");
        assert!(!at(14_000, 40) && at(14_001, 40));
    }
}
