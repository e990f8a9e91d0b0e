//! One client: a session of the crate `zookeeper-client`, and ZooKeeper's lock recipe again and again.
//!
//! The recipe is the documented one, with its second look: who was woken lists the queue again, since the one before may have given up
//! and not have held. So a client that waits lists twice, whatever the queue's length; that is part of what is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, CreateSequence, Error};

/// A client that sees nothing but failures does not hammer the servers with more.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// What a session that was lost holds stays for so long at most; also the longest that a connection may take.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest latency that is told apart.
const HIGHEST_US: u64 = 120_000_000;

const DIRECTORY: &CreateOptions<'static> = &CreateMode::Persistent.with_acls(Acls::anyone_all());
const IN_QUEUE: &CreateOptions<'static> = &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
const PREFIX: &str = "lock-";

/// Where a measurement stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WarmUp,
    Measure,
    Over,
}

/// What one client saw, or many.
#[derive(Debug)]
pub(crate) struct Seen {
    /// From before the create until the lock is held.
    pub(crate) acquire: Histogram<u64>,
    /// From before the create until the delete is answered.
    pub(crate) cycle: Histogram<u64>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

impl Seen {
    pub(crate) fn new() -> Self {
        // Three digits; the bounds are constants, so this cannot fail.
        let empty = || Histogram::new_with_bounds(1, HIGHEST_US, 3).unwrap_or_else(|_| unreachable!("constant bounds"));
        Self { acquire: empty(), cycle: empty(), errors: 0, first_error: None }
    }

    pub(crate) fn failed(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // The same bounds: nothing is lost.
        let _ = self.acquire.add(&other.acquire);
        let _ = self.cycle.add(&other.cycle);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or_else(|| other.first_error.clone());
    }
}

/// One lock: its directory, and the sequence number of its last holder. Those must rise.
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

/// Opens a session at one server, and makes the lock's directory.
pub(crate) async fn open(address: &str, lock: &Lock) -> Result<Client, Error> {
    let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT).with_connection_timeout(SESSION_TIMEOUT);
    let client = connector.connect(address).await?;
    client.mkdir(&lock.directory, DIRECTORY).await?;
    Ok(client)
}

/// Acquires and releases until the measurement is over. After a failure, which is counted, it goes on with a new session, so that
/// nothing of the old one is left in the queue.
pub(crate) async fn run(client: Client, address: String, lock: Lock, mut phase: watch::Receiver<Phase>) -> Seen {
    let mut seen = Seen::new();
    let mut over = phase.clone();
    let work = async {
        let mut session = Some(client);
        loop {
            let result = match session.take() {
                Some(client) => cycles(&client, &lock, &mut phase, &mut seen).await,
                None => {
                    open(&address, &lock).await.map(|client| session = Some(client)).map_err(|error| error.to_string())
                }
            };
            if let Err(why) = result {
                seen.failed(why);
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    };
    // Whoever waits then is cut off; closing its session takes its node away.
    tokio::select! {
        () = work => {}
        _ = over.wait_for(|phase| *phase == Phase::Over) => {}
    }
    seen
}

async fn cycles(
    client: &Client,
    lock: &Lock,
    phase: &mut watch::Receiver<Phase>,
    seen: &mut Seen,
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
        // A cycle counts where it ends: those that are under way when it begins make up for those at its end.
        if *phase.borrow() == Phase::Measure {
            seen.acquire.saturating_record(micros(acquired));
            seen.cycle.saturating_record(micros(began.elapsed()));
        }
    }
}

/// Gives the number of the own node once it is the first.
async fn acquire(client: &Client, directory: &str) -> Result<CreateSequence, String> {
    let (_, sequence) = client
        .create(&format!("{directory}/{PREFIX}"), b"", IN_QUEUE)
        .await
        .map_err(|error| format!("create: {error}"))?;
    let own = format!("{PREFIX}{sequence}");
    loop {
        let queue = client.list_children(directory).await.map_err(|error| format!("list: {error}"))?;
        if !queue.contains(&own) {
            return Err(format!("{own} is not in the list of its own directory"));
        }
        let Some(before) = before(&queue, &own) else { return Ok(sequence) };
        let watched = client.check_and_watch_stat(&format!("{directory}/{before}")).await;
        let (stat, watcher) = watched.map_err(|error| format!("exists: {error}"))?;
        if stat.is_some() {
            watcher.changed().await;
        }
    }
}

/// The one to wait for: the last before the own one. All names have one length.
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
    fn a_client_waits_for_the_one_right_before_it() {
        let queue = ["lock-0000000010", "lock-0000000009", "lock-0000000012"].map(ToOwned::to_owned);
        assert_eq!(before(&queue, "lock-0000000012"), Some("lock-0000000010"));
        assert_eq!(before(&queue, "lock-0000000009"), None);
    }
}
