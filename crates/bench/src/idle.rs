//! Idle sessions: each has a stream of its own, over which it only says that it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use futures::{SinkExt, StreamExt};
use lockkeeper_api::Problem;
use lockkeeper_api::stream::FromClient;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_tungstenite::tungstenite::Message;

use crate::BenchError;
use crate::connection::{Connection, Security};
use crate::stream::{StreamSocket, connect_stream};
use crate::usage::{resident_bytes, spent_us};

/// Timeout of the sessions.
const TIMEOUT_MS: u32 = 30_000;
/// Time between two keepalives of a session, as the client library has it.
const KEEPALIVE_EVERY: Duration = Duration::from_millis(TIMEOUT_MS as u64 / 3);
/// Sessions of an endpoint that are opened at a time.
const OPENERS: u32 = 16;

/// Parameters of a measurement of idle sessions.
#[derive(Clone, Debug)]
pub struct IdlePlan {
    /// Base URLs; sessions are spread over them.
    pub endpoints: Vec<String>,
    /// Number of sessions.
    pub sessions: u32,
    /// Time between the opening of the last session and the measurement.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measure: Duration,
    /// Processes on this machine whose CPU time and memory are reported.
    pub server_pids: Vec<u32>,
    /// What the cluster asks of its clients.
    pub security: Security,
}

/// What idle sessions cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleMeasured {
    /// Number of sessions.
    pub sessions: u32,
    /// Time that their opening took, in seconds.
    pub opening_seconds: f64,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Keepalives that were acknowledged in it.
    pub keepalives: u64,
    /// Streams that were lost, at any time.
    pub lost: u64,
    /// Why the first of them was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// The servers, in the order of `server_pids`.
    pub servers: Vec<ServerCost>,
}

/// What they cost one server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerCost {
    /// The process.
    pub pid: u32,
    /// Processors that it kept busy.
    pub cores: f64,
    /// Resident memory with the sessions.
    pub resident_bytes: u64,
    /// How much of it came with each session, of all sessions of the cluster.
    pub resident_bytes_per_session: f64,
}

/// What the streams have seen.
#[derive(Default)]
struct Seen {
    acknowledged: AtomicU64,
    lost: AtomicU64,
    first_error: Mutex<Option<String>>,
}

impl Seen {
    fn lost(&self, why: String) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.first_error.lock().get_or_insert(why);
    }
}

/// Opens the sessions, and measures their cost. They are left to expire.
///
/// # Errors
/// An endpoint cannot be used, or a server's CPU time or memory cannot be read.
pub async fn run_idle(plan: &IdlePlan) -> Result<IdleMeasured, BenchError> {
    let memory = || plan.server_pids.iter().map(|pid| resident_bytes(*pid)).collect::<Result<Vec<_>, _>>();
    let spent = || plan.server_pids.iter().map(|pid| spent_us(&[*pid])).collect::<Result<Vec<_>, _>>();
    let empty = memory()?;
    let (seen, began) = (Arc::<Seen>::default(), Instant::now());
    let streams = open_all(plan, &seen).await?;
    let opening_seconds = began.elapsed().as_secs_f64();
    sleep(plan.warm_up).await;
    let (before, acknowledged) = (spent()?, seen.acknowledged.load(Ordering::Relaxed));
    let began = Instant::now();
    sleep(plan.measure).await;
    let seconds = began.elapsed().as_secs_f64();
    let keepalives = seen.acknowledged.load(Ordering::Relaxed) - acknowledged;
    let costs = plan.server_pids.iter().zip(empty).zip(before).zip(spent()?.into_iter().zip(memory()?));
    let servers = costs.map(|(((pid, empty), before), (after, resident_bytes))| ServerCost {
        pid: *pid,
        cores: after.saturating_sub(before) as f64 / 1e6 / seconds,
        resident_bytes,
        resident_bytes_per_session: resident_bytes.saturating_sub(empty) as f64 / f64::from(plan.sessions),
    });
    let servers = servers.collect();
    drop(streams);
    let (lost, first_error) = (seen.lost.load(Ordering::Relaxed), seen.first_error.lock().take());
    Ok(IdleMeasured { sessions: plan.sessions, opening_seconds, seconds, keepalives, lost, first_error, servers })
}

