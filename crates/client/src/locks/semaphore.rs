//! The semaphore: so many holders at a time.

use std::time::Duration;

use lockkeeper_api::locks::Mode;

use super::guard::{Guard, kind};
use super::handle::{LockHandle, asking_options};
use super::request::LockRequest;
use crate::error::Error;
use crate::session::Session;

/// One of a semaphore's permits.
pub type Permit = Guard<kind::Permit>;

/// A semaphore by its name and number of permits, from 1 to 1,000. First come first served, and one waiter is woken for each permit
/// that comes free.
///
/// Everyone in the queue states the same number; another number is refused with
/// [`LockMismatch`](lockkeeper_api::Code::LockMismatch) for as long as somebody stands there, and so is a plain lock of the same
/// name. The tokens of those who hold at the same time differ and come in no order: a resource can tell by them that a holder is
/// [over](crate::Client::verify), not that it is the only one.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let licences = session.semaphore("licences", 2);
/// let (one, two) = (licences.acquire().await?, licences.acquire().await?);
/// assert!(licences.try_acquire().await?.is_none());
/// one.release().await?;
/// let three = licences.acquire().await?;
/// # two.release().await?;
/// # three.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    handle: LockHandle,
}

impl Semaphore {
    pub(super) fn new(session: &Session, name: impl Into<String>, permits: u16) -> Self {
        let request = LockRequest { permits: Some(permits), ..LockRequest::new(name, Mode::Permit) };
        Self { handle: LockHandle::new(session, request) }
    }

    asking_options!(handle);

    /// Waits for a permit, for as long as the session lives. Dropping the future withdraws.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn acquire(&self) -> Result<Permit, Error> {
        self.handle.wait().await
    }

    /// Takes a permit if one is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.handle.try_once().await
    }

    /// Waits for a permit, for so long at most.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn acquire_timeout(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.handle.wait_for(wait).await
    }
}
