//! One measurement of one system.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use lockkeeper_bench::{LOCK_PREFIX, Locks, Phase, spent_us};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::MeasureError;
use crate::client::{self, ClientResult, Lock, LockClient};
use crate::system::System;
use crate::usage::{Machine, Usage, Used};

/// Time limit for all clients to connect.
const LONGEST_OPENING: Duration = Duration::from_secs(60);

/// A kind of locks and a number of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) locks: Locks,
    pub(crate) clients: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, clients: {}", self.locks, self.clients)
    }
}

/// Durations of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

/// Result of a measurement.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) result: ClientResult,
    /// What all servers used; `None` if their pids are not given.
    pub(crate) servers: Option<Used>,
    /// CPU time of this program.
    pub(crate) own_us: u64,
    /// The share of the machine's CPU time that neither the servers nor this program used.
    pub(crate) others: f64,
}

impl Measured {
    pub(crate) fn cycles_per_second(&self) -> f64 {
        self.result.cycles.cycle.len() as f64 / self.seconds
    }

    pub(crate) fn in_short(&self) -> String {
        let errors = match &self.result.cycles.first_error {
            Some(first) => format!(", {} errors, the first: {first}", self.result.cycles.errors),
            None => String::new(),
        };
        format!("{:.0} cycles/s{errors}", self.cycles_per_second())
    }
}

/// Runs one measurement.
pub(crate) async fn measure(system: &Arc<System>, point: Point, plan: &Plan) -> Result<Measured, MeasureError> {
    let clients = open_all(system, point).await?;
    let (phases, phase) = watch::channel(Phase::WarmUp);
    let working: Vec<_> = (0..)
        .zip(clients)
        .map(|(number, (client, lock))| {
            tokio::spawn(client::run(client, (system.clone(), number), lock, phase.clone()))
        })
        .collect();

    sleep(plan.warm_up).await;
    let own = [std::process::id()];
    let (servers_before, own_before) = (Usage::of(&system.pids)?, spent_us(&own)?);
    let machine_before = Machine::now().map_err(MeasureError::Machine)?;
    let began = Instant::now();
    phases.send_replace(Phase::Measure);
    sleep(plan.measure).await;
    phases.send_replace(Phase::Done);
    let seconds = began.elapsed().as_secs_f64();
    let servers = Usage::since(&servers_before, &system.pids)?;
    let own_us = spent_us(&own)?.saturating_sub(own_before);
    let machine = Machine::now().map_err(MeasureError::Machine)?;
    let others = machine.others_since(machine_before, servers.cpu_us + own_us);

    let mut result = ClientResult::default();
    for client in working {
        match client.await {
            Ok(one) => result.add(&one),
            Err(error) => result.cycles.failed(format!("a client failed: {error}")),
        }
    }
    let servers = (!system.pids.is_empty()).then_some(servers);
    Ok(Measured { seconds, result, servers, own_us, others })
}

/// Opens all sessions before the first cycle.
async fn open_all(system: &System, point: Point) -> Result<Vec<(Box<dyn LockClient>, Lock)>, MeasureError> {
    // New locks for each measurement, so that the queues are empty.
    static MEASUREMENTS: AtomicU32 = AtomicU32::new(0);
    let number = MEASUREMENTS.fetch_add(1, Ordering::Relaxed);
    let top = format!("{LOCK_PREFIX}/cycles-{}-{number}", std::process::id());
    let the_one = Lock::new(format!("{top}/one"));
    let clients = (0..point.clients as usize).map(|at| {
        let lock = match point.locks {
            Locks::Own => Lock::new(format!("{top}/own-{at}")),
            Locks::One => the_one.clone(),
        };
        async move { client::open(system, at, &lock).await.map(|client| (client, lock)) }
    });
    let failed = |why| MeasureError::Connect { system: system.kind.to_string(), why };
    match timeout(LONGEST_OPENING, try_join_all(clients)).await {
        Ok(opened) => opened.map_err(failed),
        Err(_) => Err(failed(format!("{} sessions are not open after {LONGEST_OPENING:?}", point.clients))),
    }
}
