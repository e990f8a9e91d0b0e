//! Several locks at once: all of them or none, in one transaction of the cluster.

use std::time::Duration;

use super::guard::{Guard, kind};
use super::handle::{LockHandle, asking_options};
use super::request::LockRequest;
use crate::error::Error;
use crate::session::Session;

/// Several locks that are held together.
pub type MultiGuard = Guard<kind::Together>;

/// From 1 to 256 locks that are acquired and released together.
///
/// The requests enter all queues at one point of the cluster's order. So two multi-locks never deadlock, whatever
/// names they share. While a multi-lock waits, it waits in all its queues, and the requests behind it wait as well.
/// All its locks have one token, which is larger than every earlier token of each of them.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let transfer = session.multi_lock(["accounts/7", "accounts/3"]);
/// let guard = transfer.lock().await?;
/// assert_eq!(guard.names().collect::<Vec<_>>(), ["accounts/3", "accounts/7"]);
/// // Show the one token to both accounts.
/// assert!(session.lock("accounts/3").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    handle: LockHandle,
}

impl MultiLock {
    pub(super) fn new(session: &Session, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { handle: LockHandle::new(session, LockRequest::together(names)) }
    }

    asking_options!(handle);

    /// Waits until all locks are held, while the session lives. Dropping the future cancels all requests.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.handle.wait().await
    }

    /// Takes all locks if each is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.handle.try_once().await
    }

    /// Waits until all locks are held, at most that long.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        self.handle.wait_for(wait).await
    }
}

impl MultiGuard {
    /// The names of the locks, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.held().grant.names()
    }
}
