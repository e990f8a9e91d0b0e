//! In-process sharing at work: the waiters of one session for one lock, and the task that asks the cluster on behalf of all.
//!
//! The rules are in [`local_queue`](super::local_queue). One task, [`AcquireTask`], lives from the moment somebody waits until nobody does: it asks,
//! starts the first turn, and waits until the grant is given back or lost. From turn to turn guards pass the grant on themselves.
//! Nothing is sent to a waiter while the queue is locked: a waiter that has gone drops what it is sent, and that ends its turn.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

use super::acquire::acquire;
use super::cleanup::in_background;
use super::grant::Grant;
use super::guard::Hold;
use super::handle::LockHandle;
use super::local_queue::{AfterTurn, LocalQueue, Sharing};
use super::request::Wait;
use crate::clock::Moment;
use crate::error::Error;

type TurnResult = Result<Option<Hold>, Error>;
type Waiter = oneshot::Sender<TurnResult>;
/// The last turn's grant, and who wants to know what comes of giving it back.
type LastTurn = (Arc<Grant>, Option<oneshot::Sender<Result<(), Error>>>);

/// All queues of a session that are in use.
#[derive(Debug, Default)]
pub(super) struct SharedQueues(Mutex<HashMap<Key, Weak<SharedQueue>>>);

/// Name, delay in milliseconds, caps.
type Key = (String, u32, Sharing);

impl SharedQueues {
    /// The queue for that handle, which all handles alike have in common.
    pub(super) fn queue(&self, handle: &LockHandle, sharing: Sharing) -> Arc<SharedQueue> {
        let key = (handle.request.first.clone(), handle.request.delay_ms, sharing);
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get(&key).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(SharedQueue {
            handle: handle.clone(),
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
    handle: LockHandle,
    queue: Mutex<LocalQueue<Waiter>>,
    /// The last waiter has left while the cluster is asked.
    left: Notify,
    /// Where the end of the last turn is told, while there is a grant.
    last_turn: Mutex<Option<oneshot::Sender<LastTurn>>>,
}

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedQueue").field("lock", &self.handle.request.first).finish_non_exhaustive()
    }
}

/// One waiter's entry in the queue; dropping it leaves.
struct QueueEntry {
    shared: Arc<SharedQueue>,
    number: u64,
    told: oneshot::Receiver<TurnResult>,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.shared.leave(self.number);
    }
}

impl SharedQueue {
    /// Waits for a turn. None if none came in time. A turn of a grant that was lost on the way here is none.
    pub(super) async fn acquire(self: &Arc<Self>, wait: Wait) -> TurnResult {
        loop {
            let told = self.next_turn(wait).await?;
            if told.as_ref().is_none_or(|held| held.grant.loss().is_none()) {
                return Ok(told);
            }
        }
    }

    async fn next_turn(self: &Arc<Self>, wait: Wait) -> TurnResult {
        let (tell, told) = oneshot::channel();
        let (number, begin) = match wait {
            Wait::Try => match self.queue.lock().join_if_idle(|| tell) {
                Some(number) => (number, true),
                None => return Ok(None),
            },
            Wait::Until(_) | Wait::Endless => self.queue.lock().join(tell),
        };
        let mut entry = QueueEntry { shared: self.clone(), number, told };
        if begin {
            let trier = (wait == Wait::Try).then_some(number);
            let agent = AcquireTask { shared: self.clone(), done: false };
            in_background(&self.handle.session, agent.run(trier));
        }
        let told = match wait {
            Wait::Until(at) => match timeout_at(at, &mut entry.told).await {
                Ok(told) => told,
                // Its turn may have come in this moment: then it is told.
                Err(_) if self.leave(number) => return Ok(None),
                Err(_) => (&mut entry.told).await,
            },
            Wait::Try | Wait::Endless => (&mut entry.told).await,
        };
        told.unwrap_or_else(|_| Err(nobody_asks()))
    }

    /// Whether the waiter was still waiting.
    fn leave(&self, number: u64) -> bool {
        let (waiter, for_nobody) = self.queue.lock().leave(number);
        if for_nobody {
            self.left.notify_one();
        }
        waiter.is_some()
    }

