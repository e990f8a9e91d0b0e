//! A client that does nothing wrong: it takes and gives back a lock, at one node after the other, and nothing that is
//! done to others may disturb it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use crate::http::{Api, Failure};
use crate::stats::millis;
use crate::tokens::{self, TokenGrant};
use crate::verdict::{Failed, broken};

/// As in `rotate`: the longest pause at a node that stays.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The nodes that clients ask. They are read during a cycle: a node is taken away between cycles alone.
pub(super) type Nodes = Arc<RwLock<Vec<Api>>>;

/// How a client works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycling {
    /// How long it waits for the lock.
    pub(super) wait_ms: u64,
    /// How long one call may take.
    pub(super) within: Duration,
    /// Its pause between two cycles.
    pub(super) every: Duration,
    /// The place of the node at which it begins.
    pub(super) first: usize,
}

const ALONE: Cycling =
    Cycling { wait_ms: 0, within: Duration::from_secs(10), every: Duration::from_millis(10), first: 0 };

/// What it saw.
#[derive(Debug, Default)]
pub(super) struct CycleWork {
    pub(super) cycles: u64,
    pub(super) grants: Vec<TokenGrant>,
    /// The longest time from one completed cycle to the next.
    pub(super) longest_pause: Duration,
    pub(super) failures: Vec<String>,
}

impl CycleWork {
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
        tokens::check(&self.grants).map_err(Failed::Broken)
    }
}

/// See the module's text.
pub(super) struct LockCycles {
    nodes: Nodes,
    stop: Arc<AtomicBool>,
    task: JoinHandle<CycleWork>,
}

impl LockCycles {
    /// Begins, in a session of the client's, with a lock that nobody else wants.
    pub(super) fn start(apis: Vec<Api>, credential: String, lock: &'static str) -> Self {
        Self::start_at(Arc::new(RwLock::new(apis)), credential, lock, ALONE)
    }

    /// Begins at nodes that it shares with others.
    pub(super) fn start_at(nodes: Nodes, credential: String, lock: &'static str, cycling: Cycling) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(work(Arc::clone(&nodes), credential, lock, cycling, Arc::clone(&stop)));
        Self { nodes, stop, task }
    }

    /// Goes on with these from the next cycle on, in the same session: as a client does that was started again.
    pub(super) async fn go_on_with(&self, apis: Vec<Api>) {
        *self.nodes.write().await = apis;
    }

    /// Ends it.
    pub(super) async fn end(self) -> CycleWork {
        self.stop.store(true, Ordering::SeqCst);
        let broke_off = || CycleWork { failures: vec!["it broke off".into()], ..CycleWork::default() };
        self.task.await.unwrap_or_else(|_| broke_off())
    }
}

async fn work(
    nodes: Nodes,
    credential: String,
    lock: &'static str,
    cycling: Cycling,
    stop: Arc<AtomicBool>,
) -> CycleWork {
    let mut work = CycleWork::default();
    let mut last = Instant::now();
    let mut turn = cycling.first;
    while !stop.load(Ordering::SeqCst) {
        {
            let nodes = nodes.read().await;
            let Some(api) = turn.checked_rem(nodes.len()).and_then(|at| nodes.get(at)) else { break };
            match cycle(api, &credential, lock, cycling).await {
                Ok(grant) => {
                    work.cycles += 1;
                    work.grants.push(grant);
                }
                Err(failure) => work.failures.push(format!("at {}: {failure}", api.base())),
            }
        }
        turn += 1;
        work.longest_pause = work.longest_pause.max(last.elapsed());
        last = Instant::now();
        tokio::time::sleep(cycling.every).await;
    }
    // Whatever else is on trial, tokens rise.
    work.failures.extend(tokens::check(&work.grants).err());
    work
}

async fn cycle(api: &Api, credential: &str, lock: &str, cycling: Cycling) -> Result<TokenGrant, Failure> {
    let Cycling { wait_ms, within, .. } = cycling;
    api.keepalive(credential, within).await?;
    let held = api.acquire(credential, lock, &Acquire { wait_ms, ..Acquire::default() }, within).await?;
    let (token, released) = (held.value.token, Instant::now());
    api.release(credential, lock, token).await?;
    Ok(TokenGrant { lock: lock.to_owned(), token, asked: held.sent, granted: held.received, released: Some(released) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(tokens: &[u64]) -> CycleWork {
        let now = Instant::now();
        let at = |ms: u64| now + Duration::from_millis(ms);
        let grant = |(turn, token): (u64, &u64)| TokenGrant {
            lock: "a".into(),
            token: *token,
            asked: at(10 * turn),
            granted: at(10 * turn + 1),
            released: Some(at(10 * turn + 2)),
        };
        CycleWork { grants: (0..).zip(tokens).map(grant).collect(), ..CycleWork::default() }
    }

    #[test]
    fn a_failure_a_long_pause_and_a_token_that_falls_break_it() {
        work(&[5, 7, 9]).judge().unwrap();
        let failed = CycleWork { failures: vec!["at node 2".into()], ..work(&[5, 7]) };
        let paused = CycleWork { longest_pause: LONGEST_PAUSE * 2, ..work(&[5, 7]) };
        for bad in [failed, paused, work(&[5, 9, 7]), work(&[])] {
            bad.judge().unwrap_err();
        }
    }
}
