//! A Lockkeeper cluster under load: over HTTP, the session stream or the client library.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_api::gates::{Begin, Finish};
use lockkeeper_api::locks::{Acquire, Release};
use lockkeeper_api::{Call, Data};
use lockkeeper_client::recipes::{Begun, GateTicket};
use lockkeeper_client::{Client, Guard, Options, Session, SessionOptions};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::client::{LockClient, LockSystem};
use crate::connection::{Connection, Security};
use crate::measure::{Measurement, Workload, measure};
use crate::pace::Edges;
use crate::stream::Stream;
use crate::{BenchError, Latency, Measured, Plan, Transport};

/// A waiter may queue behind all other clients.
const WAIT_MS: u64 = 60_000;
/// How long results of gates are kept.
const KEEP: Duration = Duration::from_secs(1);
/// The result of each operation.
const RESULT: &str = "done";
/// Time limit for the end of the sessions that clients share.
const LONGEST_CLOSING: Duration = Duration::from_secs(10);

/// What a client does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cycle {
    /// Acquires its lock and releases it.
    Lock,
    /// Begins an operation that nobody has asked for, and finishes it.
    Gate,
}

/// A cluster, and how clients use it.
pub struct Lockkeeper {
    endpoints: Vec<String>,
    transport: Transport,
    security: Security,
    server_pids: Vec<u32>,
    cycle: Cycle,
    is_compared: bool,
    /// Those of the client library, one for each endpoint.
    shared: Vec<OnceCell<Session>>,
    /// How many clients were opened: one that is opened again uses other keys.
    opened: AtomicU64,
}

impl fmt::Display for Lockkeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoints.join(","))
    }
}

impl Lockkeeper {
    /// A cluster as it is compared with other systems: clients are at the leader, where the client library keeps its
    /// sessions, and await the answer to each release.
    pub fn compared(endpoints: Vec<String>, transport: Transport, security: Security) -> Self {
        let shared = endpoints.iter().map(|_| OnceCell::new()).collect();
        let (cycle, server_pids) = (Cycle::Lock, Vec::new());
        Self {
            endpoints,
            transport,
            security,
            server_pids,
            cycle,
            is_compared: true,
            shared,
            opened: AtomicU64::default(),
        }
    }

    fn planned(plan: &Plan, security: &Security, cycle: Cycle) -> Self {
        let compared = Self::compared(plan.endpoints.clone(), plan.transport, security.clone());
        Self { server_pids: plan.server_pids.clone(), cycle, is_compared: false, ..compared }
    }

    /// Opens a session of the client library, which tasks share.
    async fn open_shared(&self, number: usize) -> Result<Session, BenchError> {
        let endpoint = &self.endpoints[number];
        let client_options = Options { token: self.security.token.clone(), ..Options::default() };
        let client = Client::new_with_tls([endpoint], client_options, self.security.tls.clone())
            .map_err(|error| BenchError::endpoint(endpoint, error))?;
        let options = SessionOptions {
            label: format!("bench program {number}"),
            transport: lockkeeper_client::Transport::Stream,
            ..SessionOptions::default()
        };
        Session::open(&client, &options).await.map_err(|error| BenchError::endpoint(endpoint, error))
    }

    async fn close_shared(&self) {
        for session in self.shared.iter().filter_map(OnceCell::get) {
            // It expires if it cannot be closed.
            let _ = timeout(LONGEST_CLOSING, session.close()).await;
        }
    }
}

#[async_trait]
impl LockSystem for Lockkeeper {
    async fn open(&self, number: usize, lock: &str) -> Result<Box<dyn LockClient>, BenchError> {
        let at = number % self.endpoints.len();
        let first = self.opened.fetch_add(1, Ordering::Relaxed) << 32;
        let names = Names { cycle: self.cycle, name: lock.to_owned(), number: first };
        if self.transport == Transport::Library {
            let session = self.shared[at].get_or_try_init(|| self.open_shared(at)).await?.clone();
            return Ok(Box::new(LibraryClient { session, names, held: None }));
        }
        let label = format!("bench client {number}");
        let mut connection = Connection::open_with(&self.endpoints[at], &label, &self.security).await?;
        if self.is_compared {
            connection.move_to_leader(&self.endpoints).await?;
        }
        let line = match self.transport {
            Transport::Stream => Line::Stream(Box::new(Stream::of(connection).await?)),
            _ => Line::Http(Box::new(connection)),
        };
        let overlaps = self.transport == Transport::Stream && self.cycle == Cycle::Lock && !self.is_compared;
        Ok(Box::new(BareClient { line, names, token: 0, overlaps }))
    }

