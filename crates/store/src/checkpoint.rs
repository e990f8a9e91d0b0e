//! Checkpoints: what the journal has and sled was given becomes durable in sled, on a thread of its own. An append
//! waits for it only where sled is far behind, where the segment of the journal that it needs is not free yet, or where
//! it is larger than one.
//!
//! A checkpoint is a barrier of sled (flush, then `fdatasync`). When it has ended, the frames that were applied before
//! it began are durable; their number is then put into sled, and becomes durable itself with the next checkpoint. Only
//! then are they *obsolete*: an open does not apply them again, and the journal may write over them. The number is put
//! after the barrier, so it never claims what sled might have lost.
//!
//! There is one every [`CHECKPOINT_EVERY`] while sled was written to, and one whenever sled has been given a quarter of
//! its segment since the last began. The writer waits at half a segment, by an estimate that is rather too high; the
//! rest is left for what sled writes by itself. For sled must not have more than one segment that is not durable.
//! Within that, power loss leaves a prefix of what sled was given. Beyond it, sled takes the header of a later segment
//! for proof that an earlier one was written, and its garbage collection writes over pages whose copies may be lost:
//! then it loses older data too.
//!
//! It must never run a barrier again after one has failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::FatalError;
use crate::fsync::DataBarrier;
use crate::journal::JournalMark;
use crate::log_state::StoreShared;
use crate::open::panic_text;
use crate::sled_log::SledLog;
use crate::watchdog::Watchdog;

/// Longest time from a change of sled to the checkpoint that makes it durable there.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);

/// How far sled is, in frames of the journal and in bytes that it was made to write (an estimate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    frame: u64,
    bytes: u64,
}

struct State {
    written: Written,
    /// `written` when the latest checkpoint began, and when the latest that has ended began.
    begun: Written,
    durable: Written,
    /// Frames up to this one are obsolete.
    obsolete: u64,
    /// Somebody waits for a checkpoint.
    wanted: bool,
    ended: bool,
    failed: Option<FatalError>,
}

struct Progress {
    state: Mutex<State>,
    /// There may be a reason for a checkpoint, or the end has come.
    work: Condvar,
    /// A checkpoint has ended, or failed.
    done: Condvar,
    /// Bytes after which a checkpoint begins, and after which the writer waits.
    due_bytes: u64,
    most_bytes: u64,
}

/// The thread, and how far it is. Dropping it ends the thread.
pub(crate) struct Checkpoints {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

/// What a checkpoint works with.
pub(crate) struct CheckpointParts {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) log: Arc<SledLog>,
    pub(crate) barrier: Arc<DataBarrier>,
    pub(crate) mark: JournalMark,
}

impl Checkpoints {
    /// Starts the thread. The mark is durable in sled.
    pub(crate) fn start(parts: CheckpointParts) -> std::io::Result<Self> {
        let applied = Written { frame: parts.mark.applied, bytes: 0 };
        let state = State {
            written: applied,
            begun: applied,
            durable: applied,
            obsolete: applied.frame,
            wanted: false,
            ended: false,
            failed: None,
        };
        let segment_bytes = parts.shared.options.segment_bytes as u64;
        let progress = Arc::new(Progress {
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            due_bytes: segment_bytes / 4,
            most_bytes: segment_bytes / 2,
        });
        let limit = parts.shared.options.sync_watchdog;
        let stuck = FatalError::Stuck { file: parts.log.file().to_path_buf(), limit };
        let watched = parts.shared.clone();
        let watchdog = Watchdog::start(limit, move || watched.fail(&stuck))?;
        let of_thread = progress.clone();
        let run = move || Checkpointing { parts, progress: of_thread, watchdog }.run();
        let thread = std::thread::Builder::new().name("store-checkpoint".into()).spawn(run)?;
        Ok(Self { progress, thread: Some(thread) })
    }

