//! One measurement: open, warm up, measure, close.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use lockkeeper_client::Session;

use crate::connection::Connection;
use crate::stream::Stream;
use crate::{BenchError, LOCK_PREFIX, Latency, Locks, Measured, Plan, Transport, cpu, library};

/// A client that sees nothing but failures does not hammer the cluster with more.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// How long all clients together may take to connect and open their sessions.
const LONGEST_OPENING: Duration = Duration::from_secs(30);
/// How long after the measured time the last cycles may end.
const LONGEST_END: Duration = Duration::from_secs(15);
/// Longest latency that is told apart.
const HIGHEST_US: u64 = 120_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    WarmUp,
    Measure,
    Over,
}

/// What one client saw.
struct Seen {
    cycle: Histogram<u64>,
    acquire: Histogram<u64>,
    errors: u64,
    first_error: Option<String>,
    tokens_not_rising: u64,
}

impl Seen {
    fn new() -> Self {
        // Three digits; the bounds are constants, so this cannot fail.
        let empty = || Histogram::new_with_bounds(1, HIGHEST_US, 3).unwrap_or_else(|_| unreachable!("constant bounds"));
        Self { cycle: empty(), acquire: empty(), errors: 0, first_error: None, tokens_not_rising: 0 }
    }

    fn failed(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }

    /// A cycle counts where it began and ended in the measured time.
    fn cycle_done(&mut self, begun_in: Phase, phase: &watch::Receiver<Phase>, cycle: Duration, acquire: Duration) {
        if begun_in == Phase::Measure && *phase.borrow() == Phase::Measure {
            self.cycle.saturating_record(micros(cycle));
            self.acquire.saturating_record(micros(acquire));
        }
    }

