//! The one thread that writes to sled while the store is open. It does what the writer asks for, one task at a time,
//! and in between it removes what was purged, in small steps. No append waits for it, unless the journal is full.
//!
//! It decides nothing: what a task holds is durable in the journal, or is a change that the writer makes in sled alone
//! (`journal/mod.rs`). It must never go on after a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::codec::part_key;
use crate::error::FatalError;
use crate::fsync::DataBarrier;
use crate::journal::durable_log::{SledTasks, Task};
use crate::log_state::StoreShared;
use crate::open::panic_text;
use crate::sled_log::SledLog;
use crate::watchdog::Watchdog;

/// Values that a purge removes before the thread looks for a task again. After a task it removes twice the values that
/// the task wrote, if that is more, or a load that never pauses would fill the disk.
const PURGE_STEP: usize = 16;

#[derive(Default)]
struct State {
    /// The task that was handed over, until it is begun.
    task: Option<Arc<Task>>,
    /// A task was handed over and is not done.
    busy: bool,
    /// To be purged up to here.
    purge: Option<u64>,
    /// The thread is to end, and has.
    ended: bool,
    is_gone: bool,
    failed: Option<FatalError>,
}

struct Progress {
    state: Mutex<State>,
    /// There is something to do, or the end has come.
    work: Condvar,
    /// A task is done, or has failed, or the thread is gone.
    done: Condvar,
}

impl Progress {
    fn fail(&self, error: &FatalError) {
        self.state.lock().failed.get_or_insert_with(|| error.clone());
        self.done.notify_all();
    }
}

/// The thread, as the writer sees it. Dropping it ends the thread, after the task that it may be at.
pub(crate) struct Archiver {
    progress: Arc<Progress>,
    /// Watches the writer.
    of_writer: Arc<Watchdog>,
    thread: Option<JoinHandle<()>>,
}

impl Archiver {
    /// Starts the thread. A purge that was interrupted goes on up to `purge`. The watchdog watches the writer.
    pub(crate) fn start(
        shared: Arc<StoreShared>,
        log: Arc<SledLog>,
        mut barrier: DataBarrier,
        purge: Option<u64>,
        of_writer: Arc<Watchdog>,
    ) -> std::io::Result<Self> {
        let state = Mutex::new(State { purge, ..State::default() });
        let progress = Arc::new(Progress { state, work: Condvar::new(), done: Condvar::new() });
        let limit = shared.options.sync_watchdog;
        let stuck = FatalError::Stuck { file: log.file().to_path_buf(), limit };
        let (watched, waited_for) = (shared.clone(), progress.clone());
        let watchdog = Watchdog::start(limit, move || {
            // Whoever waits for the thread would wait for ever.
            waited_for.fail(&stuck);
            watched.fail(&stuck);
        })?;
        barrier.progress = watchdog.progress();
        let worker = Worker { shared, log, barrier, progress: progress.clone(), watchdog, purging: None, backlog: 0 };
        let thread = std::thread::Builder::new().name("store-archiver".into()).spawn(move || worker.run())?;
        Ok(Self { progress, of_writer, thread: Some(thread) })
    }

    /// Removes everything up to this index, when there is time. That nobody needs it must be durable.
    pub(crate) fn purge(&self, upto: u64) {
        self.progress.state.lock().purge = Some(upto);
        self.progress.work.notify_one();
    }

    /// Ends the thread, after the task that it may be at, unless that is stuck.
    pub(crate) fn stop(&mut self) -> Result<(), FatalError> {
        let failed = {
            let mut state = self.progress.state.lock();
            state.ended = true;
            self.progress.work.notify_one();
            while !state.is_gone && state.failed.is_none() {
                self.progress.done.wait(&mut state);
            }
            state.failed.clone()
        };
        // After a failure the thread runs callbacks, one of which may be what stops it.
        if let Some(thread) = self.thread.take().filter(|_| failed.is_none()) {
            // It catches its panics.
            let _ = thread.join();
        }
        failed.map_or(Ok(()), Err)
    }
}

