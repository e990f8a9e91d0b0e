//! The one thread that writes: drain the queue, insert all, one barrier, complete all callbacks in order
//! (`ARCHITECTURE.md`, The way of a write).
//!
//! It must never call back before the barrier, and never write again after a failure. Purging is background work:
//! the mark is written at once, the keys go in small chunks between the batches. A purge stops when a command waits and
//! would have to wait for a barrier of the purge; it goes on after that command, which syncs what was removed before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_mutants::{invariant, mutant};

use crate::ack_watermark::{AckWatermark, AckWatermarkFile};
use crate::codec::{self, MetaKind};
use crate::error::{FatalError, StoreError};
use crate::fsync::{DataBarrier, Marks, io_failure};
use crate::log_state::StoreShared;
use crate::open::panic_text;
use crate::position::LogPosition;
use crate::queue::{Command, Work};
use crate::watchdog::Watchdog;

/// Keys that the lazy purge removes before it looks at the queue again, at most a quarter of what is removed without a
/// barrier. After a batch it removes twice the keys that the batch wrote, if that is more, as far as no command waits.
const PURGE_STEP: u64 = 4;
/// Keys, of at most 4 KiB, by which a purge may be behind for the commands that waited. A larger backlog is removed
/// before the next command, or a steady load would fill the disk.
const PURGE_BEHIND: u64 = 4096;
/// The committed mark rides along with a batch at most this often; losing it costs nothing but a slower start.
const COMMITTED_EVERY: Duration = Duration::from_millis(200);
/// Room for sled's own bookkeeping when free space is reckoned.
const SLACK_BYTES: u64 = 4 * 1024 * 1024;

/// Everything that only the writer touches.
pub(crate) struct Writer {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) log: Arc<crate::sled_log::SledLog>,
    pub(crate) barrier: DataBarrier,
    pub(crate) watermark: AckWatermarkFile,
    pub(crate) marks: Marks,
    pub(crate) watchdog: Watchdog,
    /// Upper index and next key of a purge under way.
    pub(crate) purging: Option<(u64, sled::IVec)>,
    /// Keys that the purge should have removed after the batches so far.
    pub(crate) purge_backlog: u64,
    pub(crate) committed_at: Instant,
    pub(crate) committed: Option<Bytes>,
    pub(crate) buffer: Vec<u8>,
}

/// What a batch did, for the barrier and the watermark.
struct Applied {
    last: Option<LogPosition>,
    vote_sequence: u64,
    voted: bool,
    records: u64,
    parts: u64,
}

