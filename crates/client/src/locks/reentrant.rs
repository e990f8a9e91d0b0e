//! The reentrant lock: its holder may take it again.

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

/// A lock that its owner may take again while holding it. Only the first time sends a request to the cluster, and the
/// drop of the last guard releases the lock. All guards of one hold have the same token.
///
/// The owner is the current tokio task, or the thread outside of tasks; [`lock_as`](Self::lock_as) names another
/// owner. So the branches of one `join!` or `select!` are *one* owner and do not exclude each other, and a task that
/// is spawned while holding is another owner and waits. All handles of a session share its owners; owners of another
/// session, in this process or elsewhere, wait in the cluster's queue as for a [`Lock`](super::Lock), which uses the
/// same queue.
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
    /// [`Error::Lost`] if this owner's hold was lost and some of its guards still exist; otherwise as
    /// [`Lock::lock`](super::Lock::lock).
    pub async fn lock(&self) -> Result<ReentrantGuard, Error> {
        self.wait(Owner::current()).await
    }

    /// Takes the lock for the current task if the task already holds it, or if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::current(), Wait::Try).await
    }

    /// Takes the lock for the current task, waiting at most that long.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::current(), Wait::lasting(wait)).await
    }

    /// Takes the lock for a named owner, such as an order or a request that several tasks work on.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_as(&self, owner: impl AsRef<str>) -> Result<ReentrantGuard, Error> {
        self.wait(Owner::Named(owner.as_ref().into())).await
    }

    /// Takes the lock for a named owner if the owner already holds it, or if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock_as(&self, owner: impl AsRef<str>) -> Result<Option<ReentrantGuard>, Error> {
        self.enter(Owner::Named(owner.as_ref().into()), Wait::Try).await
    }

    /// Takes the lock for a named owner, waiting at most that long.
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
        // Another call for the same owner may be asking at this moment; this call then shares its grant.
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
    /// How many guards the owner has of this hold, this one included. The drop of the last one releases the lock.
    pub fn hold_count(&self) -> usize {
        Arc::strong_count(&self.held().grant)
    }
}
