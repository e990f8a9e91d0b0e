//! Gates: each client begins an operation that nobody has asked for, finishes it, and goes on with the next.
//!
//! Each cycle has a key of its own, as in use: what is measured is two log entries, with no waiting for others. Results
//! are kept for a short time, so that the state does not grow with the length of the measurement; the cluster's
//! removal of those that are over is part of the load.

use serde::Serialize;

use crate::lockkeeper::{Cycle, run_cycles};
use crate::{BenchError, Latency, Locks, Measured, Plan, Security, Transport};

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
    /// A measurement of gates: of a begin instead of an acquire, and without the locks, of which gates have none.
    pub fn of(measured: Measured) -> Self {
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

/// Measures gates: what is measured of an acquire is that of a begin. The plan's locks play no part.
///
/// # Errors
/// An endpoint cannot be used, a server's CPU time cannot be read, or no cycle succeeded.
pub async fn run_gates(plan: &Plan, security: &Security) -> Result<Measured, BenchError> {
    let plan = Plan { locks: Locks::Own, ..plan.clone() };
    run_cycles(&plan, security, Cycle::Gate).await
}

#[cfg(test)]
mod tests {
    use lockkeeper_client::{Client, Paging};
    use lockkeeper_server::local::Cluster;

    use super::*;
    use crate::LOCK_PREFIX;

    #[tokio::test]
    async fn every_operation_is_begun_and_finished_over_each_transport() {
        let cluster = Cluster::start(1).await.unwrap();
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        for transport in [Transport::Http, Transport::Stream, Transport::Library] {
            let plan = Plan::short(cluster.endpoints(), Locks::Own, transport);
            let measured = GatesMeasured::of(run_gates(&plan, &Security::default()).await.unwrap());
            assert_eq!((measured.errors, measured.tokens_not_rising), (0, 0), "{measured:?}");
            assert!(measured.cycles > 0 && measured.transport == transport);
            assert!(measured.begin.p50_us <= measured.cycle.p50_us && measured.begin.mean_us > 0.0);
            let kept = client.gates(Some(LOCK_PREFIX), &Paging::default()).await.unwrap().gates;
            assert!(kept.iter().all(|gate| gate.result_bytes == Some(4)), "{kept:?}");
        }
    }
}