impl Writer {
    /// Works until the store is closed or fails.
    pub(crate) fn run(mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.work()));
        self.watchdog.end();
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(FatalError::Panicked { file: self.log.file().to_path_buf(), what: panic_text(&*panic) }),
        };
        if let Some(error) = failure {
            self.shared.fail(&error);
        }
    }

    fn work(&mut self) -> Result<(), FatalError> {
        loop {
            let batch = self.shared.next_batch(self.purging.is_some());
            match batch {
                Some(batch) if batch.is_empty() => self.purge_idle()?,
                Some(batch) => self.write(batch)?,
                None if self.shared.failure.get().is_some() => return Ok(()),
                None => return self.finish(),
            }
        }
    }

    /// One batch; all of its callbacks are called in every case.
    fn write(&mut self, mut batch: Vec<Command>) -> Result<(), FatalError> {
        if mutant!(AckBeforeBarrier) {
            self.mark(&batch);
            batch.iter_mut().for_each(|command| std::mem::replace(&mut command.done, Box::new(|_| {}))(Ok(())));
        }
        self.watchdog.begin();
        let result = catch_unwind(AssertUnwindSafe(|| self.make_durable(&batch)));
        self.watchdog.end();
        let result = result.unwrap_or_else(|panic| {
            Err(FatalError::Panicked { file: self.log.file().to_path_buf(), what: panic_text(&*panic) })
        });
        // If the watchdog fired meanwhile, the store has failed: too late to acknowledge.
        let result = result.and_then(|parts| self.shared.failure.get().map_or(Ok(parts), Err));
        let told = match &result {
            Ok(_) => Ok(()),
            Err(error) => {
                self.shared.fail(error);
                Err(StoreError::Failed(error.clone()))
            }
        };
        if told.is_ok() {
            self.mark(&batch);
        }
        for command in batch {
            (command.done)(told.clone());
        }
        self.watchdog.begin();
        self.purge_backlog += PURGE_STEP.max(2 * result?);
        let purged = self.purge_some(self.purge_backlog);
        self.watchdog.end();
        purged
    }

    /// Gives the number of keys written to the log.
    fn make_durable(&mut self, batch: &[Command]) -> Result<u64, FatalError> {
        self.check_free_space(batch)?;
        let watermark = self.watermark.watermark();
        let (last, vote_sequence) = (watermark.last, watermark.vote_sequence);
        let mut applied = Applied { last, vote_sequence, voted: false, records: 0, parts: 0 };
        for command in batch {
            self.apply(&command.work, &mut applied)?;
        }
        self.put_committed_if_due()?;
        if let Some(command) = batch.last() {
            self.shared.state.lock().tail.mark_inserted(command.number);
        }
        self.barrier.run()?;
        invariant!(self.barrier.is_clean(), "nothing is acknowledged before the barrier");
        self.raise_watermark(&applied, applied.voted)?;
        if applied.records > 0 {
            metrics::histogram!("lockkeeper_store_batch_records").record(applied.records as f64);
        }
        metrics::gauge!("lockkeeper_store_log_entries").set(self.shared.records() as f64);
        Ok(applied.parts)
    }

    /// Inserts, in order, what one command asks for.
    fn apply(&mut self, work: &Work, applied: &mut Applied) -> Result<(), FatalError> {
        match work {
            Work::Append(records) => {
                if let Some(first) = records.first().filter(|_| applied.last.is_none()) {
                    self.put_start(first.position.index)?;
                }
                let are_consecutive = records.windows(2).all(|two| two[0].position.index + 1 == two[1].position.index);
                invariant!(are_consecutive, "the records of an append are consecutive");
                for record in records {
                    applied.parts += self.log.insert(record, &mut self.buffer, &self.barrier)?;
                    applied.last = Some(record.position);
                }
                applied.records += records.len() as u64;
            }
            Work::Vote { vote, sequence } => {
                invariant!(
                    applied.vote_sequence < *sequence,
                    "votes are written in the order in which they were given"
                );
                self.log.put_meta(MetaKind::Vote, *sequence, vote)?;
                (applied.vote_sequence, applied.voted) = (*sequence, true);
            }
            Work::Truncate(last) => {
                // The watermark first: after a crash between the two, the log must not be shorter than the watermark.
                // Never raised here: this batch is not durable yet.
                if self
                    .watermark
                    .watermark()
                    .last
                    .is_some_and(|watermark| last.is_none_or(|last| last.index < watermark.index))
                {
                    self.watermark.lower(*last).map_err(|error| io_failure("sync", self.watermark.path(), &error))?;
                }
                self.log.remove_from(last.map_or(0, |last| last.index + 1), &self.barrier)?;
                applied.last = *last;
            }
            Work::Purge(upto) => {
                self.log.put_purged(*upto)?;
                if applied.last.is_none_or(|last| last.index <= upto.index) {
                    applied.last = Some(*upto);
                }
                let from = self.purging.take().map_or_else(|| sled::IVec::from(&codec::part_key(0, 0)), |(_, key)| key);
                self.purging = Some((upto.index, from));
            }
            Work::Nothing => {}
        }
        Ok(())
    }

    /// A log that was never purged starts at 0 unless said otherwise; written only when it has to be.
    fn put_start(&mut self, index: u64) -> Result<(), FatalError> {
        let stored = self.log.meta(MetaKind::Start).map_err(|error| io_failure("read", self.log.file(), &error))?;
        if index == 0 && matches!(stored, Ok(None)) {
            return Ok(());
        }
        self.log.put_meta(MetaKind::Start, 0, &index.to_le_bytes())
    }

    fn check_free_space(&self, batch: &[Command]) -> Result<(), FatalError> {
        let bytes: u64 = batch.iter().map(|command| command.work.bytes() as u64).sum();
        if bytes == 0 {
            // Cutting and purging free space; they are never refused for want of it.
            return Ok(());
        }
        let options = &self.shared.options;
        let free = options.free_space.bytes(&self.shared.dir);
        let free_bytes = free.map_err(|error| io_failure("examine the disk of", &self.shared.dir, &error))?;
        metrics::gauge!("lockkeeper_store_free_bytes").set(free_bytes as f64);
        let needed_bytes = bytes.saturating_mul(2) + SLACK_BYTES;
        if free_bytes.saturating_sub(needed_bytes) < options.free_floor_bytes {
            return Err(FatalError::DiskFull {
                dir: self.shared.dir.clone(),
                free_bytes,
                needed_bytes,
                floor_bytes: options.free_floor_bytes,
            });
        }
        Ok(())
    }

    fn raise_watermark(&mut self, applied: &Applied, sync: bool) -> Result<(), FatalError> {
        let watermark =
            AckWatermark { last: applied.last, vote_sequence: applied.vote_sequence, ..self.watermark.watermark() };
        let raised = self.watermark.raise(watermark, applied.records, sync);
        raised.map_err(|error| io_failure("write", self.watermark.path(), &error))
    }

    fn put_committed_if_due(&mut self) -> Result<(), FatalError> {
        if self.committed_at.elapsed() < COMMITTED_EVERY {
            return Ok(());
        }
        self.put_committed()
    }

    fn put_committed(&mut self) -> Result<(), FatalError> {
        let committed = self.shared.state.lock().committed.clone();
        if committed != self.committed {
            if let Some(committed) = &committed {
                self.log.put_meta(MetaKind::Committed, 0, committed)?;
            }
            (self.committed, self.committed_at) = (committed, Instant::now());
        }
        Ok(())
    }

    /// Steps of a purge under way, of so many keys together, until a command waits and more steps would delay it.
    fn purge_some(&mut self, limit: u64) -> Result<(), FatalError> {
        for _ in 0..limit.div_ceil(PURGE_STEP) {
            let Some((upto, from)) = self.purging.take() else { break };
            let next = self.log.purge_some(&from, upto, PURGE_STEP as usize, &self.barrier)?;
            self.purge_backlog = self.purge_backlog.saturating_sub(PURGE_STEP);
            if next.is_none() {
                let mut state = self.shared.state.lock();
                // Unless more is to be purged by now.
                state.purging = state.purging.filter(|wanted| *wanted != upto);
            }
            self.purging = next.map(|key| (upto, key));
            if self.purge_backlog <= PURGE_BEHIND && self.barrier.is_half_due() && self.shared.has_waiting() {
                break;
            }
        }
        if self.purging.is_none() {
            self.purge_backlog = 0;
        }
        Ok(())
    }

    /// A step while nothing else waits.
    fn purge_idle(&mut self) -> Result<(), FatalError> {
        self.watchdog.begin();
        self.purge_some(PURGE_STEP)?;
        if self.purging.is_none() {
            self.barrier.run()?;
        }
        self.watchdog.end();
        Ok(())
    }

    /// One line per acknowledgement, for a system-call trace.
    fn mark(&mut self, batch: &[Command]) {
        if !self.marks.on() {
            return;
        }
        for command in batch {
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

    /// The last barrier, with the committed mark, and a synced watermark.
    fn finish(&mut self) -> Result<(), FatalError> {
        self.watchdog.begin();
        self.put_committed()?;
        self.barrier.run()?;
        let watermark = self.watermark.watermark();
        let raised = self.watermark.raise(watermark, 0, true);
        raised.map_err(|error| io_failure("sync", self.watermark.path(), &error))?;
        self.watchdog.end();
        Ok(())
    }
}
