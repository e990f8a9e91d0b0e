//! The read-write lock: many readers or one writer, in the order in which they asked.

use std::time::Duration;

use lockkeeper_api::locks::Mode;

use super::guard::{Guard, kind};
use super::handle::{LockHandle, asking_options};
use super::request::LockRequest;
use crate::error::Error;
use crate::session::Session;

/// Shared with other readers.
pub type ReadGuard = Guard<kind::Read>;
/// Held alone.
pub type WriteGuard = Guard<kind::Write>;

/// A read-write lock by its name. Fair: a reader that asks after a writer waits for it, so that writers do not starve; readers that
/// stand together in the queue are granted together.
///
/// Not reentrant: a reader that asks to write while it reads waits for itself. A writer becomes a reader without letting go by
/// [`downgrade`](WriteGuard::downgrade). A Curator `InterProcessReadWriteLock` on `/locks/<name>` stands in the same queue.
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

    /// Waits to read, for as long as the session lives. Dropping the future withdraws.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.reading.wait().await
    }

    /// Reads if no writer holds it or waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.reading.try_once().await
    }

    /// Waits to read, for so long at most.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn read_timeout(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        self.reading.wait_for(wait).await
    }

    /// Waits to write, for as long as the session lives. Dropping the future withdraws.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.writing.wait().await
    }

    /// Writes if nobody holds it or waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.writing.try_once().await
    }

    /// Waits to write, for so long at most.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn write_timeout(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        self.writing.wait_for(wait).await
    }
}

impl WriteGuard {
    /// Becomes a reader without anybody coming between. Readers that wait right behind are granted; the token stays as it is.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was not held any more; otherwise see [`Error`]. In any case the lock is then given back, whether the
    /// cluster had made it a reader's or not.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        self.held().grant.downgrade().await?;
        Ok(self.into_kind())
    }
}
