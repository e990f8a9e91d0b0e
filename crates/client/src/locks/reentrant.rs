//! The reentrant lock: whoever holds it may take it again.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::locks::Mode;
use tokio::time::timeout_at;

use super::acquire::acquire;
use super::grant::Grant;
use super::guard::{Guard, kind};
use super::handle::{LockHandle, asking_options};
use super::owners::{Owner, Owners};
use super::request::{LockRequest, Wait};
use super::shared_queue::Hold;
use crate::error::Error;
use crate::session::Session;

/// One hold of a reentrant lock.
pub type ReentrantGuard = Guard<kind::Reentrant>;

/// A lock that its owner may take again while holding it; the cluster is asked the first time only, and given it back with the last
/// guard. All guards of one hold have one token.
///
/// The owner is the current tokio task, or, outside of tasks, the thread; [`lock_as`](Self::lock_as) names it instead. So the
/// branches of one `join!` or `select!` are *one* owner and do not exclude each other, and a task that is spawned while holding is
/// another and waits. Owners are those of one session, whichever handle they come through; owners of another session, in this
/// process or elsewhere, wait in the cluster's queue as for a [`Lock`](super::Lock), with which it shares its queue.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let ledger = session.reentrant("ledger");
/// let outer = ledger.lock().await?;
/// let inner = ledger.lock().await?; // the same task
/// assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
/// assert!(ledger.try_lock_as("somebody else").await?.is_none());
/// inner.release().await?; // one of two: the lock stays
/// outer.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    handle: LockHandle,
}

impl ReentrantLock {
    pub(super) fn new(session: &Session, name: impl Into<String>) -> Self {
        Self { handle: LockHandle::new(session, LockRequest::new(name, Mode::Exclusive)) }
    }

    asking_options!(handle);

    /// Takes the lock for the current task, again or for the first time.
    ///
    /// # Errors
    /// [`Error::Lost`] if this owner's hold was lost and some of its guards are still there; otherwise as
    /// [`Lock::lock`](super::Lock::lock).
    pub async fn lock(&self) -> Result<ReentrantGuard, Error> {
        self.wait(Owner::current()).await
    }

    /// Takes it for the current task if that holds it already, or nobody holds it or waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::current(), Wait::Try).await
    }

    /// Takes it for the current task, waiting for so long at most.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::current(), Wait::lasting(wait)).await
    }

    /// Takes it for an owner by that name, such as an order or a request that several tasks work on.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_as(&self, owner: impl AsRef<str>) -> Result<ReentrantGuard, Error> {
        self.wait(Owner::Named(owner.as_ref().into())).await
    }

    /// Takes it for an owner by that name if that owner holds it already, or nobody holds it or waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock_as(&self, owner: impl AsRef<str>) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::Named(owner.as_ref().into()), Wait::Try).await
    }

    /// Takes it for an owner by that name, waiting for so long at most.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout_as(
        &self,
        owner: impl AsRef<str>,
        wait: Duration,
    ) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::Named(owner.as_ref().into()), Wait::lasting(wait)).await
    }

    async fn wait(&self, owner: Owner) -> Result<ReentrantGuard, Error> {
        loop {
            if let Some(guard) = self.enter(owner.clone(), Wait::Endless).await? {
                return Ok(guard);
            }
        }
    }

    async fn enter(&self, owner: Owner, wait: Wait) -> Result<Option<ReentrantGuard>, Error> {
        let LockHandle { session, request } = &self.handle;
        let slot = session.extension::<Owners<Grant>>().slot(&request.first, &owner);
        // Somebody may be asking for the same owner at this moment; what comes of that is this one's as well.
        let mut hold = match wait {
            Wait::Try => match slot.try_lock() {
                Ok(hold) => hold,
                Err(_) => return Ok(None),
            },
            Wait::Until(at) => match timeout_at(at, slot.lock()).await {
                Ok(hold) => hold,
                Err(_) => return Ok(None),
            },
            Wait::Endless => slot.lock().await,
        };
        if let Some(grant) = hold.upgrade() {
            return match grant.loss() {
                None => Ok(Some(guard(grant))),
                Some(because) => Err(Error::Lost(because)),
            };
        }
        let Some(grant) = acquire(session, request, wait).await? else { return Ok(None) };
        let grant = Arc::new(grant);
        *hold = Arc::downgrade(&grant);
        Ok(Some(guard(grant)))
    }
}

fn guard(grant: Arc<Grant>) -> ReentrantGuard {
    Guard::new(Hold::share(grant))
}

impl ReentrantGuard {
    /// How many guards the owner has of this hold, this one included. The last that goes gives the lock back.
    pub fn hold_count(&self) -> usize {
        Arc::strong_count(&self.held().grant)
    }
}
