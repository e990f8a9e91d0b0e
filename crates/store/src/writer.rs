//! The one thread that writes the journal: drain the queue, one write, one sync, complete all callbacks in order
//! (`ARCHITECTURE.md`, The way of a write). sled follows on a thread of its own (`archiver.rs`), when this one says so:
//! as the journal fills, when nothing was asked for in a while, and at the end.
//!
//! It must never call back before what is asked for is durable, and never write again after a failure.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_mutants::{invariant, mutant};

use crate::ack_watermark::{AckWatermark, AckWatermarkFile};
use crate::archiver::Archiver;
use crate::codec::MAX_META_BYTES;
use crate::error::{FatalError, StoreError};
use crate::fsync::{Marks, io_failure};
use crate::journal::durable_log::DurableLog;
use crate::journal::frame::{CHANGE_HEADER_BYTES, Change};
use crate::journal::segment::DiskSegment;
use crate::log_state::{StoreShared, Turn};
use crate::open::panic_text;
use crate::position::LogPosition;
use crate::queue::{Command, Work};
use crate::watchdog::Watchdog;

/// The committed mark rides along with a batch at most this often; losing it costs nothing but a slower start.
const COMMITTED_EVERY: Duration = Duration::from_millis(200);
/// Commands share a frame up to so many bytes.
const SHARED_FRAME_BYTES: usize = 1024 * 1024;
/// What of the log in memory goes at a time, when sled has it.
const EVICTED_BYTES: usize = 16 * 1024;

/// Everything that only the writer touches.
pub(crate) struct Writer {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) log: DurableLog<DiskSegment, Archiver>,
    pub(crate) watermark: AckWatermarkFile,
    pub(crate) marks: Marks,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) committed_at: Instant,
    pub(crate) committed: Option<Bytes>,
    /// What of the log readers leave to sled.
    pub(crate) left_to_sled: Option<u64>,
    /// Whether an older build made the directory, and can go on with it after an orderly stop.
    pub(crate) is_old: bool,
    /// When something was last asked for.
    pub(crate) asked_at: Instant,
    /// For error texts.
    pub(crate) dir: PathBuf,
}

/// How commands are made durable.
#[derive(Clone, Copy)]
enum Way {
    /// In one frame, by these bytes of changes.
    Shared(usize),
    /// By itself: it cuts what was acknowledged, or exceeds a frame.
    Alone,
}

/// What a group of commands did, for the watermark.
struct Applied {
    last: Option<LogPosition>,
    vote_sequence: u64,
    voted: bool,
    records: u64,
}

