//! What callers and the writer share: the log as readers see it, and the queue of the writer, under one lock.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::directory::DirectoryLock;
use crate::error::{FatalError, StoreError};
use crate::fsync::io_failure;
use crate::position::LogPosition;
use crate::queue::{Command, Queue};
use crate::sled_log::SledLog;
use crate::tail_cache::TailCache;
use crate::term_starts::TermStarts;
use crate::types::{Options, Record};
use crate::watchdog::Failure;

/// Room for sled's own bookkeeping when free space is reckoned.
const SLACK_BYTES: u64 = 4 * 1024 * 1024;

/// What the writer does next.
pub(crate) enum Turn {
    Batch(Vec<Command>),
    /// Nothing is asked for.
    Other,
    /// The store is closed or has failed.
    End,
}

/// What callers and the writer share.
pub(crate) struct StoreShared {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) failure: Arc<Failure>,
    pub(crate) state: Mutex<VisibleState>,
    /// There is work, or the end has come.
    pub(crate) work: Condvar,
    /// There is room in the queue, or the end has come.
    pub(crate) room: Notify,
}

pub(crate) struct VisibleState {
    pub(crate) tail: TailCache,
    pub(crate) committed: Option<Bytes>,
    /// Index up to which records are to be removed; nothing when they all are.
    pub(crate) purging: Option<u64>,
    pub(crate) vote: Option<Bytes>,
    pub(crate) vote_sequence: u64,
    pub(crate) purged: Option<LogPosition>,
    pub(crate) last: Option<LogPosition>,
    pub(crate) first_index: Option<u64>,
    pub(crate) terms: TermStarts,
    pub(crate) queue: Queue,
    /// Truncations that wait for the writer or are with it.
    pub(crate) cuts: u64,
    /// Something beside the queue has changed for the writer.
    pub(crate) woken: bool,
    /// Counts truncations and purges: a reader that saw it change looks again.
    pub(crate) reshaped: u64,
    pub(crate) closed: bool,
    /// Gone when closed.
    pub(crate) files: Option<(Arc<SledLog>, Arc<DirectoryLock>)>,
}

impl VisibleState {
    /// The part of a range that exists: its first index, and the index after its last.
    pub(crate) fn existing(&self, range: &Range<u64>) -> (u64, u64) {
        match (self.first_index, self.last) {
            (Some(first), Some(last)) => (range.start.max(first), range.end.min(last.index + 1)),
            _ => (range.start, range.start),
        }
    }

    pub(crate) fn position_at(&self, index: u64) -> Option<LogPosition> {
        let (first, last) = (self.first_index?, self.last?);
        (first..=last.index).contains(&index).then(|| self.terms.at(index)).flatten()
    }

    /// Where the log ends once it is cut after `keep`: the position there, or the present end if that comes first.
    pub(crate) fn end_at(&self, keep: Option<u64>) -> Result<Option<LogPosition>, StoreError> {
        let Some(keep) = keep else { return Ok(self.purged) };
        if self.last.is_none_or(|last| last.index <= keep) {
            return Ok(self.last);
        }
        match self.purged {
            Some(purged) if keep == purged.index => Ok(Some(purged)),
            Some(purged) if keep < purged.index => {
                Err(StoreError::Refused(format!("the log cannot be cut after {keep}: it is purged up to {purged}")))
            }
            // Nothing where the log starts later.
            _ => Ok(self.position_at(keep)),
        }
    }

    /// Whether the records continue the log; if so, its end moves.
    pub(crate) fn accept(&mut self, records: &[Record]) -> Result<(), StoreError> {
        let mut last = self.last;
        for record in records {
            check_size("record", record.payload.len(), Record::MAX_PAYLOAD_BYTES)?;
            let continues =
                last.is_none_or(|last| record.position.index == last.index + 1 && record.position.term >= last.term);
            if !continues {
                return Err(StoreError::NotContiguous { got: record.position, last });
            }
            last = Some(record.position);
        }
        self.first_index = self.first_index.or(records.first().map(|record| record.position.index));
        self.last = last;
        Ok(())
    }
}

pub(crate) fn check_size(what: &'static str, bytes: usize, max_bytes: usize) -> Result<(), StoreError> {
    if bytes > max_bytes { Err(StoreError::TooLarge { what, bytes, max_bytes }) } else { Ok(()) }
}

impl StoreShared {
    /// All that waits, or else what the writer may do meanwhile. Waits for it, until then at most.
    pub(crate) fn next_turn(&self, until: Option<Instant>) -> Turn {
        let mut state = self.state.lock();
        loop {
            if !state.queue.is_empty() {
                let batch = state.queue.drain();
                self.room.notify_waiters();
                return Turn::Batch(batch);
            }
            if state.closed || self.failure.get().is_some() {
                return Turn::End;
            }
            if std::mem::take(&mut state.woken) || until.is_some_and(|until| until <= Instant::now()) {
                return Turn::Other;
            }
            match until {
                Some(until) => drop(self.work.wait_until(&mut state, until)),
                None => self.work.wait(&mut state),
            }
        }
    }

    /// The writer is to look whether there is anything beside the queue.
    pub(crate) fn wake(&self) {
        self.state.lock().woken = true;
        self.work.notify_all();
    }

    /// Refuses to write payloads of so many bytes if that would leave less than the floor on the disk.
    pub(crate) fn check_free_space(&self, bytes: u64) -> Result<(), FatalError> {
        let (dir, floor_bytes) = (self.dir.clone(), self.options.free_floor_bytes);
        let free = self.options.free_space.bytes(&dir);
        let free_bytes = free.map_err(|error| io_failure("examine the disk of", &dir, &error))?;
        metrics::gauge!("lockkeeper_store_free_bytes").set(free_bytes as f64);
        let needed_bytes = bytes.saturating_mul(2) + SLACK_BYTES;
        match free_bytes.saturating_sub(needed_bytes) < floor_bytes {
            true => Err(FatalError::DiskFull { dir, free_bytes, needed_bytes, floor_bytes }),
            false => Ok(()),
        }
    }

    /// Records in the log.
    pub(crate) fn records(&self) -> u64 {
        let state = self.state.lock();
        state.first_index.map_or(0, |first| state.last.map_or(0, |last| (last.index + 1).saturating_sub(first)))
    }

    /// The store has failed: calls the hook, and every waiting callback.
    pub(crate) fn fail(&self, error: &FatalError) {
        self.failure.set(error);
        let waiting = {
            let mut state = self.state.lock();
            self.work.notify_all();
            self.room.notify_waiters();
            state.queue.drain()
        };
        for command in waiting {
            (command.done)(Err(StoreError::Failed(error.clone())));
        }
    }
}
