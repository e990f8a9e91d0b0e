//! The handle: what callers see of the log at once, while the writer makes it durable behind them and the archiver has
//! sled follow.
//!
//! What readers see (ends of the log, recent records) and what the writer is given (the queue) change together under
//! one lock, so the order of calls is the order on the disk. No lock is held while sled or a callback runs.
//!
//! Writes come from tasks of a runtime: they wait for room in the queue without blocking their thread, and never read
//! sled. [`Store::read`] does, and belongs on a thread for work that blocks.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::archiver::Archiver;
use crate::codec::MAX_META_BYTES;
use crate::directory::{self, Layout};
use crate::error::{FatalError, OpenError, StoreError};
use crate::fsync::Marks;
use crate::journal::durable_log::DurableLog;
use crate::log_state::{StoreShared, VisibleState, check_size};
use crate::open::Ready;
use crate::position::LogPosition;
use crate::queue::{Command, Queue, Work};
use crate::term_starts::TermStarts;
use crate::types::{Bounds, Done, Identity, Opened, Options, Record};
use crate::watchdog::{Failure, Watchdog};
use crate::writer::Writer;

/// Handle of the log, the vote and the marks of one data directory. Clones share it. Closing the store, or dropping its
/// last clone, frees the directory.
#[derive(Clone)]
pub struct Store(Arc<Handle>);

struct Handle {
    shared: Arc<StoreShared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store below `dir`, or creates it there. Refuses a directory that is in use, belongs to another node,
    /// or has lost anything acknowledged.
    pub fn open(dir: &Path, identity: &Identity, options: Options) -> Result<(Store, Opened), OpenError> {
        let unfinished = Layout::new(dir).unfinished();
        if unfinished.try_exists().map_err(OpenError::io("examine", &unfinished))? {
            return Err(OpenError::Unfinished { dir: dir.to_path_buf() });
        }
        Self::open_prepared(dir, identity, options)
    }

    /// Whether there is a log below `dir`, so that opening it does not create one.
    pub fn exists(dir: &Path) -> bool {
        Layout::new(dir).log().is_dir()
    }

    /// Opens it also while it is being prepared.
    pub(crate) fn open_prepared(
        dir: &Path,
        identity: &Identity,
        options: Options,
    ) -> Result<(Store, Opened), OpenError> {
        let ready = crate::open::open(dir, identity, &options)?;
        let (opened, marks) = (ready.opened.clone(), Marks::new(options.trace_marks));
        let marks = marks.map_err(OpenError::io("open", Path::new("/dev/null")))?;
        let store = Self::start(dir, ready, options, marks).map_err(OpenError::io("start a thread for", dir))?;
        Ok((store, opened))
    }

