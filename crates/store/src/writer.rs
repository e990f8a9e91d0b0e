//! The one thread that writes: drain the queue, one write to the journal, complete all callbacks in order, then give
//! sled the same changes (`ARCHITECTURE.md`, A write, step by step).
//!
//! It must never call back before the journal is synced, give sled a change that is not durable, or write again after a
//! failure. Purging is background work: the mark goes the way of every change, the keys are removed in small chunks
//! between the batches. Where sled is far behind, the writer waits for its checkpoint, and appends wait for the writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_mutants::mutant;
use metrics::{Gauge, Histogram};

use crate::ack_watermark::{AckWatermark, AckWatermarkFile};
use crate::checkpoint::Checkpoints;
use crate::codec::{self, MetaKind};
use crate::error::{FatalError, StoreError};
use crate::fsync::{DataBarrier, Marks, io_failure};
use crate::journal::{Journal, JournalMark, body};
use crate::log_state::StoreShared;
use crate::open::panic_text;
use crate::queue::{Command, Work};
use crate::sled_log::{SledLog, WRITTEN_PER_BYTE};
use crate::types::LogPosition;
use crate::watchdog::Watchdog;

/// Keys that the lazy purge removes before it looks at the queue again.
/// After a batch it removes twice the keys that the batch wrote, if that is more: the purge must not fall behind.
const PURGE_STEP: u64 = 16;
/// The committed mark rides along with a batch at most this often; losing it costs nothing but a slower start.
const COMMITTED_EVERY: Duration = Duration::from_millis(200);
/// Room for sled's own bookkeeping when free space is reckoned.
const SLACK_BYTES: u64 = 4 * 1024 * 1024;
/// Memory for a batch's changes that is kept from one batch to the next.
const KEPT_BYTES: usize = 256 * 1024;

/// Everything that only the writer touches.
pub(crate) struct Writer {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) log: Arc<SledLog>,
    pub(crate) barrier: Arc<DataBarrier>,
    pub(crate) journal: Journal,
    /// As durable in sled at the start.
    pub(crate) mark: JournalMark,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) watermark: AckWatermarkFile,
    pub(crate) marks: Marks,
    pub(crate) watchdog: Watchdog,
    /// Upper index and next key of a purge under way.
    pub(crate) purging: Option<(u64, sled::IVec)>,
    pub(crate) committed_at: Instant,
    pub(crate) committed: Option<Bytes>,
    /// The changes of the present batch, encoded; empty when sled has them.
    pub(crate) body: Vec<u8>,
    pub(crate) metrics: WriterMetrics,
}

pub(crate) struct WriterMetrics {
    sync_seconds: Histogram,
    batch_records: Histogram,
    log_entries: Gauge,
    free_bytes: Gauge,
}

impl WriterMetrics {
    pub(crate) fn new() -> Self {
        Self {
            sync_seconds: metrics::histogram!("lockkeeper_store_sync_seconds"),
            batch_records: metrics::histogram!("lockkeeper_store_batch_records"),
            log_entries: metrics::gauge!("lockkeeper_store_log_entries"),
            free_bytes: metrics::gauge!("lockkeeper_store_free_bytes"),
        }
    }
}

/// What a batch does to the log.
struct Outcome {
    last: Option<LogPosition>,
    vote_sequence: u64,
    voted: bool,
    records: u64,
    parts: u64,
    /// The lowest end of the log on the way, if it is cut.
    cut: Option<Option<LogPosition>>,
}

