//! Clients at a steady rate, each at a node of its own: locks of their own and contended ones, counters behind these,
//! nodes that are written and deleted, watches and sessions that come and go. Each checks what it is told against what
//! was acknowledged before.

use std::collections::HashMap;

use lockkeeper_client::api::nodes::{Create, Kind, SetData};
use lockkeeper_client::api::watch::Change;
use lockkeeper_client::api::{Code, Data};
use lockkeeper_client::locks::kind::Exclusive;
use lockkeeper_client::{
    Client, Error, Guard, Options, PreferredNode, Reading, Session, SessionOptions, WatchItem, WatchOptions,
};

use super::tally::{Operation, SoakTally};
use crate::proofs::prelude::*;

/// Where everything is.
pub(super) const ROOT: &str = "/soak";
/// Locks that all contenders share.
pub(super) const CONTENDED: [&str; 4] = ["soak/shared-0", "soak/shared-1", "soak/shared-2", "soak/shared-3"];
/// So many locks has each client to itself, one after the other.
const OWN_LOCKS: u64 = 500;
/// So many nodes each writer writes, in turn.
const RING: u64 = 40;
const DATA_BYTES: usize = 1_024;
/// A watch reports what was acknowledged by then.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// A kind of client: how many of them each node has, and how often each works.
const CREW: [(Job, u32, Duration); 5] = [
    (Job::Own, 3, Duration::from_millis(100)),
    (Job::Contended, 4, Duration::from_millis(250)),
    (Job::Ring, 2, Duration::from_millis(100)),
    (Job::Watched, 1, Duration::from_millis(250)),
    (Job::Visit, 1, Duration::from_millis(500)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Takes and gives back locks that nobody else wants.
    Own,
    /// Takes a lock that others want, and adds to the counter behind it.
    Contended,
    /// Writes and deletes nodes.
    Ring,
    /// Watches a node, writes it, and waits for the report.
    Watched,
    /// Opens a session that owns a node, and closes it.
    Visit,
}

/// What the clients have in common.
pub(super) struct SharedLoad {
    endpoints: Vec<String>,
    tally: Arc<SoakTally>,
    session_life: Duration,
    /// What each contended counter must hold: changed by the holder of its lock alone.
    counters: [tokio::sync::Mutex<u64>; CONTENDED.len()],
}

/// The clients at work.
pub(super) struct SoakLoad {
    shared: Arc<SharedLoad>,
    clients: Tasks<Ledgers>,
}

/// What is sure to be there: paths and their data.
pub(super) type Ledgers = HashMap<String, Option<String>>;

impl SoakLoad {
    /// Creates what the clients need and starts them.
    pub(super) async fn start(
        endpoints: Vec<String>,
        tally: Arc<SoakTally>,
        session_life: Duration,
    ) -> Result<Self, Failed> {
        let setup = Client::new(endpoints.clone(), Options::default()).map_err(without_fault)?;
        let nodes = ["", "/counters", "/ring", "/watched", "/visits"];
        for path in nodes.map(|below| format!("{ROOT}{below}")) {
            setup.create(&path, &Create::default()).await.map_err(without_fault)?;
        }
        for number in 0..CONTENDED.len() {
            let zero = Create { data: Data::Text("0".into()), ..Create::default() };
            setup.create(&counter(number), &zero).await.map_err(without_fault)?;
        }
        let nodes = endpoints.len();
        let shared = Arc::new(SharedLoad { endpoints, tally, session_life, counters: Default::default() });
        let mut clients = Tasks::default();
        for home in 0..nodes {
            for (job, count, every) in CREW {
                for _ in 0..count {
                    let number = clients.len() as u64;
                    let (shared, known) = (Arc::clone(&shared), Ledgers::new());
                    clients.start(|stop| {
                        LoadClient { shared, stop, job, every, number, home, turn: 0, known, seen: None }.run()
                    });
                }
            }
        }
        Ok(Self { shared, clients })
    }

    /// How many clients there are.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Ends them, and gives what must be there now.
    pub(super) async fn end(self) -> Result<Ledgers, Failed> {
        let mut all: Ledgers = self.clients.end().await?.into_iter().flatten().collect();
        for (number, count) in self.shared.counters.iter().enumerate() {
            all.insert(counter(number), Some(count.lock().await.to_string()));
        }
        Ok(all)
    }
}

fn counter(number: usize) -> String {
    format!("{ROOT}/counters/{number}")
}

struct LoadClient {
    shared: Arc<SharedLoad>,
    stop: CancellationToken,
    job: Job,
    every: Duration,
    number: u64,
    /// The node that it comes back to.
    home: usize,
    turn: u64,
    /// What was acknowledged to it last of each of its nodes; `None`: deleted.
    known: Ledgers,
    /// The zxid from which its next watch begins.
    seen: Option<u64>,
}

impl LoadClient {
    async fn run(mut self) -> Ledgers {
        // Not all sessions end at the same time.
        let mut life = self.shared.session_life.mul_f64((self.number % 10 + 1) as f64 / 10.0);
        while !self.stop.is_cancelled() {
            let Some(session) = self.open().await else {
                tokio::time::sleep(self.every).await;
                continue;
            };
            let until = Instant::now() + std::mem::replace(&mut life, self.shared.session_life);
            let mut ticks = tokio::time::interval(self.every);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while Instant::now() < until && !self.stop.is_cancelled() {
                ticks.tick().await;
                self.turn += 1;
                self.work(&session).await;
                if session.left().is_zero() {
                    self.shared.tally.failed(format!("a session of client {} was lost", self.number));
                    break;
                }
            }
            self.shared.tally.timed(Operation::CloseSession, session.close()).await;
        }
        self.known
    }

    /// With connections of its own, at the home node where that serves.
    async fn open(&self) -> Option<Session> {
        let mut endpoints = self.shared.endpoints.clone();
        endpoints.rotate_left(self.home);
        let options = Options { prefer: PreferredNode::First, ..Options::default() };
        let opening = async {
            let client = Client::new(endpoints, options).map_err(|error| error.to_string())?;
            let options = SessionOptions { label: format!("soak-{}", self.number), ..SessionOptions::default() };
            Session::open(&client, &options).await.map_err(|error| error.to_string())
        };
        self.shared.tally.timed(Operation::OpenSession, opening).await
    }

    async fn work(&mut self, session: &Session) {
        match self.job {
            Job::Own => self.own(session).await,
            Job::Contended => self.contended(session).await,
            Job::Ring => self.ring(session).await,
            Job::Watched => self.watched(session).await,
            Job::Visit => self.visit().await,
        };
    }

    async fn own(&self, session: &Session) -> Option<()> {
        let lock = format!("soak/own-{}/{}", self.number, self.turn % OWN_LOCKS);
        let guard = self.acquire(Operation::AcquireOwn, session, &lock).await?;
        self.release(&lock, guard).await
    }

    async fn contended(&self, session: &Session) -> Option<()> {
        let number = usize::try_from(self.number + self.turn).unwrap_or(0) % CONTENDED.len();
        let guard = self.acquire(Operation::AcquireContended, session, CONTENDED[number]).await?;
        self.count(session, number, guard.token()).await;
        self.release(CONTENDED[number], guard).await
    }

    /// Adds one to a counter, fenced by the token. It holds what was acknowledged to all holders before.
    async fn count(&self, session: &Session, number: usize, token: u64) -> Option<()> {
        let (tally, path) = (&self.shared.tally, counter(number));
        let mut acknowledged = self.shared.counters[number].lock().await;
        let found = self.read(session, &path).await?;
        if found != Some(acknowledged.to_string()) {
            tally.failed(format!("{path}: {} increments were acknowledged, and it holds {found:?}", *acknowledged));
        }
        let next = (*acknowledged + 1).to_string();
        let counted = session.txn().if_held(CONTENDED[number], token).set(&path, next, None).commit();
        tally.timed(Operation::Count, counted).await?;
        *acknowledged += 1;
        Some(())
    }

    /// Reads what it wrote before, and then creates, sets or deletes it.
    async fn ring(&mut self, session: &Session) -> Option<()> {
        let path = format!("{ROOT}/ring/{}-{}", self.number, self.turn % RING);
        self.check(session, &path).await?;
        let there = self.known.get(&path).is_some_and(Option::is_some);
        let client = session.client();
        let text = format!("{}-{}", self.turn, "x".repeat(DATA_BYTES));
        let data = Data::Text(text.clone());
        let tally = &self.shared.tally;
        let now = match there {
            true if (self.turn / RING).is_multiple_of(5) => {
                tally.timed(Operation::Write, client.delete(&path, None)).await?;
                None
            }
            true => {
                tally.timed(Operation::Write, client.set(&path, &SetData { data }, None)).await?;
                Some(text)
            }
            false => {
                let create = Create { data, ..Create::default() };
                tally.timed(Operation::Write, client.create(&path, &create)).await?;
                Some(text)
            }
        };
        self.known.insert(path, now);
        Some(())
    }

    async fn watched(&mut self, session: &Session) -> Option<()> {
        let (tally, path) = (Arc::clone(&self.shared.tally), format!("{ROOT}/watched/{}", self.number));
        let client = session.client();
        let Some(from) = self.seen else {
            let made = tally.timed(Operation::Write, client.create(&path, &Create::default())).await?;
            self.seen = Some(made.zxid);
            return Some(());
        };
        // Every other watch goes over HTTP.
        let plain = Client::new(self.shared.endpoints.clone(), Options::default()).ok()?;
        let by = if self.turn.is_multiple_of(2) { client } else { &plain };
        let mut watch = by.watch(WatchOptions { from: Some(from), ..WatchOptions::new(path.clone()) });
        let data = Data::Text(self.turn.to_string());
        let set = tally.timed(Operation::Write, client.set(&path, &SetData { data }, None)).await?;
        self.known.insert(path, Some(self.turn.to_string()));
        let reported = async {
            loop {
                match watch.next().await {
                    Some(Ok(WatchItem::Change(Change { zxid, .. }))) if zxid == set.zxid => return Ok(()),
                    Some(Ok(WatchItem::Change(Change { zxid, .. }))) if zxid > set.zxid => {
                        return Err(format!("it reported zxid {zxid} and not {}", set.zxid));
                    }
                    // A node that was started since has no older history, and says so.
                    Some(Err(Error::Refused(problem))) if problem.code == Code::Compacted => return Ok(()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error.to_string()),
                    None => return Err("it ended".into()),
                }
            }
        };
        let bounded = async {
            let missing = |_| format!("zxid {} was not reported within {REPORTED_WITHIN:?}", set.zxid);
            tokio::time::timeout(REPORTED_WITHIN, reported).await.map_err(missing)?
        };
        self.seen = Some(set.zxid);
        tally.timed(Operation::Watch, bounded).await
    }

    /// What the session owned is gone when its close is acknowledged.
    async fn visit(&self) -> Option<()> {
        let tally = &self.shared.tally;
        let session = self.open().await?;
        let path = format!("{ROOT}/visits/{}-{}", self.number, self.turn);
        let create = Create { kind: Kind::Ephemeral, ..Create::default() };
        tally.timed(Operation::Write, session.client().create(&path, &create)).await;
        tally.timed(Operation::CloseSession, session.close()).await?;
        let anonymous = Client::new(self.shared.endpoints.clone(), Options::default()).ok()?;
        if let Some(left) = tally.timed(Operation::Read, read_text(&anonymous, &path)).await?.map(|_| &path) {
            tally.failed(format!("{left} is there although its session was closed"));
        }
        Some(())
    }

    async fn acquire(&self, operation: Operation, session: &Session, lock: &str) -> Option<Guard<Exclusive>> {
        let lock_handle = session.lock(lock);
        let guard = self.shared.tally.timed(operation, lock_handle.lock()).await?;
        self.shared.tally.granted(lock, guard.token());
        Some(guard)
    }

    async fn release(&self, lock: &str, guard: Guard<Exclusive>) -> Option<()> {
        self.shared.tally.releasing(lock);
        self.shared.tally.timed(Operation::Release, guard.release()).await
    }

    async fn read(&self, session: &Session, path: &str) -> Option<Option<String>> {
        self.shared.tally.timed(Operation::Read, read_text(session.client(), path)).await
    }

    async fn check(&self, session: &Session, path: &str) -> Option<()> {
        let Some(known) = self.known.get(path) else { return Some(()) };
        let found = self.read(session, path).await?;
        if found != *known {
            let cut = |text: &Option<String>| text.as_ref().map(|text| text.chars().take(20).collect::<String>());
            let (known, found) = (cut(known), cut(&found));
            self.shared.tally.failed(format!("{path}: acknowledged was {known:?}, and it holds {found:?}"));
        }
        Some(())
    }
}

/// The text of a node; `None` where there is no node.
async fn read_text(client: &Client, path: &str) -> Result<Option<String>, Error> {
    match client.node(path, &Reading::default()).await {
        Ok(node) => Ok(Some(node.data.as_text().unwrap_or_default().to_owned())),
        Err(error) if error.code() == Some(Code::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}
