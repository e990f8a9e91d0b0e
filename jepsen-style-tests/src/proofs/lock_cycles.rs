//! Clients that do nothing wrong: each takes and gives back a lock, over HTTP or by the client library, over and over,
//! and nothing that is done to others may disturb it.

use lockkeeper_client::{Client, Options as ClientOptions, PreferredNode, Session, SessionOptions};
use tokio::sync::RwLock;
use uuid::Uuid;

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
    /// Whether its requests for the lock have ids, under which a node may repeat them.
    with_ids: bool,
    /// The place of the node at which it begins.
    first: usize,
}

const ALONE: Cycling = Cycling {
    wait_ms: 0,
    within: Duration::from_secs(10),
    every: Duration::from_millis(10),
    keeps_alive: true,
    with_ids: false,
    first: 0,
};
const CONTENDING: Cycling =
    Cycling { wait_ms: 10_000, within: Duration::from_secs(15), every: Duration::from_millis(5), ..ALONE };
/// The pause of the clients at each node, and of writers beside them: the load must not be the bottleneck on a small
/// machine.
pub(super) const AT_EACH_PAUSE: Duration = Duration::from_millis(5);
const AT_EACH: Cycling = Cycling {
    wait_ms: 10_000,
    within: Duration::from_secs(20),
    every: AT_EACH_PAUSE,
    keeps_alive: false,
    with_ids: true,
    first: 0,
};
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
    /// When each client sent the latest request for its lock, or to give it back, that was answered.
    answered: Arc<Mutex<BTreeMap<usize, Instant>>>,
    clients: Tasks<()>,
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
        Self::apart(apis.iter().cycle().take(STEADY_CLIENTS), prefix, STEADY).await
    }

    /// The same, so many at each of these nodes.
    pub(super) async fn at_each(nodes: &[(u64, Api)], count: usize, prefix: &str) -> Result<Self, Failed> {
        let apis = nodes.iter().flat_map(|(_, api)| std::iter::repeat_n(api, count));
        Self::apart(apis, prefix, AT_EACH).await
    }

    async fn apart<'a>(apis: impl Iterator<Item = &'a Api>, prefix: &str, cycling: Cycling) -> Result<Self, Failed> {
        let mut cycles = Self::default();
        for (number, api) in apis.enumerate() {
            let credential = session(api, prefix).await?;
            let nodes = Arc::new(RwLock::new(vec![api.clone()]));
            cycles.client(nodes, credential, &format!("{prefix}/{number}"), cycling);
        }
        Ok(cycles)
    }

    fn client(&mut self, nodes: Nodes, credential: String, lock: &str, cycling: Cycling) {
        let (number, lock) = (self.clients.len(), lock.to_owned());
        let (seen, answered) = (Arc::clone(&self.seen), Arc::clone(&self.answered));
        self.clients
            .start(|stop| CycleClient { number, nodes, credential, lock, cycling, seen, answered, stop }.work());
    }

    /// Whether each client has an answer to something that it sent since then.
    pub(super) fn all_answered(&self, since: Instant) -> bool {
        let answered = self.answered.lock();
        answered.len() == self.clients.len() && answered.values().all(|sent| *sent >= since)
    }

    /// What has failed since the last time.
    pub(super) fn failures(&self) -> Vec<String> {
        self.seen.lock().failures.clone()
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
        let ended = std::mem::take(&mut self.clients).end().await;
        let mut work = self.take();
        work.failures.extend(ended.err().map(|failed| failed.to_string()));
        // Whatever else is on trial, tokens rise.
        work.failures.extend(tokens::check(&work.grants).err());
        work
    }
}

async fn session(api: &Api, label: &str) -> Result<String, Failed> {
    Ok(api.open_session(SESSION_TIMEOUT_MS, label).await.or_broken("no session")?.value.credential)
}

struct CycleClient {
    number: usize,
    nodes: Nodes,
    credential: String,
    lock: String,
    cycling: Cycling,
    seen: Arc<Mutex<CycleWork>>,
    answered: Arc<Mutex<BTreeMap<usize, Instant>>>,
    stop: CancellationToken,
}

impl CycleClient {
    async fn work(self) {
        let mut last = Instant::now();
        let mut turn = self.cycling.first;
        while !self.stop.is_cancelled() {
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
        let (Cycling { wait_ms, within, with_ids, .. }, credential) = (self.cycling, self.credential.as_str());
        let failed =
            |call: &str, why: Failure| self.seen.lock().failures.push(format!("{call} at {}: {why}", api.base()));
        if self.cycling.keeps_alive
            && let Err(why) = api.keepalive(credential, within).await
        {
            return failed("keepalive", why);
        }
        let began = Instant::now();
        let ask = Acquire { wait_ms, request_id: with_ids.then(Uuid::new_v4), ..Acquire::default() };
        let held = api.acquire(credential, &self.lock, &ask, within).await;
        self.seen.lock().took.push(began.elapsed());
        let held = match held {
            Ok(held) => held,
            Err(why) => return failed("acquire", why),
        };
        self.answered.lock().insert(self.number, held.sent);
        let (token, released) = (held.value.token, Instant::now());
        match api.release(credential, &self.lock, token).await {
            Ok(answer) => drop(self.answered.lock().insert(self.number, answer.sent)),
            Err(why) => return failed("release", why),
        }
        let (lock, asked, granted) = (self.lock.clone(), held.sent, held.received);
        let mut seen = self.seen.lock();
        seen.cycles += 1;
        seen.grants.push(TokenGrant { lock, token, asked, granted, released: Some(released) });
    }
}

/// Clients of the library, each with all endpoints and a lock of its own.
pub(super) struct LibraryCycles(Tasks<Result<Vec<LibraryCall>, Failed>>);

/// When a call was sent, and how long it took.
pub(super) type LibraryCall = (Instant, Duration);

impl LibraryCycles {
    /// Starts one for each of these preferences, with this pause between two cycles.
    pub(super) async fn start(
        endpoints: &[String],
        preferences: &[PreferredNode],
        every: Duration,
    ) -> Result<Self, Failed> {
        let mut clients = Tasks::default();
        for (number, prefer) in preferences.iter().enumerate() {
            let options = ClientOptions { prefer: *prefer, ..ClientOptions::default() };
            let client = Client::new(endpoints.to_vec(), options).or_broken("no client of the library")?;
            let session = Session::open(&client, &SessionOptions::default()).await;
            let session = session.or_broken("a client of the library got no session")?;
            clients.start(|stop| library_client(session, format!("library-{number}"), every, stop));
        }
        Ok(Self(clients))
    }

    /// Ends them. All their calls; none of them may have failed, and each client must have made some.
    pub(super) async fn end(self) -> Result<Vec<LibraryCall>, Failed> {
        let mut all = Vec::new();
        for calls in self.0.end().await? {
            match calls? {
                none if none.is_empty() => return broken("a client of the library got nothing done"),
                calls => all.extend(calls),
            }
        }
        Ok(all)
    }
}

async fn library_client(
    session: Session,
    lock: String,
    every: Duration,
    stop: CancellationToken,
) -> Result<Vec<LibraryCall>, Failed> {
    let mut calls = Vec::new();
    while !stop.is_cancelled() {
        let sent = Instant::now();
        let guard = session.lock(&lock).lock().await.or_broken("an acquire by the client library failed")?;
        calls.push((sent, sent.elapsed()));
        let sent = Instant::now();
        guard.release().await.or_broken("a release by the client library failed")?;
        calls.push((sent, sent.elapsed()));
        tokio::time::sleep(every).await;
    }
    Ok(calls)
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
