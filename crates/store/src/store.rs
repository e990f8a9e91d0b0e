//! The handle.
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use crate::{Bounds, Identity, LogPosition, OpenError, Opened, Options, Record, StoreError};

/// Handle of the log.
#[derive(Clone)]
pub struct Store(std::sync::Arc<()>);

impl Store {
    /// Opens or creates the store below `dir`.
    pub fn open(dir: &Path, identity: &Identity, options: Options) -> Result<(Store, Opened), OpenError> {
        Err(OpenError::Invalid("not there yet".into()))
    }
    /// Readable on return; `done` after the barrier, in order.
    pub fn append(&self, records: Vec<Record>, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        done(Err(StoreError::Closed));
    }
    /// Durable before `done`.
    pub fn save_vote(&self, vote: Bytes, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        done(Err(StoreError::Closed));
    }
    /// Not synced.
    pub fn save_committed(&self, committed: Bytes) {}
    /// Keeps what is at or below the index; `None` keeps nothing.
    pub fn truncate_after(&self, keep: Option<u64>, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        done(Err(StoreError::Closed));
    }
    /// `done` when the mark is durable.
    pub fn purge_to(&self, upto: LogPosition, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        done(Err(StoreError::Closed));
    }
    /// Consecutive records of the range that exist; stops when `max_bytes` of payload are exceeded, but gives at least one.
    pub fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StoreError> {
        Err(StoreError::Closed)
    }
    /// The ends of the log.
    pub fn bounds(&self) -> Bounds {
        Bounds::default()
    }
    /// The last vote handed to `save_vote` (or found at open).
    pub fn vote(&self) -> Option<Bytes> {
        None
    }
    /// The last committed mark handed over (or found at open).
    pub fn committed(&self) -> Option<Bytes> {
        None
    }
    /// Free bytes of the disk.
    pub fn free_bytes(&self) -> u64 {
        0
    }
    /// Writes what waits, then ends the writer.
    pub fn close(self) -> Result<(), StoreError> {
        Ok(())
    }
}
