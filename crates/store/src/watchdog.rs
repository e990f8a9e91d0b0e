//! The store's first failure, reported once; and the thread that notices a write that never ends. sled has a path that
//! does not wake its waiters after an error, and a failing disk may not answer at all.
//!
//! The limit is for the disk. The time for which the process itself did not run (it was stopped, or its virtual machine
//! was paused) does not count: the watchdog notices that its own look comes late. On a machine that is so loaded that
//! every look is late, only the first ones excuse a write.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

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

/// Looks within the limit.
const LOOKS: u32 = 8;
/// Late looks that excuse a write.
const EXCUSED_LOOKS: u32 = 8;

/// Watches one worker.
pub(crate) struct Watchdog {
    shared: Arc<WatchedWork>,
    thread: Option<JoinHandle<()>>,
}

struct WatchedWork {
    base: Instant,
    /// Between two looks.
    every: Duration,
    state: Mutex<WatchedState>,
    wake: Condvar,
}

#[derive(Default)]
struct WatchedState {
    /// Nothing when idle.
    work: Option<WorkUnderWay>,
    ended: bool,
}

impl Watchdog {
    pub(crate) fn start(limit: Duration, stuck: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(WatchedWork {
            base: Instant::now(),
            every: look_every(limit),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let watched = shared.clone();
        let watch = move || {
            let mut looks = Looks::new(limit, watched.base.elapsed());
            let mut state = watched.state.lock();
            while !state.ended {
                let _ = watched.wake.wait_for(&mut state, watched.every);
                match looks.look(watched.base.elapsed(), state.work.as_mut()) {
                    Look::Fine => {}
                    Look::Excused { gap } => MutexGuard::unlocked(&mut state, || {
                        tracing::warn!(
                            gap_ms = gap.as_millis() as u64,
                            "this process was not running for a while: the disk gets as much longer for a write"
                        );
                    }),
                    Look::Stuck => {
                        drop(state);
                        return stuck();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("store-watchdog".into()).spawn(watch)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Work begins now.
    pub(crate) fn begin(&self) {
        self.shared.state.lock().work = Some(WorkUnderWay::new(self.shared.base.elapsed()));
    }

    /// To call when a part of the work is done: each part has the whole limit.
    pub(crate) fn progress(&self) -> Box<dyn Fn() + Send> {
        let shared = self.shared.clone();
        Box::new(move || {
            if let Some(work) = &mut shared.state.lock().work {
                *work = WorkUnderWay::new(shared.base.elapsed());
            }
        })
    }

    /// Work has ended.
    pub(crate) fn end(&self) {
        self.shared.state.lock().work = None;
    }
}

/// The work under way. Times are those since `base`.
struct WorkUnderWay {
    /// When it began, or later, by the time that does not count.
    since: Duration,
    /// Late looks that excused it.
    excused: u32,
}

impl WorkUnderWay {
    fn new(now: Duration) -> Self {
        Self { since: now, excused: 0 }
    }

    fn extend(&mut self, now: Duration, by: Duration) {
        self.since = (self.since + by).min(now);
    }
}

fn look_every(limit: Duration) -> Duration {
    (limit / LOOKS).max(Duration::from_millis(1))
}

/// The result of a look at the work.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Fine,
    /// The process did not run for so long, which does not count.
    Excused {
        gap: Duration,
    },
    Stuck,
}

/// The watchdog's looks at the work. Times are those since `base`.
struct Looks {
    limit: Duration,
    last: Duration,
}

impl Looks {
    fn new(limit: Duration, now: Duration) -> Self {
        Self { limit, last: now }
    }

    fn look(&mut self, now: Duration, work: Option<&mut WorkUnderWay>) -> Look {
        let gap = now.saturating_sub(std::mem::replace(&mut self.last, now));
        let Some(work) = work else { return Look::Fine };
        let is_excused = gap > 2 * look_every(self.limit) && work.excused < EXCUSED_LOOKS;
        if is_excused {
            work.extend(now, gap);
            work.excused += 1;
        }
        match now.saturating_sub(work.since) > self.limit {
            true => Look::Stuck,
            false if is_excused => Look::Excused { gap },
            false => Look::Fine,
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
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

    const LIMIT: Duration = Duration::from_millis(800);
    const EVERY: Duration = Duration::from_millis(100);
    const FROZEN: Duration = Duration::from_secs(12);

    /// Looks each 100 ms, from 1 s on, at work that began then: at which look it counts as stuck. Before some of them
    /// the process does not run for a while. A part of the work is done each so often, if at all.
    fn stuck_at_look_with_parts(pauses: &[(u32, Duration)], part_every: Option<Duration>) -> Option<u32> {
        let began = Duration::from_secs(1);
        let (mut looks, mut work) = (Looks::new(LIMIT, began), WorkUnderWay::new(began));
        let mut now = began;
        let mut next_part = part_every.map(|every| began + every);
        (1..100).find(|look| {
            now += EVERY + pauses.iter().filter(|(at, _)| at == look).map(|(_, pause)| *pause).sum::<Duration>();
            while let Some(done) = next_part.filter(|done| *done <= now) {
                work = WorkUnderWay::new(done);
                next_part = part_every.map(|every| done + every);
            }
            looks.look(now, Some(&mut work)) == Look::Stuck
        })
    }

    fn stuck_at_look(pauses: &[(u32, Duration)]) -> Option<u32> {
        stuck_at_look_with_parts(pauses, None)
    }

    #[test]
    fn the_time_for_which_the_process_did_not_run_does_not_count() {
        assert_eq!(stuck_at_look(&[]), Some(9));
        assert_eq!(stuck_at_look(&[(1, FROZEN)]), Some(10));
        assert_eq!(stuck_at_look(&[(4, FROZEN), (6, FROZEN)]), Some(11));
        assert_eq!(
            stuck_at_look(&[(9, FROZEN)]),
            Some(10),
            "the look that comes late is not the one that ends the node"
        );
        // A look that is a little late excuses nothing: a slow machine may have a slow disk as well.
        let a_little = Duration::from_millis(90);
        assert_eq!(stuck_at_look(&[(1, a_little), (2, a_little)]), Some(7));
    }

    #[test]
    fn a_machine_whose_looks_are_all_late_notices_a_stuck_disk() {
        let all_late = |pause| stuck_at_look(&(1..=20).map(|look| (look, pause)).collect::<Vec<_>>());
        // The first eight excuse 350 ms each.
        assert_eq!(all_late(Duration::from_millis(250)), Some(11));
        assert_eq!(all_late(FROZEN), Some(9));
    }

    #[test]
    fn each_part_of_the_work_has_the_whole_limit() {
        let parts_each = |ms| stuck_at_look_with_parts(&[], Some(Duration::from_millis(ms)));
        assert_eq!(parts_each(720), None, "nine tenths of it");
        assert_eq!(parts_each(950), Some(9), "more than all of it");
    }

    #[test]
    fn a_pause_before_the_work_excuses_nothing() {
        let at = Duration::from_millis;
        let (mut looks, mut work) = (Looks::new(LIMIT, Duration::ZERO), WorkUnderWay::new(at(12_000)));
        let mut is_stuck = |now| looks.look(at(now), Some(&mut work)) == Look::Stuck;
        assert!(!is_stuck(12_010), "began after the pause, 10 ms ago");
        assert!((1..=8).all(|look| !is_stuck(12_010 + look * 100)));
        assert!(is_stuck(12_910));
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