/// Opens all sessions with their streams. Their keepalives begin at once: opening may take longer than a timeout. The
/// tasks end when they are dropped.
async fn open_all(plan: &IdlePlan, seen: &Arc<Seen>) -> Result<Vec<JoinSet<()>>, BenchError> {
    let openers = OPENERS * plan.endpoints.len() as u32;
    let opening = (0..openers).map(|number| {
        let endpoint = &plan.endpoints[number as usize % plan.endpoints.len()];
        let sessions = plan.sessions / openers + u32::from(number < plan.sessions % openers);
        open_share(endpoint, sessions, f64::from(number) / f64::from(openers), &plan.security, seen)
    });
    try_join_all(opening).await
}

/// Opens so many sessions. `offset`, from 0 to 1, sets their keepalives apart from those of other shares.
async fn open_share(
    endpoint: &str,
    sessions: u32,
    offset: f64,
    security: &Security,
    seen: &Arc<Seen>,
) -> Result<JoinSet<()>, BenchError> {
    let mut streams = JoinSet::new();
    if sessions > 0 {
        let failed = |why: String| BenchError::endpoint(endpoint, why);
        let mut connection = Connection::connect(endpoint, security).await?;
        for number in 0..sessions {
            let session = connection.open_session(TIMEOUT_MS, "idle").await.map_err(failed)?;
            let socket = connect_stream(endpoint, session.session_id, &session.credential, security).await?;
            let first = KEEPALIVE_EVERY.mul_f64((f64::from(number) + offset) / f64::from(sessions));
            streams.spawn(keep_alive(socket, first, seen.clone()));
        }
    }
    Ok(streams)
}

/// The parts of a server message that matter here.
#[derive(Deserialize)]
struct StreamSign {
    alive: Option<IgnoredAny>,
    goodbye: Option<Problem>,
}

/// Sends keepalives until the stream is lost.
async fn keep_alive(mut socket: StreamSocket, first: Duration, seen: Arc<Seen>) {
    let mut due = interval_at(Instant::now() + first, KEEPALIVE_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    loop {
        let done = tokio::select! {
            _ = due.tick() => {
                number += 1;
                match serde_json::to_string(&FromClient::Keepalive(number)) {
                    Ok(text) => socket.send(Message::text(text)).await.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                }
            }
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => match serde_json::from_str(text.as_str()) {
                    Ok(StreamSign { goodbye: Some(problem), .. }) => Err(problem.to_string()),
                    Ok(StreamSign { alive, .. }) => {
                        seen.acknowledged.fetch_add(u64::from(alive.is_some()), Ordering::Relaxed);
                        Ok(())
                    }
                    Err(error) => Err(error.to_string()),
                },
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("connection lost".into()),
            },
        };
        if let Err(why) = done {
            return seen.lost(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_server::local::Cluster;

    use super::*;

    #[tokio::test]
    async fn sessions_stay_and_their_cost_is_reported() {
        let cluster = Cluster::start(1).await.unwrap();
        let plan = IdlePlan {
            endpoints: cluster.endpoints(),
            sessions: 40,
            warm_up: Duration::ZERO,
            // Of sessions whose keepalives are spread over ten seconds, some have one.
            measure: Duration::from_secs(2),
            server_pids: vec![std::process::id()],
            security: Security::default(),
        };
        let measured = run_idle(&plan).await.unwrap();
        assert_eq!((measured.sessions, measured.lost), (40, 0), "{measured:?}");
        assert!((1..40).contains(&measured.keepalives), "{measured:?}");
        assert!(measured.servers[0].resident_bytes > 0 && measured.servers[0].cores > 0.0, "{measured:?}");
    }
}
