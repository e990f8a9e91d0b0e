//! A few clients that take and give back locks of their own, at a steady pace over all nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use tokio::task::JoinSet;

use crate::http::Api;
use crate::verdict::Failed;

const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(10);
const WITHIN: Duration = Duration::from_secs(5);
const SESSION_TIMEOUT_MS: u32 = 30_000;

/// What its clients saw for a time.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Of each acquire.
    pub(super) took: Vec<Duration>,
    pub(super) failures: Vec<String>,
}

/// See the module's text.
pub(super) struct SteadyClients {
    samples: Arc<Mutex<Samples>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl SteadyClients {
    /// Begins, with locks whose names begin with `prefix`.
    pub(super) async fn start(apis: Vec<Api>, prefix: &str) -> Result<Self, Failed> {
        let (samples, stop) = (Arc::<Mutex<Samples>>::default(), Arc::<AtomicBool>::default());
        let mut clients = JoinSet::new();
        for (number, api) in apis.iter().cycle().take(CLIENTS).enumerate() {
            let opened = api.open_session(SESSION_TIMEOUT_MS, prefix).await;
            let opened = opened.map_err(|why| Failed::Broken(format!("no session: {why}")))?;
            let credential = opened.value.credential;
            clients.spawn(work(api.clone(), credential, format!("{prefix}/{number}"), samples.clone(), stop.clone()));
        }
        Ok(Self { samples, stop, clients })
    }

    /// What is seen from now on for this time.
    pub(super) async fn window(&self, time: Duration) -> Samples {
        self.take();
        tokio::time::sleep(time).await;
        self.take()
    }

    /// What was seen since the last time.
    pub(super) fn take(&self) -> Samples {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends it. What has failed since the last window.
    pub(super) async fn end(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        while self.clients.join_next().await.is_some() {}
        self.take().failures
    }
}

async fn work(api: Api, credential: String, lock: String, samples: Arc<Mutex<Samples>>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        let held = api.acquire(&credential, &lock, &Acquire::default(), WITHIN).await;
        let took = began.elapsed();
        let failed = match held {
            Ok(held) => api.release(&credential, &lock, held.value.token).await.err().map(|why| ("release", why)),
            Err(why) => Some(("acquire", why)),
        };
        {
            let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.took.push(took);
            samples.failures.extend(failed.map(|(call, why)| format!("a steady client's {call} failed: {why}")));
        }
        tokio::time::sleep(EVERY).await;
    }
}
