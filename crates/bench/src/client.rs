//! A client of any system: it repeats acquire and release of one lock, by its system's documented recipe.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use crate::BenchError;
use crate::cycles::ClientResult;
use crate::pace::{Beginning, Pace};

/// Pause of a client after a failed cycle.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// Time limit for the end of a client's session.
const LONGEST_CLOSING: Duration = Duration::from_secs(10);

/// A system whose locks are measured. Its text names it in errors.
#[async_trait]
pub trait LockSystem: fmt::Display + Send + Sync {
    /// Opens the client of this number, for the lock of this name.
    ///
    /// # Errors
    /// The system cannot be used.
    async fn open(&self, number: usize, lock: &str) -> Result<Box<dyn LockClient>, BenchError>;

    /// The system's processes on this machine, whose use of it is counted.
    fn server_pids(&self) -> &[u32];
}

/// A client of some system, with a session of its own.
#[async_trait]
pub trait LockClient: Send {
    /// Waits for the lock. Gives the number that rises with each holder, if the system has one.
    ///
    /// # Errors
    /// The system's. The client is closed then.
    async fn acquire(&mut self) -> Result<Option<u64>, String>;

    /// Gives the lock back, and waits for the answer.
    ///
    /// # Errors
    /// The system's. The client is closed then.
    async fn release(&mut self) -> Result<(), String>;

    /// Whether the client sends its release together with its next acquire, by [`Self::release_and_acquire`].
    fn overlaps(&self) -> bool {
        false
    }

    /// Gives the lock back and waits for it again. Says when the release is answered.
    ///
    /// # Errors
    /// The system's. The client is closed then.
    async fn release_and_acquire(&mut self, released: &mut (dyn FnMut() + Send)) -> Result<Option<u64>, String> {
        self.release().await?;
        released();
        self.acquire().await
    }

    /// Ends the session, also in the middle of an acquire.
    async fn close(&mut self);
}

/// A lock, and the check that its holders exclude each other.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) name: String,
    is_held: Arc<AtomicBool>,
    /// A token is not less.
    least_token: Arc<AtomicU64>,
    last_holder: Arc<AtomicUsize>,
}

impl Lock {
    /// A lock that no client has used, of this name.
    pub(crate) fn new(name: String) -> Self {
        let last_holder = Arc::new(AtomicUsize::new(usize::MAX));
        Self { name, is_held: Arc::default(), least_token: Arc::default(), last_holder }
    }

    /// The client of this number holds it; whether another one held it before.
    fn note_acquired(&self, client: usize, token: Option<u64>, result: &mut ClientResult) -> Result<bool, String> {
        if self.is_held.swap(true, Ordering::SeqCst) {
            return Err(format!("two clients held {} at once", self.name));
        }
        if let Some(token) = token {
            let least = self.least_token.fetch_max(token.saturating_add(1), Ordering::SeqCst);
            result.tokens_not_rising += u64::from(token < least);
        }
        Ok(self.last_holder.swap(client, Ordering::SeqCst) != client)
    }

    fn note_release(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }
}

/// One client at work: its lock, its number and its pace.
pub(crate) struct Worker {
    pub(crate) system: Arc<dyn LockSystem>,
    pub(crate) number: usize,
    pub(crate) lock: Lock,
    pub(crate) pace: Pace,
}

/// A cycle whose lock is held.
struct Turn {
    began: Beginning,
    acquired: Duration,
    is_hand_over: bool,
}

impl Worker {
    /// Acquires and releases until the measurement ends. Counts a failure and continues with a new session, so that
    /// nothing of the old one stays in the queue.
    /// The client is still to be [closed](close).
    pub(crate) async fn run(self, client: Box<dyn LockClient>) -> (ClientResult, Option<Box<dyn LockClient>>) {
        let mut result = ClientResult::default();
        let mut client = Some(client);
        // A client that is cancelled while it waits ends its session, and with it its place in the queue.
        tokio::select! {
            () = self.work(&mut client, &mut result) => {}
            () = self.pace.cut_off() => {}
        }
        (result, client)
    }

    async fn work(&self, client: &mut Option<Box<dyn LockClient>>, result: &mut ClientResult) {
        loop {
            let outcome = match client {
                Some(open) => self.cycles(&mut **open, result).await,
                None => match self.system.open(self.number, &self.lock.name).await {
                    Ok(opened) => {
                        *client = Some(opened);
                        Ok(())
                    }
                    Err(error) => Err(error.to_string()),
                },
            };
            if let Err(why) = outcome {
                result.cycles.failed(why);
                close(client.take()).await;
                sleep(PAUSE_AFTER_ERROR).await;
            }
            if self.pace.is_over() {
                return;
            }
        }
    }

    /// Acquires and releases until the measurement ends.
    async fn cycles(&self, client: &mut dyn LockClient, result: &mut ClientResult) -> Result<(), String> {
        let overlaps = client.overlaps() && self.pace.is_closed_loop();
        let mut held: Option<Turn> = None;
        loop {
            let next = if held.is_some() && !overlaps { None } else { self.pace.next().await };
            let token = match (held.take(), next) {
                (None, None) => return Ok(()),
                (None, Some(_)) => client.acquire().await?,
                (Some(turn), None) => {
                    client.release().await?;
                    self.count(&turn, result);
                    None
                }
                (Some(turn), Some(_)) => client.release_and_acquire(&mut || self.count(&turn, result)).await?,
            };
            let Some(began) = next else { continue };
            let acquired = began.at.elapsed();
            if self.pace.is_cut_off() {
                // Another client may have been cancelled as the holder.
                return Ok(());
            }
            let is_hand_over = self.lock.note_acquired(self.number, token, result)?;
            // Other clients run meanwhile, so that a second holder is seen.
            tokio::task::yield_now().await;
            self.lock.note_release();
            held = Some(Turn { began, acquired, is_hand_over });
        }
    }

    fn count(&self, turn: &Turn, result: &mut ClientResult) {
        if self.pace.counts(turn.began) {
            result.cycles.succeeded(turn.acquired, turn.began.at.elapsed());
            result.hand_overs += u64::from(turn.is_hand_over);
        }
    }
}

pub(crate) async fn close(client: Option<Box<dyn LockClient>>) {
    if let Some(mut client) = client {
        let _ = timeout(LONGEST_CLOSING, client.close()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_at_once_and_tokens_that_do_not_rise_are_seen() {
        let (lock, mut result) = (Lock::new("a".into()), ClientResult::default());
        assert!(lock.note_acquired(1, Some(3), &mut result).unwrap());
        let twice = lock.note_acquired(2, Some(4), &mut result).unwrap_err();
        assert_eq!((twice.as_str(), result.tokens_not_rising), ("two clients held a at once", 0));
        lock.note_release();
        assert!(lock.note_acquired(2, Some(3), &mut result).unwrap());
        assert_eq!(result.tokens_not_rising, 1);
        lock.note_release();
        assert!(!lock.note_acquired(2, None, &mut result).unwrap());
        lock.note_release();
        assert!(lock.note_acquired(1, Some(4), &mut result).unwrap());
        assert_eq!(result.tokens_not_rising, 1);
    }
}
