//! One measurement: open, warm up, measure, close.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use lockkeeper_client::{Client, Options, Session, SessionOptions};

use crate::connection::{Connection, Security};
use crate::cycles::{Cycles, PAUSE_AFTER_ERROR, Phase};
use crate::rate::Rate;
use crate::stream::Stream;
use crate::{BenchError, LOCK_PREFIX, Latency, Locks, Measured, Plan, Transport, cpu};

/// Time limit for all clients to connect and open their sessions.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the last cycles after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// When clients begin cycles.
#[derive(Clone)]
pub(crate) struct Pace {
    phase: watch::Receiver<Phase>,
    /// As soon as they can if there is none.
    rate: Option<Arc<Rate>>,
}

impl Pace {
    /// Waits until the next cycle is due; gives when it begins, and the phase. `None` at the end of the measurement.
    pub(crate) async fn next(&self) -> Option<(Phase, Instant)> {
        let began = match &self.rate {
            None => Instant::now(),
            Some(rate) => {
                let due = rate.take();
                let mut over = self.phase.clone();
                tokio::select! {
                    () = sleep_until(due) => due,
                    _ = over.wait_for(|phase| *phase == Phase::Done) => return None,
                }
            }
        };
        let started_in = *self.phase.borrow();
        (started_in != Phase::Done).then_some((started_in, began))
    }
}

/// Result of one client or of several.
#[derive(Default)]
pub(crate) struct ClientResult {
    pub(crate) cycles: Cycles,
    pub(crate) tokens_not_rising: u64,
}

impl ClientResult {
    /// Counts a cycle if it started and ended during the measurement. At a rate, it only has to end in it, or the
    /// cycles that take long would be missing.
    pub(crate) fn cycle_done(&mut self, started_in: Phase, pace: &Pace, acquire: Duration, cycle: Duration) {
        let counts = started_in == Phase::Measure || pace.rate.is_some();
        if counts && *pace.phase.borrow() == Phase::Measure {
            self.cycles.succeeded(acquire, cycle);
        }
    }

    fn add(&mut self, other: &Self) {
        self.cycles.add(&other.cycles);
        self.tokens_not_rising += other.tokens_not_rising;
    }
}

/// Runs one measurement.
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
    let client = |at, connection, pace| {
        let lock = match plan.locks {
            Locks::Own => format!("{LOCK_PREFIX}/own-{at}"),
            Locks::One => format!("{LOCK_PREFIX}/one"),
        };
        client(connection, lock, pace)
    };
    summarize(plan, measure(plan, security, client).await?)
}

/// What all clients together have done in the time that was measured.
pub(crate) struct Total {
    pub(crate) result: ClientResult,
    pub(crate) seconds: f64,
    /// CPU time of the servers.
    pub(crate) servers_us: u64,
    /// CPU time of this process.
    pub(crate) own_us: Option<u64>,
}

