//! The clients of each system. Each repeats acquire and release of one lock by its system's documented recipe, with a
//! session of its own.

mod engine;
mod etcd;
mod etcd_messages;
mod lockkeeper;
mod redis;
mod zookeeper;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockkeeper_bench::{Cycles, PAUSE_AFTER_ERROR, Phase};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::system::{Kind, System};

/// Time limit for the end of a client's session.
const LONGEST_CLOSING: Duration = Duration::from_secs(10);

/// Result of one client or of several.
#[derive(Debug, Default)]
pub(crate) struct ClientResult {
    pub(crate) cycles: Cycles,
    /// Cycles whose lock another client had held before.
    pub(crate) hand_overs: u64,
}

impl ClientResult {
    pub(crate) fn add(&mut self, other: &Self) {
        self.cycles.add(&other.cycles);
        self.hand_overs += other.hand_overs;
    }
}

/// A lock, and the check that its holders exclude each other.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    name: String,
    is_held: Arc<AtomicBool>,
    last_token: Arc<AtomicI64>,
    last_holder: Arc<AtomicUsize>,
}

impl Lock {
    /// A lock that no client has used, of this name.
    pub(crate) fn new(name: String) -> Self {
        let (last_token, last_holder) = (Arc::new(AtomicI64::new(-1)), Arc::new(AtomicUsize::new(usize::MAX)));
        Self { name, is_held: Arc::default(), last_token, last_holder }
    }

    /// The client of this number holds it; whether another one held it before.
    fn note_acquired(&self, client: usize, token: Option<i64>) -> Result<bool, String> {
        if self.is_held.swap(true, Ordering::SeqCst) {
            return Err(format!("two clients held {} at once", self.name));
        }
        let last = token.map_or(-1, |token| self.last_token.fetch_max(token, Ordering::SeqCst));
        if let Some(token) = token.filter(|token| last >= *token) {
            self.note_release();
            return Err(format!("{token} held {} after {last}", self.name));
        }
        Ok(self.last_holder.swap(client, Ordering::SeqCst) != client)
    }

    fn note_release(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }
}

/// A client of some system.
#[async_trait]
pub(crate) trait LockClient: Send {
    /// Waits for the lock. Gives the number that rises with each holder, if the system has one.
    async fn acquire(&mut self) -> Result<Option<i64>, String>;

    /// Gives the lock back, and waits for the answer.
    async fn release(&mut self) -> Result<(), String>;

    /// Ends the session, also in the middle of an acquire.
    async fn close(&mut self);
}

/// Opens the session of the client of this number.
pub(crate) async fn open(system: &System, number: usize, lock: &Lock) -> Result<Box<dyn LockClient>, String> {
    let address = &system.addresses[number % system.addresses.len()];
    let name = &lock.name;
    let opened = match system.kind {
        Kind::LockkeeperHttp => boxed(lockkeeper::HttpClient::open(system, address, name)).await,
        Kind::LockkeeperStream => boxed(lockkeeper::StreamClient::open(system, address, name)).await,
        Kind::LockkeeperZookeeper | Kind::Zookeeper => boxed(zookeeper::ZooKeeper::open(address, name)).await,
        Kind::Etcd => boxed(etcd::Etcd::open(address, name)).await,
        Kind::Redis | Kind::Redlock => boxed(redis::Redis::open(&system.addresses, name)).await,
        _ => boxed(engine::EngineClient::open(system, name)).await,
    };
    opened.map_err(|why| format!("no session at {address}: {why}"))
}

/// A client of any system, once it is open.
async fn boxed<C: LockClient + 'static>(
    opening: impl Future<Output = Result<C, String>>,
) -> Result<Box<dyn LockClient>, String> {
    Ok(Box::new(opening.await?))
}

/// Acquires and releases until the measurement ends. Counts a failure and continues with a new session, so that nothing
/// of the old one stays in the queue.
pub(crate) async fn run(
    client: Box<dyn LockClient>,
    (system, number): (Arc<System>, usize),
    lock: Lock,
    phase: watch::Receiver<Phase>,
) -> ClientResult {
    let mut result = ClientResult::default();
    let mut client = Some(client);
    let mut over = phase.clone();
    // A client that is still waiting is cancelled; its session ends, and with it its place in the queue.
    tokio::select! {
        () = work(&mut client, (&system, number), &lock, &phase, &mut result) => {}
        _ = over.wait_for(|phase| *phase == Phase::Done) => {}
    }
    if let Some(client) = &mut client {
        let _ = timeout(LONGEST_CLOSING, client.close()).await;
    }
    result
}

async fn work(
    client: &mut Option<Box<dyn LockClient>>,
    (system, number): (&System, usize),
    lock: &Lock,
    phase: &watch::Receiver<Phase>,
    result: &mut ClientResult,
) {
    loop {
        let outcome = match client {
            Some(client) => match cycles((&mut **client, number), lock, phase, result).await {
                Ok(()) => return,
                Err(why) => Err(why),
            },
            None => open(system, number, lock).await.map(|opened| *client = Some(opened)),
        };
        if let Err(why) = outcome {
            result.cycles.failed(why);
            if let Some(mut failed) = client.take() {
                let _ = timeout(LONGEST_CLOSING, failed.close()).await;
            }
            sleep(PAUSE_AFTER_ERROR).await;
        }
    }
}

/// Acquires and releases until the measurement ends.
async fn cycles(
    (client, number): (&mut dyn LockClient, usize),
    lock: &Lock,
    phase: &watch::Receiver<Phase>,
    result: &mut ClientResult,
) -> Result<(), String> {
    loop {
        let began = Instant::now();
        let token = client.acquire().await?;
        let acquired = began.elapsed();
        if *phase.borrow() == Phase::Done {
            // Another client may have been cancelled as the holder.
            return Ok(());
        }
        let is_hand_over = lock.note_acquired(number, token)?;
        // Other clients run meanwhile, so that a second holder is seen.
        tokio::task::yield_now().await;
        lock.note_release();
        client.release().await?;
        // A cycle counts if it ends in the measurement: those running at the start make up for those at the end.
        if *phase.borrow() == Phase::Measure {
            result.cycles.succeeded(acquired, began.elapsed());
            result.hand_overs += u64::from(is_hand_over);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_at_once_and_tokens_that_do_not_rise_are_errors() {
        let lock = Lock::new("a".into());
        assert!(lock.note_acquired(1, Some(3)).unwrap());
        assert_eq!(lock.note_acquired(2, Some(4)).unwrap_err(), "two clients held a at once");
        lock.note_release();
        assert_eq!(lock.note_acquired(2, Some(3)).unwrap_err(), "3 held a after 3");
        assert!(!lock.note_acquired(1, None).unwrap());
        lock.note_release();
        assert!(lock.note_acquired(2, None).unwrap());
    }
}