    fn server_pids(&self) -> &[u32] {
        &self.server_pids
    }
}

/// The lock of a client, or its gates: each operation has a key of its own, as in use.
struct Names {
    cycle: Cycle,
    name: String,
    number: u64,
}

impl Names {
    fn key(&self) -> String {
        format!("{}-{}", self.name, self.number)
    }

    /// The call that begins a cycle.
    fn begin(&mut self) -> Call {
        match self.cycle {
            Cycle::Lock => {
                let body = Acquire { wait_ms: WAIT_MS, ..Acquire::default() };
                Call::AcquireLock { name: self.name.clone(), body }
            }
            Cycle::Gate => {
                self.number += 1;
                let key = self.key();
                Call::BeginGate { body: Begin { fingerprint: key.clone(), ..Begin::default() }, key }
            }
        }
    }

    /// The call that ends the cycle with this token.
    fn end(&self, token: u64) -> Call {
        match self.cycle {
            Cycle::Lock => {
                let body = Release { token, also: Vec::new(), even_in_part: false };
                Call::ReleaseLock { name: self.name.clone(), body }
            }
            Cycle::Gate => {
                let keep_ms = u64::try_from(KEEP.as_millis()).ok();
                let body = Finish { token, result: Data::Text(RESULT.into()), keep_ms, keep: None };
                Call::FinishGate { key: self.key(), body }
            }
        }
    }
}

/// A session over HTTP, one request at a time, or its stream.
struct BareClient {
    line: Line,
    names: Names,
    token: u64,
    overlaps: bool,
}

enum Line {
    Http(Box<Connection>),
    Stream(Box<Stream>),
}

impl Line {
    /// Makes a call, and gives the token in its answer.
    async fn call(&mut self, call: Call) -> Result<u64, String> {
        match self {
            Self::Http(connection) => connection.call(&call).await,
            Self::Stream(stream) => stream.call(call).await,
        }
    }
}

#[async_trait]
impl LockClient for BareClient {
    async fn acquire(&mut self) -> Result<Option<u64>, String> {
        self.token = self.line.call(self.names.begin()).await?;
        Ok(Some(self.token))
    }

    async fn release(&mut self) -> Result<(), String> {
        self.line.call(self.names.end(self.token)).await.map(|_| ())
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    async fn release_and_acquire(&mut self, released: &mut (dyn FnMut() + Send)) -> Result<Option<u64>, String> {
        let (release, acquire) = (self.names.end(self.token), self.names.begin());
        self.token = match &mut self.line {
            Line::Stream(stream) => stream.call_both(release, acquire, released).await?,
            Line::Http(connection) => {
                connection.call(&release).await?;
                released();
                connection.call(&acquire).await?
            }
        };
        Ok(Some(self.token))
    }

    async fn close(&mut self) {
        // The session expires if it cannot be closed.
        let _ = match &mut self.line {
            Line::Http(connection) => connection.close().await,
            Line::Stream(stream) => stream.close().await,
        };
    }
}

/// A task of a program with the client library. Its session is shared, and stays when the client is closed.
struct LibraryClient {
    session: Session,
    names: Names,
    held: Option<Held>,
}

enum Held {
    Lock(Guard),
    Gate(GateTicket),
}

#[async_trait]
impl LockClient for LibraryClient {
    async fn acquire(&mut self) -> Result<Option<u64>, String> {
        let (token, held) = match self.names.begin() {
            Call::BeginGate { key, .. } => {
                let gate = self.session.gate(key);
                let begun = gate.begin(gate.key()).await.map_err(|error| error.to_string())?;
                let Begun::Proceed(ticket) = begun else { return Err(format!("gate {} is not new", gate.key())) };
                (ticket.token(), Held::Gate(ticket))
            }
            _ => {
                let guard = self.session.lock(&self.names.name).lock().await.map_err(|error| error.to_string())?;
                (guard.token(), Held::Lock(guard))
            }
        };
        self.held = Some(held);
        Ok(Some(token))
    }

    async fn release(&mut self) -> Result<(), String> {
        let released = match self.held.take() {
            Some(Held::Lock(guard)) => guard.release().await,
            Some(Held::Gate(ticket)) => ticket.finish(RESULT, KEEP).await,
            None => return Err("nothing is held".into()),
        };
        released.map_err(|error| error.to_string())
    }

