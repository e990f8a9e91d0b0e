//! A lease that renews itself, and says when it is over.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_client::{Moment, safety_margin};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::capability::Capability;
use crate::engine::{FencingEngine, Lease, LockEngine, LockRequest, Protection};
use crate::error::EngineError;

/// The clock is read at least this often: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);
const SHORTEST_NAP: Duration = Duration::from_millis(1);

/// Acquires the locks of the request and renews them in the background, every third of the lease. `None` if the wait is
/// over before that.
///
/// # Errors
/// See [`EngineError`].
pub async fn lock(engine: Arc<dyn LockEngine>, request: &LockRequest) -> Result<Option<Guard>, EngineError> {
    request.check(engine.name(), engine.capabilities())?;
    Ok(engine.acquire(request).await?.map(|lease| Guard::new(engine, lease)))
}

/// The same for work that needs a fencing token.
///
/// An engine without tokens does not compile here:
///
/// ```compile_fail
/// # async fn example(engine: std::sync::Arc<dyn lockkeeper_engines::LockEngine>) {
/// let request = lockkeeper_engines::LockRequest::new("orders/42");
/// lockkeeper_engines::lock_fenced(engine, &request).await;
/// # }
/// ```
///
/// # Errors
/// See [`EngineError`].
pub async fn lock_fenced<E: FencingEngine>(
    engine: Arc<E>,
    request: &LockRequest,
) -> Result<Option<FencedGuard>, EngineError> {
    let Some(guard) = lock(engine, request).await? else { return Ok(None) };
    let token = guard.token()?;
    Ok(Some(FencedGuard { guard, token }))
}

/// What the renewing task and the guard know of the lease.
#[derive(Clone, Debug)]
enum Standing {
    Until(Moment),
    Over(String),
}

/// A held lock of any engine. The drop of the guard releases the lock in the background.
///
/// **The guard protects nothing by itself**: a process can be paused for longer than its lease. Only a resource that
/// checks the fencing token can refuse a late write.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard {
    engine: Arc<dyn LockEngine>,
    lease: Lease,
    standing: watch::Receiver<Standing>,
    renewal: AbortHandle,
    released: bool,
}

impl Guard {
    fn new(engine: Arc<dyn LockEngine>, lease: Lease) -> Self {
        let (sender, standing) = watch::channel(Standing::Until(lease.ends_at));
        let renewal = tokio::spawn(keep(engine.clone(), lease.clone(), sender)).abort_handle();
        Self { engine, lease, standing, renewal, released: false }
    }

    /// The fencing token of the first lock, which is the only one in most requests.
    ///
    /// # Errors
    /// [`EngineError::Missing`] if the engine has none.
    pub fn token(&self) -> Result<u64, EngineError> {
        self.lease.token().ok_or_else(|| self.has_no_token())
    }

    /// The fencing token of that lock.
    ///
    /// # Errors
    /// [`EngineError::Missing`] if the engine has none; [`EngineError::Refused`] if the guard does not hold that lock.
    pub fn token_of(&self, lock: &str) -> Result<u64, EngineError> {
        if !self.lease.locks.iter().any(|held| held == lock) {
            return Err(EngineError::Refused(format!("the guard does not hold the lock {lock:?}")));
        }
        self.lease.token_of(lock).ok_or_else(|| self.has_no_token())
    }

    fn has_no_token(&self) -> EngineError {
        EngineError::Missing { engine: self.engine.name().into(), capability: Capability::FencingToken }
    }

    /// The lease as it was granted.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The engine that granted it.
    pub fn engine(&self) -> &str {
        self.engine.name()
    }

    /// What keeps others from holding the lock at the same time. Not the engine, if it could not be reached and the
    /// caller had chosen to go on: see [`IfUnreachable`](crate::IfUnreachable).
    pub fn protection(&self) -> Protection {
        self.engine.protection(&self.lease)
    }

    /// How much longer the lock is sure to be held without a further renewal, less a margin for clocks that run at
    /// different speeds. Zero once it is lost.
    pub fn remaining(&self) -> Duration {
        let margin = safety_margin(self.lease.length);
        match &*self.standing.borrow() {
            Standing::Until(ends_at) => Moment::now().until(*ends_at).saturating_sub(margin),
            Standing::Over(_) => Duration::ZERO,
        }
    }