    /// sled was made to write about so many bytes. Waits while too much of it is not durable.
    pub(crate) fn wrote(&self, bytes: u64) -> Result<(), FatalError> {
        let Progress { due_bytes, most_bytes, .. } = *self.progress;
        let mut state = self.progress.state.lock();
        let was_clean = state.written == state.durable;
        state.written.bytes += bytes;
        if state.written.bytes - state.begun.bytes >= due_bytes {
            state.wanted = true;
        }
        if was_clean || state.wanted {
            self.progress.work.notify_one();
        }
        self.wait_until(&mut state, |state| state.written.bytes - state.durable.bytes < most_bytes)
    }

    /// The frames up to this one are in sled.
    pub(crate) fn applied(&self, frame: u64) {
        let mut state = self.progress.state.lock();
        let was_clean = state.written == state.durable;
        state.written.frame = frame;
        if was_clean {
            self.progress.work.notify_one();
        }
    }

    /// Waits until the frames up to this one are obsolete. They must have been applied.
    pub(crate) fn wait_obsolete(&self, frame: u64) -> Result<(), FatalError> {
        self.wait_until(&mut self.progress.state.lock(), |state| state.obsolete >= frame)
    }

    fn wait_until(
        &self,
        state: &mut parking_lot::MutexGuard<'_, State>,
        reached: impl Fn(&State) -> bool,
    ) -> Result<(), FatalError> {
        while !reached(state) {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state.wanted = true;
            self.progress.work.notify_one();
            self.progress.done.wait(state);
        }
        Ok(())
    }

    /// Ends the thread, after the checkpoint that it may be in.
    pub(crate) fn stop(&mut self) -> Result<(), FatalError> {
        let failed = {
            let mut state = self.progress.state.lock();
            state.ended = true;
            state.failed.is_some()
        };
        self.progress.work.notify_one();
        // After a failure the thread runs callbacks, one of which may be what stops it.
        if let Some(thread) = self.thread.take().filter(|_| !failed) {
            // It catches its panics.
            let _ = thread.join();
        }
        self.progress.state.lock().failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// What the thread has.
struct Checkpointing {
    parts: CheckpointParts,
    progress: Arc<Progress>,
    watchdog: Watchdog,
}

impl Checkpointing {
    fn run(self) {
        let seconds = metrics::histogram!("lockkeeper_store_checkpoint_seconds");
        // The frame that sled names.
        let mut marked = self.parts.mark.applied;
        while let Some(written) = self.next() {
            let began = Instant::now();
            self.watchdog.begin();
            let result = catch_unwind(AssertUnwindSafe(|| self.checkpoint(written, marked)));
            self.watchdog.end();
            let file = || self.parts.log.file().to_path_buf();
            let result =
                result.unwrap_or_else(|panic| Err(FatalError::Panicked { file: file(), what: panic_text(&*panic) }));
            if let Err(error) = result {
                self.progress.state.lock().failed = Some(error.clone());
                self.progress.done.notify_all();
                return self.parts.shared.fail(&error);
            }
            seconds.record(began.elapsed().as_secs_f64());
            let mut state = self.progress.state.lock();
            (state.durable, state.obsolete) = (written, marked);
            marked = written.frame;
            self.progress.done.notify_all();
        }
    }

    /// Waits for a reason for a checkpoint; `None` at the end.
    fn next(&self) -> Option<Written> {
        let mut state = self.progress.state.lock();
        let mut due = None;
        while !state.ended && !state.wanted && due.is_none_or(|due| Instant::now() < due) {
            if state.written == state.durable {
                due = None;
                self.progress.work.wait(&mut state);
            } else {
                let due = *due.get_or_insert_with(|| Instant::now() + CHECKPOINT_EVERY);
                let _ = self.progress.work.wait_until(&mut state, due);
            }
        }
        if let Some(error) = self.parts.shared.failure.get() {
            state.failed = Some(error);
            self.progress.done.notify_all();
        }
        if state.ended || state.failed.is_some() {
            return None;
        }
        state.wanted = false;
        state.begun = state.written;
        Some(state.written)
    }

    /// Makes durable what was written, and then has sled name the last frame of it.
    fn checkpoint(&self, written: Written, marked: u64) -> Result<(), FatalError> {
        self.parts.barrier.run()?;
        if written.frame == marked {
            return Ok(());
        }
        self.parts.log.put_journal_mark(JournalMark { applied: written.frame, ..self.parts.mark })
    }
}