    fn start(dir: &Path, ready: Ready, options: Options, marks: Marks) -> std::io::Result<Store> {
        let Ready {
            lock,
            log,
            barrier,
            journal,
            unarchived,
            task,
            is_old,
            watermark,
            tail,
            terms,
            first_index,
            opened,
        } = ready;
        let (log, lock) = (Arc::new(log), Arc::new(lock));
        let failure = Arc::new(Failure::new(options.fatal.clone()));
        let state = VisibleState {
            tail,
            committed: opened.committed.clone(),
            purging: opened.purged.map(|purged| purged.index),
            vote: opened.vote,
            vote_sequence: watermark.watermark().vote_sequence,
            purged: opened.purged,
            last: opened.last,
            first_index,
            terms,
            queue: Queue::new(options.queue_commands, options.queue_bytes),
            cuts: 0,
            woken: false,
            reshaped: 0,
            closed: false,
            files: Some((log.clone(), lock.clone())),
        };
        let (work, room) = (Condvar::new(), Notify::new());
        let shared =
            Arc::new(StoreShared { dir: dir.to_path_buf(), options, failure, state: Mutex::new(state), work, room });
        let limit = shared.options.sync_watchdog;
        let journal_dir = directory::journal_dir(&Layout::new(dir).log());
        let stuck = FatalError::Stuck { file: journal_dir.clone(), limit };
        let watched = shared.clone();
        let watchdog = Arc::new(Watchdog::start(limit, move || watched.fail(&stuck))?);
        // A purge that a crash interrupted goes on.
        let purge = opened.purged.map(|purged| purged.index);
        let archiver = Archiver::start(shared.clone(), log, barrier, purge, watchdog.clone())?;
        let writer = Writer {
            shared: shared.clone(),
            log: DurableLog::new(journal, unarchived, archiver, task),
            watermark,
            marks,
            watchdog,
            committed_at: Instant::now(),
            committed: opened.committed,
            left_to_sled: None,
            is_old,
            asked_at: Instant::now(),
            dir: journal_dir,
        };
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || {
            writer.run();
            // A callback may have closed the store on this thread, which went on.
            drop(lock);
        })?;
        Ok(Store(Arc::new(Handle { shared, writer: Mutex::new(Some(thread)) })))
    }

    /// Appends records that continue the log. They are readable when this returns; `done` is called after the barrier,
    /// in the order of the calls, on the writer's thread: it must be quick. Waits while the queue is full; dropped
    /// before it returns, it has either done nothing or all.
    pub async fn append(&self, records: Vec<Record>, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        self.submit(Box::new(done), records.iter().map(|record| record.payload.len()).sum(), |state| {
            state.accept(&records)?;
            for record in &records {
                state.terms.push(record.position);
                state.tail.push(record.clone());
            }
            Ok(Work::Append(records))
        })
        .await;
    }

    /// Saves the vote; durable before `done`, in order with appends.
    pub async fn save_vote(&self, vote: Bytes, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        self.submit(Box::new(done), vote.len(), |state| {
            check_size("vote", vote.len(), MAX_META_BYTES)?;
            state.vote_sequence += 1;
            state.vote = Some(vote.clone());
            Ok(Work::Vote { vote, sequence: state.vote_sequence })
        })
        .await;
    }

    /// Remembers how far the log is committed. Not synced: it reaches the disk along with a later batch or at close.
    pub fn save_committed(&self, committed: Bytes) {
        debug_assert!(committed.len() <= MAX_META_BYTES);
        if committed.len() <= MAX_META_BYTES {
            self.0.shared.state.lock().committed = Some(committed);
        }
    }

    /// Removes every record after the index; `None` removes all that is left. Readers no longer see them when this
    /// returns; the removal is durable no later than the next acknowledged append.
    pub async fn truncate_after(&self, keep: Option<u64>, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        self.submit(Box::new(done), 0, |state| {
            let end = state.end_at(keep)?;
            if state.last == end {
                return Ok(Work::Nothing);
            }
            state.last = end;
            state.reshaped += 1;
            state.cuts += 1;
            let removed_from = end.map_or(0, |end| end.index + 1);
            state.terms.truncate(removed_from);
            state.tail.truncate(removed_from);
            if end.is_none_or(|end| state.first_index.is_some_and(|first| first > end.index)) {
                state.first_index = None;
            }
            Ok(Work::Truncate(end))
        })
        .await;
    }

    /// Purges everything up to the position, which may lie beyond the last record. Readers no longer see it when this
    /// returns; `done` is called when the mark is durable; the disk is freed step by step afterwards. The snapshot that
    /// covers it must be durable before the call.
    pub async fn purge_to(&self, upto: LogPosition, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        self.submit(Box::new(done), 0, |state| {
            if state.purged.is_some_and(|purged| purged.index >= upto.index) {
                return Ok(Work::Nothing);
            }
            if let Some(first) = state.first_index.filter(|first| upto.index + 1 < *first) {
                return Err(StoreError::Refused(format!("nothing to purge up to {upto}: the log starts at {first}")));
            }
            state.purged = Some(upto);
            state.purging = Some(upto.index);
            state.reshaped += 1;
            state.tail.purge(upto.index + 1);
            if state.last.is_none_or(|last| last.index <= upto.index) {
                (state.last, state.first_index) = (Some(upto), None);
                // Later records may have lower terms than records that were never committed and are purged here.
                state.terms = TermStarts::default();
            } else {
                state.terms.purge(upto.index + 1);
                state.first_index = state.first_index.map(|first| first.max(upto.index + 1));
            }
            Ok(Work::Purge(upto))
        })
        .await;
    }

    /// The term and index of the record at `index`; `None` where there is no record. From memory.
    pub fn position_at(&self, index: u64) -> Option<LogPosition> {
        self.0.shared.state.lock().position_at(index)
    }

    /// The result of [`read`](Self::read) if memory alone has it; `None` if sled must be read.
    pub fn read_cached(&self, range: Range<u64>, max_bytes: usize) -> Option<Vec<Record>> {
        let state = self.0.shared.state.lock();
        let (next, end) = state.existing(&range);
        let cached = next >= end || state.tail.first_index().is_some_and(|first| first <= next);
        cached.then(|| state.tail.records(next..end, max_bytes))
    }

    /// The records of the range that exist, consecutive; stops before `max_bytes` of payload are exceeded, but gives at
    /// least one if there is one. What was purged or is not there yet is left out. Reads sled, and so blocks, unless
    /// [`read_cached`](Self::read_cached) has an answer.
    pub fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StoreError> {
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        let mut state = self.0.shared.state.lock();
        loop {
            let (first, end) = state.existing(&range);
            let next = records.last().map_or(first, |record| record.position.index + 1);
            if next >= end || next < first {
                return Ok(records);
            }
            let in_memory = state.tail.first_index().unwrap_or(end);
            if next >= in_memory {
                let newest = state.tail.records(next..end, max_bytes.saturating_sub(bytes));
                let fits = |record: &Record| bytes + record.payload.len() <= max_bytes;
                if records.is_empty() || newest.first().is_some_and(fits) {
                    records.extend(newest);
                }
                return Ok(records);
            }
            let Some(log) = state.files.as_ref().map(|(log, _)| log.clone()) else { return Err(StoreError::Closed) };
            let reshaped = state.reshaped;
            let budget = max_bytes.saturating_sub(bytes);
            let older = MutexGuard::unlocked(&mut state, || log.read(next, end.min(in_memory), budget));
            if state.reshaped != reshaped {
                // Truncated or purged meanwhile: the records just read may be gone.
                (records, bytes) = (Vec::new(), 0);
                continue;
            }
            let older = match older {
                Ok(older) => older,
                Err(error) => {
                    drop(state);
                    self.0.shared.fail(&error);
                    return Err(StoreError::Failed(error));
                }
            };
            let fits = records.is_empty() || older.first().is_some_and(|record| record.payload.len() <= budget);
            let complete = older.last().is_some_and(|record| record.position.index + 1 == end.min(in_memory));
            if fits {
                bytes += older.iter().map(|record| record.payload.len()).sum::<usize>();
                records.extend(older);
            }
            if !fits || !complete {
                return Ok(records);
            }
        }
    }

    /// The ends of the log.
    pub fn bounds(&self) -> Bounds {
        let state = self.0.shared.state.lock();
        Bounds { purged: state.purged, last: state.last }
    }

    /// The last vote handed to [`Store::save_vote`], or found at open.
    pub fn vote(&self) -> Option<Bytes> {
        self.0.shared.state.lock().vote.clone()
    }

    /// The last mark handed to [`Store::save_committed`], or found at open.
    pub fn committed(&self) -> Option<Bytes> {
        self.0.shared.state.lock().committed.clone()
    }

    /// Whether a purge still removes records in the background.
    pub fn is_purging(&self) -> bool {
        self.0.shared.state.lock().purging.is_some()
    }

    /// Bytes free on the disk that holds the directory; 0 when that cannot be found out.
    pub fn free_bytes(&self) -> u64 {
        self.0.shared.options.free_space.bytes(&self.0.shared.dir).unwrap_or(0)
    }

    /// Writes what waits, ends the writer and frees the directory. Never call it from a callback. Other clones return
    /// `Closed` from now on.
    pub fn close(self) -> Result<(), StoreError> {
        self.0.end();
        self.0.shared.failure.get().map_or(Ok(()), |error| Err(StoreError::Failed(error)))
    }

    /// Changes what readers see and queues the work, in one step; or refuses and changes nothing. Waits for room.
    async fn submit(
        &self,
        done: Done,
        bytes: usize,
        change: impl FnOnce(&mut VisibleState) -> Result<Work, StoreError>,
    ) {
        let shared = &self.0.shared;
        let refused = loop {
            // Made before looking: it is woken by room that is made between the look and the wait.
            let room = shared.room.notified();
            {
                let mut state = shared.state.lock();
                if let Some(error) = shared.failure.get() {
                    break StoreError::Failed(error);
                }
                if state.closed {
                    break StoreError::Closed;
                }
                if state.queue.has_room(bytes) {
                    match change(&mut state) {
                        Ok(work) => {
                            state.queue.push(Command { work, done });
                            shared.work.notify_one();
                            return;
                        }
                        Err(error) => break error,
                    }
                }
            }
            room.await;
        };
        done(Err(refused));
    }
}

impl Handle {
    fn end(&self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.room.notify_waiters();
        if let Some(writer) = self.writer.lock().take() {
            // A callback may drop the last handle: the writer cannot wait for itself.
            if writer.thread().id() != std::thread::current().id() {
                let _ = writer.join();
            }
        }
        let files = self.shared.state.lock().files.take();
        drop(files);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}
