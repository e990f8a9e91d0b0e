//! How many bytes of the log lie where, roughly. openraft counts entries alone, and an entry has a hundred bytes or
//! three million.
//!
//! Kept in marks of about [`MARK_BYTES`], so that it costs little however long the log is.

use std::collections::VecDeque;

use lockkeeper_mutants::invariant;
use lockkeeper_store::{LogStorage, StoreError};

/// Bytes of one mark.
const MARK_BYTES: u64 = 256 * 1024;
/// Bytes of an entry beside its payload: its header, its key, its share of sled's page.
const OVERHEAD_BYTES: u64 = 64;
/// Read at a time when the log is counted at the start.
const READ_BYTES: usize = 1024 * 1024;

/// Bytes of the log by index.
#[derive(Debug, Default)]
pub(crate) struct LogSize {
    marks: VecDeque<Mark>,
}

/// Entries that follow the mark before, up to `last`.
#[derive(Debug)]
struct Mark {
    last: u64,
    bytes: u64,
}

impl LogSize {
    /// Counts what the log holds. Reads all of it.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn of(log: &dyn LogStorage) -> Result<Self, StoreError> {
        let (mut size, mut next) = (Self::default(), log.bounds().purged.map_or(0, |purged| purged.index + 1));
        loop {
            let records = log.read(next..u64::MAX, READ_BYTES)?;
            let Some(last) = records.last() else { return Ok(size) };
            next = last.position.index + 1;
            records.iter().for_each(|record| size.push(record.position.index, record.payload.len()));
        }
    }

    /// An entry at the end of the log.
    pub(crate) fn push(&mut self, index: u64, payload_bytes: usize) {
        invariant!(self.marks.back().is_none_or(|mark| mark.last < index), "the log grows at its end");
        let bytes = payload_bytes as u64 + OVERHEAD_BYTES;
        match self.marks.back_mut().filter(|mark| mark.bytes < MARK_BYTES) {
            Some(mark) => (mark.last, mark.bytes) = (index, mark.bytes + bytes),
            None => self.marks.push_back(Mark { last: index, bytes }),
        }
    }

    /// The log ends at `keep` now; with none it is empty.
    pub(crate) fn truncate_after(&mut self, keep: Option<u64>) {
        let Some(keep) = keep else { return self.marks.clear() };
        while self.marks.len() > 1 && self.marks[self.marks.len() - 2].last >= keep {
            self.marks.pop_back();
        }
        // The rest of this mark has fewer bytes; how many is not known.
        if let Some(mark) = self.marks.back_mut() {
            mark.last = mark.last.min(keep);
        }
    }

    /// The log begins after `upto` now.
    pub(crate) fn purge_to(&mut self, upto: u64) {
        while self.marks.front().is_some_and(|mark| mark.last <= upto) {
            self.marks.pop_front();
        }
    }

    /// Bytes of the entries behind `index`, up to a mark too many.
    pub(crate) fn after(&self, index: Option<u64>) -> u64 {
        let behind = self.marks.iter().rev().take_while(|mark| index.is_none_or(|index| mark.last > index));
        behind.map(|mark| mark.bytes).sum()
    }

    /// The last entry that can go if the newest `bytes` stay.
    pub(crate) fn last_beyond(&self, bytes: u64) -> Option<u64> {
        let mut kept = 0;
        let beyond = self.marks.iter().rev().find(|mark| {
            let enough = kept >= bytes;
            kept += mark.bytes;
            enough
        });
        beyond.map(|mark| mark.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of half a mark each.
    fn log(entries: u64) -> LogSize {
        let mut size = LogSize::default();
        let payload = (MARK_BYTES / 2 - OVERHEAD_BYTES) as usize;
        (1..=entries).for_each(|index| size.push(index, payload));
        size
    }

    #[test]
    fn bytes_are_counted_to_about_a_mark() {
        let size = log(10);
        assert_eq!((size.after(None), size.after(Some(0))), (5 * MARK_BYTES, 5 * MARK_BYTES));
        assert_eq!((size.after(Some(8)), size.after(Some(9)), size.after(Some(10))), (MARK_BYTES, MARK_BYTES, 0));
        assert_eq!(
            (size.last_beyond(0), size.last_beyond(1), size.last_beyond(MARK_BYTES)),
            (Some(10), Some(8), Some(8))
        );
        assert_eq!(size.last_beyond(5 * MARK_BYTES), None);
        assert_eq!(LogSize::default().last_beyond(0), None);
    }

    #[test]
    fn what_is_cut_at_either_end_counts_no_more() {
        let mut size = log(10);
        size.purge_to(5);
        assert_eq!(size.after(None), 3 * MARK_BYTES, "the mark of 5 and 6 stays with 6");
        size.truncate_after(Some(7));
        assert_eq!((size.after(None), size.last_beyond(0)), (2 * MARK_BYTES, Some(7)));
        size.push(8, 10);
        assert!(size.after(Some(7)) > 0 && size.last_beyond(0) == Some(8));
        size.truncate_after(None);
        assert_eq!(size.after(None), 0);
    }
}
