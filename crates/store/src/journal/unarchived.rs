//! What the journal has and sled has not: the durable log above sled's, and votes and marks. Pure; it decides what sled
//! is given next, and the writer and the archiver see to it that it is.
//!
//! It holds what is durable in the journal and nothing else: what a caller has asked for and no sync has covered yet is
//! not sled's business.

use std::collections::VecDeque;

use bytes::Bytes;
use lockkeeper_mutants::invariant;

use super::frame::Change;
use super::recovery::Marks;
use crate::position::LogPosition;
use crate::types::Record;

/// What a record takes in memory beside its payload, here and in the log that readers see.
const RECORD_BYTES: u64 = 100;

/// What sled is given in one turn, in this order: where the log starts, records, votes and marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Archive {
    /// Set if sled has no record and no purge mark yet.
    pub(crate) start: Option<u64>,
    /// They continue sled's log.
    pub(crate) records: Vec<Record>,
    pub(crate) vote: Option<(u64, Bytes)>,
    pub(crate) purged: Option<LogPosition>,
    pub(crate) committed: Option<(u64, Bytes)>,
}

impl Archive {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn last(&self) -> Option<u64> {
        self.records.last().map(|record| record.position.index)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Unarchived {
    /// Consecutive, up to the end of the durable log.
    records: VecDeque<Record>,
    /// Of their payloads.
    bytes: u64,
    /// The index that follows what sled has; nothing while it has neither a record nor a purge mark.
    sled_next: Option<u64>,
    marks: Marks,
    /// Votes and marks as sled has them.
    archived: Marks,
}

impl Unarchived {
    /// `records` follow what sled has; `archived` is durable in sled, and `marks` in sled and the journal together.
    pub(crate) fn new(records: VecDeque<Record>, sled_next: Option<u64>, marks: Marks, archived: Marks) -> Self {
        let bytes = records.iter().map(payload_bytes).sum();
        Self { records, bytes, sled_next, marks, archived }
    }

    /// The index that follows what sled has.
    pub(crate) fn sled_next(&self) -> Option<u64> {
        self.sled_next
    }

    /// Whether the durable log is empty and was never purged: then the next record is where it starts.
    pub(crate) fn begins(&self) -> bool {
        self.sled_next.is_none() && self.records.is_empty() && self.marks.purged.is_none()
    }

    /// Payload bytes that sled does not have.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the records that sled does not have take in memory, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes + RECORD_BYTES * self.records.len() as u64
    }

    /// A change has become durable in the journal, in frame `number`.
    pub(crate) fn add(&mut self, number: u64, change: &Change) {
        match change {
            Change::Begin(_) => {}
            Change::Append(record) => {
                let follows = self.records.back().is_none_or(|last| last.position.index + 1 == record.position.index);
                invariant!(follows, "what sled is to be given is consecutive");
                self.bytes += payload_bytes(record);
                self.records.push_back(record.clone());
            }
            Change::Vote { sequence, vote } => self.marks.vote = Some((*sequence, vote.clone())),
            Change::Truncate(index) => {
                let spares_sled = self.sled_next.is_none_or(|next| next <= *index);
                invariant!(spares_sled, "the journal cuts no record that sled has");
                while let Some(record) = self.records.back().filter(|record| record.position.index >= *index) {
                    self.bytes -= payload_bytes(record);
                    self.records.pop_back();
                }
            }
            Change::Purge(upto) => {
                self.marks.purged = Some(*upto);
                self.drop_to(upto.index);
            }
            Change::Committed(mark) => self.marks.committed = Some((number, mark.clone())),
        }
    }

    /// What sled must be given so that no frame is needed that has no record above `highest` and is not newer than the
    /// durable end of the journal.
    pub(crate) fn archive(&self, highest: Option<u64>) -> Archive {
        let count =
            highest.map_or(0, |highest| self.records.partition_point(|record| record.position.index <= highest));
        let records: Vec<Record> = self.records.iter().take(count).cloned().collect();
        let begins = self.sled_next.is_none() && self.marks.purged.is_none();
        let changed = |new: &Option<(u64, Bytes)>, old: &Option<(u64, Bytes)>| new.clone().filter(|_| new != old);
        Archive {
            start: records.first().map(|record| record.position.index).filter(|_| begins),
            records,
            vote: changed(&self.marks.vote, &self.archived.vote),
            purged: self.marks.purged.filter(|_| self.marks.purged != self.archived.purged),
            committed: changed(&self.marks.committed, &self.archived.committed),
        }
    }

    /// sled has it durably. The log was not cut meanwhile below what it holds.
    pub(crate) fn archived(&mut self, archive: &Archive) {
        let Archive { vote, purged, committed, .. } = archive;
        if let Some(last) = archive.last() {
            self.drop_to(last);
            self.sled_next = self.sled_next.max(Some(last + 1));
        }
        if let Some(purged) = purged {
            self.sled_next = self.sled_next.max(Some(purged.index + 1));
            self.archived.purged = Some(*purged);
        }
        self.archived.vote = vote.clone().or(self.archived.vote.take());
        self.archived.committed = committed.clone().or(self.archived.committed.take());
    }

    /// sled was cut so that this index follows what it has: nothing if it has no record and no purge mark any more.
    pub(crate) fn sled_was_cut(&mut self, next: Option<u64>) {
        invariant!(self.records.is_empty(), "sled has the whole log when it is cut");
        self.sled_next = next;
    }

    fn drop_to(&mut self, index: u64) {
        while let Some(record) = self.records.front().filter(|record| record.position.index <= index) {
            self.bytes -= payload_bytes(record);
            self.records.pop_front();
        }
    }
}

fn payload_bytes(record: &Record) -> u64 {
    record.payload.len() as u64
}
