//! Gates: each client begins an operation that nobody has asked for, finishes it, and goes on with the next.
//!
//! Each cycle has a key of its own, as in use: what is measured is two log entries, with no waiting for others. Results
//! are kept for a short time, so that the state does not grow with the length of the measurement; the cluster's
//! removal of those that are over is part of the load.

use std::time::Duration;

use lockkeeper_api::gates::{Begin, Finish};
use lockkeeper_api::{Call, Data};
use lockkeeper_client::Session;
use lockkeeper_client::recipes::Begun;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::cycles::PAUSE_AFTER_ERROR;
use crate::run::{ClientConnection, ClientResult, Pace, measure, summarize};
use crate::{BenchError, LOCK_PREFIX, Latency, Measured, Plan, Security, Transport, is_kept};

/// How long results are kept.
const KEEP: Duration = Duration::from_secs(1);
/// The result of each operation.
const RESULT: &str = "done";

/// Result of one measurement of gates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GatesMeasured {
    /// Number of concurrent clients.
    pub clients: u32,
    /// Transport used.
    pub transport: Transport,
    /// Cycles that were due each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Completed cycles of begin and finish.
    pub cycles: u64,
    /// Completed cycles per second.
    pub cycles_per_second: f64,
    /// Latency from sending the begin to the answer to the finish.
    pub cycle: Latency,
    /// Latency from sending the begin to its answer.
    pub begin: Latency,
    /// Cycles that failed.
    pub errors: u64,
    /// Message of the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// CPU time of all server processes per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us_per_cycle: Option<f64>,
    /// CPU time of this process per cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cpu_us_per_cycle: Option<f64>,
    /// Tokens that were not larger than the client's previous one. Must be 0.
    pub tokens_not_rising: u64,
}

impl GatesMeasured {
    /// Whether as many cycles were completed as were due, but for a tenth.
    pub fn kept_rate(&self) -> bool {
        is_kept(self.rate, self.cycles_per_second)
    }

    /// The same of a begin instead of an acquire, and without the locks, of which gates have none.
    fn of(measured: Measured) -> Self {
        Self {
            clients: measured.clients,
            transport: measured.transport,
            rate: measured.rate,
            seconds: measured.seconds,
            cycles: measured.cycles,
            cycles_per_second: measured.cycles_per_second,
            cycle: measured.cycle,
            begin: measured.acquire,
            errors: measured.errors,
            first_error: measured.first_error,
            server_cpu_us_per_cycle: measured.server_cpu_us_per_cycle,
            client_cpu_us_per_cycle: measured.client_cpu_us_per_cycle,
            tokens_not_rising: measured.tokens_not_rising,
        }
    }
}

/// Measures gates. The plan's locks play no part.
///
/// # Errors
/// An endpoint cannot be used, a server's CPU time cannot be read, or no cycle succeeded.
pub async fn run_gates(plan: &Plan, security: &Security) -> Result<GatesMeasured, BenchError> {
    // Keys of an earlier run may still be kept.
    let run = uuid::Uuid::new_v4().simple().to_string();
    let client = |at, connection, pace| client(connection, format!("{LOCK_PREFIX}/{run}-{at}"), pace);
    let total = measure(plan, security, client).await?;
    Ok(GatesMeasured::of(summarize(plan, total)?))
}

async fn client(mut connection: ClientConnection, prefix: String, pace: Pace) -> (ClientResult, ClientConnection) {
    let mut result = ClientResult::default();
    let (mut last_token, mut number) = (0, 0_u64);
    while let Some((started_in, began)) = pace.next().await {
        number += 1;
        match operation(&mut connection, format!("{prefix}-{number}"), began).await {
            Ok((token, begun)) => {
                result.tokens_not_rising += u64::from(token <= last_token);
                last_token = token;
                result.cycle_done(started_in, &pace, begun, began.elapsed());
            }
            Err(why) => {
                result.cycles.failed(why);
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
    (result, connection)
}

/// One cycle. Gives the token, and the time until the answer to the begin.
async fn operation(connection: &mut ClientConnection, key: String, began: Instant) -> Result<(u64, Duration), String> {
    if let ClientConnection::Library(session) = connection {
        return over_library(session, key, began).await;
    }
    let fingerprint = key.clone();
    let begin = Call::BeginGate { key: key.clone(), body: Begin { fingerprint, ..Begin::default() } };
    let token = call(connection, begin).await?;
    let begun = began.elapsed();
    let keep_ms = u64::try_from(KEEP.as_millis()).ok();
    let body = Finish { token, result: Data::Text(RESULT.into()), keep_ms, keep: None };
    call(connection, Call::FinishGate { key, body }).await?;
    Ok((token, begun))
}

/// Makes a call, and gives the token of its answer.
async fn call(connection: &mut ClientConnection, call: Call) -> Result<u64, String> {
    match connection {
        ClientConnection::Http(http) => http.call(&call).await,
        ClientConnection::Stream(stream) => stream.call(call).await,
        ClientConnection::Library(_) => Err("the library has calls of its own".into()),
    }
}

async fn over_library(session: &Session, key: String, began: Instant) -> Result<(u64, Duration), String> {
    let gate = session.gate(key);
    let begun = gate.begin(gate.key()).await.map_err(|error| error.to_string())?;
    let Begun::Proceed(ticket) = begun else { return Err(format!("gate {} is not new", gate.key())) };
    let (token, begun) = (ticket.token(), began.elapsed());
    ticket.finish(RESULT, KEEP).await.map_err(|error| error.to_string())?;
    Ok((token, begun))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Locks;
    use lockkeeper_client::{Client, Paging};
    use lockkeeper_server::local::Cluster;

    #[tokio::test]
    async fn every_operation_is_begun_and_finished_over_each_transport() {
        let cluster = Cluster::start(1).await.unwrap();
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        for transport in [Transport::Http, Transport::Stream, Transport::Library] {
            let plan = Plan {
                endpoints: cluster.endpoints(),
                clients: 4,
                locks: Locks::Own,
                transport,
                rate: None,
                warm_up: Duration::from_millis(100),
                measure: Duration::from_millis(400),
                server_pids: Vec::new(),
            };
            let measured = run_gates(&plan, &Security::default()).await.unwrap();
            assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
            assert!(measured.cycles > 0 && measured.transport == transport);
            assert!(measured.begin.p50_us <= measured.cycle.p50_us && measured.begin.mean_us > 0.0);
            let kept = client.gates(Some(LOCK_PREFIX), &Paging::default()).await.unwrap().gates;
            assert!(kept.iter().all(|gate| gate.result_bytes == Some(4)), "{kept:?}");
        }
    }
}
