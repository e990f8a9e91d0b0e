//! The newest records, in memory: all that sled does not have yet, so that an append is readable when it returns and
//! nobody reads the journal, and as many more as the budget allows, so that replication seldom reads sled.

use std::collections::VecDeque;
use std::ops::Range;

use lockkeeper_mutants::invariant;

use crate::types::Record;

/// A contiguous run that ends with the log.
pub(crate) struct TailCache {
    records: VecDeque<Record>,
    bytes: usize,
    budget_bytes: usize,
    /// Records below this index are in sled.
    archived: u64,
}

impl TailCache {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self { records: VecDeque::new(), bytes: 0, budget_bytes, archived: 0 }
    }

    /// Index of the oldest record held.
    pub(crate) fn first_index(&self) -> Option<u64> {
        self.records.front().map(|record| record.position.index)
    }

    fn get(&self, index: u64) -> Option<&Record> {
        let at = index.checked_sub(self.first_index()?)?;
        self.records.get(usize::try_from(at).ok()?)
    }

    /// The records of a range that are held, consecutive from its start; no more than `max_bytes`, but at least one.
    pub(crate) fn records(&self, range: Range<u64>, max_bytes: usize) -> Vec<Record> {
        let (mut records, mut bytes): (Vec<Record>, usize) = (Vec::new(), 0);
        for record in range.map_while(|index| self.get(index)) {
            bytes += record.payload.len();
            if !records.is_empty() && bytes > max_bytes {
                break;
            }
            records.push(record.clone());
        }
        records
    }

    /// The record must follow the last one held.
    pub(crate) fn push(&mut self, record: Record) {
        let is_next = self.records.back().is_none_or(|last| last.position.index + 1 == record.position.index);
        invariant!(is_next, "the records in memory are consecutive");
        let bytes = cost(&record);
        self.bytes += bytes;
        self.records.push_back(record);
        // Twice as much, to make up for what stayed too long.
        self.evict(2 * bytes, drop);
    }

    /// Records below this index are in sled, as they are here: they may be [evicted](Self::evict).
    pub(crate) fn archived_below(&mut self, index: u64) {
        self.archived = index;
    }

    /// Keeps what lies below `end`. Nothing from there on counts as being in sled any more.
    pub(crate) fn truncate(&mut self, end: u64) {
        self.archived = self.archived.min(end);
        while self.records.back().is_some_and(|record| record.position.index >= end) {
            let record = self.records.pop_back();
            self.forget(record);
        }
    }

    /// Keeps what lies at or above `start`.
    pub(crate) fn purge(&mut self, start: u64) {
        while self.first_index().is_some_and(|first| first < start) {
            let record = self.records.pop_front();
            self.forget(record);
        }
    }

    /// Hands on the oldest records that may go while the budget is exceeded, until they cost so much.
    pub(crate) fn evict(&mut self, most_bytes: usize, mut each: impl FnMut(Record)) {
        let kept_bytes = self.budget_bytes.max(self.bytes.saturating_sub(most_bytes));
        while self.bytes > kept_bytes && self.first_index().is_some_and(|first| first < self.archived) {
            let record = self.records.pop_front();
            self.forget(record).into_iter().for_each(&mut each);
        }
    }

    fn forget(&mut self, record: Option<Record>) -> Option<Record> {
        let bytes = record.as_ref().map_or(0, cost);
        invariant!(bytes <= self.bytes, "the bytes in memory include those of each record");
        self.bytes -= bytes;
        record
    }
}

/// Payload and bookkeeping, so that many empty records count too.
fn cost(record: &Record) -> usize {
    record.payload.len() + size_of::<Record>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::LogPosition;

    fn record(index: u64) -> Record {
        Record { position: LogPosition { term: 1, index }, payload: vec![0; 100].into() }
    }

    #[test]
    fn only_records_that_sled_has_are_evicted() {
        let mut tail = TailCache::new(0);
        for index in 5..10 {
            tail.push(record(index));
        }
        assert_eq!(tail.first_index(), Some(5));
        tail.archived_below(8);
        tail.evict(usize::MAX, drop);
        assert_eq!(tail.first_index(), Some(8));
        assert!(tail.get(7).is_none());
        assert_eq!(tail.get(9), Some(&record(9)));
        tail.truncate(9);
        assert!(tail.get(9).is_none());
        tail.purge(9);
        assert_eq!((tail.first_index(), tail.bytes), (None, 0));
    }

    #[test]
    fn many_records_go_a_few_at_a_time() {
        let mut tail = TailCache::new(0);
        (0..10).for_each(|index| tail.push(record(index)));
        tail.archived_below(10);
        let mut evicted = Vec::new();
        tail.evict(3 * cost(&record(0)), |record| evicted.push(record.position.index));
        assert_eq!((evicted, tail.first_index()), (vec![0, 1, 2], Some(3)));
        tail.push(record(10));
        assert_eq!(tail.first_index(), Some(5), "each append makes up for some");
    }

    #[test]
    fn a_record_in_place_of_one_that_was_cut_is_not_in_sled() {
        let mut tail = TailCache::new(0);
        (5..8).for_each(|index| tail.push(record(index)));
        tail.archived_below(8);
        tail.truncate(6);
        tail.push(record(6));
        assert_eq!(tail.first_index(), Some(6));
    }
}
