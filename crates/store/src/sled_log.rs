//! The log and the meta values as sled holds them. No thread, no policy: the writer decides what sled is given. What
//! changes many keys takes the barrier, which bounds how much of it is not durable at a time.

use std::path::{Path, PathBuf};

use lockkeeper_mutants::mutant;

use crate::block;
use crate::codec::{self, Assembly, MetaKind};
use crate::error::FatalError;
use crate::fsync::DataBarrier;
use crate::journal::durable_log::{SledWork, Task};
use crate::journal::unarchived::Archive;
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
    /// Largest block; 0 if there are to be none.
    block_bytes: usize,
}

impl SledLog {
    pub(crate) fn new(db: sled::Db, file: &Path, segment_bytes: usize) -> sled::Result<Self> {
        let log = db.open_tree("log")?;
        let meta = db.open_tree("meta")?;
        // sled's default tree has nothing of ours, but sled moves its page when it collects garbage: damage there would
        // end the store at some later write.
        db.first()?;
        Ok(Self { db, log, meta, file: file.to_path_buf(), block_bytes: block::limit(segment_bytes) })
    }

    pub(crate) fn db(&self) -> &sled::Db {
        &self.db
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Does a task, durably, and stores its number; returns how many values it put into the log.
    pub(crate) fn perform(&self, task: &Task, barrier: &DataBarrier) -> Result<u64, FatalError> {
        let values = match &task.work {
            SledWork::Archive(archive) => self.archive(archive, barrier)?,
            SledWork::Cut(index) => {
                self.remove_from(*index, barrier)?;
                0
            }
        };
        self.put_meta(MetaKind::Task, task.number, &[])?;
        barrier.run()?;
        Ok(values)
    }

    /// Inserts what the journal no longer keeps: records in blocks, in order and each durable before the next, so that
    /// a crash leaves a prefix and sled never has much that is not durable. What fits into no block goes in parts.
    fn archive(&self, archive: &Archive, barrier: &DataBarrier) -> Result<u64, FatalError> {
        if let Some(start) = archive.start {
            self.put_start(start)?;
        }
        let (mut rest, mut buffer, mut values) = (archive.records.as_slice(), Vec::new(), 0);
        while let Some(record) = rest.first() {
            // The last one shares the barrier at the end. Without blocks all do, but for those of parts that are due.
            if values > 0 && self.block_bytes > 0 && !mutant!(BlockWithoutBarrier) {
                barrier.step()?;
            }
            let count = block::fitting(rest, self.block_bytes);
            if count == 0 {
                values += self.insert_parts(record, &mut buffer, barrier)?;
            } else {
                block::encode(&rest[..count], &mut buffer);
                self.put(record.position.index, 0, &buffer)?;
                values += 1;
            }
            rest = &rest[count.max(1)..];
        }
        if let Some((sequence, vote)) = &archive.vote {
            self.put_meta(MetaKind::Vote, *sequence, vote)?;
        }
        if let Some(purged) = archive.purged {
            self.put_purged(purged)?;
        }
        if let Some((sequence, committed)) = &archive.committed {
            self.put_meta(MetaKind::Committed, *sequence, committed)?;
        }
        Ok(values)
    }

    /// Inserts the parts of a large record in order, so that a crash leaves a prefix; returns their number.
    fn insert_parts(&self, record: &Record, buffer: &mut Vec<u8>, barrier: &DataBarrier) -> Result<u64, FatalError> {
        let parts = codec::part_count(record.payload.len()) as u16;
        for part in 0..parts {
            codec::encode_part(record, part, buffer);
            self.put(record.position.index, part, buffer)?;
            barrier.changed(buffer.len())?;
        }
        Ok(u64::from(parts))
    }

    fn put(&self, index: u64, part: u16, value: &[u8]) -> Result<(), FatalError> {
        self.log.insert(codec::part_key(index, part), value).map_err(|error| self.failure("write", &error))?;
        Ok(())
    }

    /// A log that was never purged starts at 0 unless said otherwise; written only when it has to be.
    fn put_start(&self, index: u64) -> Result<(), FatalError> {
        let stored = self.meta(MetaKind::Start).map_err(|error| self.failure("read", &error))?;
        if index == 0 && matches!(stored, Ok(None)) {
            return Ok(());
        }
        self.put_meta(MetaKind::Start, 0, &index.to_le_bytes())
    }

    /// Removes every record at or above `start`, from the top down, so that a crash leaves a prefix.
    pub(crate) fn remove_from(&self, start: u64, barrier: &DataBarrier) -> Result<(), FatalError> {
        loop {
            let range = self.log.range(codec::part_key(start, 0)..).keys().rev().take(REMOVE_CHUNK);
            let keys = range.collect::<sled::Result<Vec<_>>>().map_err(|error| self.failure("read", &error))?;
            self.remove(&keys, barrier)?;
            if keys.len() < REMOVE_CHUNK {
                break;
            }
        }
        self.shorten_block(start, barrier)
    }

    /// Removes the records at or above `start` from the last block.
    fn shorten_block(&self, start: u64, barrier: &DataBarrier) -> Result<(), FatalError> {
        let Some((key, value)) = self.log.last().map_err(|error| self.failure("read", &error))? else { return Ok(()) };
        if block::last_index(&value).is_none_or(|last| last < start) {
            return Ok(());
        }
        let mut records = block::decode(&key, &value).map_err(|what| self.damaged(what))?;
        records.retain(|record| record.position.index < start);
        let Some(first) = records.first().map(|record| record.position.index) else { return Ok(()) };
        let mut shorter = Vec::new();
        block::encode(&records, &mut shorter);
        self.put(first, 0, &shorter)?;
        barrier.changed(shorter.len())
    }

    /// Removes at most `limit` values between `from` and the index `upto`, upward; returns the key to go on from while
    /// there may be more. A block stays until all of it is to go.
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
        let range = self.log.range(from..=end.as_slice()).take(limit);
        let values = range.collect::<sled::Result<Vec<_>>>().map_err(|error| self.failure("read", &error))?;
        let goes = |value: &sled::IVec| block::last_index(value).is_none_or(|last| last <= upto);
        let keys: Vec<_> = values.iter().take_while(|(_, value)| goes(value)).map(|(key, _)| key.clone()).collect();
        self.remove(&keys, barrier)?;
        Ok(if keys.len() < limit { None } else { keys.last().cloned() })
    }