/// Opens a connection for each client, runs `client` on it, counts what it does in the time to be measured, and closes
/// all.
pub(crate) async fn measure<F>(
    plan: &Plan,
    security: &Security,
    client: impl Fn(u32, ClientConnection, Pace) -> F,
) -> Result<Total, BenchError>
where
    F: Future<Output = (ClientResult, ClientConnection)> + Send + 'static,
{
    cpu::spent_us(&plan.server_pids)?;
    let opened = timeout(OPEN_TIMEOUT, open_all(plan, security)).await;
    let connections = opened.map_err(|_| BenchError::Endpoint {
        endpoint: plan.endpoints.join(","),
        why: format!("cannot open {} sessions within {} s", plan.clients, OPEN_TIMEOUT.as_secs()),
    })??;
    let (phases, phase) = watch::channel(Phase::WarmUp);
    let pace = Pace { phase, rate: plan.rate.map(|per_second| Arc::new(Rate::from_now(per_second))) };
    let clients: Vec<_> = (0..)
        .zip(connections)
        .map(|(at, connection): (u32, _)| tokio::spawn(client(at, connection, pace.clone())))
        .collect();
    drop(pace);

    sleep(plan.warm_up).await;
    let servers_before = cpu::spent_us(&plan.server_pids)?;
    let own_before = cpu::spent_us(&[std::process::id()]).ok();
    let began = Instant::now();
    // Sending fails only if all clients have ended; their results have the reason.
    let _ = phases.send(Phase::Measure);
    sleep(plan.measure).await;
    let seconds = began.elapsed().as_secs_f64();
    let _ = phases.send(Phase::Done);
    let servers_us = cpu::spent_us(&plan.server_pids)?.saturating_sub(servers_before);
    let own_us = own_before.and_then(|before| Some(cpu::spent_us(&[std::process::id()]).ok()?.saturating_sub(before)));

    let mut total = ClientResult::default();
    let mut connections = Vec::new();
    let give_up_at = Instant::now() + END_TIMEOUT;
    for mut client in clients {
        match timeout_at(give_up_at, &mut client).await {
            Ok(Ok((result, connection))) => {
                total.add(&result);
                connections.push(connection);
            }
            Ok(Err(error)) => total.cycles.failed(format!("a client failed: {error}")),
            Err(_) => {
                client.abort();
                total.cycles.failed(format!("no answer within {} s of the end", END_TIMEOUT.as_secs()));
            }
        }
    }
    // Locks and gates of a failed client, or of one that cannot be closed in time, are released when its session
    // expires.
    let _ = timeout_at(give_up_at, join_all(connections.into_iter().map(ClientConnection::close))).await;
    Ok(Total { result: total, seconds, servers_us, own_us })
}

async fn open_all(plan: &Plan, security: &Security) -> Result<Vec<ClientConnection>, BenchError> {
    let clients = plan.clients as usize;
    let endpoint_of = |at: usize| &plan.endpoints[at % plan.endpoints.len()];
    let opening = (0..clients).map(|at| async move {
        let (endpoint, label) = (endpoint_of(at), format!("bench client {at}"));
        match plan.transport {
            Transport::Stream => {
                let opened = Stream::open_with(endpoint, &label, security).await;
                opened.map(|stream| ClientConnection::Stream(Box::new(stream)))
            }
            _ => Connection::open_with(endpoint, &label, security).await.map(ClientConnection::Http),
        }
    });
    if plan.transport != Transport::Library {
        return try_join_all(opening).await;
    }
    let shared = (0..plan.endpoints.len().min(clients)).map(|at| async move {
        let label = format!("bench program {at}");
        open_shared_session(endpoint_of(at), &label, security).await
    });
    let sessions = try_join_all(shared).await?;
    Ok((0..clients).map(|at| ClientConnection::Library(sessions[at % sessions.len()].clone())).collect())
}

pub(crate) fn summarize(plan: &Plan, total: Total) -> Result<Measured, BenchError> {
    let Total { result: ClientResult { cycles: counted, tokens_not_rising }, seconds, servers_us, own_us } = total;
    let cycles = counted.cycle.len();
    if cycles == 0 {
        return Err(BenchError::NothingWorked(counted.first_error.unwrap_or_else(|| "none finished in time".into())));
    }
    let per_cycle = |us: u64| us as f64 / cycles as f64;
    Ok(Measured {
        clients: plan.clients,
        locks: plan.locks,
        transport: plan.transport,
        rate: plan.rate,
        seconds,
        cycles,
        cycles_per_second: cycles as f64 / seconds,
        cycle: Latency::of(&counted.cycle),
        acquire: Latency::of(&counted.acquire),
        errors: counted.errors,
        first_error: counted.first_error,
        server_cpu_us_per_cycle: (!plan.server_pids.is_empty()).then(|| per_cycle(servers_us)),
        client_cpu_us_per_cycle: own_us.map(per_cycle),
        tokens_not_rising,
    })
}

