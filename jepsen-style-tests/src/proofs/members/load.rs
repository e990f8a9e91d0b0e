//! Clients that take and give back locks at every node that stays, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use crate::http::{Api, Failure};
use crate::tokens::TokenGrant;
use crate::verdict::Failed;

/// Two clients contend for each lock.
const LOCKS: [&str; 4] = ["members-1", "members-1", "members-2", "members-2"];
const SESSION_TIMEOUT_MS: u32 = 30_000;
const WAIT_MS: u64 = 10_000;
const WITHIN: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_millis(5);

/// What the clients saw.
#[derive(Debug, Default)]
pub(super) struct WorkDone {
    pub(super) grants: Vec<TokenGrant>,
    /// The longest time from one completed cycle of a client to the next.
    pub(super) longest_pause: Duration,
    pub(super) failures: Vec<String>,
}

/// See the module's text.
pub(super) struct Load {
    /// Read during a cycle: a node is taken away between cycles alone.
    nodes: Arc<RwLock<Vec<Api>>>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<WorkDone>>,
}

impl Load {
    /// Begins at one node.
    pub(super) async fn start(api: Api) -> Result<Self, Failed> {
        let (nodes, stop) = (Arc::new(RwLock::new(vec![api.clone()])), Arc::new(AtomicBool::new(false)));
        let mut clients = Vec::new();
        for (turn, lock) in LOCKS.into_iter().enumerate() {
            let opened = api.open_session(SESSION_TIMEOUT_MS, "members").await;
            let opened = opened.map_err(|failure| Failed::Broken(format!("no session: {failure}")))?;
            let credential = opened.value.credential;
            clients.push(tokio::spawn(work(Arc::clone(&nodes), (credential, lock, turn), Arc::clone(&stop))));
        }
        Ok(Self { nodes, stop, clients })
    }

    /// Goes on with these. On return no request is at another node any more.
    pub(super) async fn use_nodes(&self, nodes: Vec<Api>) {
        *self.nodes.write().await = nodes;
    }

    pub(super) async fn end(self) -> WorkDone {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = WorkDone::default();
        for done in futures::future::join_all(self.clients).await {
            match done {
                Ok(done) => {
                    all.grants.extend(done.grants);
                    all.longest_pause = all.longest_pause.max(done.longest_pause);
                    all.failures.extend(done.failures);
                }
                Err(error) => all.failures.push(format!("a client broke off: {error}")),
            }
        }
        all
    }
}

async fn work(
    nodes: Arc<RwLock<Vec<Api>>>,
    (credential, lock, first): (String, &'static str, usize),
    stop: Arc<AtomicBool>,
) -> WorkDone {
    let mut work = WorkDone::default();
    let mut last = Instant::now();
    let mut turn = first;
    while !stop.load(Ordering::SeqCst) {
        {
            let nodes = nodes.read().await;
            let api = &nodes[turn % nodes.len()];
            match cycle(api, &credential, lock).await {
                Ok(grant) => work.grants.push(grant),
                Err(failure) => work.failures.push(format!("at {}: {failure}", api.base())),
            }
        }
        turn += 1;
        work.longest_pause = work.longest_pause.max(last.elapsed());
        last = Instant::now();
        tokio::time::sleep(EVERY).await;
    }
    work
}

async fn cycle(api: &Api, credential: &str, lock: &str) -> Result<TokenGrant, Failure> {
    api.keepalive(credential, WITHIN).await?;
    let body = Acquire { wait_ms: WAIT_MS, ..Acquire::default() };
    let held = api.acquire(credential, lock, &body, WITHIN).await?;
    let (token, released) = (held.value.token, Instant::now());
    api.release(credential, lock, token).await?;
    Ok(TokenGrant { lock: lock.to_owned(), token, asked: held.sent, granted: held.received, released: Some(released) })
}
