//! In-process sharing: the waiters of one session for one lock, and the task that asks the cluster for all of them.
//!
//! The rules are in [`local_queue`](super::local_queue). One task, [`AcquireTask`], runs while anybody waits: it
//! acquires a grant, starts the first turn, and waits until the grant is released or lost. Guards pass the grant on
//! from turn to turn themselves. Nothing is sent to a waiter while the queue is locked: a waiter that has gone drops
//! the message, and that ends its turn.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

use super::acquire::acquire;
use super::grant::Grant;
use super::local_queue::{AfterTurn, LocalQueue, Sharing};
use super::request::{LockRequest, Wait};
use crate::clock::Moment;
use crate::error::Error;
use crate::session::Session;

type TurnResult = Result<Option<Hold>, Error>;
type Waiter = oneshot::Sender<TurnResult>;
/// The last turn's grant, and where the result of its release goes.
type LastTurn = (Arc<Grant>, Option<oneshot::Sender<Result<(), Error>>>);

/// What a guard holds: a share in a grant of the cluster. Dropping the last share releases the grant, unless the guard
/// was one of several turns in this process: then the end of the turn decides.
pub(crate) struct Hold {
    pub(super) grant: Arc<Grant>,
    turn: Option<LocalTurn>,
}

impl Hold {
    pub(super) fn new(grant: Grant) -> Self {
        Self::share(Arc::new(grant))
    }

    pub(super) fn share(grant: Arc<Grant>) -> Self {
        Self { grant, turn: None }
    }

    /// Undoes a turn that no waiter received.
    fn forget_turn(self) -> Arc<Grant> {
        if let Some(turn) = self.turn {
            turn.forget();
        }
        self.grant
    }

    /// Returns how often the session still holds the lock by re-entry.
    pub(super) async fn release(self) -> Result<u32, Error> {
        let loss = self.grant.loss();
        if let Some(turn) = self.turn {
            // The turn has a share of its own, which is to be the last.
            drop(self.grant);
            return turn.end().await.map(|()| 0);
        }
        match (Arc::into_inner(self.grant), loss) {
            (Some(last), _) => last.release().await,
            (None, None) => Ok(0),
            (None, Some(because)) => Err(Error::Lost(because)),
        }
    }
}

/// The queues of a session that are in use.
#[derive(Debug, Default)]
pub(super) struct SharedQueues(Mutex<HashMap<Key, Weak<SharedQueue>>>);

/// Name, delay in milliseconds, caps.
type Key = (String, u32, Sharing);

impl SharedQueues {
    /// The queue that all handles with this name, delay and caps share.
    pub(super) fn queue(&self, session: &Session, request: &LockRequest, sharing: Sharing) -> Arc<SharedQueue> {
        let key = (request.first.clone(), request.delay_ms, sharing);
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get(&key).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(SharedQueue {
            session: session.clone(),
            request: request.clone(),
            queue: Mutex::new(LocalQueue::new(sharing)),
            left: Notify::new(),
            last_turn: Mutex::new(None),
        });
        queues.insert(key, Arc::downgrade(&queue));
        queue
    }
}

/// See the module's text.
pub(super) struct SharedQueue {
    session: Session,
    request: LockRequest,
    queue: Mutex<LocalQueue<Waiter>>,
    /// Notified when the last waiter leaves while the cluster is asked.
    left: Notify,
    /// Receives the end of the last turn, while there is a grant.
    last_turn: Mutex<Option<oneshot::Sender<LastTurn>>>,
}

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedQueue").field("lock", &self.request.first).finish_non_exhaustive()
    }
}

/// One waiter's entry in the queue; dropping it leaves the queue.
struct QueueEntry {
    shared: Arc<SharedQueue>,
    number: u64,
    result: oneshot::Receiver<TurnResult>,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.shared.leave(self.number);
    }
}