/// One client's connection to the cluster.
pub(crate) enum ClientConnection {
    Http(Connection),
    Stream(Box<Stream>),
    Library(Session),
}

impl ClientConnection {
    async fn close(self) -> Result<(), BenchError> {
        match self {
            Self::Http(mut connection) => connection.close().await,
            Self::Stream(mut stream) => stream.close().await,
            Self::Library(session) => close_shared_session(&session).await,
        }
    }
}

/// A lock's name and routes.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The name.
    pub name: String,
    /// The route of an acquire.
    pub acquire: String,
    /// The route of a release.
    pub release: String,
}

impl Routes {
    /// The routes of the lock with this name.
    pub fn of(name: String) -> Self {
        let encoded = name.replace('/', "%2F");
        let (acquire, release) = (format!("/v1/locks/{encoded}/acquire"), format!("/v1/locks/{encoded}/release"));
        Self { name, acquire, release }
    }
}

async fn client(mut connection: ClientConnection, lock: String, pace: Pace) -> (ClientResult, ClientConnection) {
    let routes = Routes::of(lock);
    let mut result = ClientResult::default();
    match &mut connection {
        ClientConnection::Http(http) => over_http(http, &routes, &pace, &mut result).await,
        ClientConnection::Stream(stream) => {
            // A broken stream is not reopened: its client stops, and the result has the error.
            if let Err(why) = over_stream(stream, &routes, &pace, &mut result).await {
                result.cycles.failed(why);
            }
        }
        ClientConnection::Library(session) => over_library(session, &routes, &pace, &mut result).await,
    }
    (result, connection)
}

