//! A lock that does not queue: it tries, and tries again after a pause.

use std::time::Duration;

use lockkeeper_api::locks::Mode;
use rand::Rng;
use tokio::time::sleep;

use super::guard::Guard;
use super::handle::{LockHandle, asking_options};
use super::request::{LockRequest, Wait};
use crate::error::Error;
use crate::session::Session;

/// A shorter pause would load the cluster without a gain.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The pause between attempts. It doubles after each attempt, up to a bound; the actual pause is random between half
/// of it and all of it, so that clients that failed together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first attempt.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(10), longest: Duration::from_secs(1) }
    }
}

impl Backoff {
    /// The pause after that many attempts, from 1; `chance` is from 0 to 1.
    fn pause(&self, attempts: u32, chance: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let whole = self.first.max(SHORTEST_PAUSE).saturating_mul(1 << doublings).min(self.longest);
        whole.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0).max(SHORTEST_PAUSE)
    }
}

/// A lock that leaves its queue between attempts.
///
/// It is not fair: the client that tries at the right moment gets the lock, waiters in the queue go first, and an
/// unlucky client may wait for ever. Use it for work that may be skipped or done later; otherwise use
/// [`Lock`](super::Lock), which costs the cluster less.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::locks::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(200) };
/// let nightly = session.spin_lock("nightly-report", backoff);
/// match nightly.lock_timeout(Duration::from_secs(1)).await? {
///     Some(guard) => guard.release().await?,
///     None => println!("another process does it"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SpinLock {
    handle: LockHandle,
    backoff: Backoff,
}

impl SpinLock {
    pub(super) fn new(session: &Session, name: impl Into<String>, backoff: Backoff) -> Self {
        Self { handle: LockHandle::new(session, LockRequest::new(name, Mode::Exclusive)), backoff }
    }

    asking_options!(handle);

    /// Tries until it gets the lock or the session is lost.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn lock(&self) -> Result<Guard, Error> {
        loop {
            if let Some(guard) = self.spin(Wait::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Tries once.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.handle.try_once().await
    }

    /// Tries at most that long, and at least once.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.spin(Wait::lasting(wait)).await
    }

    async fn spin(&self, wait: Wait) -> Result<Option<Guard>, Error> {
        let mut attempts = 0_u32;
        loop {
            if let Some(guard) = self.handle.try_once().await? {
                return Ok(Some(guard));
            }
            if wait.is_over() {
                return Ok(None);
            }
            attempts = attempts.saturating_add(1);
            let pause = self.backoff.pause(attempts, rand::rng().random_range(0.0..1.0));
            sleep(wait.left(pause)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_vary_by_half() {
        let backoff = Backoff { first: Duration::from_millis(10), longest: Duration::from_millis(300) };
        let millis = |tries, chance| backoff.pause(tries, chance).as_millis();
        assert_eq!((1..=7).map(|tries| millis(tries, 1.0)).collect::<Vec<_>>(), [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((1..=7).map(|tries| millis(tries, 0.0)).collect::<Vec<_>>(), [5, 10, 20, 40, 80, 150, 150]);
        assert_eq!(millis(u32::MAX, 1.0), 300);
        assert_eq!(millis(0, 7.0), 10);
    }

    #[test]
    fn no_setting_makes_it_hammer_or_hang() {
        for (first, longest) in
            [(Duration::ZERO, Duration::ZERO), (Duration::MAX, Duration::MAX), (Duration::from_secs(1), Duration::ZERO)]
        {
            for tries in [0, 1, 40, u32::MAX] {
                let pause = Backoff { first, longest }.pause(tries, 0.0);
                assert!(
                    pause >= SHORTEST_PAUSE && pause <= longest.max(SHORTEST_PAUSE),
                    "{first:?} {longest:?} {tries}"
                );
            }
        }
    }
}
