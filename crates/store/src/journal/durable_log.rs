//! The durable log: the journal, what of it sled has not, and the tasks of sled. The rules of the module's text are
//! kept here. No clock, no queue, no thread of its own; the writer says when.

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_mutants::{invariant, mutant};

use super::frame::{CHANGE_HEADER_BYTES, Change};
use super::segment::SegmentFile;
use super::unarchived::{Archive, Unarchived};
use super::{Journal, Release};
use crate::error::FatalError;
use crate::types::Record;

/// What sled is to do. The number is to be stored last: where it is found, all of it was done.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) number: u64,
    pub(crate) work: SledWork,
}

impl Task {
    /// The index of the first record that sled is given.
    pub(crate) fn first(&self) -> Option<u64> {
        match &self.work {
            SledWork::Archive(archive) => archive.records.first().map(|record| record.position.index),
            SledWork::Cut(_) => None,
        }
    }
}

/// The work of a task.
#[derive(Debug)]
pub(crate) enum SledWork {
    /// Insert this.
    Archive(Archive),
    /// Remove every record from this index on.
    Cut(u64),
}

/// Does the tasks of sled, one at a time.
pub(crate) trait SledTasks {
    /// Begins a task. There must be none under way.
    fn begin(&mut self, task: Arc<Task>);

    /// Whether the task is done, durably.
    fn is_done(&mut self) -> Result<bool, FatalError>;

    /// Waits until it is.
    fn wait(&mut self) -> Result<(), FatalError>;
}

/// A task under way, and the frames that it frees.
struct UnderWay {
    task: Arc<Task>,
    release: Release,
}

/// See the module's text.
pub(crate) struct DurableLog<F, S> {
    journal: Journal<F>,
    unarchived: Unarchived,
    sled: S,
    under_way: Option<UnderWay>,
    /// Number of the last task.
    task: u64,
}

impl<F: SegmentFile, S: SledTasks> DurableLog<F, S> {
    /// `task`: the last one that sled has done.
    pub(crate) fn new(journal: Journal<F>, unarchived: Unarchived, sled: S, task: u64) -> Self {
        Self { journal, unarchived, sled, under_way: None, task }
    }

    pub(crate) fn sled(&mut self) -> &mut S {
        &mut self.sled
    }

    /// Number of the last frame.
    pub(crate) fn number(&self) -> u64 {
        self.journal.number()
    }

    /// Whether the last frame is durable.
    pub(crate) fn is_synced(&self) -> bool {
        self.journal.is_synced()
    }