impl SledTasks for Archiver {
    fn begin(&mut self, task: Arc<Task>) {
        let mut state = self.progress.state.lock();
        (state.task, state.busy) = (Some(task), true);
        self.progress.work.notify_one();
    }

    fn is_done(&mut self) -> Result<bool, FatalError> {
        let state = self.progress.state.lock();
        state.failed.clone().map_or(Ok(!state.busy), Err)
    }

    fn wait(&mut self) -> Result<(), FatalError> {
        // The time is the archiver's, which has a watchdog of its own.
        self.of_writer.end();
        let mut state = self.progress.state.lock();
        while state.busy && state.failed.is_none() {
            self.progress.done.wait(&mut state);
        }
        self.of_writer.begin();
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// What the thread has.
struct Worker {
    shared: Arc<StoreShared>,
    log: Arc<SledLog>,
    barrier: DataBarrier,
    progress: Arc<Progress>,
    watchdog: Watchdog,
    /// Upper index and next key of the purge under way.
    purging: Option<(u64, sled::IVec)>,
    /// Values that a purge may still remove before the next task.
    backlog: usize,
}

fn first_key() -> sled::IVec {
    sled::IVec::from(&part_key(0, 0))
}

enum Next {
    Task(Arc<Task>),
    PurgeStep,
    End,
}

impl Worker {
    fn run(mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.work()));
        self.watchdog.end();
        let file = || self.log.file().to_path_buf();
        let result =
            result.unwrap_or_else(|panic| Err(FatalError::Panicked { file: file(), what: panic_text(&*panic) }));
        let failed = result.err();
        {
            let mut state = self.progress.state.lock();
            state.is_gone = true;
            state.failed = state.failed.take().or_else(|| failed.clone());
        }
        self.progress.done.notify_all();
        if let Some(error) = failed {
            self.shared.fail(&error);
        }
    }

    fn work(&mut self) -> Result<(), FatalError> {
        while self.turn()? {}
        Ok(())
    }

    /// Does one thing; says whether there may be another.
    fn turn(&mut self) -> Result<bool, FatalError> {
        match self.next() {
            Next::Task(task) => {
                self.watchdog.begin();
                let values = self.log.perform(&task, &self.barrier)?;
                self.backlog = PURGE_STEP.max(2 * values as usize);
                self.watchdog.end();
                self.progress.state.lock().busy = false;
                self.progress.done.notify_all();
                self.shared.wake();
            }
            Next::PurgeStep => {
                self.watchdog.begin();
                self.purge_step()?;
                self.watchdog.end();
            }
            Next::End => return Ok(false),
        }
        Ok(true)
    }

    fn next(&mut self) -> Next {
        let mut state = self.progress.state.lock();
        loop {
            // A store that has failed elsewhere writes no more.
            if let Some(error) = self.shared.failure.get() {
                state.failed = Some(error);
                return Next::End;
            }
            if let Some(upto) = state.purge.take() {
                let from = self.purging.take().map_or_else(first_key, |(_, key)| key);
                self.purging = Some((upto, from));
            }
            let is_turn_of_purge = self.purging.is_some() && self.backlog > 0;
            if let Some(task) = state.task.take_if(|_| !is_turn_of_purge) {
                return Next::Task(task);
            }
            if state.ended {
                return Next::End;
            }
            if self.purging.is_some() {
                return Next::PurgeStep;
            }
            self.progress.work.wait(&mut state);
        }
    }