impl SharedQueue {
    /// Waits for a turn; `None` if none came in time. A turn of a grant that was lost meanwhile does not count.
    pub(super) async fn acquire(self: &Arc<Self>, wait: Wait) -> TurnResult {
        loop {
            let hold = self.next_turn(wait).await?;
            if hold.as_ref().is_none_or(|hold| hold.grant.loss().is_none()) {
                return Ok(hold);
            }
        }
    }

    async fn next_turn(self: &Arc<Self>, wait: Wait) -> TurnResult {
        let (waiter, result) = oneshot::channel();
        let (number, begin) = match wait {
            Wait::Try => match self.queue.lock().join_if_idle(|| waiter) {
                Some(number) => (number, true),
                None => return Ok(None),
            },
            Wait::Until(_) | Wait::Endless => self.queue.lock().join(waiter),
        };
        let mut entry = QueueEntry { shared: self.clone(), number, result };
        if begin {
            let trier = (wait == Wait::Try).then_some(number);
            let task = AcquireTask { shared: self.clone(), done: false };
            self.session.client().context.spawn(task.run(trier));
        }
        let result = match wait {
            Wait::Until(at) => match timeout_at(at, &mut entry.result).await {
                Ok(result) => result,
                // The turn may have come at this moment: then its result is on the way.
                Err(_) if self.leave(number) => return Ok(None),
                Err(_) => (&mut entry.result).await,
            },
            Wait::Try | Wait::Endless => (&mut entry.result).await,
        };
        result.unwrap_or_else(|_| Err(task_ended()))
    }

    /// Leaves the queue; returns whether the waiter was still waiting.
    fn leave(&self, number: u64) -> bool {
        let (waiter, for_nobody) = self.queue.lock().leave(number);
        if for_nobody {
            self.left.notify_one();
        }
        waiter.is_some()
    }

    /// Gives the turn to that waiter, or to the next one if it has gone. Returns the grant if no waiter takes it.
    fn start_turn(self: &Arc<Self>, number: u64, first: Waiter, grant: Arc<Grant>) -> Option<Arc<Grant>> {
        let (mut waiter, mut grant) = (first, grant);
        loop {
            // No share stays here: the end of the last turn needs the last share.
            let turn = LocalTurn { shared: self.clone(), number, grant: Some(grant.clone()) };
            match waiter.send(Ok(Some(Hold { grant, turn: Some(turn) }))) {
                Err(Ok(Some(refused))) => grant = refused.forget_turn(),
                Ok(()) | Err(_) => return None,
            }
            match self.after_turn(number, &grant) {
                AfterTurn::Pass(next) => waiter = next,
                AfterTurn::Release => return Some(grant),
                AfterTurn::GrantOver => return None,
            }
        }
    }

    fn after_turn(&self, number: u64, grant: &Grant) -> AfterTurn<Waiter> {
        let lost = grant.loss().is_some();
        self.queue.lock().turn_ended(number, Moment::now(), lost)
    }

    /// Ends a turn: passes the grant on, or leaves it to the task to release it.
    fn end_turn(
        self: &Arc<Self>,
        number: u64,
        grant: Arc<Grant>,
        result: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> EndedTurn {
        let unwanted = match self.after_turn(number, &grant) {
            AfterTurn::Pass(waiter) => self.start_turn(number, waiter, grant),
            AfterTurn::Release => Some(grant),
            AfterTurn::GrantOver => return EndedTurn::LostBefore,
        };
        let Some(grant) = unwanted else { return EndedTurn::Passed };
        let task = self.last_turn.lock().take();
        // Without a task no runtime is alive; dropping the grant does what can be done.
        drop(task.map(|task| task.send((grant, result))));
        EndedTurn::Released
    }
}

enum EndedTurn {
    /// The next waiter has the grant.
    Passed,
    /// The task releases the grant, and sends the result.
    Released,
    /// The grant was lost before the turn ended.
    LostBefore,
}

fn task_ended() -> Error {
    Error::Lost("the runtime on which the session was opened has ended".into())
}

/// One turn of a grant. Dropping it ends it.
pub(super) struct LocalTurn {
    shared: Arc<SharedQueue>,
    number: u64,
    /// `None` once the turn has ended.
    grant: Option<Arc<Grant>>,
}

impl LocalTurn {
    /// Ends the turn and waits until the grant was passed on or released.
    async fn end(mut self) -> Result<(), Error> {
        let Some(grant) = self.grant.take() else { return Ok(()) };
        let loss = grant.loss();
        let (sender, result) = oneshot::channel();
        match (self.shared.end_turn(self.number, grant, Some(sender)), loss) {
            (EndedTurn::Passed, _) => Ok(()),
            (EndedTurn::Released, loss) => {
                result.await.unwrap_or_else(|_| Err(loss.map_or_else(task_ended, Error::Lost)))
            }
            (EndedTurn::LostBefore, loss) => Err(loss.map_or_else(task_ended, Error::Lost)),
        }
    }

