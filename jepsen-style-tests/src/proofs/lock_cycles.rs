//! Clients that do nothing wrong: each takes and gives back a lock over HTTP, over and over, and nothing that is done
//! to others may disturb it.

use tokio::sync::RwLock;

use crate::proofs::prelude::*;
use crate::tokens::{self, TokenGrant};

/// As in `rotate`: the longest pause at a node that stays.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Two clients contend for each.
const CONTENDED: [&str; 4] = ["load-1", "load-1", "load-2", "load-2"];
const STEADY_CLIENTS: usize = 4;
const SESSION_TIMEOUT_MS: u32 = 30_000;

/// The nodes that clients ask in turn. They are read during a cycle: a node is taken away between cycles alone.
type Nodes = Arc<RwLock<Vec<Api>>>;

/// How a client works.
#[derive(Clone, Copy, Debug)]
struct Cycling {
    /// How long it waits for the lock.
    wait_ms: u64,
    /// How long one call may take.
    within: Duration,
    /// Its pause between two cycles.
    every: Duration,
    /// Whether it keeps its session alive before each cycle.
    keeps_alive: bool,
    /// The place of the node at which it begins.
    first: usize,
}

const ALONE: Cycling = Cycling {
    wait_ms: 0,
    within: Duration::from_secs(10),
    every: Duration::from_millis(10),
    keeps_alive: true,
    first: 0,
};
const CONTENDING: Cycling =
    Cycling { wait_ms: 10_000, within: Duration::from_secs(15), every: Duration::from_millis(5), ..ALONE };
const STEADY: Cycling = Cycling { within: Duration::from_secs(5), keeps_alive: false, ..ALONE };

/// What clients saw.
#[derive(Debug, Default)]
pub(super) struct CycleWork {
    pub(super) cycles: u64,
    pub(super) grants: Vec<TokenGrant>,
    /// Of each acquire.
    pub(super) took: Vec<Duration>,
    /// The longest time of a client from one completed cycle to the next.
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
#[derive(Default)]
pub(super) struct LockCycles {
    nodes: Nodes,
    seen: Arc<Mutex<CycleWork>>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl LockCycles {
    /// One client, in a session of its own, with a lock that nobody else wants, at all nodes in turn.
    pub(super) fn start(apis: Vec<Api>, credential: String, lock: &str) -> Self {
        let nodes = Arc::new(RwLock::new(apis));
        let mut cycles = Self { nodes: Arc::clone(&nodes), ..Self::default() };
        cycles.client(nodes, credential, lock, ALONE);
        cycles
    }

    /// Four that contend for two locks, at all nodes in turn; at first at one.
    pub(super) async fn contending(api: Api) -> Result<Self, Failed> {
        let nodes = Arc::new(RwLock::new(vec![api.clone()]));
        let mut cycles = Self { nodes: Arc::clone(&nodes), ..Self::default() };
        for (first, lock) in CONTENDED.into_iter().enumerate() {
            let credential = session(&api, "load").await?;
            cycles.client(Arc::clone(&nodes), credential, lock, Cycling { first, ..CONTENDING });
        }
        Ok(cycles)
    }

    /// A few at a steady pace, each at one node, with locks of their own, whose names begin with `prefix`.
    pub(super) async fn steady(apis: &[Api], prefix: &str) -> Result<Self, Failed> {
        let mut cycles = Self::default();
        for (number, api) in apis.iter().cycle().take(STEADY_CLIENTS).enumerate() {
            let credential = session(api, prefix).await?;
            let nodes = Arc::new(RwLock::new(vec![api.clone()]));
            cycles.client(nodes, credential, &format!("{prefix}/{number}"), STEADY);
        }
        Ok(cycles)
    }

    fn client(&mut self, nodes: Nodes, credential: String, lock: &str, cycling: Cycling) {
        let (seen, stop) = (Arc::clone(&self.seen), Arc::clone(&self.stop));
        let client = CycleClient { nodes, credential, lock: lock.to_owned(), cycling, seen, stop };
        self.clients.push(tokio::spawn(client.work()));
    }

    /// Goes on with these from the next cycle on, in the same sessions: as clients do that were started again. On
    /// return no request is at another node any more.
    pub(super) async fn use_nodes(&self, apis: Vec<Api>) {
        *self.nodes.write().await = apis;
    }

    /// What is seen from now on for this time.
    pub(super) async fn window(&self, time: Duration) -> CycleWork {
        self.take();
        tokio::time::sleep(time).await;
        self.take()
    }

    /// What was seen since the last time.
    pub(super) fn take(&self) -> CycleWork {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Ends it. What was seen since the last time.
    pub(super) async fn end(mut self) -> CycleWork {
        self.stop.store(true, Ordering::SeqCst);
        let ended = futures::future::join_all(std::mem::take(&mut self.clients)).await;
        let mut work = self.take();
        work.failures.extend(ended.into_iter().filter_map(|client| client.err().map(|_| "it broke off".to_owned())));
        // Whatever else is on trial, tokens rise.
        work.failures.extend(tokens::check(&work.grants).err());
        work
    }
}

async fn session(api: &Api, label: &str) -> Result<String, Failed> {
    Ok(api.open_session(SESSION_TIMEOUT_MS, label).await.or_broken("no session")?.value.credential)
}

struct CycleClient {
    nodes: Nodes,
    credential: String,
    lock: String,
    cycling: Cycling,
    seen: Arc<Mutex<CycleWork>>,
    stop: Arc<AtomicBool>,
}

impl CycleClient {
    async fn work(self) {
        let mut last = Instant::now();
        let mut turn = self.cycling.first;
        while !self.stop.load(Ordering::SeqCst) {
            {
                let nodes = self.nodes.read().await;
                let Some(api) = turn.checked_rem(nodes.len()).and_then(|at| nodes.get(at)) else { break };
                self.cycle(api).await;
            }
            turn += 1;
            {
                let mut seen = self.seen.lock();
                seen.longest_pause = seen.longest_pause.max(last.elapsed());
            }
            last = Instant::now();
            tokio::time::sleep(self.cycling.every).await;
        }
    }

    async fn cycle(&self, api: &Api) {
        let (Cycling { wait_ms, within, .. }, credential) = (self.cycling, self.credential.as_str());
        let failed =
            |call: &str, why: Failure| self.seen.lock().failures.push(format!("{call} at {}: {why}", api.base()));
        if self.cycling.keeps_alive
            && let Err(why) = api.keepalive(credential, within).await
        {
            return failed("keepalive", why);
        }
        let began = Instant::now();
        let held = api.acquire(credential, &self.lock, &Acquire { wait_ms, ..Acquire::default() }, within).await;
        self.seen.lock().took.push(began.elapsed());
        let held = match held {
            Ok(held) => held,
            Err(why) => return failed("acquire", why),
        };
        let (token, released) = (held.value.token, Instant::now());
        if let Err(why) = api.release(credential, &self.lock, token).await {
            return failed("release", why);
        }
        let (lock, asked, granted) = (self.lock.clone(), held.sent, held.received);
        let mut seen = self.seen.lock();
        seen.cycles += 1;
        seen.grants.push(TokenGrant { lock, token, asked, granted, released: Some(released) });
    }
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
