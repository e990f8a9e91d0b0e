//! One measurement: open, warm up, measure, close.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::{Lock, LockClient, LockSystem, Worker, close};
use crate::cycles::ClientResult;
use crate::pace::{Edges, Pace, Phase};
use crate::usage::{Machine, Usage, Used, spent_us};
use crate::{BenchError, LOCK_PREFIX, Locks};

/// Time limit for all clients to connect and open their sessions.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the last cycles after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// The work that clients of any system do.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Number of concurrent clients.
    pub clients: u32,
    /// Locks to acquire.
    pub locks: Locks,
    /// Cycles begun each second by all clients together; each client begins as soon as it can if there is none.
    pub rate: Option<f64>,
    /// Which cycles count.
    pub edges: Edges,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measure: Duration,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, clients: {}", self.locks, self.clients)
    }
}

/// What all clients together have done in the time that was measured, and what it has cost.
#[derive(Debug)]
pub struct Measurement {
    /// What the clients counted.
    pub result: ClientResult,
    /// Duration of the measurement.
    pub seconds: f64,
    /// What all servers used; `None` if their processes are not known.
    pub servers: Option<Used>,
    /// CPU time of this process, where that can be seen.
    pub own_us: Option<u64>,
    /// The share of the machine's CPU time that neither the servers nor this process used, where that can be seen.
    pub others: Option<f64>,
}

impl Measurement {
    /// Completed cycles per second.
    pub fn cycles_per_second(&self) -> f64 {
        self.result.cycles.cycle.len() as f64 / self.seconds
    }

    /// So much of each completed cycle, if there is one.
    pub fn per_cycle(&self, used: Option<u64>) -> Option<f64> {
        let cycles = self.result.cycles.cycle.len();
        used.filter(|_| cycles > 0).map(|used| used as f64 / cycles as f64)
    }
}

/// Opens all clients, lets them work, and counts what they do in the time to be measured.
///
/// # Errors
/// The system cannot be used, or what its servers use cannot be read.
pub async fn measure(system: &Arc<dyn LockSystem>, work: &Workload) -> Result<Measurement, BenchError> {
    let (pids, own) = (system.server_pids(), [std::process::id()]);
    spent_us(pids)?;
    let clients = open_all(system, work).await?;
    let (phases, phase) = watch::channel(Phase::WarmUp);
    let pace = Pace::new(phase, work.rate, work.edges);
    let working: Vec<_> = (0..)
        .zip(clients)
        .map(|(number, (client, lock))| {
            let worker = Worker { system: system.clone(), number, lock, pace: pace.clone() };
            tokio::spawn(worker.run(client))
        })
        .collect();
    drop(pace);

    sleep(work.warm_up).await;
    let (servers_before, own_before, machine_before) = (Usage::of(pids)?, spent_us(&own), Machine::now());
    let began = Instant::now();
    phases.send_replace(Phase::Measure);
    sleep(work.measure).await;
    let seconds = began.elapsed().as_secs_f64();
    phases.send_replace(Phase::Done);
    let servers = Usage::since(&servers_before, pids)?;
    let own_us = spent_us(&own).ok().zip(own_before.ok()).map(|(now, before)| now.saturating_sub(before));
    let these_us = servers.cpu_us + own_us.unwrap_or_default();
    let others = Machine::now().ok().zip(machine_before.ok()).map(|(now, before)| now.others_since(before, these_us));

    let mut result = ClientResult::default();
    let give_up_at = Instant::now() + END_TIMEOUT;
    let mut open = Vec::new();
    for mut client in working {
        match timeout_at(give_up_at, &mut client).await {
            Ok(Ok((one, client))) => {
                result.add(&one);
                open.push(client);
            }
            Ok(Err(error)) => result.cycles.failed(format!("a client failed: {error}")),
            Err(_) => {
                // What it holds is released when its session expires.
                client.abort();
                result.cycles.failed(format!("no answer within {} s of the end", END_TIMEOUT.as_secs()));
            }
        }
    }
    // What came of it does not matter any more.
    let _ = timeout_at(give_up_at, join_all(open.into_iter().map(close))).await;
    Ok(Measurement { result, seconds, servers: (!pids.is_empty()).then_some(servers), own_us, others })
}

/// Opens all sessions before the first cycle.
async fn open_all(
    system: &Arc<dyn LockSystem>,
    work: &Workload,
) -> Result<Vec<(Box<dyn LockClient>, Lock)>, BenchError> {
    // New names for each measurement, so that the queues are empty, and no result of a gate is kept.
    let top = format!("{LOCK_PREFIX}/{:08x}", uuid::Uuid::new_v4().as_fields().0);
    let the_one = Lock::new(format!("{top}/one"));
    let clients = (0..work.clients as usize).map(|number| {
        let lock = match work.locks {
            Locks::Own => Lock::new(format!("{top}/own-{number}")),
            Locks::One => the_one.clone(),
        };
        async move { system.open(number, &lock.name).await.map(|client| (client, lock)) }
    });
    let opened = timeout(OPEN_TIMEOUT, try_join_all(clients)).await;
    opened.map_err(|_| {
        let why = format!("cannot open {} sessions within {} s", work.clients, OPEN_TIMEOUT.as_secs());
        BenchError::endpoint(&system.to_string(), why)
    })?
}