    /// Drops a turn that never began.
    fn forget(mut self) {
        self.grant = None;
    }
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.end_turn(self.number, grant, None);
        }
    }
}

/// The task that asks the cluster. If its runtime ends, its waiters get an error.
struct AcquireTask {
    shared: Arc<SharedQueue>,
    done: bool,
}

impl Drop for AcquireTask {
    fn drop(&mut self) {
        if !self.done {
            let waiting = self.shared.queue.lock().failed();
            waiting.into_iter().for_each(|waiter| drop(waiter.send(Err(task_ended()))));
        }
    }
}

impl AcquireTask {
    /// Asks until nobody waits any more. `trier` is a waiter that does not want to wait: the first request is then for
    /// that waiter, and does not wait either.
    async fn run(mut self, mut trier: Option<u64>) {
        let shared = self.shared.clone();
        loop {
            let wait = if trier.is_some() { Wait::Try } else { Wait::Endless };
            let again = match self.acquire(wait).await {
                None => break,
                Some(Ok(Some(grant))) => self.serve(grant).await,
                Some(Ok(None)) => {
                    let tried = trier.and_then(|number| shared.queue.lock().leave(number).0);
                    drop(tried.map(|waiter| waiter.send(Ok(None))));
                    shared.queue.lock().over()
                }
                Some(Err(error)) => {
                    let waiting = shared.queue.lock().failed();
                    waiting.into_iter().for_each(|waiter| drop(waiter.send(Err(error.clone()))));
                    break;
                }
            };
            trier = None;
            if !again {
                break;
            }
        }
        self.done = true;
    }

    /// Asks the cluster while anybody waits; `None` if nobody does any more.
    async fn acquire(&self, wait: Wait) -> Option<Result<Option<Grant>, Error>> {
        let mut acquiring = pin!(acquire(&self.shared.session, &self.shared.request, wait));
        loop {
            tokio::select! {
                biased;
                acquired = &mut acquiring => return Some(acquired),
                () = self.shared.left.notified() => if self.shared.queue.lock().stop_asking() { return None },
            }
        }
    }

    /// Starts the first turn and waits until the grant is over. Returns whether to ask again, for those who still wait.
    async fn serve(&self, grant: Grant) -> bool {
        let shared = &self.shared;
        let grant = Arc::new(grant);
        let lost = grant.lost();
        let (end, ended) = oneshot::channel();
        *shared.last_turn.lock() = Some(end);
        let (number, first) = shared.queue.lock().granted(Moment::now());
        let unwanted = match first {
            Some(waiter) => shared.start_turn(number, waiter, grant),
            None => Some(grant),
        };
        let last = match unwanted {
            Some(grant) => Some((grant, None)),
            None => tokio::select! {
                biased;
                last = ended => last.ok(),
                because = lost => {
                    let lock = &shared.request.first;
                    tracing::debug!(lock, because, "lock lost; acquiring it again for the other waiters");
                    None
                }
            },
        };
        *shared.last_turn.lock() = None;
        if let Some((grant, result)) = last {
            let released = match Arc::into_inner(grant) {
                Some(grant) => grant.release().await.map(drop),
                None => Ok(()),
            };
            drop(result.map(|result| result.send(released)));
        }
        shared.queue.lock().over()
    }
}
