//! A process that holds a lock, and another that waits behind it: the start of every proof about holders that die or
//! fall silent.

use std::time::{Duration, Instant};

use super::Context;
use crate::cluster::Cluster;
use crate::net::{Endpoint, Listener};
use crate::record::{Record, WorkerEvent};
use crate::verdict::{Failed, broken};
use crate::workers::Worker;

/// How long either is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A holder and the one behind it.
pub(super) struct HolderAndWaiter {
    pub(super) lock: String,
    pub(super) holder: Worker,
    pub(super) waiter: Worker,
    /// The holder's.
    pub(super) token: u64,
}

/// What is asked for.
pub(super) struct PairOptions<'a> {
    /// The proof's locks.
    pub(super) family: &'a str,
    /// The lock, and who the two are.
    pub(super) name: &'a str,
    /// The timeout of the holder's session, in milliseconds.
    pub(super) ttl_ms: u64,
    /// Further words for the holder, each after a space.
    pub(super) words: &'a str,
    /// The node at which the holder is and stays; any, where there is none. The waiter is never there.
    pub(super) holder_at: Option<u64>,
}

impl PairOptions<'_> {
    /// Starts both, and waits until the one stands behind the other.
    pub(super) async fn start(&self, context: &Context, cluster: &Cluster) -> Result<HolderAndWaiter, Failed> {
        let Self { family, name, .. } = self;
        let lock = format!("{family}/{name}");
        let start = |role: &str, ttl_ms: u64, endpoints: &[String], words: &str| {
            let arguments = format!("--ttl-ms {ttl_ms} --label {role}-{name} hold --lock {lock}{words}");
            let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
            Worker::start(&context.dir, &format!("{role}-{name}"), endpoints, &arguments)
        };
        let (here, elsewhere) = self.endpoints(cluster);
        let mut holder = start("holder", self.ttl_ms, &here, self.words)?;
        let (token, _) = holder.told("its grant", PATIENCE, granted).await?;
        let waiter = start("waiter", 10_000, &elsewhere, "")?;
        let begun = Instant::now();
        loop {
            let view = cluster.api(1).lock(&lock).await.map_err(|failure| Failed::Broken(failure.to_string()))?.value;
            if view.waiting == 1 {
                return Ok(HolderAndWaiter { lock, holder, waiter, token });
            }
            if begun.elapsed() > PATIENCE {
                return broken(format!("the waiter does not stand in the queue: {view:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn endpoints(&self, cluster: &Cluster) -> (Vec<String>, Vec<String>) {
        let Some(node) = self.holder_at else { return (cluster.endpoints(), cluster.endpoints()) };
        // The way that faults lie on.
        let way_to = |id| format!("http://{}", cluster.net().address(Endpoint::Clients, id, Listener::Client));
        let others = cluster.ids().into_iter().filter(|id| *id != node);
        (vec![way_to(node)], others.map(way_to).collect())
    }
}

pub(super) fn granted(record: &Record) -> Option<(u64, u64)> {
    match record.what {
        WorkerEvent::Granted { token, .. } => Some((token, record.at_us)),
        _ => None,
    }
}

/// Until when the holder was sure of its session, on the boot clock, by what it has told so far.
pub(super) fn sure_until_ms(holder: &Worker) -> Result<u64, Failed> {
    let sure = holder.records()?.into_iter().filter_map(|record| match record.what {
        WorkerEvent::Sure { until_ms } => Some(until_ms),
        _ => None,
    });
    sure.max().ok_or_else(|| Failed::Broken("the holder was never sure of its session".into()))
}
