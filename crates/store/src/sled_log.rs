//! The log and the meta values as sled holds them. No thread, no policy: the writer decides when to write. What changes
//! many keys takes the barrier, which bounds how much of it is not durable at a time.

use std::path::{Path, PathBuf};

use crate::codec::{self, Assembly, MetaKind};
use crate::error::FatalError;
use crate::fsync::DataBarrier;
use crate::position::LogPosition;
use crate::types::Record;

/// Keys collected at a time when a run of records is removed.
const REMOVE_CHUNK: usize = 1024;

/// Sequence and data of a meta value.
pub(crate) type MetaValue = (u64, Vec<u8>);

/// The open trees.
pub(crate) struct SledLog {
    db: sled::Db,
    log: sled::Tree,
    meta: sled::Tree,
    /// sled's data file, for error texts.
    file: PathBuf,
}

impl SledLog {
    pub(crate) fn new(db: sled::Db, file: &Path) -> sled::Result<Self> {
        let log = db.open_tree("log")?;
        let meta = db.open_tree("meta")?;
        // sled's default tree has nothing of ours, but sled moves its page when it collects garbage: damage there would
        // end the store at some later write.
        db.first()?;
        Ok(Self { db, log, meta, file: file.to_path_buf() })
    }

    pub(crate) fn db(&self) -> &sled::Db {
        &self.db
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Inserts the parts in order, so that a crash leaves a prefix; returns their number.
    pub(crate) fn insert(
        &self,
        record: &Record,
        buffer: &mut Vec<u8>,
        barrier: &DataBarrier,
    ) -> Result<u64, FatalError> {
        let parts = codec::part_count(record.payload.len()) as u16;
        for part in 0..parts {
            codec::encode_part(record, part, buffer);
            let key = codec::part_key(record.position.index, part);
            self.log.insert(key, buffer.as_slice()).map_err(|error| self.failure("write", &error))?;
            barrier.changed(buffer.len())?;
        }
        Ok(u64::from(parts))
    }

    /// Removes every part at or above `start`, from the top down, so that a crash leaves a prefix.
    pub(crate) fn remove_from(&self, start: u64, barrier: &DataBarrier) -> Result<(), FatalError> {
        loop {
            let range = self.log.range(codec::part_key(start, 0)..).keys().rev().take(REMOVE_CHUNK);
            let keys = range.collect::<sled::Result<Vec<_>>>().map_err(|error| self.failure("read", &error))?;
            self.remove(&keys, barrier)?;
            if keys.len() < REMOVE_CHUNK {
                return Ok(());
            }
        }
    }

    /// Removes at most `limit` parts between `from` and the index `upto`, upward; returns the key to go on from while
    /// there may be more.
    pub(crate) fn purge_some(
        &self,
        from: &[u8],
        upto: u64,
        limit: usize,
        barrier: &DataBarrier,
    ) -> Result<Option<sled::IVec>, FatalError> {
        let end = codec::part_key(upto, u16::MAX);
        if from > end.as_slice() {
            return Ok(None);
        }
        let range = self.log.range(from..=end.as_slice()).keys().take(limit);
        let keys = range.collect::<sled::Result<Vec<_>>>().map_err(|error| self.failure("read", &error))?;
        self.remove(&keys, barrier)?;
        Ok(if keys.len() < limit { None } else { keys.last().cloned() })
    }

    fn remove(&self, keys: &[sled::IVec], barrier: &DataBarrier) -> Result<(), FatalError> {
        for key in keys {
            let removed = self.log.remove(key).map_err(|error| self.failure("write", &error))?;
            barrier.changed(removed.map_or(0, |value| value.len()))?;
        }
        Ok(())
    }

    /// Records of `start..end` up to `max_bytes` of payload, at least one if there is one. They are contiguous, or it
    /// is an error.
    pub(crate) fn read(&self, start: u64, end: u64, max_bytes: usize) -> Result<Vec<Record>, FatalError> {
        let mut records = Vec::new();
        let mut assembly = Assembly::default();
        let (mut bytes, mut expected) = (0, start);
        for item in self.log.range(codec::part_key(start, 0)..codec::part_key(end, 0)) {
            let (key, value) = item.map_err(|error| self.failure("read", &error))?;
            let part = codec::decode_part(&key, &value).map_err(|what| self.damaged(what))?;
            let Some(record) = assembly.push(&part).map_err(|what| self.damaged(what))? else { continue };
            if record.position.index != expected {
                return Err(self.damaged(format!("record {expected} is missing")));
            }
            if !records.is_empty() && bytes + record.payload.len() > max_bytes {
                return Ok(records);
            }
            (bytes, expected) = (bytes + record.payload.len(), expected + 1);
            records.push(record);
        }
        if expected == end { Ok(records) } else { Err(self.damaged(format!("record {expected} is missing"))) }
    }

    /// Every part at or above the index, in order.
    pub(crate) fn parts_from(&self, index: u64) -> sled::Iter {
        self.log.range(codec::part_key(index, 0)..)
    }

    /// Whether anything is stored below the index.
    pub(crate) fn has_parts_below(&self, index: u64) -> sled::Result<bool> {
        self.log.range(..codec::part_key(index, 0)).next().transpose().map(|found| found.is_some())
    }

    pub(crate) fn put_meta(&self, kind: MetaKind, sequence: u64, data: &[u8]) -> Result<(), FatalError> {
        let value = codec::encode_meta(kind, sequence, data);
        self.meta.insert(kind.key(), value).map_err(|error| self.failure("write", &error))?;
        Ok(())
    }

    /// Sequence and data of a meta value; the inner error is a sentence about damage.
    pub(crate) fn meta(&self, kind: MetaKind) -> sled::Result<Result<Option<MetaValue>, String>> {
        let Some(value) = self.meta.get(kind.key())? else { return Ok(Ok(None)) };
        Ok(codec::decode_meta(kind, &value).map(|(sequence, data)| Some((sequence, data.to_vec()))))
    }

    pub(crate) fn put_purged(&self, position: LogPosition) -> Result<(), FatalError> {
        self.put_meta(MetaKind::Purged, position.index, &codec::encode_position(position))
    }

    fn failure(&self, what: &'static str, error: &sled::Error) -> FatalError {
        crate::fsync::io_failure(what, &self.file, error)
    }

    fn damaged(&self, what: String) -> FatalError {
        FatalError::Damaged { file: self.file.clone(), what }
    }
}
