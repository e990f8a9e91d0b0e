//! The plain lock: one holder at a time, first come first served.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::Mode;

use super::acquire::acquire;
use super::cleanup;
use super::guard::Guard;
use super::handle::{LockHandle, asking_options};
use super::local_queue::Sharing;
use super::request::{LockRequest, Wait};
use super::shared_queue::{Hold, SharedQueues};
use crate::error::Error;
use crate::session::{Session, SessionOptions, Transport};

/// A lock by its name. Creating the handle sends no request.
///
/// The lock is not reentrant: a holder that asks for it again, through this handle or another, waits for itself until
/// the wait ends. Two guards of one lock in one process exclude each other like those of two processes. Use
/// [`ReentrantLock`](super::ReentrantLock) if a holder may take the lock again.
///
/// A Curator `InterProcessMutex` on `/locks/<name>` waits in the same queue.
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
    max_hold: Option<Duration>,
}

impl Lock {
    pub(super) fn new(session: &Session, name: impl Into<String>) -> Self {
        Self {
            handle: LockHandle::new(session, LockRequest::new(name, Mode::Exclusive)),
            sharing: None,
            max_hold: None,
        }
    }

    asking_options!(handle);

    /// Lets the waiters of this process share one place in the cluster's queue. Without this each waiter has its own.
    ///
    /// When a guard is released, the next waiter of this session gets the lock without a request to the cluster, first
    /// come first served, until the grant has been passed on [`max_passes`](Sharing::max_passes) times or is older
    /// than [`max_time`](Sharing::max_time), whichever comes first. Then the grant is released, and the remaining
    /// waiters queue behind all waiters of other processes. Without a waiter here the grant is released at once.
    ///
    /// All guards of one grant have the same **token**: it identifies this process's grant, and orders this process's
    /// writes against those of others. Only this process orders the writes of successive turns: finish the writes of a
    /// turn before its guard is released. A loss is reported to the guard that holds, and the waiters ask the cluster
    /// again.
    ///
    /// Handles of one session with the same name, delay and caps share; the request in the cluster's queue has the
    /// label of the first one. The caps say when the lock is passed on, not how long a guard may be kept: a turn is
    /// never cut short.
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

    /// Holds the lock for at most that long, and never renews it: the guard is lost when the time is over, a tenth of
    /// it earlier but at most 500 ms (see [`safety_margin`](crate::safety_margin)), and the cluster frees the lock by
    /// its own clock, whatever this process does. The time begins with the grant.
    ///
    /// Each acquire opens a session of its own for this, over HTTP: a forced release is not reported, and
    /// [`shared_in_process`](Self::shared_in_process) has no effect. At most the longest session timeout of the
    /// cluster, an hour by default.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
    /// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
    /// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
    /// use std::time::Duration;
    ///
    /// let guard = session.lock("import").max_hold(Duration::from_secs(30)).lock().await?;
    /// assert!(guard.remaining() <= Duration::from_secs(30));
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_hold(self, length: Duration) -> Self {
        Self { max_hold: Some(length), ..self }
    }

    /// Waits for the lock in its queue while the session lives.
    ///
    /// Dropping the future removes the request from the queue, and releases the lock if it is granted at that moment. A
    /// wait of more than 10 minutes is split into several calls and keeps its place, unless the client changes its node
    /// between two calls: then it queues again.
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

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.acquire(Wait::Try).await
    }

    /// Waits for the lock at most that long. The time to find a node that serves may be added.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.acquire(Wait::lasting(wait)).await
    }

    /// Acquires the lock with a session of its own, which is not renewed after the grant.
    async fn acquire_for(&self, length: Duration, wait: Wait) -> Result<Option<Guard>, Error> {
        let LockHandle { session, request } = &self.handle;
        let defaults = SessionOptions::default();
        let label = if request.label.is_empty() { defaults.label } else { request.label.clone() };
        let options = SessionOptions { timeout: length, label, transport: Transport::Http };
        let own = Session::open(session.client(), &options).await?;
        let longest = own.timeout();
        let acquired = match longest < length {
            true => Err(Error::refused(
                Code::BadRequest,
                format!(
                    "a lock is held for at most {} ms without renewal (timing.max_session_timeout_ms)",
                    longest.as_millis()
                ),
            )),
            false => acquire(&own, request, wait).await,
        };
        match acquired {
            Ok(Some(grant)) => {
                own.fix_lease(length).await;
                Ok(Some(Guard::new(Hold::new(grant.with_its_session()))))
            }
            other => {
                if let Some(problem) = own.last_busy() {
                    session.set_last_busy(Box::new(problem));
                }
                cleanup::close_detached(&own);
                other.map(|_| None)
            }
        }
    }

    async fn acquire(&self, wait: Wait) -> Result<Option<Guard>, Error> {
        if let Some(length) = self.max_hold {
            return self.acquire_for(length, wait).await;
        }
        let Some(sharing) = self.sharing else { return self.handle.acquire(wait).await };
        let LockHandle { session, request } = &self.handle;
        let queue = session.extension::<SharedQueues>().queue(session, request, sharing);
        Ok(queue.acquire(wait).await?.map(Guard::new))
    }
}
