//! The plain lock: one holder at a time, first come first served.

use std::time::Duration;

use lockkeeper_api::locks::Mode;

use super::guard::Guard;
use super::handle::{LockHandle, asking_options};
use super::local_queue::Sharing;
use super::request::{LockRequest, Wait};
use super::shared_queue::SharedQueues;
use crate::error::Error;
use crate::session::Session;

/// A lock by its name. Making one asks nothing of the cluster.
///
/// It is not reentrant: whoever asks again while holding waits for themselves, through this handle or another, until the
/// wait is over. Two guards of one lock in one process exclude each other like those of two processes;
/// [`ReentrantLock`](super::ReentrantLock) is for those who want otherwise.
///
/// A Curator `InterProcessMutex` on `/locks/<name>` stands in the same queue.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let lock = session.lock("orders/42").label("billing");
/// let guard = lock.lock().await?;
/// // The resource remembers the largest token and refuses smaller ones, in the same step as the write.
/// let written = guard.run(async { format!("write with token {}", guard.token()) }).await?;
/// assert!(lock.try_lock().await?.is_none(), "held");
/// guard.release().await?;
/// # assert!(written.starts_with("write"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    handle: LockHandle,
    sharing: Option<Sharing>,
}

impl Lock {
    pub(super) fn new(session: &Session, name: impl Into<String>) -> Self {
        Self { handle: LockHandle::new(session, LockRequest::new(name, Mode::Exclusive)), sharing: None }
    }

    asking_options!(handle);

    /// Lets this process' waiters have one place in the cluster's queue in common. Without this each has its own.
    ///
    /// A guard that goes may then be followed by the next waiter of this session without asking the cluster, first come first served
    /// among those here, until the grant has been passed on [`max_passes`](Sharing::max_passes) times or is older than
    /// [`max_time`](Sharing::max_time), whichever comes first. Then it is given back, and those who still wait here queue
    /// behind everyone who waits elsewhere by that time. It is given back at once when nobody waits here.
    ///
    /// All guards of one grant have the same **token**: it names this process' grant, and orders this process' writes
    /// against those of others. The writes of one turn and the next are ordered by this process alone: end a turn (and its
    /// writes) before its guard goes. A loss reaches whoever has the guard, and those who wait ask anew.
    ///
    /// It is the handles of one session with the same name, delay and caps that share; the request in the cluster's queue has the
    /// label of the first. A turn is never cut short: the caps say when the lock is passed on, not how long a guard may be kept.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
    /// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
    /// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
    /// use lockkeeper_client::Sharing;
    /// use std::time::Duration;
    ///
    /// let sharing = Sharing { max_passes: 20, max_time: Duration::from_millis(50) };
    /// let lock = session.lock("cache/refill").shared_in_process(sharing);
    /// let tasks = (0..8).map(|_| {
    ///     let lock = lock.clone();
    ///     tokio::spawn(async move { lock.lock().await?.release().await })
    /// });
    /// for task in tasks.collect::<Vec<_>>() {
    ///     task.await??;
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn shared_in_process(self, sharing: Sharing) -> Self {
        Self { sharing: Some(sharing), ..self }
    }

    /// Waits for the lock in its queue for as long as the session lives.
    ///
    /// Dropping the future takes the request out of the queue, and gives the lock back should it have come at that moment.
    /// A wait of more than 10 minutes is asked for in pieces and keeps its place, except where a change of node falls into the
    /// hand-over from one piece to the next: then it queues anew.
    ///
    /// # Errors
    /// [`Error::Lost`] if the session was lost while waiting; otherwise see [`Error`].
    pub async fn lock(&self) -> Result<Guard, Error> {
        loop {
            if let Some(guard) = self.acquire(Wait::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if nobody holds it and nobody waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.acquire(Wait::Try).await
    }

    /// Waits for the lock for so long at most. Finding a node that serves may come on top.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.acquire(Wait::lasting(wait)).await
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<Guard>, Error> {
        let Some(sharing) = self.sharing else { return self.handle.acquire(wait).await };
        let LockHandle { session, request } = &self.handle;
        let queue = session.extension::<SharedQueues>().queue(session, request, sharing);
        Ok(queue.acquire(wait).await?.map(Guard::new))
    }
}