async fn over_library(session: &Session, routes: &Routes, pace: &Pace, result: &mut ClientResult) {
    let lock = session.lock(&routes.name);
    let mut last_token = 0;
    while let Some((started_in, began)) = pace.next().await {
        let turn = async {
            let guard = lock.lock().await?;
            let (token, acquired) = (guard.token(), began.elapsed());
            guard.release().await.map(|()| (token, acquired))
        };
        match turn.await {
            Ok((token, acquired)) => {
                result.tokens_not_rising += u64::from(token <= last_token);
                last_token = token;
                result.cycle_done(started_in, pace, acquired, began.elapsed());
            }
            Err(error) => {
                result.cycles.failed(error.to_string());
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn over_http(connection: &mut Connection, routes: &Routes, pace: &Pace, result: &mut ClientResult) {
    let mut last_token = 0;
    while let Some((started_in, began)) = pace.next().await {
        let token = match connection.acquire(&routes.acquire).await {
            Ok(token) => token,
            Err(why) => {
                result.cycles.failed(why);
                sleep(PAUSE_AFTER_ERROR).await;
                continue;
            }
        };
        let acquired = began.elapsed();
        result.tokens_not_rising += u64::from(token <= last_token);
        last_token = token;
        if let Err(why) = connection.release(&routes.release, token).await {
            result.cycles.failed(why);
            sleep(PAUSE_AFTER_ERROR).await;
            continue;
        }
        result.cycle_done(started_in, pace, acquired, began.elapsed());
    }
}

/// A grant that is still held.
struct Held {
    token: u64,
    started_in: Phase,
    began: Instant,
    acquired: Duration,
}

/// Sends the release of each cycle together with the acquire of the next, and waits for both answers before the cycle
/// after that. At a given rate the release does not wait for the next cycle.
async fn over_stream(
    stream: &mut Stream,
    routes: &Routes,
    pace: &Pace,
    result: &mut ClientResult,
) -> Result<(), String> {
    let mut last_token = 0;
    let mut held: Option<Held> = None;
    loop {
        let cycle = if held.is_some() && pace.rate.is_some() { None } else { pace.next().await };
        if held.is_none() && cycle.is_none() {
            return Ok(());
        }
        let mut release = match &held {
            Some(held) => Some(stream.send_release(&routes.name, held.token).await?),
            None => None,
        };
        let mut acquire = match cycle {
            Some(_) => Some(stream.send_acquire(&routes.name).await?),
            None => None,
        };
        stream.flush().await?;
        let mut next = None;
        let mut failed = false;
        while release.is_some() || acquire.is_some() {
            let (id, outcome) = stream.next_answer().await?;
            let of_release = release.take_if(|release| *release == id).is_some();
            let of_acquire = acquire.take_if(|acquire| *acquire == id).is_some();
            match outcome {
                Ok(_) if of_release => {
                    if let Some(Held { started_in, began, acquired, .. }) = held.take() {
                        result.cycle_done(started_in, pace, acquired, began.elapsed());
                    }
                }
                Ok(token) if of_acquire => {
                    result.tokens_not_rising += u64::from(token <= last_token);
                    last_token = token;
                    next =
                        cycle.map(|(started_in, began)| Held { token, started_in, began, acquired: began.elapsed() });
                }
                Ok(_) => return Err(format!("an answer with the unknown id {id}")),
                Err(why) => {
                    result.cycles.failed(why);
                    failed = true;
                }
            }
        }
        held = next;
        if failed {
            sleep(PAUSE_AFTER_ERROR).await;
        }
    }
}

/// Opens a session of the client library, which tasks share.
async fn open_shared_session(endpoint: &str, label: &str, security: &Security) -> Result<Session, BenchError> {
    let failed = |why: String| BenchError::Endpoint { endpoint: endpoint.to_owned(), why };
    let client_options = Options { token: security.token.clone(), ..Options::default() };
    let client =
        Client::new_with_tls([endpoint], client_options, security.tls.clone()).map_err(|e| failed(e.to_string()))?;
    let options = SessionOptions {
        label: label.to_owned(),
        transport: lockkeeper_client::Transport::Stream,
        ..SessionOptions::default()
    };
    Session::open(&client, &options).await.map_err(|e| failed(e.to_string()))
}

/// Closes a shared session. It is not an error if another task has closed it already.
async fn close_shared_session(session: &Session) -> Result<(), BenchError> {
    let closed = session.close().await;
    closed.map_err(|e| BenchError::Endpoint { endpoint: session.client().preferred().to_string(), why: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_server::local::Cluster;

    /// Short measurements against a real node succeed over each transport and with each kind of locks.
    #[tokio::test]
    async fn every_cycle_succeeds_over_each_transport() {
        let cluster = Cluster::start(1).await.unwrap();
        for transport in [Transport::Http, Transport::Stream, Transport::Library] {
            for locks in [Locks::Own, Locks::One] {
                let plan = Plan {
                    endpoints: cluster.endpoints(),
                    clients: 4,
                    locks,
                    transport,
                    rate: None,
                    warm_up: Duration::from_millis(200),
                    measure: Duration::from_millis(500),
                    server_pids: Vec::new(),
                };
                let measured = run(&plan).await.unwrap();
                assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
                assert!(measured.cycles > 0 && measured.transport == transport);
                assert!(measured.acquire.p50_us <= measured.cycle.p50_us);
            }
            // A lock changes hands some hundred times a second.
            for (rate, range) in [(20.0, 3.0..24.0), (100_000.0, 1.0..90_000.0)] {
                let plan = Plan {
                    endpoints: cluster.endpoints(),
                    clients: 4,
                    locks: Locks::One,
                    transport,
                    rate: Some(rate),
                    warm_up: Duration::ZERO,
                    measure: Duration::from_millis(500),
                    server_pids: Vec::new(),
                };
                let measured = run(&plan).await.unwrap();
                assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
                assert!(range.contains(&measured.cycles_per_second), "{measured:?}");
                assert!(rate < 100.0 || !measured.kept_rate(), "{measured:?}");
            }
        }
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        let left = client.locks(Some(LOCK_PREFIX), &lockkeeper_client::Paging::default()).await.unwrap();
        assert!(left.locks.is_empty(), "locks are left behind: {left:?}");
    }
}
