//! The workloads: what the clients do, and what must be true of their history. One module for each.
//!
//! Clients run in `worker` processes, several in each, so that they can be killed and stopped; what they write to
//! standard output is their history.

mod append;
mod client_kit;
mod counting;
mod election;
mod ephemerals;
#[cfg(test)]
mod fixture;
mod gate;
mod lock_client;
mod locks;
mod prelude;
mod queue;
mod register;
mod watches;
mod zookeeper;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::check::Check;
use crate::history::{Event, EventKind, Recorded};
use crate::record::boot_us;

/// The task of a client.
#[derive(Clone, Debug)]
pub struct ClientContext {
    /// Where the cluster is reached: through the fault network.
    pub endpoints: Vec<String>,
    /// Where ZooKeeper's clients reach it: through the same network.
    pub zookeepers: Vec<String>,
    /// Its number, unique in the run.
    pub client: u32,
    /// How many clients there are at a time.
    pub clients: u32,
    /// The seed of its randomness.
    pub seed: u64,
    /// The timeout of its sessions.
    pub ttl: Duration,
    /// A directory that all clients of the run share, for stores that are fenced (or not).
    pub shared: PathBuf,
    /// Cancelled when the client is to end: it releases what it holds, closes its session and returns.
    pub stop: CancellationToken,
    /// Records its operations.
    pub recorder: Recorder,
}

/// Writes a client's events as JSON lines to standard output, each in one piece.
#[derive(Clone, Debug)]
pub struct Recorder {
    client: u32,
    next: Arc<AtomicU64>,
}

/// An operation whose invocation was recorded and that must be ended in one of three ways. One that is dropped stays
/// open: unknown.
#[derive(Debug)]
#[must_use]
pub struct OpenOp {
    recorder: Recorder,
    op: u64,
    what: String,
}

impl Recorder {
    /// For this client.
    pub fn new(client: u32) -> Self {
        Self { client, next: Arc::new(AtomicU64::new(1)) }
    }

    /// Records the invocation of an operation. Call it before the request is sent.
    pub fn begin(&self, what: &str, arguments: &impl Serialize) -> OpenOp {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        self.write(op, EventKind::Invoke, what, value(arguments), None);
        OpenOp { recorder: self.clone(), op, what: what.to_owned() }
    }

    /// Records a note, which belongs to no operation.
    pub fn note(&self, what: &str, of: &impl Serialize, zxid: Option<u64>) {
        self.write(0, EventKind::Note, what, value(of), zxid);
    }

    fn write(&self, op: u64, kind: EventKind, what: &str, value: Value, zxid: Option<u64>) {
        let event = Event { at_us: boot_us(), client: self.client, op, kind, what: what.to_owned(), value, zxid };
        crate::record::tell_line(&event);
    }
}

impl OpenOp {
    /// Carried out, with this answer.
    pub fn ok(self, answer: &impl Serialize, zxid: Option<u64>) {
        self.recorder.write(self.op, EventKind::Ok, &self.what, value(answer), zxid);
    }

    /// Certainly not carried out.
    pub fn fail(self, why: &str) {
        self.recorder.write(self.op, EventKind::Fail, &self.what, Value::from(why), None);
    }

    /// Nobody knows.
    pub fn info(self, why: &str) {
        self.recorder.write(self.op, EventKind::Info, &self.what, Value::from(why), None);
    }
}

fn value(of: &impl Serialize) -> Value {
    // These are our own plain types; one without a JSON form shows as its error, and its check is unknown.
    serde_json::to_value(of).unwrap_or_else(|error| Value::from(error.to_string()))
}

/// Whether a run is to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedVerdict {
    /// Under every fault.
    Valid,
    /// The control: it must come out invalid under faults that stop a holder, and says nothing under others.
    InvalidWhenStopped,
}

/// What a workload says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// The promises it can falsify, as `P1 P2`.
    pub promises: &'static str,
}

/// One workload.
#[async_trait]
pub trait Workload: Send + Sync {
    /// What it says of itself.
    fn facts(&self) -> Facts;

    /// Its name on the command line.
    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// Whether its runs are to be valid.
    fn expected(&self) -> ExpectedVerdict {
        ExpectedVerdict::Valid
    }

    /// Prepares the shared directory before the clients begin. The result is kept until the run is over.
    ///
    /// # Errors
    /// It cannot be prepared, and so the run cannot be made.
    async fn prepare(&self, shared: &Path) -> Result<Box<dyn Any + Send + Sync>, String> {
        let _ = shared;
        Ok(Box::new(()))
    }

    /// What one client does until it is told to stop.
    ///
    /// # Errors
    /// A description for people of why it could not work; faults are no errors, it goes on.
    async fn client(&self, context: ClientContext) -> Result<(), String>;

    /// The final reads, once all is healed and the clients have stopped, by one more client.
    ///
    /// # Errors
    /// It cannot be read: the run is unknown.
    async fn conclude(&self, context: ClientContext) -> Result<(), String> {
        let _ = context;
        Ok(())
    }

    /// Checks a run. Pure but for reading the shared directory.
    fn check(&self, run: &Recorded) -> Vec<Check>;
}

#[cfg(test)]
mod tests;

/// Every workload.
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(locks::LOCK),
        Box::new(counting::FENCED),
        Box::new(counting::UNFENCED),
        Box::new(locks::RW_LOCK),
        Box::new(locks::SEMAPHORE),
        Box::new(locks::LOCK_DELAY),
        Box::new(locks::MULTI_LOCK),
        Box::new(register::RegisterWorkload),
        Box::new(append::AppendWorkload),
        Box::new(election::ElectionWorkload),
        Box::new(gate::GateWorkload),
        Box::new(queue::QueueWorkload),
        Box::new(ephemerals::EphemeralsWorkload),
        Box::new(watches::WatchesWorkload),
        Box::new(zookeeper::ZooKeeperLockWorkload),
        Box::new(ephemerals::zookeeper::ZooKeeperEphemeralsWorkload),
        Box::new(watches::zookeeper::ZooKeeperWatchesWorkload),
    ]
}
