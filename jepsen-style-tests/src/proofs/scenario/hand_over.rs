//! One lock on its way from a process that holds it to another that waits behind it: for proofs about holders that die,
//! fall silent or give back.
//!
//! Each of these proofs does something to the holder and says when the next may have the lock
//! ([`crate::judge::Due`]).

use crate::net::{Endpoint, Listener};
use crate::proofs::prelude::*;
use crate::workers::Worker;

/// How long either is waited for.
pub(in crate::proofs) const PATIENCE: Duration = Duration::from_secs(30);

/// A holder and the one behind it.
pub(in crate::proofs) struct HandOver {
    pub(in crate::proofs) lock: String,
    pub(in crate::proofs) holder: Worker,
    waiter: Worker,
    /// The holder's.
    pub(in crate::proofs) token: u64,
}

/// What is asked for.
pub(in crate::proofs) struct HandOverOptions<'a> {
    /// The proof's locks.
    pub(in crate::proofs) family: &'a str,
    /// The lock, and who the two are.
    pub(in crate::proofs) name: &'a str,
    /// The timeout of the holder's session, in milliseconds.
    pub(in crate::proofs) ttl_ms: u64,
    /// Further words for the holder, each after a space.
    pub(in crate::proofs) words: &'a str,
    /// The node at which the holder is and stays; any, where there is none. The waiter is never there.
    pub(in crate::proofs) holder_at: Option<u64>,
}

impl HandOverOptions<'_> {
    /// Starts both, and waits until the one stands behind the other.
    pub(in crate::proofs) async fn start(&self, context: &Context, cluster: &Cluster) -> Result<HandOver, Failed> {
        let Self { family, name, .. } = self;
        let lock = format!("{family}/{name}");
        let start = |role: &str, ttl_ms: u64, endpoints: &[String], words: &str| {
            let arguments = format!("--ttl-ms {ttl_ms} --label {role}-{name} hold --lock {lock}{words}");
            Worker::start(&context.dir, &format!("{role}-{name}"), endpoints, arguments.split(' '))
        };
        let (here, elsewhere) = self.endpoints(cluster);
        let mut holder = start("holder", self.ttl_ms, &here, self.words)?;
        let (token, _) = holder.told("its grant", PATIENCE, granted).await?;
        let waiter = start("waiter", 10_000, &elsewhere, "")?;
        let wait = Polling::within(PATIENCE).every(Duration::from_millis(5));
        loop {
            let view = cluster.api(1).lock(&lock).await.map_err(|failure| Failed::Broken(failure.to_string()))?.value;
            if view.waiting == 1 {
                return Ok(HandOver { lock, holder, waiter, token });
            }
            wait.or_broken(|| format!("the waiter does not stand in the queue: {view:?}")).await?;
        }
    }

    fn endpoints(&self, cluster: &Cluster) -> (Vec<String>, Vec<String>) {
        let Some(node) = self.holder_at else { return (cluster.endpoints(), cluster.endpoints()) };
        // The way that faults lie on.
        let way_to = |id| format!("http://{}", cluster.net().address(Endpoint::Clients, id, Listener::Client));
        (vec![way_to(node)], cluster.others(node).into_iter().map(way_to).collect())
    }
}

impl HandOver {
    /// Kills the holder. Gives until when it was sure of its session, in milliseconds of the boot clock.
    pub(in crate::proofs) async fn kill_holder(&mut self) -> Result<u64, Failed> {
        self.holder.kill().await?;
        let sure_ms = self.holder.records()?.iter().filter_map(Record::sure_until_ms).max();
        sure_ms.ok_or_else(|| Failed::Broken("the holder was never sure of its session".into()))
    }

    /// Waits for the grant to the waiter; gives when it came, on the boot clock.
    pub(in crate::proofs) async fn next_granted_us(&mut self) -> Result<u64, Failed> {
        Ok(self.waiter.told("its grant", PATIENCE, granted).await?.1)
    }

    /// The waiter gives the lock back and ends.
    pub(in crate::proofs) async fn end(self) -> Result<(), Failed> {
        self.waiter.signal(Signal::SIGUSR1);
        end(self.waiter).await
    }

    /// The same of a holder that gives it back as well.
    pub(in crate::proofs) async fn end_both(self) -> Result<(), Failed> {
        self.waiter.signal(Signal::SIGUSR1);
        end(self.holder).await?;
        end(self.waiter).await
    }
}

async fn end(mut worker: Worker) -> Result<(), Failed> {
    worker.idle(PATIENCE).await?;
    worker.finish(PATIENCE).await.map(drop)
}

/// The token of a grant, and when it came.
fn granted(record: &Record) -> Option<(u64, u64)> {
    match record.what {
        WorkerEvent::Granted { token, .. } => Some((token, record.at_us)),
        _ => None,
    }
}

/// When the holder was told that its lock is lost.
pub(in crate::proofs) fn lost(record: &Record) -> Option<u64> {
    matches!(record.what, WorkerEvent::Lost { .. }).then_some(record.at_us)
}

/// How long before the next grant the holder was told.
pub(in crate::proofs) fn told_first(lost_us: u64, granted_us: u64) -> Result<Duration, Failed> {
    match granted_us.checked_sub(lost_us) {
        Some(lead_us) => Ok(Duration::from_micros(lead_us)),
        None => {
            let late = millis(Duration::from_micros(lost_us - granted_us));
            broken(format!("the holder was told {late} after the lock went to another (P11)"))
        }
    }
}
