//! The guard of a held lock.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::shared_queue::Hold;
use crate::error::Error;

/// The kinds of guards. Some kinds have methods of their own.
pub mod kind {
    /// Of a [`Lock`](crate::locks::Lock) or [`SpinLock`](crate::locks::SpinLock).
    #[derive(Debug)]
    pub enum Exclusive {}
    /// Of a reader of a [`RwLock`](crate::locks::RwLock).
    #[derive(Debug)]
    pub enum Read {}
    /// Of the writer of a [`RwLock`](crate::locks::RwLock).
    #[derive(Debug)]
    pub enum Write {}
    /// Of a [`Semaphore`](crate::locks::Semaphore).
    #[derive(Debug)]
    pub enum Counted {}
    /// Of a [`MultiLock`](crate::locks::MultiLock).
    #[derive(Debug)]
    pub enum Together {}
    /// Of a [`ReentrantLock`](crate::locks::ReentrantLock).
    #[derive(Debug)]
    pub enum Reentrant {}
}

/// A lock that is held.
///
/// **The guard protects nothing by itself.** A process can be paused for longer than its session lives, and then the
/// cluster grants the lock to another process. The guard reports the loss ([`lost`](Self::lost),
/// [`is_lost`](Self::is_lost)) before that happens, by this machine's monotonic clock; but a write that was sent
/// before a pause may arrive after it. So show [`token`](Self::token) to the resource with each write, and have the
/// resource refuse a token that is smaller than one it has seen. A guard does not deref to a value, so that it is not
/// taken for a [`std::sync::MutexGuard`].
///
/// Dropping the guard releases the lock in the background. [`release`](Self::release) returns the outcome.
///
/// The guard of a lost lock remains a value that reports the loss. Dropping it does not affect any later grant.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let guard = session.lock("reports").lock().await?;
/// let work = guard.run(async {
///     // `UPDATE reports SET …, token = $1 WHERE id = 7 AND token <= $1`
///     guard.token()
/// });
/// match work.await {
///     Ok(token) => println!("done under {token}"),
///     Err(lost) => println!("stopped: {lost}"),
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard<K = kind::Exclusive> {
    held: Hold,
    kind: PhantomData<fn() -> K>,
}

impl<K> Guard<K> {
    pub(crate) fn new(held: Hold) -> Self {
        Self { held, kind: PhantomData }
    }

    pub(super) fn held(&self) -> &Hold {
        &self.held
    }

    /// The same hold as a guard of another kind.
    pub(super) fn into_kind<L>(self) -> Guard<L> {
        Guard::new(self.held)
    }

    /// The fencing token: larger than that of every earlier grant of this lock. Show it to the resource.
    pub fn token(&self) -> u64 {
        self.held.grant.token()
    }

    /// A zxid at which the lock was held, for comparing the answers that several processes got.
    pub fn zxid(&self) -> u64 {
        self.held.grant.zxid()
    }

    /// The lock's name; the first in alphabetical order where several locks are held together.
    pub fn name(&self) -> &str {
        self.held.grant.name()
    }

    /// Completes, with the reason, when the lock is lost: its session can no longer be relied on, or the lock was
    /// taken away by force (which only the session's stream reports). Does not borrow the guard, and remains pending
    /// after a release.
    pub fn lost(&self) -> impl Future<Output = String> + Send + use<K> {
        self.held.grant.lost()
    }

    /// Whether the lock is lost, by the clock and by the reports of the cluster.
    pub fn is_lost(&self) -> bool {
        self.held.grant.loss().is_some()
    }

    /// How much longer the lock is sure to be held if no further keepalive is acknowledged. Zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.held.grant.remaining()
    }

    /// Runs `work` while the lock is held. When the lock is lost, `work` is dropped and never polled again: the clock
    /// is read before each poll, so that a process that wakes from a long pause does not continue.
    ///
    /// Dropping cannot undo a write that `work` has sent, and does not end tasks or threads that it has started.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before `work` was done, or by the time it was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let (mut lost, mut work) = (pin!(self.lost()), pin!(work));
        poll_fn(|context| {
            if let Poll::Ready(because) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::Lost(because)));
            }
            if let Some(because) = self.held.grant.loss() {
                return Poll::Ready(Err(Error::Lost(because)));
            }
            let Poll::Ready(done) = work.as_mut().poll(context) else { return Poll::Pending };
            Poll::Ready(match self.held.grant.loss() {
                None => Ok(done),
                Some(because) => Err(Error::Lost(because)),
            })
        })
        .await
    }

    /// Releases the lock and waits until that is certain.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was already lost: another holder may have acted at the same time. After
    /// [`Error::UnknownOutcome`] and [`Error::Unreachable`] the release goes on in the background until the cluster has
    /// answered or the session is over; so it does if this future is dropped.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release().await.map(drop)
    }

    /// The same. Returns how often the session still holds the lock because somebody who uses the session, perhaps
    /// another process, has re-entered it (`reentrant` of the HTTP API). The session must then stay open until they
    /// have released it too.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub async fn release_counted(self) -> Result<u32, Error> {
        self.held.release().await
    }
}

impl<K> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Guard");
        shown.field("name", &self.name()).field("token", &self.token());
        shown.field("remaining", &self.remaining()).finish()
    }
}
