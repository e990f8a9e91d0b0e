//! Batches form by themselves: many clients share the cost of a sync, and a lone client waits for nobody. A linger or a
//! timer would show as a lone acquire that takes as long as the timer; one sync for each request would show as a
//! throughput that does not grow with the number of clients.

use lockkeeper_bench::{Locks, Measured, Plan, Transport};

use crate::proofs::prelude::*;

/// Of each of the two measurements.
const CROWD: u32 = 64;
/// How much more the crowd must do than one.
const TIMES: f64 = 4.0;
/// No timer of the cluster is shorter than this. A lone acquire takes a sync and less than this; one that waits on a
/// timer takes longer.
const SHORTEST_TIMER_US: u64 = 5_000;

pub(super) async fn run(context: &Context, seconds: u64) -> ProofResult {
    let cluster = Cluster::start(&context.binary, &context.dir, Options::default()).await?;
    let disk_latency = DiskLatency::begin(&context.dir)?;
    let alone = measure(context, &cluster, 1, seconds).await?;
    let sync_us = u64::try_from(disk_latency.end()?.median().as_micros()).unwrap_or(u64::MAX);
    let crowd = measure(context, &cluster, CROWD, seconds).await?;
    judge(&alone, &crowd, sync_us)
}

/// Lock cycles of so many clients, each with a lock of its own, for so many seconds.
pub(super) async fn measure(
    context: &Context,
    cluster: &Cluster,
    clients: u32,
    seconds: u64,
) -> Result<Measured, Failed> {
    let plan = Plan {
        endpoints: cluster.endpoints(),
        clients,
        locks: Locks::Own,
        warm_up: Duration::from_secs(1),
        measure: Duration::from_secs(seconds),
        server_pids: Vec::new(),
        transport: Transport::Http,
        rate: None,
    };
    let measured = lockkeeper_bench::run(&plan).await.map_err(|error| Failed::CannotRun(error.to_string()))?;
    context.log.say(format!(
        "{clients} clients, own locks: {:.0} cycles/s, acquire p50 {} us, {} errors",
        measured.cycles_per_second, measured.acquire.p50_us, measured.errors
    ));
    Ok(measured)
}

fn judge(alone: &Measured, crowd: &Measured, sync_us: u64) -> ProofResult {
    for measured in [alone, crowd] {
        if let Some(error) = &measured.first_error {
            return broken(format!("{} cycles failed, the first with: {error}", measured.errors));
        }
        if measured.cycles == 0 || measured.tokens_not_rising > 0 {
            let (cycles, fallen) = (measured.cycles, measured.tokens_not_rising);
            return broken(format!("{cycles} cycles, {fallen} tokens that did not rise"));
        }
    }
    let (one, many) = (alone.cycles_per_second, crowd.cycles_per_second);
    let figures = format!(
        "{many:.0} cycles/s with {CROWD} clients, {one:.0} with one: {:.1} times; lone acquire p50 {} us, a sync of \
         the disk {sync_us} us",
        many / one,
        alone.acquire.p50_us
    );
    if many < TIMES * one {
        return broken(format!("{figures}; that is less than {TIMES} times"));
    }
    if alone.acquire.p50_us >= SHORTEST_TIMER_US + sync_us {
        return broken(format!("{figures}; as if a lone request waited on a timer"));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use lockkeeper_bench::Latency;

    use super::*;

    fn measured(clients: u32, cycles_per_second: f64, p50_us: u64) -> Measured {
        let latency = Latency { p50_us, p99_us: p50_us, p99_9_us: p50_us, max_us: p50_us, ..Latency::default() };
        Measured {
            transport: Transport::Http,
            rate: None,
            clients,
            locks: Locks::Own,
            seconds: 1.0,
            cycles: cycles_per_second as u64,
            cycles_per_second,
            cycle: latency,
            acquire: latency,
            errors: 0,
            first_error: None,
            server_cpu_us_per_cycle: None,
            client_cpu_us_per_cycle: None,
            tokens_not_rising: 0,
        }
    }

    #[test]
    fn judges_throughput_timers_and_errors() {
        assert!(judge(&measured(1, 500.0, 900), &measured(64, 5_000.0, 5_000), 300).is_ok());
        assert!(judge(&measured(1, 500.0, 900), &measured(64, 1_900.0, 5_000), 300).is_err());
        assert!(judge(&measured(1, 90.0, 10_100), &measured(64, 5_000.0, 5_000), 300).is_err());
        assert!(judge(&measured(1, 150.0, 6_000), &measured(64, 5_000.0, 5_000), 4_000).is_ok());
        assert!(judge(&measured(1, 90.0, 10_100), &measured(64, 5_000.0, 5_000), 4_000).is_err());
        assert!(judge(&measured(1, 0.0, 0), &measured(64, 5_000.0, 5_000), 300).is_err());
        let failing = Measured { errors: 1, first_error: Some("refused".into()), ..measured(64, 5_000.0, 5_000) };
        assert!(judge(&measured(1, 500.0, 900), &failing, 300).is_err());
        let falling = Measured { tokens_not_rising: 1, ..measured(64, 5_000.0, 5_000) };
        assert!(judge(&measured(1, 500.0, 900), &falling, 300).is_err());
    }
}
