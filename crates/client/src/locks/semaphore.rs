//! The semaphore: a bounded number of holders at a time.

use std::time::Duration;

use lockkeeper_api::locks::Mode;

use super::guard::{Guard, kind};
use super::handle::{LockHandle, asking_options};
use super::request::LockRequest;
use crate::error::Error;
use crate::session::Session;

/// A permit of a semaphore.
pub type Permit = Guard<kind::Counted>;

/// A semaphore by its name and number of permits, from 1 to 1,000. Permits are granted first come first served, and
/// each released permit wakes one waiter.
///
/// All holders and waiters state the same number. While there is one, another number is refused with
/// [`LockMismatch`](lockkeeper_api::Code::LockMismatch), and so is a plain lock of the same name. The tokens of
/// concurrent holders differ and are not ordered: by a token a resource can [verify](crate::Client::verify) that its
/// holder still holds a permit, not that it is the only holder.
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

    /// Waits for a permit, while the session lives. Dropping the future cancels the request.
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

    /// Waits for a permit, at most that long.
    ///
    /// # Errors
    /// As [`Lock::lock`](super::Lock::lock).
    pub async fn acquire_timeout(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.handle.wait_for(wait).await
    }
}