impl Writer {
    /// Works until the store is closed or fails.
    pub(crate) fn run(mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.work()));
        self.watchdog.end();
        if let Err(error) = result.unwrap_or_else(|panic| Err(self.panicked(&*panic))) {
            self.shared.fail(&error);
        }
    }

    fn panicked(&self, panic: &(dyn std::any::Any + Send)) -> FatalError {
        FatalError::Panicked { file: self.dir.clone(), what: panic_text(panic) }
    }

    fn work(&mut self) -> Result<(), FatalError> {
        loop {
            match self.shared.next_turn(self.rests_at()) {
                Turn::Batch(batch) => {
                    self.asked_at = Instant::now();
                    self.write(batch)?;
                    self.log.archive_if_full()?;
                    self.leave_to_sled();
                }
                Turn::Other => self.rest()?,
                Turn::End if self.shared.failure.get().is_some() => return Ok(()),
                Turn::End => return self.finish(),
            }
        }
    }

    /// Makes a batch durable, group by group, and calls all of its callbacks in every case.
    fn write(&mut self, batch: Vec<Command>) -> Result<(), FatalError> {
        let mut left = VecDeque::from(batch);
        while !left.is_empty() {
            let (mut group, way) = self.next_group(&mut left);
            if mutant!(AckBeforeBarrier) {
                self.mark(&group);
                group.iter_mut().for_each(|command| std::mem::replace(&mut command.done, Box::new(|_| {}))(Ok(())));
            }
            self.watchdog.begin();
            let result = catch_unwind(AssertUnwindSafe(|| self.make_durable(&group, way)));
            self.watchdog.end();
            let result = result.unwrap_or_else(|panic| Err(self.panicked(&*panic)));
            // If the watchdog fired meanwhile, the store has failed: too late to acknowledge.
            let result = result.and_then(|()| self.shared.failure.get().map_or(Ok(()), Err));
            if let Err(error) = result {
                self.shared.fail(&error);
                let told = StoreError::Failed(error.clone());
                group.into_iter().chain(left).for_each(|command| (command.done)(Err(told.clone())));
                return Err(error);
            }
            self.mark(&group);
            group.into_iter().for_each(|command| (command.done)(Ok(())));
        }
        Ok(())
    }

    /// The commands that become durable together, and how.
    fn next_group(&self, left: &mut VecDeque<Command>) -> (Vec<Command>, Way) {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(command) = left.front() {
            match self.way(&command.work) {
                Way::Alone if group.is_empty() => return (left.pop_front().into_iter().collect(), Way::Alone),
                Way::Shared(more) if group.is_empty() || self.may_share(bytes + more) => bytes += more,
                _ => break,
            }
            group.extend(left.pop_front());
        }
        (group, Way::Shared(bytes))
    }

    fn may_share(&self, bytes: usize) -> bool {
        bytes <= SHARED_FRAME_BYTES && self.log.takes(bytes)
    }

    fn way(&self, work: &Work) -> Way {
        let bytes = bytes_of_changes(work);
        if self.lowers_watermark(work) || !self.log.takes(bytes) { Way::Alone } else { Way::Shared(bytes) }
    }

    fn lowers_watermark(&self, work: &Work) -> bool {
        let acknowledged = self.watermark.watermark().last;
        match work {
            Work::Truncate(last) => {
                acknowledged.is_some_and(|acknowledged| last.is_none_or(|last| last.index < acknowledged.index))
            }
            _ => false,
        }
    }

    fn make_durable(&mut self, group: &[Command], way: Way) -> Result<(), FatalError> {
        let bytes: u64 = group.iter().map(|command| command.work.bytes() as u64).sum();
        if bytes > 0 {
            // The journal has its place, and whatever it takes has a place in sled: cutting and purging, which may wait
            // for sled, are never refused for want of it.
            self.shared.check_free_space(bytes + self.log.unarchived_bytes())?;
        }
        let watermark = self.watermark.watermark();
        let mut applied =
            Applied { last: watermark.last, vote_sequence: watermark.vote_sequence, voted: false, records: 0 };
        group.iter().for_each(|command| applied.add(&command.work));
        let (began, frame) = (Instant::now(), self.log.number());
        match way {
            Way::Alone => group.iter().try_for_each(|command| self.write_alone(command))?,
            Way::Shared(bytes) => self.write_frame(group, bytes)?,
        }
        // An empty group, which has only callbacks, writes none.
        if self.log.number() > frame {
            metrics::histogram!("lockkeeper_store_sync_seconds").record(began.elapsed().as_secs_f64());
        }
        invariant!(self.log.is_synced(), "nothing is acknowledged before its frame is durable");
        self.raise_watermark(&applied)?;
        for command in group {
            match command.work {
                Work::Purge(upto) => self.log.sled().purge(upto.index),
                Work::Truncate(_) => self.shared.state.lock().cuts -= 1,
                _ => {}
            }
        }
        if applied.records > 0 {
            metrics::histogram!("lockkeeper_store_batch_records").record(applied.records as f64);
        }
        metrics::gauge!("lockkeeper_store_log_entries").set(self.shared.records() as f64);
        self.show_unarchived();
        Ok(())
    }

    /// One frame for all of them, by so many bytes of changes.
    fn write_frame(&mut self, group: &[Command], bytes: usize) -> Result<(), FatalError> {
        let mut changes = changes(group, self.log.begins());
        if changes.is_empty() {
            return Ok(());
        }
        let takes_a_mark = self.log.takes(bytes + CHANGE_HEADER_BYTES + MAX_META_BYTES);
        if takes_a_mark && self.committed_at.elapsed() >= COMMITTED_EVERY {
            changes.extend(self.newer_committed().map(Change::Committed));
        }
        self.log.write(&changes)
    }

    /// The committed mark if it has changed.
    fn newer_committed(&mut self) -> Option<Bytes> {
        let committed = self.shared.state.lock().committed.clone();
        if committed == self.committed {
            return None;
        }
        (self.committed, self.committed_at) = (committed.clone(), Instant::now());
        committed
    }

    fn write_alone(&mut self, command: &Command) -> Result<(), FatalError> {
        match &command.work {
            Work::Append(records) => self.log.append_many(records.clone()),
            Work::Truncate(last) => {
                // The watermark first: after a crash between the two, the log must not be shorter than the watermark.
                self.watermark.lower(*last).map_err(|error| io_failure("sync", self.watermark.path(), &error))?;
                self.log.truncate(last.map(|last| last.index + 1))
            }
            // A segment takes each of them.
            Work::Vote { .. } | Work::Purge(_) | Work::Nothing => {
                self.write_frame(std::slice::from_ref(command), bytes_of_changes(&command.work))
            }
        }
    }

    /// Readers find in sled what it has: memory need not keep it. While a cut waits, some of that may be about to go:
    /// the records that readers see in its place are not in sled.
    fn leave_to_sled(&mut self) {
        let next = self.log.sled_next();
        if next == self.left_to_sled {
            return;
        }
        {
            let mut state = self.shared.state.lock();
            if state.cuts > 0 {
                return;
            }
            state.tail.archived_below(next.unwrap_or(0));
        }
        self.left_to_sled = next;
        let mut evicted = Vec::new();
        loop {
            // There may be many of them, and callers wait for this lock.
            self.shared.state.lock().tail.evict(EVICTED_BYTES, |record| evicted.push(record));
            if evicted.is_empty() {
                return;
            }
            evicted.clear();
        }
    }

    /// When the journal is to be emptied if nothing is asked for.
    fn rests_at(&self) -> Option<Instant> {
        self.log.may_be_emptied().then(|| self.asked_at + self.shared.options.archive_after)
    }

    /// Nothing was asked for in a while, or the archiver is done with something.
    fn rest(&mut self) -> Result<(), FatalError> {
        self.watchdog.begin();
        self.log.take_notice()?;
        if self.rests_at().is_some_and(|at| at <= Instant::now()) {
            self.log.empty_some()?;
        }
        self.watchdog.end();
        self.leave_to_sled();
        self.show_unarchived();
        Ok(())
    }

    fn show_unarchived(&self) {
        metrics::gauge!("lockkeeper_store_unarchived_bytes").set(self.log.unarchived_bytes() as f64);
    }

    fn raise_watermark(&mut self, applied: &Applied) -> Result<(), FatalError> {
        let (last, vote_sequence, frame) = (applied.last, applied.vote_sequence, self.log.number());
        let watermark = AckWatermark { last, vote_sequence, frame, ..self.watermark.watermark() };
        let raised = self.watermark.raise(watermark, applied.records, applied.voted);
        raised.map_err(|error| io_failure("write", self.watermark.path(), &error))
    }

    /// One line per acknowledgement, for a system-call trace.
    fn mark(&mut self, group: &[Command]) {
        if !self.marks.on() {
            return;
        }
        for command in group {
            let mark = match &command.work {
                Work::Append(records) => records.last().map(|record| {
                    format!("ack append {} {} {}\n", record.position.index, record.position.term, records.len())
                }),
                Work::Vote { sequence, .. } => Some(format!("ack vote {sequence}\n")),
                Work::Truncate(_) | Work::Purge(_) | Work::Nothing => None,
            };
            if let Some(mark) = mark {
                self.marks.write(&mark);
            }
        }
    }

    /// Gives sled everything, with the committed mark, so that the next open finds the journal empty, unless the disk
    /// is too full; and syncs the watermark. An older build can go on with a directory that it made.
    fn finish(&mut self) -> Result<(), FatalError> {
        self.watchdog.begin();
        let left = self.log.unarchived_bytes();
        let is_emptied = left == 0 || self.shared.check_free_space(left).is_ok();
        if is_emptied {
            self.log.empty()?;
            if let Some(committed) = self.newer_committed() {
                self.log.put_committed(committed)?;
            }
        }
        self.log.sled().stop()?;
        let watermark = AckWatermark { frame: self.log.number(), ..self.watermark.watermark() };
        let raised = self.watermark.raise(watermark, 0, true);
        let stepped = raised.and_then(|()| if self.is_old && is_emptied { self.watermark.step_back() } else { Ok(()) });
        stepped.map_err(|error| io_failure("sync", self.watermark.path(), &error))?;
        self.watchdog.end();
        Ok(())
    }
}

