//! One client: a session of the crate `zookeeper-client` that repeats ZooKeeper's lock recipe.
//!
//! The recipe is the documented one: a woken client lists the queue again, since the preceding client may have given up
//! without holding the lock. So a client that waits lists the queue twice, which is part of the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, CreateSequence, Error};

/// Pause of a client after a failed cycle.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// Session timeout and connection timeout.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest latency that the histogram distinguishes.
const HIGHEST_US: u64 = 120_000_000;

const DIRECTORY: &CreateOptions<'static> = &CreateMode::Persistent.with_acls(Acls::anyone_all());
const IN_QUEUE: &CreateOptions<'static> = &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
const PREFIX: &str = "lock-";

/// Phase of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WarmUp,
    Measure,
    Done,
}

/// Result of one client or of several.
#[derive(Debug)]
pub(crate) struct ClientResult {
    /// Latency from the create until the lock is held.
    pub(crate) acquire: Histogram<u64>,
    /// Latency from the create until the reply to the delete.
    pub(crate) cycle: Histogram<u64>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

impl ClientResult {
    pub(crate) fn new() -> Self {
        // The bounds are constants, so this cannot fail.
        let empty = || Histogram::new_with_bounds(1, HIGHEST_US, 3).unwrap_or_else(|_| unreachable!("constant bounds"));
        Self { acquire: empty(), cycle: empty(), errors: 0, first_error: None }
    }

    pub(crate) fn failed(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // The bounds are the same, so this cannot fail.
        let _ = self.acquire.add(&other.acquire);
        let _ = self.cycle.add(&other.cycle);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
    }
}

/// A lock's directory and the sequence number of its last holder, which must increase.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    directory: String,
    last: Arc<AtomicI64>,
}

impl Lock {
    pub(crate) fn new(directory: String) -> Self {
        Self { directory, last: Arc::new(AtomicI64::new(-1)) }
    }
}

/// Opens a session at a server and creates the lock's directory.
pub(crate) async fn open(address: &str, lock: &Lock) -> Result<Client, Error> {
    let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT).with_connection_timeout(SESSION_TIMEOUT);
    let client = connector.connect(address).await?;
    client.mkdir(&lock.directory, DIRECTORY).await?;
    Ok(client)
}

/// Acquires and releases until the measurement ends. Counts a failure and continues with a new session, so that no node
/// of the old one stays in the queue.
pub(crate) async fn run(
    client: Client,
    address: String,
    lock: Lock,
    mut phase: watch::Receiver<Phase>,
) -> ClientResult {
    let mut result = ClientResult::new();
    let mut over = phase.clone();
    let work = async {
        let mut session = Some(client);
        loop {
            let outcome = match session.take() {
                Some(client) => cycles(&client, &lock, &mut phase, &mut result).await,
                None => {
                    open(&address, &lock).await.map(|client| session = Some(client)).map_err(|error| error.to_string())
                }
            };
            if let Err(why) = outcome {
                result.failed(why);
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    };
    // A client that is still waiting is cancelled; closing its session deletes its node.
    tokio::select! {
        () = work => {}
        _ = over.wait_for(|phase| *phase == Phase::Done) => {}
    }
    result
}

async fn cycles(
    client: &Client,
    lock: &Lock,
    phase: &mut watch::Receiver<Phase>,
    result: &mut ClientResult,
) -> Result<(), String> {
    loop {
        let began = Instant::now();
        let sequence = acquire(client, &lock.directory).await?;
        let acquired = began.elapsed();
        let last = lock.last.fetch_max(sequence.into_i64(), Ordering::SeqCst);
        if last >= sequence.into_i64() {
            return Err(format!("{sequence} held {} after {last}", lock.directory));
        }
        let node = format!("{}/{PREFIX}{sequence}", lock.directory);
        client.delete(&node, None).await.map_err(|error| format!("delete: {error}"))?;
        // A cycle counts if it ends in the measurement: those running at the start make up for those at the end.
        if *phase.borrow() == Phase::Measure {
            result.acquire.saturating_record(micros(acquired));
            result.cycle.saturating_record(micros(began.elapsed()));
        }
    }
}

/// Waits until the own node is the first and returns its sequence.
async fn acquire(client: &Client, directory: &str) -> Result<CreateSequence, String> {
    let (_, sequence) = client
        .create(&format!("{directory}/{PREFIX}"), b"", IN_QUEUE)
        .await
        .map_err(|error| format!("create: {error}"))?;
    let own = format!("{PREFIX}{sequence}");
    loop {
        let queue = client.list_children(directory).await.map_err(|error| format!("list: {error}"))?;
        if !queue.contains(&own) {
            return Err(format!("{own} is not listed in its directory"));
        }
        let Some(before) = before(&queue, &own) else { return Ok(sequence) };
        let watched = client.check_and_watch_stat(&format!("{directory}/{before}")).await;
        let (stat, watcher) = watched.map_err(|error| format!("exists: {error}"))?;
        if stat.is_some() {
            watcher.changed().await;
        }
    }
}

/// The node to wait for: the last before the own one. All names have the same length.
fn before<'a>(queue: &'a [String], own: &str) -> Option<&'a str> {
    queue.iter().map(String::as_str).filter(|name| *name < own).max()
}

fn micros(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_waits_for_its_predecessor() {
        let queue = ["lock-0000000010", "lock-0000000009", "lock-0000000012"].map(ToOwned::to_owned);
        assert_eq!(before(&queue, "lock-0000000012"), Some("lock-0000000010"));
        assert_eq!(before(&queue, "lock-0000000009"), None);
    }
}