    async fn close(&mut self) {
        self.held = None;
    }
}

/// Runs one measurement of locks.
///
/// # Errors
/// An endpoint cannot be used, a server's CPU time cannot be read, or no cycle succeeded.
pub async fn run(plan: &Plan) -> Result<Measured, BenchError> {
    run_with(plan, &Security::default()).await
}

/// The same, with TLS to endpoints that are `https` URLs, and with a token if there is one.
///
/// # Errors
/// As [`run`].
pub async fn run_with(plan: &Plan, security: &Security) -> Result<Measured, BenchError> {
    run_cycles(plan, security, Cycle::Lock).await
}

pub(crate) async fn run_cycles(plan: &Plan, security: &Security, cycle: Cycle) -> Result<Measured, BenchError> {
    let cluster = Arc::new(Lockkeeper::planned(plan, security, cycle));
    let work = Workload {
        clients: plan.clients,
        locks: plan.locks,
        rate: plan.rate,
        edges: Edges::Whole,
        warm_up: plan.warm_up,
        measure: plan.measure,
    };
    let system: Arc<dyn LockSystem> = cluster.clone();
    let measured = measure(&system, &work).await;
    cluster.close_shared().await;
    summarize(plan, measured?)
}

fn summarize(plan: &Plan, measurement: Measurement) -> Result<Measured, BenchError> {
    let counted = &measurement.result.cycles;
    let (cycles, first_error) = (counted.cycle.len(), counted.first_error.clone());
    if cycles == 0 {
        return Err(BenchError::NothingWorked(first_error.unwrap_or_else(|| "none finished in time".into())));
    }
    Ok(Measured {
        clients: plan.clients,
        locks: plan.locks,
        transport: plan.transport,
        rate: plan.rate,
        seconds: measurement.seconds,
        cycles,
        cycles_per_second: measurement.cycles_per_second(),
        cycle: Latency::of(&counted.cycle),
        acquire: Latency::of(&counted.acquire),
        errors: counted.errors,
        first_error,
        server_cpu_us_per_cycle: measurement.per_cycle(measurement.servers.map(|used| used.cpu_us)),
        client_cpu_us_per_cycle: measurement.per_cycle(measurement.own_us),
        tokens_not_rising: measurement.result.tokens_not_rising,
    })
}

#[cfg(test)]
mod tests {
    use lockkeeper_client::Paging;
    use lockkeeper_server::local::Cluster;

    use super::*;
    use crate::{LOCK_PREFIX, Locks};

    /// Short measurements against a real node succeed over each transport and with each kind of locks.
    #[tokio::test]
    async fn every_cycle_succeeds_over_each_transport() {
        let cluster = Cluster::start(1).await.unwrap();
        for transport in [Transport::Http, Transport::Stream, Transport::Library] {
            for locks in [Locks::Own, Locks::One] {
                let measured = run(&Plan::short(cluster.endpoints(), locks, transport)).await.unwrap();
                assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
                assert!(measured.cycles > 0 && measured.transport == transport);
                assert!(measured.acquire.p50_us <= measured.cycle.p50_us);
            }
            // A lock changes hands some hundred times a second.
            for (rate, range) in [(20.0, 3.0..24.0), (100_000.0, 1.0..90_000.0)] {
                let plan = Plan::short(cluster.endpoints(), Locks::One, transport);
                let measured = run(&Plan { rate: Some(rate), warm_up: Duration::ZERO, ..plan }).await.unwrap();
                assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
                assert!(range.contains(&measured.cycles_per_second), "{measured:?}");
                assert!(rate < 100.0 || !measured.kept_rate(), "{measured:?}");
            }
        }
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        let left = client.locks(Some(LOCK_PREFIX), &Paging::default()).await.unwrap();
        assert!(left.locks.is_empty(), "locks are left behind: {left:?}");
    }

    #[tokio::test]
    async fn clients_that_are_cancelled_at_the_end_leave_no_lock_behind() {
        let cluster = Cluster::start(1).await.unwrap();
        for transport in [Transport::Http, Transport::Stream] {
            let system = Lockkeeper::compared(cluster.endpoints(), transport, Security::default());
            let system: Arc<dyn LockSystem> = Arc::new(system);
            for locks in [Locks::Own, Locks::One] {
                let (warm_up, time) = (Duration::from_millis(100), Duration::from_millis(300));
                let work = Workload { clients: 4, locks, rate: None, edges: Edges::Cut, warm_up, measure: time };
                let result = measure(&system, &work).await.unwrap().result;
                assert_eq!((result.cycles.errors, result.tokens_not_rising), (0, 0), "{:?}", result.cycles.first_error);
                assert!(!result.cycles.cycle.is_empty());
            }
        }
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        let left = client.locks(None, &Paging::default()).await.unwrap();
        assert!(left.locks.is_empty(), "sessions were not closed: {left:?}");
    }
}