    fn purge_step(&mut self) -> Result<(), FatalError> {
        let Some((upto, from)) = self.purging.take() else { return Ok(()) };
        let next = self.log.purge_some(&from, upto, PURGE_STEP, &self.barrier)?;
        self.purging = next.map(|key| (upto, key));
        self.backlog = self.backlog.saturating_sub(PURGE_STEP);
        if self.purging.is_some() {
            return Ok(());
        }
        self.backlog = 0;
        // Handed over before it was known that its records go.
        let brings_more = |task: &Arc<Task>| task.first().is_some_and(|first| first <= upto);
        if self.progress.state.lock().task.as_ref().is_some_and(brings_more) {
            self.purging = Some((upto, first_key()));
            return Ok(());
        }
        self.barrier.run()?;
        let mut state = self.shared.state.lock();
        // Unless more is to be purged by now.
        state.purging = state.purging.filter(|wanted| *wanted != upto);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;
    use crate::journal::durable_log::SledWork;
    use crate::journal::unarchived::Archive;
    use crate::log_state::VisibleState;
    use crate::position::LogPosition;
    use crate::queue::Queue;
    use crate::tail_cache::TailCache;
    use crate::term_starts::TermStarts;
    use crate::types::{Identity, Options, Record};
    use crate::watchdog::Failure;

    const NEVER: Duration = Duration::from_secs(3_600);

    /// A new directory, as the thread sees it.
    fn open(dir: &Path, sync_watchdog: Duration) -> (Arc<StoreShared>, Arc<SledLog>, DataBarrier) {
        let options = Options { free_floor_bytes: 0, sync_watchdog, ..Options::new(Arc::new(|_| {})) };
        let identity = Identity { cluster: "c".into(), node: 1, directory: 7 };
        let ready = crate::open::open(dir, &identity, &options).unwrap();
        let state = VisibleState {
            tail: TailCache::new(0),
            committed: None,
            purging: None,
            vote: None,
            vote_sequence: 0,
            purged: None,
            last: None,
            first_index: None,
            terms: TermStarts::default(),
            queue: Queue::new(1, 1),
            cuts: 0,
            woken: false,
            reshaped: 0,
            closed: false,
            files: None,
        };
        let shared = StoreShared {
            dir: dir.to_path_buf(),
            failure: Arc::new(Failure::new(options.fatal.clone())),
            options,
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Notify::new(),
        };
        (Arc::new(shared), Arc::new(ready.log), ready.barrier)
    }

    #[test]
    fn whoever_waits_for_a_stuck_thread_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, log, barrier) = open(dir.path(), Duration::from_millis(50));
        let of_writer = Arc::new(Watchdog::start(NEVER, || ()).unwrap());
        // The end of a purge waits for this lock.
        let held = shared.state.lock();
        let mut archiver = Archiver::start(shared.clone(), log, barrier, Some(5), of_writer).unwrap();
        while archiver.progress.state.lock().purge.is_some() {
            std::thread::yield_now();
        }
        archiver.begin(Arc::new(Task { number: 1, work: SledWork::Cut(0) }));
        assert!(matches!(archiver.wait(), Err(FatalError::Stuck { .. })));
        assert!(matches!(archiver.stop(), Err(FatalError::Stuck { .. })));
        drop(held);
    }

    #[test]
    fn a_task_that_was_handed_over_before_a_purge_leaves_nothing_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, log, barrier) = open(dir.path(), NEVER);
        let record =
            |index| Record { position: LogPosition { term: 1, index }, payload: vec![index as u8; 20_000].into() };
        let records = (1..=9).map(record).collect();
        let task = Task { number: 1, work: SledWork::Archive(Archive { records, ..Archive::default() }) };
        let state = State { task: Some(Arc::new(task)), busy: true, purge: Some(7), ..State::default() };
        shared.state.lock().purging = Some(7);
        let mut worker = Worker {
            shared,
            log,
            barrier,
            progress: Arc::new(Progress { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() }),
            watchdog: Watchdog::start(NEVER, || ()).unwrap(),
            purging: None,
            // The purge goes first.
            backlog: 1,
        };
        for _ in 0..10 {
            worker.turn().unwrap();
            if worker.shared.state.lock().purging.is_none() {
                break;
            }
        }
        assert!(!worker.progress.state.lock().busy && !worker.log.has_records_below(8).unwrap());
        assert_eq!(worker.log.read(8, 10, usize::MAX).unwrap(), [record(8), record(9)]);
    }
}