    fn add(&mut self, other: Self) {
        // The same bounds: nothing is lost.
        let _ = self.cycle.add(&other.cycle);
        let _ = self.acquire.add(&other.acquire);
        self.errors += other.errors;
        self.tokens_not_rising += other.tokens_not_rising;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Makes one measurement.
///
/// # Errors
/// An endpoint cannot be used, a server's processor time cannot be read, or no cycle succeeded at all.
pub async fn run(plan: &Plan) -> Result<Measured, BenchError> {
    cpu::spent_us(&plan.server_pids)?;
    let opened = timeout(LONGEST_OPENING, open_all(plan)).await;
    let links = opened.map_err(|_| BenchError::Endpoint {
        endpoint: plan.endpoints.join(","),
        why: format!("{} sessions could not be opened within {} s", plan.clients, LONGEST_OPENING.as_secs()),
    })??;
    let (phases, phase) = watch::channel(Phase::WarmUp);
    let clients: Vec<_> = (0..)
        .zip(links)
        .map(|(at, link): (u32, _)| {
            let lock = match plan.locks {
                Locks::Own => format!("{LOCK_PREFIX}/own-{at}"),
                Locks::One => format!("{LOCK_PREFIX}/one"),
            };
            tokio::spawn(client(link, lock, phase.clone()))
        })
        .collect();
    drop(phase);

    sleep(plan.warm_up).await;
    let servers_before = cpu::spent_us(&plan.server_pids)?;
    let own_before = cpu::spent_us(&[std::process::id()]).ok();
    let began = Instant::now();
    // Clients that have ended already have told why.
    let _ = phases.send(Phase::Measure);
    sleep(plan.measure).await;
    let seconds = began.elapsed().as_secs_f64();
    let _ = phases.send(Phase::Over);
    let servers = cpu::spent_us(&plan.server_pids)?.saturating_sub(servers_before);
    let own = own_before.and_then(|before| Some(cpu::spent_us(&[std::process::id()]).ok()?.saturating_sub(before)));

    let mut total = Seen::new();
    let mut links = Vec::new();
    let give_up_at = Instant::now() + LONGEST_END;
    for mut client in clients {
        match timeout_at(give_up_at, &mut client).await {
            Ok(Ok((seen, link))) => {
                total.add(seen);
                links.push(link);
            }
            Ok(Err(error)) => total.failed(format!("a client broke off: {error}")),
            Err(_) => {
                client.abort();
                total.failed(format!("no answer within {} s of the end", LONGEST_END.as_secs()));
            }
        }
    }
    // What a failed client still holds goes with its session, and so does what cannot be closed in time.
    let _ = timeout_at(give_up_at, join_all(links.into_iter().map(Link::close))).await;
    summarize(plan, total, seconds, servers, own)
}

async fn open_all(plan: &Plan) -> Result<Vec<Link>, BenchError> {
    let clients = plan.clients as usize;
    let endpoint_of = |at: usize| &plan.endpoints[at % plan.endpoints.len()];
    let opening = (0..clients).map(|at| async move {
        let (endpoint, label) = (endpoint_of(at), format!("bench client {at}"));
        match plan.transport {
            Transport::Stream => Stream::open(endpoint, &label).await.map(|stream| Link::Stream(Box::new(stream))),
            _ => Connection::open(endpoint, &label).await.map(Link::Http),
        }
    });
    if plan.transport != Transport::Library {
        return try_join_all(opening).await;
    }
    let shared = (0..plan.endpoints.len().min(clients)).map(|at| async move {
        let label = format!("bench program {at}");
        library::open(endpoint_of(at), &label).await
    });
    let sessions = try_join_all(shared).await?;
    Ok((0..clients).map(|at| Link::Library(sessions[at % sessions.len()].clone())).collect())
}

fn summarize(
    plan: &Plan,
    total: Seen,
    seconds: f64,
    servers_us: u64,
    own_us: Option<u64>,
) -> Result<Measured, BenchError> {
    let cycles = total.cycle.len();
    if cycles == 0 {
        return Err(BenchError::NothingWorked(total.first_error.unwrap_or_else(|| "none finished in time".into())));
    }
    let per_cycle = |us: u64| us as f64 / cycles as f64;
    Ok(Measured {
        clients: plan.clients,
        locks: plan.locks,
        transport: plan.transport,
        seconds,
        cycles,
        cycles_per_second: cycles as f64 / seconds,
        cycle: Latency::of(&total.cycle),
        acquire: Latency::of(&total.acquire),
        errors: total.errors,
        first_error: total.first_error,
        server_cpu_us_per_cycle: (!plan.server_pids.is_empty()).then(|| per_cycle(servers_us)),
        client_cpu_us_per_cycle: own_us.map(per_cycle),
        tokens_not_rising: total.tokens_not_rising,
    })
}

/// One client's way to the cluster.
enum Link {
    Http(Connection),
    Stream(Box<Stream>),
    Library(Session),
}

impl Link {
    async fn close(self) -> Result<(), BenchError> {
        match self {
            Self::Http(connection) => connection.close().await,
            Self::Stream(stream) => stream.close().await,
            Self::Library(session) => library::close(&session).await,
        }
    }
}

/// One lock: its name, and its routes.
struct Routes {
    name: String,
    acquire: String,
    release: String,
}

async fn client(mut link: Link, lock: String, phase: watch::Receiver<Phase>) -> (Seen, Link) {
    let encoded = lock.replace('/', "%2F");
    let (acquire, release) = (format!("/v1/locks/{encoded}/acquire"), format!("/v1/locks/{encoded}/release"));
    let routes = Routes { name: lock, acquire, release };
    let mut seen = Seen::new();
    match &mut link {
        Link::Http(connection) => over_http(connection, &routes, &phase, &mut seen).await,
        Link::Stream(stream) => {
            // A stream that has broken stays so: its client is out, and the measurement says so.
            if let Err(why) = over_stream(stream, &routes, &phase, &mut seen).await {
                seen.failed(why);
            }
        }
        Link::Library(session) => over_library(session, &routes, &phase, &mut seen).await,
    }
    (seen, link)
}

async fn over_library(session: &Session, routes: &Routes, phase: &watch::Receiver<Phase>, seen: &mut Seen) {
    let lock = session.lock(&routes.name);
    let mut last_token = 0;
    loop {
        let begun_in = *phase.borrow();
        if begun_in == Phase::Over {
            return;
        }
        let began = Instant::now();
        let turn = async {
            let guard = lock.lock().await?;
            let (token, acquired) = (guard.token(), began.elapsed());
            guard.release().await.map(|()| (token, acquired))
        };
        match turn.await {
            Ok((token, acquired)) => {
                seen.tokens_not_rising += u64::from(token <= last_token);
                last_token = token;
                seen.cycle_done(begun_in, phase, began.elapsed(), acquired);
            }
            Err(error) => {
                seen.failed(error.to_string());
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn over_http(connection: &mut Connection, routes: &Routes, phase: &watch::Receiver<Phase>, seen: &mut Seen) {
    let mut last_token = 0;
    loop {
        let begun_in = *phase.borrow();
        if begun_in == Phase::Over {
            return;
        }
        let began = Instant::now();
        let token = match connection.acquire(&routes.acquire).await {
            Ok(token) => token,
            Err(why) => {
                seen.failed(why);
                sleep(PAUSE_AFTER_ERROR).await;
                continue;
            }
        };
        let acquired = began.elapsed();
        seen.tokens_not_rising += u64::from(token <= last_token);
        last_token = token;
        if let Err(why) = connection.release(&routes.release, token).await {
            seen.failed(why);
            sleep(PAUSE_AFTER_ERROR).await;
            continue;
        }
        seen.cycle_done(begun_in, phase, began.elapsed(), acquired);
    }
}

/// A grant that is still held.
struct Held {
    token: u64,
    begun_in: Phase,
    began: Instant,
    acquired: Duration,
}

/// The release of one cycle goes out with the acquire of the next; both are answered before the cycle after that begins.
async fn over_stream(
    stream: &mut Stream,
    routes: &Routes,
    phase: &watch::Receiver<Phase>,
    seen: &mut Seen,
) -> Result<(), String> {
    let mut last_token = 0;
    let mut held: Option<Held> = None;
    loop {
        let begun_in = *phase.borrow();
        let mut release = match &held {
            Some(held) => Some(stream.ask_release(&routes.release, held.token).await?),
            None if begun_in == Phase::Over => return Ok(()),
            None => None,
        };
        let began = Instant::now();
        let mut acquire = match begun_in {
            Phase::Over => None,
            _ => Some(stream.ask_acquire(&routes.acquire).await?),
        };
        stream.flush().await?;
        let mut next = None;
        let mut failed = false;
        while release.is_some() || acquire.is_some() {
            let (id, outcome) = stream.answer().await?;
            let of_release = release.take_if(|release| *release == id).is_some();
            let of_acquire = acquire.take_if(|acquire| *acquire == id).is_some();
            match outcome {
                Ok(_) if of_release => {
                    if let Some(Held { begun_in, began, acquired, .. }) = held.take() {
                        seen.cycle_done(begun_in, phase, began.elapsed(), acquired);
                    }
                }
                Ok(token) if of_acquire => {
                    seen.tokens_not_rising += u64::from(token <= last_token);
                    last_token = token;
                    next = Some(Held { token, begun_in, began, acquired: began.elapsed() });
                }
                Ok(_) => return Err(format!("an answer to {id}, which was not asked")),
                Err(why) => {
                    seen.failed(why);
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

fn micros(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}
