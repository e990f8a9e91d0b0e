//! The newest records, in memory: all that the writer has not inserted into sled yet, so that an append is readable
//! when it returns, and as many more as the budget allows, so that replication seldom reads sled.

use std::collections::VecDeque;
use std::ops::Range;

use lockkeeper_mutants::invariant;

use crate::types::Record;

struct Slot {
    record: Record,
    /// Number of the command that brought it.
    command: u64,
}

/// A contiguous run that ends with the log.
pub(crate) struct TailCache {
    slots: VecDeque<Slot>,
    bytes: usize,
    budget_bytes: usize,
    /// Commands up to this number are in sled.
    inserted: u64,
}

impl TailCache {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self { slots: VecDeque::new(), bytes: 0, budget_bytes, inserted: 0 }
    }

    /// Index of the oldest record held.
    pub(crate) fn first_index(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.record.position.index)
    }

    fn get(&self, index: u64) -> Option<&Record> {
        let at = index.checked_sub(self.first_index()?)?;
        self.slots.get(usize::try_from(at).ok()?).map(|slot| &slot.record)
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
    pub(crate) fn push(&mut self, record: Record, command: u64) {
        let is_next = self.slots.back().is_none_or(|slot| slot.record.position.index + 1 == record.position.index);
        invariant!(is_next, "the records in memory are consecutive");
        self.bytes += cost(&record);
        self.slots.push_back(Slot { record, command });
        self.evict();
    }

    /// Commands up to `command` are in sled: their records may go when the budget is exceeded.
    pub(crate) fn mark_inserted(&mut self, command: u64) {
        invariant!(self.inserted <= command, "commands are carried out in their order");
        self.inserted = command;
        self.evict();
    }

    /// Keeps what lies below `end`.
    pub(crate) fn truncate(&mut self, end: u64) {
        while self.slots.back().is_some_and(|slot| slot.record.position.index >= end) {
            let slot = self.slots.pop_back();
            self.forget(slot);
        }
    }

    /// Keeps what lies at or above `start`.
    pub(crate) fn purge(&mut self, start: u64) {
        while self.first_index().is_some_and(|first| first < start) {
            self.drop_first();
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.budget_bytes && self.slots.front().is_some_and(|slot| slot.command <= self.inserted) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let slot = self.slots.pop_front();
        self.forget(slot);
    }

    fn forget(&mut self, slot: Option<Slot>) {
        let bytes = slot.map_or(0, |slot| cost(&slot.record));
        invariant!(bytes <= self.bytes, "the bytes in memory include those of each record");
        self.bytes -= bytes;
    }
}

/// Payload and bookkeeping, so that many empty records count too.
fn cost(record: &Record) -> usize {
    record.payload.len() + size_of::<Slot>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::LogPosition;

    fn record(index: u64) -> Record {
        Record { position: LogPosition { term: 1, index }, payload: vec![0; 100].into() }
    }

    #[test]
    fn only_inserted_records_are_evicted() {
        let mut tail = TailCache::new(0);
        for index in 5..10 {
            tail.push(record(index), index);
        }
        assert_eq!(tail.first_index(), Some(5));
        tail.mark_inserted(7);
        assert_eq!(tail.first_index(), Some(8));
        assert!(tail.get(7).is_none());
        assert_eq!(tail.get(9), Some(&record(9)));
        tail.truncate(9);
        assert!(tail.get(9).is_none());
        tail.purge(9);
        assert_eq!((tail.first_index(), tail.bytes), (None, 0));
    }
}
