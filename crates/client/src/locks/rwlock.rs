//! The read-write lock: many readers or one writer, in the order of their requests.

use std::time::Duration;

use lockkeeper_api::locks::Mode;

use super::guard::{Guard, kind};
use super::handle::{LockHandle, asking_options};
use super::request::LockRequest;
use crate::error::Error;
use crate::session::Session;

/// The guard of a reader.
pub type ReadGuard = Guard<kind::Read>;
/// The guard of a writer.
pub type WriteGuard = Guard<kind::Write>;

/// A read-write lock by its name. It is fair: a reader that asks after a writer waits for the writer, so that writers
/// do not starve; readers that are adjacent in the queue are granted together.
///
/// It is not reentrant: a reader that asks to write while it reads waits for itself. A writer becomes a reader without
/// releasing the lock by [`downgrade`](WriteGuard::downgrade). A Curator `InterProcessReadWriteLock` on `/locks/<name>`
/// waits in the same queue.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let prices = session.rw_lock("prices");
/// let writer = prices.write().await?;
/// let token = writer.token();
/// let reader = writer.downgrade().await?; // nobody wrote in between
/// assert_eq!(reader.token(), token);
/// let another = prices.read().await?;
/// assert!(prices.try_write().await?.is_none());
/// # reader.release().await?;
/// # another.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    reading: LockHandle,
    writing: LockHandle,
}

impl RwLock {
    pub(super) fn new(session: &Session, name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            reading: LockHandle::new(session, LockRequest::new(name.clone(), Mode::Shared)),
            writing: LockHandle::new(session, LockRequest::new(name, Mode::Write)),
        }
    }

    asking_options!(reading, writing);

    /// Waits to read, while the session lives. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.reading.wait().await
    }

    /// Takes the lock for reading if no writer holds it or waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.reading.try_once().await
    }

    /// Waits to read, at most that long.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn read_timeout(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        self.reading.wait_for(wait).await
    }

    /// Waits to write, while the session lives. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.writing.wait().await
    }

    /// Takes the lock for writing if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.writing.try_once().await
    }

    /// Waits to write, at most that long.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn write_timeout(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        self.writing.wait_for(wait).await
    }
}

impl WriteGuard {
    /// Becomes a reader; no other writer is granted in between. Readers that wait right behind are granted. The token
    /// stays the same.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was already lost; otherwise see [`Error`]. After any error the lock is released,
    /// whether the cluster had downgraded it or not.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        self.held().grant.downgrade().await?;
        Ok(self.into_kind())
    }
}
