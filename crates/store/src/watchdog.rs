//! The store's first failure, reported once; and the thread that notices a write that never ends. sled has a path that
//! does not wake its waiters after an error, and a failing disk may not answer at all.
//!
//! The limit is for the disk. The time for which the process itself did not run (it was stopped, or its virtual machine
//! was paused) does not count: the watchdog notices that its own look comes late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::FatalError;
use crate::types::FatalHook;

/// The first failure, and the hook to call with it.
pub(crate) struct Failure {
    first: Mutex<Option<FatalError>>,
    hook: FatalHook,
}

impl Failure {
    pub(crate) fn new(hook: FatalHook) -> Self {
        Self { first: Mutex::new(None), hook }
    }

    pub(crate) fn get(&self) -> Option<FatalError> {
        self.first.lock().clone()
    }

    /// Records a failure; calls the hook if it is the first.
    pub(crate) fn set(&self, error: &FatalError) {
        let mut first = self.first.lock();
        if first.is_none() {
            *first = Some(error.clone());
            // The hook may look at the store.
            drop(first);
            tracing::error!(%error, "the store has failed");
            (self.hook)(error.clone());
        }
    }
}

/// Watches one worker.
pub(crate) struct Watchdog {
    shared: Arc<WatchedWork>,
    thread: Option<JoinHandle<()>>,
}

struct WatchedWork {
    base: Instant,
    /// Milliseconds since `base` at which the present work began, plus one; 0 when idle.
    busy_since: AtomicU64,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl WatchedWork {
    fn begin(&self) {
        let since = u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        self.busy_since.store(since, Ordering::SeqCst);
    }
}

impl Watchdog {
    pub(crate) fn start(limit: Duration, stuck: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(WatchedWork {
            base: Instant::now(),
            busy_since: AtomicU64::new(0),
            ended: Mutex::new(false),
            wake: Condvar::new(),
        });
        let watched = shared.clone();
        let watch = move || {
            let mut looks = Looks::new(limit, watched.base.elapsed());
            let mut ended = watched.ended.lock();
            while !*ended {
                let _ = watched.wake.wait_for(&mut ended, looks.every);
                let since = watched.busy_since.load(Ordering::SeqCst);
                if looks.is_stuck(watched.base.elapsed(), since) {
                    drop(ended);
                    return stuck();
                }
            }
        };
        let thread = std::thread::Builder::new().name("store-watchdog".into()).spawn(watch)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Work begins now.
    pub(crate) fn begin(&self) {
        self.shared.begin();
    }

    /// To call when a part of the work is done: its time begins anew.
    pub(crate) fn progress(&self) -> Box<dyn Fn() + Send> {
        let shared = self.shared.clone();
        Box::new(move || shared.begin())
    }

    /// Work has ended.
    pub(crate) fn end(&self) {
        self.shared.busy_since.store(0, Ordering::SeqCst);
    }
}

/// The watchdog's looks at the work. Times are those since `base`.
struct Looks {
    limit: Duration,
    every: Duration,
    last: Duration,
    /// The work that was looked at last, as in `busy_since`, and the time since then for which the process did not run.
    work: u64,
    not_running: Duration,
}

impl Looks {
    fn new(limit: Duration, now: Duration) -> Self {
        let every = (limit / 8).max(Duration::from_millis(1));
        Self { limit, every, last: now, work: 0, not_running: Duration::ZERO }
    }

    /// Looks at the work that began at this time (as in `busy_since`): whether it takes longer than the limit.
    fn is_stuck(&mut self, now: Duration, busy_since: u64) -> bool {
        let gap = now.saturating_sub(std::mem::replace(&mut self.last, now));
        if busy_since != self.work {
            (self.work, self.not_running) = (busy_since, Duration::ZERO);
        }
        if busy_since == 0 {
            return false;
        }
        let took = now.saturating_sub(Duration::from_millis(busy_since - 1));
        if gap > 2 * self.every {
            tracing::warn!(
                gap_ms = gap.as_millis() as u64,
                "this process was not running for a while: the disk gets as much longer for a write"
            );
            self.not_running += gap.min(took);
        }
        took > self.limit + self.not_running
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.shared.ended.lock() = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_never_ends_is_a_failure_told_once() {
        let (send, told) = std::sync::mpsc::channel();
        let failure = Arc::new(Failure::new(Arc::new(move |error| send.send(error).unwrap())));
        let limit = Duration::from_millis(20);
        let told_by = failure.clone();
        let stuck = move || told_by.set(&FatalError::Stuck { file: "db".into(), limit });
        let watchdog = Watchdog::start(limit, stuck).unwrap();
        watchdog.begin();
        assert!(matches!(told.recv().unwrap(), FatalError::Stuck { .. }));
        failure.set(&FatalError::Stuck { file: "db".into(), limit: Duration::ZERO });
        drop(watchdog);
        assert!(told.try_recv().is_err());
    }

    /// Looks each 100 ms, from 1 s on, at work that began then: at which look it counts as stuck. Before some of them
    /// the process does not run for a while.
    fn stuck_at_look(pauses: &[(u32, Duration)]) -> Option<u32> {
        let (limit, began) = (Duration::from_millis(800), Duration::from_secs(1));
        let mut looks = Looks::new(limit, began);
        let mut now = began;
        (1..100).find(|look| {
            now += looks.every + pauses.iter().filter(|(at, _)| at == look).map(|(_, pause)| *pause).sum::<Duration>();
            looks.is_stuck(now, began.as_millis() as u64 + 1)
        })
    }

    #[test]
    fn the_time_for_which_the_process_did_not_run_does_not_count() {
        let frozen = Duration::from_secs(12);
        assert_eq!(stuck_at_look(&[]), Some(9));
        assert_eq!(stuck_at_look(&[(1, frozen)]), Some(10));
        assert_eq!(stuck_at_look(&[(4, frozen), (6, frozen)]), Some(11));
        assert_eq!(
            stuck_at_look(&[(9, frozen)]),
            Some(10),
            "the look that comes late is not the one that ends the node"
        );
        // A look that is a little late excuses nothing: a slow machine may have a slow disk as well.
        let a_little = Duration::from_millis(90);
        assert_eq!(stuck_at_look(&[(1, a_little), (2, a_little)]), Some(7));
    }

    #[test]
    fn a_pause_before_the_work_excuses_nothing() {
        let at = Duration::from_millis;
        let mut looks = Looks::new(at(800), Duration::ZERO);
        assert!(!looks.is_stuck(at(12_010), 12_001), "began after the pause, 10 ms ago");
        assert!((1..=8).all(|look| !looks.is_stuck(at(12_010 + look * 100), 12_001)));
        assert!(looks.is_stuck(at(12_910), 12_001));
    }

    #[test]
    fn an_idle_worker_is_left_alone() {
        let limit = Duration::from_millis(100);
        let (send, told) = std::sync::mpsc::channel();
        let watchdog = Watchdog::start(limit, move || send.send(()).unwrap()).unwrap();
        watchdog.begin();
        watchdog.end();
        std::thread::sleep(limit * 2);
        drop(watchdog);
        assert!(told.try_recv().is_err());
    }
}