    /// Gives the turn to that waiter, or to the next if it has gone. The grant comes back when it is nobody's turn.
    fn start_turn(self: &Arc<Self>, number: u64, first: Waiter, grant: Arc<Grant>) -> Option<Arc<Grant>> {
        let (mut waiter, mut grant) = (first, grant);
        loop {
            // No share stays here: whoever ends the last turn is to have the last one.
            let turn = LocalTurn { shared: self.clone(), number, grant: Some(grant.clone()) };
            match waiter.send(Ok(Some(Hold::for_turn(grant, turn)))) {
                Err(Ok(Some(refused))) => grant = refused.forget_turn(),
                Ok(()) | Err(_) => return None,
            }
            match self.next(number, &grant) {
                AfterTurn::Pass(next) => waiter = next,
                AfterTurn::Release => return Some(grant),
                AfterTurn::GrantOver => return None,
            }
        }
    }

    fn next(&self, number: u64, grant: &Grant) -> AfterTurn<Waiter> {
        let lost = grant.loss().is_some();
        self.queue.lock().turn_ended(number, Moment::now(), lost)
    }

    /// A turn is over. Passes the grant on, or leaves it to the agent to give it back.
    fn end_turn(
        self: &Arc<Self>,
        number: u64,
        grant: Arc<Grant>,
        tell: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Ended {
        let back = match self.next(number, &grant) {
            AfterTurn::Pass(waiter) => self.start_turn(number, waiter, grant),
            AfterTurn::Release => Some(grant),
            AfterTurn::GrantOver => return Ended::Before,
        };
        let Some(grant) = back else { return Ended::Passed };
        let agent = self.last_turn.lock().take();
        // Without an agent no runtime lives; dropping the grant does what can be done.
        drop(agent.map(|agent| agent.send((grant, tell))));
        Ended::GivenBack
    }
}

enum Ended {
    /// The next has it.
    Passed,
    /// The agent gives it back, and tells.
    GivenBack,
    /// The grant was lost before.
    Before,
}

fn nobody_asks() -> Error {
    Error::Lost("the runtime on which the session was opened has ended".into())
}

/// One turn of a grant. Dropping it ends it.
pub(super) struct LocalTurn {
    shared: Arc<SharedQueue>,
    number: u64,
    /// None once it has ended.
    grant: Option<Arc<Grant>>,
}

impl LocalTurn {
    /// Ends it and waits until the grant was passed on or given back.
    pub(super) async fn end(mut self) -> Result<(), Error> {
        let Some(grant) = self.grant.take() else { return Ok(()) };
        let loss = grant.loss();
        let (tell, told) = oneshot::channel();
        match (self.shared.end_turn(self.number, grant, Some(tell)), loss) {
            (Ended::Passed, _) => Ok(()),
            (Ended::GivenBack, loss) => told.await.unwrap_or_else(|_| Err(loss.map_or_else(nobody_asks, Error::Lost))),
            (Ended::Before, loss) => Err(loss.map_or_else(nobody_asks, Error::Lost)),
        }
    }

    /// It never began.
    pub(super) fn forget(mut self) {
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

/// The task that asks the cluster. Should its runtime end under it, those who wait are told.
struct AcquireTask {
    shared: Arc<SharedQueue>,
    done: bool,
}

impl Drop for AcquireTask {
    fn drop(&mut self) {
        if !self.done {
            let waiting = self.shared.queue.lock().failed();
            waiting.into_iter().for_each(|waiter| drop(waiter.send(Err(nobody_asks()))));
        }
    }
}

impl AcquireTask {
    /// Asks until nobody waits any more; the first time without waiting, if that is for one who only tries.
    async fn run(mut self, mut trier: Option<u64>) {
        let shared = self.shared.clone();
        loop {
            let wait = if trier.is_some() { Wait::Try } else { Wait::Endless };
            let again = match self.ask(wait).await {
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

    /// Asks the cluster for as long as somebody waits here; nothing if nobody does any more.
    async fn ask(&self, wait: Wait) -> Option<Result<Option<Grant>, Error>> {
        let LockHandle { session, request } = &self.shared.handle;
        let mut asking = pin!(acquire(session, request, wait));
        loop {
            tokio::select! {
                biased;
                asked = &mut asking => return Some(asked),
                () = self.shared.left.notified() => if self.shared.queue.lock().stop_asking() { return None },
            }
        }
    }

    /// Lets the turns begin, and sees the grant to its end. Whether to ask anew.
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
                    tracing::debug!(lock = shared.handle.request.first, because, "those who wait here ask anew");
                    None
                }
            },
        };
        *shared.last_turn.lock() = None;
        if let Some((grant, tell)) = last {
            let released = match Arc::into_inner(grant) {
                Some(grant) => grant.release().await,
                None => Ok(()),
            };
            drop(tell.map(|tell| tell.send(released)));
        }
        shared.queue.lock().over()
    }
}