    fn remove(&self, keys: &[sled::IVec], barrier: &DataBarrier) -> Result<(), FatalError> {
        for key in keys {
            let removed = self.log.remove(key).map_err(|error| self.failure("write", &error))?;
            // sled rewrites what lies beside a block in its page.
            let bytes = removed.map_or(0, |value| if block::is_block(&value) { 4 * value.len() } else { value.len() });
            barrier.changed(bytes)?;
        }
        Ok(())
    }

    /// Records of `start..end` up to `max_bytes` of payload, at least one if there is one. They are contiguous, or it
    /// is an error.
    pub(crate) fn read(&self, start: u64, end: u64, max_bytes: usize) -> Result<Vec<Record>, FatalError> {
        let mut records: Vec<Record> = Vec::new();
        let mut assembly = Assembly::default();
        let (mut bytes, mut expected, mut is_full) = (0, start, false);
        for item in self.values_from(start).map_err(|error| self.failure("read", &error))? {
            let (key, value) = item.map_err(|error| self.failure("read", &error))?;
            let read = block::read(&mut assembly, &key, &value, |record| {
                let index = record.position.index;
                if is_full || index < start || index >= end {
                    return Ok(());
                }
                if index != expected {
                    return Err(format!("record {expected} is missing"));
                }
                if !records.is_empty() && bytes + record.payload.len() > max_bytes {
                    is_full = true;
                    return Ok(());
                }
                (bytes, expected) = (bytes + record.payload.len(), expected + 1);
                records.push(record);
                Ok(())
            });
            read.map_err(|what| self.damaged(what))?;
            if is_full || expected >= end {
                return Ok(records);
            }
        }
        if expected == end { Ok(records) } else { Err(self.damaged(format!("record {expected} is missing"))) }
    }

    /// Every value from the one that holds the index on, in order.
    pub(crate) fn values_from(&self, index: u64) -> sled::Result<sled::Iter> {
        let key = codec::part_key(index, 0);
        let before = self.log.range(..key).next_back().transpose()?;
        Ok(match before.filter(|(_, value)| block::last_index(value).is_some_and(|last| last >= index)) {
            Some((before, _)) => self.log.range(before..),
            None => self.log.range(key..),
        })
    }

    /// Whether anything is stored below the index.
    pub(crate) fn has_records_below(&self, index: u64) -> sled::Result<bool> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::types::Barrier;

    const SEGMENT_BYTES: usize = 4 << 20;

    /// A new sled, and how often its barrier runs beside the last of a task.
    fn open(dir: &Path) -> (SledLog, DataBarrier, Arc<AtomicU32>) {
        let db = sled::Config::new().path(dir).segment_size(SEGMENT_BYTES).open().unwrap();
        let (file, steps) = (dir.join("db"), Arc::new(AtomicU32::new(0)));
        let mut barrier = DataBarrier::new(db.clone(), &file, Barrier::Full, SEGMENT_BYTES).unwrap();
        let counted = steps.clone();
        barrier.progress = Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        (SledLog::new(db, &file, SEGMENT_BYTES).unwrap(), barrier, steps)
    }

    /// Records each of which fills a block.
    fn large(indexes: std::ops::RangeInclusive<u64>) -> Vec<Record> {
        let record = |index| Record { position: LogPosition { term: 1, index }, payload: vec![7; 20_000].into() };
        indexes.map(record).collect()
    }

    fn archive(number: u64, records: Vec<Record>) -> Task {
        Task { number, work: SledWork::Archive(Archive { records, ..Archive::default() }) }
    }

    #[test]
    fn there_is_one_barrier_for_each_block() {
        let dir = tempfile::tempdir().unwrap();
        let (log, barrier, steps) = open(dir.path());
        assert_eq!(log.perform(&archive(1, large(1..=3)), &barrier).unwrap(), 3);
        assert_eq!(steps.load(Ordering::Relaxed), 2, "and one at the end");
        log.perform(&archive(2, large(4..=4)), &barrier).unwrap();
        assert_eq!(steps.load(Ordering::Relaxed), 2);
        assert_eq!(log.read(1, 5, usize::MAX).unwrap(), large(1..=4));
    }

    #[test]
    fn a_purge_of_blocks_has_a_barrier_for_a_few_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let (log, barrier, steps) = open(dir.path());
        log.perform(&archive(1, large(1..=20)), &barrier).unwrap();
        steps.store(0, Ordering::Relaxed);
        assert_eq!(log.purge_some(&codec::part_key(0, 0), 18, 32, &barrier).unwrap(), None);
        assert_eq!((steps.load(Ordering::Relaxed), log.has_records_below(19).unwrap()), (2, false));
    }
}