/// What a command adds to a frame.
fn bytes_of_changes(work: &Work) -> usize {
    let changes = match work {
        // One more for the start of the log.
        Work::Append(records) => records.len() + 1,
        Work::Vote { .. } | Work::Truncate(_) | Work::Purge(_) => 1,
        Work::Nothing => 0,
    };
    work.bytes() + changes * CHANGE_HEADER_BYTES
}

/// The changes that the commands make, in order. `begins`: the log is empty and was never purged.
fn changes(group: &[Command], mut begins: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    for command in group {
        match &command.work {
            Work::Append(records) => {
                if let Some(first) = records.first().filter(|_| begins) {
                    changes.push(Change::Begin(first.position.index));
                    begins = false;
                }
                changes.extend(records.iter().cloned().map(Change::Append));
            }
            Work::Vote { vote, sequence } => changes.push(Change::Vote { sequence: *sequence, vote: vote.clone() }),
            Work::Truncate(last) => {
                changes.push(Change::Truncate(first_removed(*last)));
                // A log that was purged ends at its mark.
                begins |= last.is_none();
            }
            Work::Purge(upto) => {
                changes.push(Change::Purge(*upto));
                begins = false;
            }
            Work::Nothing => {}
        }
    }
    changes
}

/// The index of the first record that a cut removes.
fn first_removed(last: Option<LogPosition>) -> u64 {
    last.map_or(0, |last| last.index + 1)
}

impl Applied {
    fn add(&mut self, work: &Work) {
        match work {
            Work::Append(records) => {
                let are_consecutive = records.windows(2).all(|two| two[0].position.index + 1 == two[1].position.index);
                invariant!(are_consecutive, "the records of an append are consecutive");
                self.records += records.len() as u64;
                self.last = records.last().map(|record| record.position).or(self.last);
            }
            Work::Vote { sequence, .. } => {
                invariant!(self.vote_sequence < *sequence, "votes are written in the order in which they were given");
                (self.vote_sequence, self.voted) = (*sequence, true);
            }
            Work::Truncate(last) => self.last = *last,
            Work::Purge(upto) if self.last.is_none_or(|last| last.index <= upto.index) => self.last = Some(*upto),
            Work::Purge(_) | Work::Nothing => {}
        }
    }
}
