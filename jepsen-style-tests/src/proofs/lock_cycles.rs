//! A client that does nothing wrong: it takes and gives back a lock, at one node after the other, and nothing that is
//! done to others may disturb it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use tokio::task::JoinHandle;

use crate::http::{Api, Failure};

const WITHIN: Duration = Duration::from_secs(10);
const EVERY: Duration = Duration::from_millis(10);

/// What it saw.
#[derive(Debug, Default)]
pub(super) struct CycleWork {
    pub(super) cycles: u64,
    /// The longest time from one completed cycle to the next.
    pub(super) longest_pause: Duration,
    pub(super) failures: Vec<String>,
}

/// See the module's text.
pub(super) struct LockCycles {
    apis: Arc<Mutex<Vec<Api>>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<CycleWork>,
}

impl LockCycles {
    /// Begins, in a session of the client's.
    pub(super) fn start(apis: Vec<Api>, credential: String, lock: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let apis = Arc::new(Mutex::new(apis));
        let task = tokio::spawn(work(Arc::clone(&apis), credential, lock, Arc::clone(&stop)));
        Self { apis, stop, task }
    }

    /// Goes on with these from the next cycle on, in the same session: as a client does that was started again.
    pub(super) fn go_on_with(&self, apis: Vec<Api>) {
        *self.apis.lock().unwrap_or_else(PoisonError::into_inner) = apis;
    }

    /// Ends it.
    pub(super) async fn end(self) -> CycleWork {
        self.stop.store(true, Ordering::SeqCst);
        let broke_off = || CycleWork { failures: vec!["it broke off".into()], ..CycleWork::default() };
        self.task.await.unwrap_or_else(|_| broke_off())
    }
}

/// The node whose turn it is.
fn at_turn(apis: &Mutex<Vec<Api>>, turn: usize) -> Option<Api> {
    let apis = apis.lock().unwrap_or_else(PoisonError::into_inner);
    apis.get(turn.checked_rem(apis.len())?).cloned()
}

async fn work(apis: Arc<Mutex<Vec<Api>>>, credential: String, lock: &'static str, stop: Arc<AtomicBool>) -> CycleWork {
    let mut work = CycleWork::default();
    let mut last = Instant::now();
    for turn in 0.. {
        let Some(api) = at_turn(&apis, turn).filter(|_| !stop.load(Ordering::SeqCst)) else { break };
        match cycle(&api, &credential, lock).await {
            Ok(()) => work.cycles += 1,
            Err(failure) => work.failures.push(format!("at {}: {failure}", api.base())),
        }
        work.longest_pause = work.longest_pause.max(last.elapsed());
        last = Instant::now();
        tokio::time::sleep(EVERY).await;
    }
    work
}

async fn cycle(api: &Api, credential: &str, lock: &str) -> Result<(), Failure> {
    api.keepalive(credential, WITHIN).await?;
    let held = api.acquire(credential, lock, &Acquire::default(), WITHIN).await?;
    api.release(credential, lock, held.value.token).await?;
    Ok(())
}
