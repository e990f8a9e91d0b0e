//! The guard: the right to act, for as long as it lasts.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::shared_queue::Hold;
use crate::error::Error;

/// What kinds of guard there are. The kind says what a guard can do beyond what all can.
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
    pub enum Permit {}
    /// Of a [`MultiLock`](crate::locks::MultiLock).
    #[derive(Debug)]
    pub enum Together {}
    /// Of a [`ReentrantLock`](crate::locks::ReentrantLock).
    #[derive(Debug)]
    pub enum Reentrant {}
}

/// A lock that is held.
///
/// **The guard protects nothing by itself.** A process can be paused for longer than its session lives, and then the cluster
/// gives the lock to another. The guard tells ([`lost`](Self::lost), [`is_lost`](Self::is_lost)) before that happens, on this
/// machine's monotonic clock; but what was sent before a pause arrives after it. So show [`token`](Self::token) to the resource
/// with each write, and have the resource refuse a token that is smaller than one it has seen. A guard derefs to nothing, so that
/// nobody takes it for a [`std::sync::MutexGuard`].
///
/// Dropping it gives the lock back in the background. [`release`](Self::release) says what came of that.
///
/// If the lock is lost, its guard stays what it is, a value that says so. Dropping it then harms nobody's later grant.
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
#[must_use = "the lock is given back as soon as its guard is dropped"]
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

    /// The point of the cluster's order at which it was known to hold, for those who compare what several were told.
    pub fn zxid(&self) -> u64 {
        self.held.grant.zxid()
    }

    /// The lock; the first in the order of their names where several are held together.
    pub fn name(&self) -> &str {
        self.held.grant.name()
    }

    /// Completes, with the reason, when the lock is lost: its session can no longer be relied on, or it was taken away by force.
    /// The latter is told over the session's stream only. Does not borrow the guard, and goes on after it has been given back.
    pub fn lost(&self) -> impl Future<Output = String> + Send + use<K> {
        self.held.grant.lost()
    }

    /// Whether it is lost, by the clock and by what the cluster has told.
    pub fn is_lost(&self) -> bool {
        self.held.grant.loss().is_some()
    }

    /// How long it is sure to be held from now on, if no further keepalive is acknowledged. Zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.held.grant.remaining()
    }

    /// Runs `work` for as long as the lock is held. When the lock is lost `work` is dropped where it stands, and never polled
    /// again: the clock is looked at before each poll, so that a process that wakes from a long pause does not go on.
    ///
    /// Dropping cannot call back what `work` has sent already, and does not end tasks or threads that it has started.
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

    /// Gives the lock back and waits until that is certain.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was not held any more: what was done under it may have been done beside another. With
    /// [`Error::UnknownOutcome`] and [`Error::Unreachable`] giving it back goes on in the background until the cluster has
    /// answered or the session is over; so it does if this future is dropped.
    pub async fn release(self) -> Result<(), Error> {
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