impl Outcome {
    fn of(batch: &[Command], watermark: AckWatermark) -> Self {
        let (last, vote_sequence) = (watermark.last, watermark.vote_sequence);
        let mut outcome = Self { last, vote_sequence, voted: false, records: 0, parts: 0, cut: None };
        for command in batch {
            match &command.work {
                Work::Append(records) => {
                    let parts = records.iter().map(|record| codec::part_count(record.payload.len()) as u64);
                    outcome.parts += parts.sum::<u64>();
                    outcome.records += records.len() as u64;
                }
                Work::Vote { sequence, .. } => (outcome.vote_sequence, outcome.voted) = (*sequence, true),
                Work::Truncate(last) => outcome.cut = Some(outcome.cut.map_or(*last, |cut| cut.min(*last))),
                Work::Purge(_) | Work::Nothing => {}
            }
            outcome.last = end_after(&command.work, outcome.last);
        }
        outcome
    }
}

/// Where the log ends after a command, if it ended at `last` before.
fn end_after(work: &Work, last: Option<LogPosition>) -> Option<LogPosition> {
    match work {
        Work::Append(records) => records.last().map(|record| record.position).or(last),
        Work::Truncate(last) => *last,
        Work::Purge(upto) if last.is_none_or(|last| last.index <= upto.index) => Some(*upto),
        Work::Purge(_) | Work::Vote { .. } | Work::Nothing => last,
    }
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
        let (last, purge) = (batch.last().map(|command| command.number), purge_mark(&batch));
        for command in batch {
            (command.done)(told.clone());
        }
        let parts = result?;
        self.watchdog.begin();
        self.give_to_sled(last, purge)?;
        self.purge_some(PURGE_STEP.max(2 * parts))?;
        self.watchdog.end();
        Ok(())
    }

    /// Gives the number of keys written to the log.
    fn make_durable(&mut self, batch: &[Command]) -> Result<u64, FatalError> {
        self.check_free_space(batch)?;
        let before = self.watermark.watermark();
        let outcome = Outcome::of(batch, before);
        // The watermark first: after a crash between the two, the log must not be shorter than the watermark. Never
        // raised here: this batch is not durable yet.
        if let Some(cut) = outcome.cut.filter(|cut| *cut < before.last) {
            // The mark of a purge in the same batch is not durable either.
            let cut = if purge_mark(batch).is_some() { None } else { cut };
            self.watermark.lower(cut).map_err(|error| io_failure("sync", self.watermark.path(), &error))?;
        }
        let began = Instant::now();
        if self.encode(batch, before.last) {
            self.append_to_journal()?;
        } else {
            self.write_to_sled(batch, before.last)?;
        }
        self.metrics.sync_seconds.record(began.elapsed().as_secs_f64());
        self.raise_watermark(&outcome)?;
        if outcome.records > 0 {
            self.metrics.batch_records.record(outcome.records as f64);
        }
        self.metrics.log_entries.set(self.shared.records() as f64);
        Ok(outcome.parts)
    }

    /// Encodes the changes of the batch, unless the journal cannot take them in one frame.
    fn encode(&mut self, batch: &[Command], mut last: Option<LogPosition>) -> bool {
        self.body.clear();
        let journal = &self.journal;
        for command in batch {
            let fits = |body: &mut Vec<u8>| if journal.takes(body.len()) { Ok(()) } else { Err(()) };
            if body::encode(&command.work, last.is_none(), &mut self.body, fits).is_err() {
                return false;
            }
            last = end_after(&command.work, last);
        }
        true
    }

    fn append_to_journal(&mut self) -> Result<(), FatalError> {
        if self.body.is_empty() {
            return Ok(());
        }
        if let Some(frame) = self.journal.overwrites(self.body.len()) {
            self.checkpoints.wait_obsolete(frame)?;
        }
        self.journal.append(&self.body)
    }

    /// Makes a batch durable in sled alone. Nothing in the journal may be applied after it.
    fn write_to_sled(&mut self, batch: &[Command], mut last: Option<LogPosition>) -> Result<(), FatalError> {
        self.checkpoints.wait_obsolete(self.journal.sequence())?;
        self.body = Vec::new();
        let (log, pace) = (&self.log, pace(&self.checkpoints, &self.watchdog));
        for command in batch {
            body::encode(&command.work, last.is_none(), &mut self.body, |body| {
                log.apply(body, pace)?;
                body.clear();
                Ok(())
            })?;
            last = end_after(&command.work, last);
        }
        self.barrier.run()
    }

    /// Gives sled what the journal has made durable, and readers leave to go there for it.
    fn give_to_sled(&mut self, last: Option<u64>, purge: Option<LogPosition>) -> Result<(), FatalError> {
        self.log.apply(&self.body, pace(&self.checkpoints, &self.watchdog))?;
        self.body.clear();
        self.body.shrink_to(KEPT_BYTES);
        self.checkpoints.applied(self.journal.sequence());
        self.put_committed_if_due()?;
        if let Some(last) = last {
            self.shared.state.lock().tail.mark_inserted(last);
        }
        if let Some(upto) = purge {
            let from = self.purging.take().map_or_else(|| sled::IVec::from(&codec::part_key(0, 0)), |(_, key)| key);
            self.purging = Some((upto.index, from));
        }
        Ok(())
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
        self.metrics.free_bytes.set(free_bytes as f64);
        let needed_bytes = bytes.saturating_mul(WRITTEN_PER_BYTE) + SLACK_BYTES;
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

    fn raise_watermark(&mut self, outcome: &Outcome) -> Result<(), FatalError> {
        let &Outcome { last, vote_sequence, .. } = outcome;
        let frame = self.journal.sequence();
        let watermark = AckWatermark { last, vote_sequence, frame, ..self.watermark.watermark() };
        let raised = self.watermark.raise(watermark, outcome.records, outcome.voted);
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

    /// Steps of a purge under way, up to this number of keys.
    fn purge_some(&mut self, limit: u64) -> Result<(), FatalError> {
        for _ in 0..limit.div_ceil(PURGE_STEP) {
            let Some((upto, from)) = self.purging.take() else { return Ok(()) };
            let pace = pace(&self.checkpoints, &self.watchdog);
            let next = self.log.purge_some(&from, upto, PURGE_STEP as usize, pace)?;
            if next.is_none() {
                let mut state = self.shared.state.lock();
                // Unless more is to be purged by now.
                state.purging = state.purging.filter(|wanted| *wanted != upto);
            }
            self.purging = next.map(|key| (upto, key));
        }
        Ok(())
    }

    /// A step while nothing else waits.
    fn purge_idle(&mut self) -> Result<(), FatalError> {
        self.watchdog.begin();
        self.purge_some(PURGE_STEP)?;
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

    /// The last checkpoint, with the committed mark, so that the next open has nothing to apply; and a synced
    /// watermark.
    fn finish(&mut self) -> Result<(), FatalError> {
        self.watchdog.begin();
        self.checkpoints.stop()?;
        self.put_committed()?;
        self.barrier.run()?;
        self.log.put_journal_mark(JournalMark { applied: self.journal.sequence(), ..self.mark })?;
        self.barrier.run()?;
        let watermark = self.watermark.watermark();
        let raised = self.watermark.raise(watermark, 0, true);
        raised.map_err(|error| io_failure("sync", self.watermark.path(), &error))?;
        self.watchdog.end();
        Ok(())
    }
}

/// What is called after each change of sled: waits while too much of it is not durable. Each wait has the watchdog's
/// whole time, since a large batch has many.
fn pace<'a>(
    checkpoints: &'a Checkpoints,
    watchdog: &'a Watchdog,
) -> impl Fn(u64) -> Result<(), FatalError> + Copy + use<'a> {
    move |bytes| {
        watchdog.begin();
        checkpoints.wrote(bytes)
    }
}

/// How far a batch purges the log, if it does.
fn purge_mark(batch: &[Command]) -> Option<LogPosition> {
    let marks = batch.iter().filter_map(|command| match command.work {
        Work::Purge(upto) => Some(upto),
        _ => None,
    });
    marks.last()
}
