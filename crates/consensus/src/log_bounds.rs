//! Keeps the log within its bounds in bytes. openraft knows those in entries alone, and an entry has a hundred bytes or some megabytes: with
//! those alone a disk holds whatever 50,000 batches of a busy time happen to be.
//!
//! It decides nothing that matters for safety: it asks openraft for a snapshot, or to let go of what a snapshot covers, and openraft sees to
//! it that nothing goes which no snapshot holds.

use std::sync::Arc;

use lockkeeper_store::SnapshotStorage;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use parking_lot::Mutex;

use crate::log_size::LogSize;
use crate::types::{LogId, Raft, TypeConfig};

/// See the module's text.
pub(crate) struct LogBounds {
    pub(crate) size: Arc<Mutex<LogSize>>,
    pub(crate) snapshots: Arc<dyn SnapshotStorage>,
    pub(crate) snapshot_every_bytes: u64,
    pub(crate) keep_bytes: u64,
}

/// What is to be asked for now.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    snapshot: bool,
    /// What is to go, up to this index.
    purge: Option<u64>,
}

/// How far this node is.
#[derive(Clone, Copy)]
struct Reached {
    applied: Option<u64>,
    snapshot: Option<u64>,
    purged: Option<u64>,
}

impl LogBounds {
    /// Asks for a snapshot, or for what lies too far behind it to go, where it is time. Asking for what is under way does nothing.
    pub(crate) async fn keep(&self, raft: &Raft) -> Result<(), Fatal<TypeConfig>> {
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
        let snapshot_bytes = self.snapshots.latest().map_or(0, |latest| latest.bytes);
        let wanted = self.wanted(reached, snapshot_bytes);
        if wanted.snapshot {
            raft.trigger().snapshot().await?;
        }
        match wanted.purge {
            Some(upto) => raft.trigger().purge_log(upto).await,
            None => Ok(()),
        }
    }

    /// A large state is not written again and again: its size counts where it is larger than the bound.
    fn wanted(&self, reached: Reached, snapshot_bytes: u64) -> Wanted {
        let Reached { applied, snapshot, purged } = reached;
        let size = self.size.lock();
        let behind = size.after(snapshot);
        let beyond = size.last_beyond(self.keep_bytes.max(snapshot_bytes));
        Wanted {
            snapshot: applied > snapshot && behind > self.snapshot_every_bytes.max(snapshot_bytes),
            // Of none and some, none is the less.
            purge: beyond.min(snapshot).filter(|upto| Some(*upto) > purged),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_store::{LogPosition, SnapshotError, SnapshotSink};

    use super::*;

    const MIB: u64 = 1024 * 1024;

    struct NoSnapshots;

    impl SnapshotStorage for NoSnapshots {
        fn create(&self, _: LogPosition, _: &[u8]) -> Result<Box<dyn SnapshotSink>, SnapshotError> {
            unreachable!("nothing is written")
        }
        fn latest(&self) -> Option<lockkeeper_store::Snapshot> {
            None
        }
        fn reader(&self, _: &lockkeeper_store::Snapshot) -> Result<Box<dyn std::io::Read + Send>, SnapshotError> {
            unreachable!("nothing is read")
        }
    }

    /// Entries of a MiB, from 1.
    fn bounds(entries: u64) -> LogBounds {
        let mut size = LogSize::default();
        (1..=entries).for_each(|index| size.push(index, MIB as usize));
        LogBounds {
            size: Arc::new(Mutex::new(size)),
            snapshots: Arc::new(NoSnapshots),
            snapshot_every_bytes: 16 * MIB,
            keep_bytes: 4 * MIB,
        }
    }

    fn reached(applied: u64, snapshot: u64, purged: u64) -> Reached {
        let index = |index| Some(index).filter(|index| *index > 0);
        Reached { applied: index(applied), snapshot: index(snapshot), purged: index(purged) }
    }

    #[test]
    fn a_snapshot_is_wanted_by_bytes() {
        let wants =
            |entries, applied, snapshot, bytes| bounds(entries).wanted(reached(applied, snapshot, 0), bytes).snapshot;
        assert!(!wants(15, 15, 0, 0) && wants(17, 17, 0, 0));
        assert!(!wants(17, 17, 17, 0) && !wants(30, 30, 17, 0) && wants(40, 40, 17, 0));
        assert!(!wants(40, 40, 17, 100 * MIB), "a large state is not written again for so little");
        assert!(!wants(40, 17, 17, 0), "nothing has been applied since");
    }

    #[test]
    fn what_a_snapshot_covers_goes_by_bytes_and_nothing_else() {
        let goes = |snapshot, purged, bytes| bounds(40).wanted(reached(40, snapshot, purged), bytes).purge;
        assert_eq!(goes(0, 0, 0), None, "no snapshot holds anything");
        assert_eq!(goes(20, 0, 0), Some(20), "what comes after the snapshot stays, however much it is");
        assert_eq!(goes(40, 0, 0), Some(36));
        assert_eq!(goes(40, 36, 0), None, "it is gone already");
        assert_eq!(goes(40, 0, 30 * MIB), Some(10), "sending the snapshot would be no less to send");
    }
}