    /// Whether the lock is lost, by the clock and by the engine's reports.
    pub fn is_lost(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Completes, with the reason, when the lock is lost.
    pub fn lost(&self) -> impl Future<Output = String> + Send + use<> {
        let mut standing = self.standing.clone();
        async move {
            loop {
                if let Standing::Over(because) = &*standing.borrow_and_update() {
                    return because.clone();
                }
                // After a release nobody reports any more.
                if standing.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Runs `work` while the lock is held. When the lock is lost, `work` is dropped and never polled again: the clock
    /// is read before each poll, so that a process that wakes from a long pause does not continue.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the lock was lost before `work` was done, or by the time it was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, EngineError> {
        let (mut lost, mut work) = (pin!(self.lost()), pin!(work));
        let over = || EngineError::Lost("its lease is over".into());
        poll_fn(|context| {
            if let Poll::Ready(because) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(EngineError::Lost(because)));
            }
            if self.is_lost() {
                return Poll::Ready(Err(over()));
            }
            let Poll::Ready(done) = work.as_mut().poll(context) else { return Poll::Pending };
            Poll::Ready(if self.is_lost() { Err(over()) } else { Ok(done) })
        })
        .await
    }

    /// Releases the lock and waits until that is certain.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the lock was lost before: another holder may have acted at the same time.
    pub async fn release(mut self) -> Result<(), EngineError> {
        self.renewal.abort();
        let released = self.engine.release(&self.lease).await;
        self.released = true;
        released
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.renewal.abort();
        if self.released {
            return;
        }
        let (engine, lease) = (self.engine.clone(), self.lease.clone());
        // Without a runtime the lock is free after its lease.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = engine.release(&lease).await {
                    tracing::debug!(%error, locks = ?lease.locks, "lock left to the end of its lease");
                }
            });
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("engine", &self.engine.name()).field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// Renews the lease every third of its length, until it is over. Dropped with its guard.
async fn keep(engine: Arc<dyn LockEngine>, lease: Lease, standing: watch::Sender<Standing>) {
    let (mut ends_at, length) = (lease.ends_at, lease.length);
    let (margin, retry) = (safety_margin(length), (length / 20).clamp(SHORTEST_NAP, LONGEST_NAP));
    let mut pause = Duration::ZERO;
    let mut reported = pin!(engine.lost(&lease));
    let because = loop {
        let left = Moment::now().until(ends_at).saturating_sub(margin);
        if left.is_zero() {
            break "its lease is over, and no renewal was acknowledged".to_owned();
        }
        let due = (left + margin).saturating_sub(length * 2 / 3).max(pause).max(SHORTEST_NAP);
        let nap = due.min(LONGEST_NAP).min(left);
        tokio::select! {
            because = &mut reported => break because,
            () = sleep(nap) => {}
        }
        if nap < due {
            continue;
        }
        pause = Duration::ZERO;
        let left = Moment::now().until(ends_at).saturating_sub(margin);
        tokio::select! {
            because = &mut reported => break because,
            renewed = engine.renew(&lease) => match renewed {
                Ok(later) if later > ends_at => {
                    ends_at = later;
                    standing.send_replace(Standing::Until(later));
                }
                Err(EngineError::Lost(because)) => break because,
                // Tried again while the lease lasts.
                other => {
                    tracing::debug!(?other, engine = engine.name(), "lease not renewed");
                    pause = retry;
                }
            },
            () = sleep(left) => {}
        }
    };
    standing.send_replace(Standing::Over(because));
}

/// A held lock that has a fencing token.
#[derive(Debug)]
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct FencedGuard {
    guard: Guard,
    token: u64,
}

impl FencedGuard {
    /// The fencing token: larger than that of every earlier grant of this lock. Show it to the resource.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the lock, as [`Guard::release`] does.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<(), EngineError> {
        self.guard.release().await
    }
}

impl std::ops::Deref for FencedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
