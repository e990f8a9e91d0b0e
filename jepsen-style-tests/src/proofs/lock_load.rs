//! Clients that take and give back locks at every node that stays, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use crate::http::{Api, Failure};
use crate::stats::millis;
use crate::tokens::TokenGrant;
use crate::verdict::{Failed, broken};

/// Two clients contend for each lock.
const LOCKS: [&str; 4] = ["load-1", "load-1", "load-2", "load-2"];
/// As in `rotate`: the longest pause at a node that stays.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
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

impl WorkDone {
    /// Checks that no request failed, no client was held up for long, and tokens rose.
    pub(super) fn judge(&self) -> Result<(), Failed> {
        if let Some(first) = self.failures.first() {
            return broken(format!(
                "{} requests failed at nodes that stay, the first one {first}",
                self.failures.len()
            ));
        }
        if self.longest_pause > LONGEST_PAUSE {
            let pause = millis(self.longest_pause);
            return broken(format!("a client was held up for {pause}, longer than {}", millis(LONGEST_PAUSE)));
        }
        if self.grants.is_empty() {
            return broken("no lock was taken: there was no load");
        }
        crate::tokens::check(&self.grants).map_err(Failed::Broken)
    }
}

/// See the module's text.
pub(super) struct LockLoad {
    /// Read during a cycle: a node is taken away between cycles alone.
    nodes: Arc<RwLock<Vec<Api>>>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<WorkDone>>,
}

impl LockLoad {
    /// Begins at one node.
    pub(super) async fn start(api: Api) -> Result<Self, Failed> {
        let (nodes, stop) = (Arc::new(RwLock::new(vec![api.clone()])), Arc::new(AtomicBool::new(false)));
        let mut clients = Vec::new();
        for (turn, lock) in LOCKS.into_iter().enumerate() {
            let opened = api.open_session(SESSION_TIMEOUT_MS, "load").await;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn work(tokens: &[u64]) -> WorkDone {
        let now = Instant::now();
        let at = |ms: u64| now + Duration::from_millis(ms);
        let grant = |(turn, token): (u64, &u64)| TokenGrant {
            lock: "a".into(),
            token: *token,
            asked: at(10 * turn),
            granted: at(10 * turn + 1),
            released: Some(at(10 * turn + 2)),
        };
        WorkDone { grants: (0..).zip(tokens).map(grant).collect(), ..WorkDone::default() }
    }

    #[test]
    fn a_failure_a_long_pause_and_a_token_that_falls_break_it() {
        work(&[5, 7, 9]).judge().unwrap();
        let failed = WorkDone { failures: vec!["at node 2".into()], ..work(&[5, 7]) };
        let paused = WorkDone { longest_pause: LONGEST_PAUSE * 2, ..work(&[5, 7]) };
        for bad in [failed, paused, work(&[5, 9, 7]), work(&[])] {
            bad.judge().unwrap_err();
        }
    }
}
