//! What consensus needs of a disk, as traits: the log with its vote and marks, and the snapshots.
//!
//! [`Store`] and [`SnapshotStore`] are the implementations for use. The simulation brings others, whose disk loses at a power cut what was
//! not synced. An implementation must keep the promise of this crate: no `done` with `Ok` before the barrier, and all of them in the order
//! of the calls.

use std::io::{Read, Write};
use std::ops::Range;

use bytes::Bytes;

use crate::error::{SnapshotError, StoreError};
use crate::snapshots::{Finished, Snapshot, SnapshotStore, SnapshotWriter};
use crate::store::Store;
use crate::types::{Bounds, LogPosition, Record};

/// Told once, after the barrier or on failure. It must be quick: everything else waits behind it.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The log, the vote and the committed mark of one node. See the methods of [`Store`] for what each promises.
pub trait LogStorage: Send + Sync + 'static {
    /// Appends records that continue the log; readable when this returns, durable when `done` is called.
    fn append(&self, records: Vec<Record>, done: Done);

    /// Saves the vote; durable before `done`, in order with appends.
    fn save_vote(&self, vote: Bytes, done: Done);

    /// Remembers how far the log is committed. Not synced.
    fn save_committed(&self, committed: Bytes);

    /// Removes every record after the index; `None` removes all that is left.
    fn truncate_after(&self, keep: Option<u64>, done: Done);

    /// Forgets everything up to the position, which may lie beyond the last record.
    fn purge_to(&self, upto: LogPosition, done: Done);

    /// The records of the range that exist, consecutive, at least one of them if there is one, and no more than `max_bytes` else.
    fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StoreError>;

    /// The ends of the log.
    fn bounds(&self) -> Bounds;

    /// The last vote handed to [`save_vote`](Self::save_vote), or found at open.
    fn vote(&self) -> Option<Bytes>;

    /// The last mark handed to [`save_committed`](Self::save_committed), or found at open.
    fn committed(&self) -> Option<Bytes>;
}

impl LogStorage for Store {
    fn append(&self, records: Vec<Record>, done: Done) {
        Store::append(self, records, done);
    }

    fn save_vote(&self, vote: Bytes, done: Done) {
        Store::save_vote(self, vote, done);
    }

    fn save_committed(&self, committed: Bytes) {
        Store::save_committed(self, committed);
    }

    fn truncate_after(&self, keep: Option<u64>, done: Done) {
        Store::truncate_after(self, keep, done);
    }

    fn purge_to(&self, upto: LogPosition, done: Done) {
        Store::purge_to(self, upto, done);
    }

    fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StoreError> {
        Store::read(self, range, max_bytes)
    }

    fn bounds(&self) -> Bounds {
        Store::bounds(self)
    }

    fn vote(&self) -> Option<Bytes> {
        Store::vote(self)
    }

    fn committed(&self) -> Option<Bytes> {
        Store::committed(self)
    }
}

/// A snapshot being written. Dropped unfinished, it leaves nothing.
pub trait SnapshotSink: Write + Send {
    /// Reads what has been written so far, from its beginning: to be checked before it counts.
    fn written(&mut self) -> Result<Box<dyn Read + Send + '_>, SnapshotError>;

    /// Makes it durable and the latest, unless one at the same or a later position is in place.
    fn finish(self: Box<Self>) -> Result<Finished, SnapshotError>;
}

/// The snapshots of one node. All of this may block; the caller sees to it that nothing waits behind it.
pub trait SnapshotStorage: Send + Sync + 'static {
    /// Starts a snapshot of everything up to `position`. Several may be under way.
    fn create(&self, position: LogPosition, meta: &[u8]) -> Result<Box<dyn SnapshotSink>, SnapshotError>;

    /// The latest finished one.
    fn latest(&self) -> Option<Snapshot>;

    /// Opens one for reading. The reader reports the end only if all of it matches its checksum, and goes on when a newer one comes.
    fn reader(&self, snapshot: &Snapshot) -> Result<Box<dyn Read + Send>, SnapshotError>;
}

impl SnapshotSink for SnapshotWriter {
    fn written(&mut self) -> Result<Box<dyn Read + Send + '_>, SnapshotError> {
        Ok(Box::new(SnapshotWriter::written(self)?))
    }

    fn finish(self: Box<Self>) -> Result<Finished, SnapshotError> {
        SnapshotWriter::finish(*self)
    }
}

impl SnapshotStorage for SnapshotStore {
    fn create(&self, position: LogPosition, meta: &[u8]) -> Result<Box<dyn SnapshotSink>, SnapshotError> {
        Ok(Box::new(SnapshotStore::create(self, position, meta)?))
    }

    fn latest(&self) -> Option<Snapshot> {
        SnapshotStore::latest(self)
    }

    fn reader(&self, snapshot: &Snapshot) -> Result<Box<dyn Read + Send>, SnapshotError> {
        Ok(Box::new(snapshot.reader()?))
    }
}
