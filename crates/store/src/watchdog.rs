//! The store's first failure, reported once; and the thread that notices a write that never ends. sled has a path that
//! does not wake its waiters after an error, and a failing disk may not answer at all.

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
            let tick = (limit / 8).max(Duration::from_millis(1));
            let mut ended = watched.ended.lock();
            while !*ended {
                let _ = watched.wake.wait_for(&mut ended, tick);
                let since = watched.busy_since.load(Ordering::SeqCst);
                if since != 0 && watched.base.elapsed() > Duration::from_millis(since - 1) + limit {
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
        let since = u64::try_from(self.shared.base.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        self.shared.busy_since.store(since, Ordering::SeqCst);
    }

    /// Work has ended.
    pub(crate) fn end(&self) {
        self.shared.busy_since.store(0, Ordering::SeqCst);
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