    /// Whether a frame takes changes of so many bytes.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.journal.takes(bytes)
    }

    /// Payload bytes that sled does not have.
    pub(crate) fn unarchived_bytes(&self) -> u64 {
        self.unarchived.bytes()
    }

    /// Whether the log is empty and was never purged: then the next record is where it starts.
    pub(crate) fn begins(&self) -> bool {
        self.unarchived.begins()
    }

    /// The index that follows what sled has; nothing while it has neither a record nor a purge mark.
    pub(crate) fn sled_next(&self) -> Option<u64> {
        self.unarchived.sled_next()
    }

    /// The index that follows what sled has, or will have when its task is done, if it is above this one. Then the
    /// journal may not cut the log at this one.
    fn sled_end_above(&self, index: u64) -> Option<u64> {
        let coming = self.under_way.as_ref().and_then(|under_way| match &under_way.task.work {
            SledWork::Archive(archive) => archive.records.last().map(|record| record.position.index + 1),
            SledWork::Cut(_) => None,
        });
        self.unarchived.sled_next().max(coming).filter(|end| *end > index)
    }

    /// Makes changes durable in one frame, which must take them. Waits for sled if the journal is full. They cut
    /// nothing that was durable before: that is for [`truncate`](Self::truncate).
    pub(crate) fn write(&mut self, changes: &[Change]) -> Result<(), FatalError> {
        self.journal.begin();
        let is_left_out = |change: &Change| mutant!(VoteOnlyInSled) && matches!(change, Change::Vote { .. });
        changes.iter().filter(|change| !is_left_out(change)).for_each(|change| self.journal.push(change));
        self.make_room()?;
        self.journal.append()?;
        let number = self.journal.number();
        changes.iter().for_each(|change| self.unarchived.add(number, change));
        Ok(())
    }

    /// Makes the log end before `next`, or empty if there is none.
    pub(crate) fn truncate(&mut self, next: Option<u64>) -> Result<(), FatalError> {
        let index = next.unwrap_or(0);
        self.journal.begin();
        self.journal.push(&Change::Truncate(index));
        // Only now is it known what sled has: it may be given records that go while the frame waits for room.
        self.make_room()?;
        match self.sled_end_above(index) {
            None => self.write(&[Change::Truncate(index)]),
            Some(end) => {
                // What only the journal has goes there, so that sled is not given it first.
                self.write(&[Change::Truncate(end)])?;
                self.cut_sled(next)
            }
        }
    }

    /// Sees to it that the frame fits into the present segment.
    fn make_room(&mut self) -> Result<(), FatalError> {
        while !self.journal.has_room() {
            if self.journal.next_is_free() {
                self.journal.advance();
                invariant!(self.journal.has_room(), "an empty segment takes every frame that is put together");
            } else if self.journal.next_is_released() {
                self.journal.mark_before()?;
            } else {
                self.archive_next();
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Makes records durable that no frame takes together: in as many frames as they need, or in sled if one of them
    /// exceeds a frame.
    pub(crate) fn append_many(&mut self, records: Vec<Record>) -> Result<(), FatalError> {
        // One more for the start of the log.
        let begin_bytes = CHANGE_HEADER_BYTES;
        let bytes = |record: &Record| CHANGE_HEADER_BYTES + record.payload.len();
        if !records.iter().all(|record| self.takes(begin_bytes + bytes(record))) {
            return self.append_to_sled(records);
        }
        let mut rest = records.as_slice();
        while let Some(first) = rest.first() {
            let mut together = begin_bytes;
            let fits = |record: &&Record| {
                together += bytes(record);
                self.takes(together)
            };
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count());
            let begins = self.begins().then_some(Change::Begin(first.position.index));
            self.write(&begins.into_iter().chain(now.iter().cloned().map(Change::Append)).collect::<Vec<_>>())?;
            rest = later;
        }
        Ok(())
    }

    /// Makes records durable in sled, which has everything then, and with it the journal is not needed.
    fn append_to_sled(&mut self, records: Vec<Record>) -> Result<(), FatalError> {
        self.empty()?;
        let start = records.first().map(|first| first.position.index).filter(|_| self.begins());
        self.begin_alone(SledWork::Archive(Archive { start, records, ..Archive::default() }));
        self.wait()
    }

    /// As [`truncate`](Self::truncate), in sled, and with it the journal is not needed.
    fn cut_sled(&mut self, next: Option<u64>) -> Result<(), FatalError> {
        self.empty()?;
        self.begin_alone(SledWork::Cut(next.unwrap_or(0)));
        self.wait()?;
        self.unarchived.sled_was_cut(next);
        Ok(())
    }

    /// Puts the committed mark into sled, after everything else.
    pub(crate) fn put_committed(&mut self, committed: Bytes) -> Result<(), FatalError> {
        self.empty()?;
        self.unarchived.add(self.journal.number(), &Change::Committed(committed));
        let archive = self.unarchived.archive(None);
        self.begin_alone(SledWork::Archive(archive));
        self.wait()
    }

    /// Gives sled everything, and says so durably in the journal.
    pub(crate) fn empty(&mut self) -> Result<(), FatalError> {
        self.wait()?;
        while !self.journal.is_released() {
            self.archive_next();
            self.wait()?;
        }
        if self.journal.is_empty() { Ok(()) } else { self.journal.mark() }
    }

    /// Whether something is left for [`empty`](Self::empty) and nothing is under way.
    pub(crate) fn may_be_emptied(&self) -> bool {
        self.under_way.is_none() && !self.journal.is_empty()
    }

    /// Does a part of [`empty`](Self::empty), without waiting for sled.
    pub(crate) fn empty_some(&mut self) -> Result<(), FatalError> {
        self.take_notice()?;
        if !self.may_be_emptied() {
            return Ok(());
        }
        if self.journal.is_released() {
            return self.journal.mark();
        }
        self.archive_next();
        Ok(())
    }

    /// Has sled given the oldest segment when few are left, or when small records take more memory than the journal has
    /// bytes.
    pub(crate) fn archive_if_full(&mut self) -> Result<(), FatalError> {
        self.take_notice()?;
        let are_few_left = self.journal.released_segments() <= (self.journal.segments() - 1) / 2;
        if are_few_left || self.unarchived.memory_bytes() > self.journal.bytes() {
            self.archive_next();
        }
        Ok(())
    }

    /// Takes notice of what sled has done.
    pub(crate) fn take_notice(&mut self) -> Result<(), FatalError> {
        if self.under_way.is_none() || !self.sled.is_done()? {
            return Ok(());
        }
        let Some(UnderWay { task, release }) = self.under_way.take() else { return Ok(()) };
        if let SledWork::Archive(archive) = &task.work {
            self.unarchived.archived(archive);
            self.journal.release(release);
        }
        self.journal.rely_on(task.number);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), FatalError> {
        if self.under_way.is_some() {
            self.sled.wait()?;
        }
        self.take_notice()
    }

    /// Has sled given what the oldest segment keeps, unless something is under way.
    fn archive_next(&mut self) {
        if self.under_way.is_some() {
            return;
        }
        let release = self.journal.next_release();
        let archive = self.unarchived.archive(release.highest);
        if archive.is_empty() {
            // All of it was purged.
            self.journal.release(release);
        } else {
            self.begin(SledWork::Archive(archive), release);
        }
    }

    fn begin(&mut self, work: SledWork, release: Release) {
        self.task += 1;
        let task = Arc::new(Task { number: self.task, work });
        self.sled.begin(task.clone());
        self.under_way = Some(UnderWay { task, release });
    }

    /// Begins a task that makes sled go beyond the journal, which is empty.
    fn begin_alone(&mut self, work: SledWork) {
        invariant!(self.under_way.is_none() && self.journal.is_empty(), "sled alone is changed when it has everything");
        self.begin(work, Release { upto: self.journal.number(), highest: None });
    }
}
