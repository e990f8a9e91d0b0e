//! What consensus needs of a disk, as traits: the log with its vote and marks, and the snapshots.
//!
//! [`Store`] and [`SnapshotStore`] implement them for use. The simulation implements them with a disk that loses
//! unsynced data at a power cut. An implementation must keep the promise of this crate: no `done` with `Ok` before the
//! barrier, and all of them in the order of the calls. Nothing of [`LogStorage`] but [`LogStorage::read`] may block.

use std::io::{Read, Write};
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{SnapshotError, StoreError};
use crate::position::LogPosition;
use crate::snapshots::{Finished, Snapshot, SnapshotStore, SnapshotWriter};
use crate::store::Store;
use crate::types::{Bounds, Done, Record};

/// The log, the vote and the committed mark of one node. See the methods of [`Store`] for what each promises.
///
/// The four writes wait, without blocking, until the storage takes more.
#[async_trait]
pub trait LogStorage: Send + Sync + 'static {
    /// Appends records that continue the log; readable when this returns, durable when `done` is called.
    async fn append(&self, records: Vec<Record>, done: Done);

    /// Saves the vote; durable before `done`, in order with appends.
    async fn save_vote(&self, vote: Bytes, done: Done);

    /// Remembers how far the log is committed. Not synced.
    fn save_committed(&self, committed: Bytes);

    /// Removes every record after the index; `None` removes all that is left.
    async fn truncate_after(&self, keep: Option<u64>, done: Done);

    /// Forgets everything up to the position, which may lie beyond the last record.
    async fn purge_to(&self, upto: LogPosition, done: Done);

    /// The position of the record at the index, if there is one.
    fn position_at(&self, index: u64) -> Option<LogPosition>;

    /// The result of [`read`](Self::read) if memory alone has it; `None` if the disk must be read.
    fn read_cached(&self, range: Range<u64>, max_bytes: usize) -> Option<Vec<Record>>;

    /// The records of the range that exist, consecutive: at least one if there is one, otherwise no more than
    /// `max_bytes`. Blocks where [`read_cached`](Self::read_cached) has no answer.
    fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StoreError>;

    /// The ends of the log.
    fn bounds(&self) -> Bounds;

    /// The last vote handed to [`save_vote`](Self::save_vote), or found at open.
    fn vote(&self) -> Option<Bytes>;

    /// The last mark handed to [`save_committed`](Self::save_committed), or found at open.
    fn committed(&self) -> Option<Bytes>;
}

#[async_trait]
impl LogStorage for Store {
    async fn append(&self, records: Vec<Record>, done: Done) {
        Store::append(self, records, done).await;
    }

    async fn save_vote(&self, vote: Bytes, done: Done) {
        Store::save_vote(self, vote, done).await;
    }

    fn save_committed(&self, committed: Bytes) {
        Store::save_committed(self, committed);
    }

    async fn truncate_after(&self, keep: Option<u64>, done: Done) {
        Store::truncate_after(self, keep, done).await;
    }

    async fn purge_to(&self, upto: LogPosition, done: Done) {
        Store::purge_to(self, upto, done).await;
    }

    fn position_at(&self, index: u64) -> Option<LogPosition> {
        Store::position_at(self, index)
    }

    fn read_cached(&self, range: Range<u64>, max_bytes: usize) -> Option<Vec<Record>> {
        Store::read_cached(self, range, max_bytes)
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

/// A snapshot being written. If it is dropped unfinished, nothing of it stays.
pub trait SnapshotSink: Write + Send {
    /// Reads the bytes written so far, from the beginning, to check them before [`finish`](Self::finish).
    fn written(&mut self) -> Result<Box<dyn Read + Send + '_>, SnapshotError>;

    /// Makes it durable and the latest, unless one at the same or a later position is in place.
    fn finish(self: Box<Self>) -> Result<Finished, SnapshotError>;
}

/// The snapshots of one node. Every method may block: call them on a thread for work that blocks.
pub trait SnapshotStorage: Send + Sync + 'static {
    /// Starts a snapshot of everything up to `position`. Several may be under way.
    fn create(&self, position: LogPosition, meta: &[u8]) -> Result<Box<dyn SnapshotSink>, SnapshotError>;

    /// The latest finished one.
    fn latest(&self) -> Option<Snapshot>;

    /// Opens one for reading. The reader reports the end only if the whole file matches its checksum, and stays valid
    /// when a newer snapshot replaces it.
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
