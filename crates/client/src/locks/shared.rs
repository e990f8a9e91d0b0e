//! In-process sharing at work: the waiters of one session for one lock, and the task that asks the cluster on behalf of all.
//!
//! The rules are in [`line`](super::line). One task, the *agent*, lives from the moment somebody waits until nobody does: it asks,
//! starts the first turn, and waits until the grant is given back or lost. From turn to turn guards pass the grant on themselves.
//! Nothing is sent to a waiter while the line is locked: a waiter that has gone drops what it is sent, and that ends its turn.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

use super::grant::Grant;
use super::guard::Held;
use super::handle::Handle;
use super::line::{Line, Next, Sharing};
use super::request::Patience;
use super::settle::in_background;
use super::wait::obtain;
use crate::clock::Moment;
use crate::error::Error;

type Told = Result<Option<Held>, Error>;
type Waiter = oneshot::Sender<Told>;
/// The last turn's grant, and who wants to know what comes of giving it back.
type LastTurn = (Arc<Grant>, Option<oneshot::Sender<Result<(), Error>>>);

/// All lines of a session that are in use.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<Key, Weak<SharedLine>>>);

/// Name, delay in milliseconds, caps.
type Key = (String, u32, Sharing);

impl Lines {
    /// The line for that handle, which all handles alike have in common.
    pub(super) fn line(&self, handle: &Handle, sharing: Sharing) -> Arc<SharedLine> {
        let key = (handle.request.first.clone(), handle.request.delay_ms, sharing);
        let mut lines = self.0.lock();
        if let Some(line) = lines.get(&key).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(SharedLine {
            handle: handle.clone(),
            line: Mutex::new(Line::new(sharing)),
            left: Notify::new(),
            last_turn: Mutex::new(None),
        });
        lines.insert(key, Arc::downgrade(&line));
        line
    }
}

/// See the module's text.
pub(super) struct SharedLine {
    handle: Handle,
    line: Mutex<Line<Waiter>>,
    /// The last waiter has left while the cluster is asked.
    left: Notify,
    /// Where the end of the last turn is told, while there is a grant.
    last_turn: Mutex<Option<oneshot::Sender<LastTurn>>>,
}

impl fmt::Debug for SharedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLine").field("lock", &self.handle.request.first).finish_non_exhaustive()
    }
}

/// One waiter's place in the line; dropping it leaves.
struct Place {
    shared: Arc<SharedLine>,
    number: u64,
    told: oneshot::Receiver<Told>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.leave(self.number);
    }
}

impl SharedLine {
    /// Waits for a turn. None if none came in time. A turn of a grant that was lost on the way here is none.
    pub(super) async fn obtain(self: &Arc<Self>, patience: Patience) -> Told {
        loop {
            let told = self.next_turn(patience).await?;
            if told.as_ref().is_none_or(|held| held.grant.loss().is_none()) {
                return Ok(told);
            }
        }
    }

    async fn next_turn(self: &Arc<Self>, patience: Patience) -> Told {
        let (tell, told) = oneshot::channel();
        let (number, begin) = match patience {
            Patience::Try => match self.line.lock().join_if_idle(|| tell) {
                Some(number) => (number, true),
                None => return Ok(None),
            },
            Patience::Until(_) | Patience::Endless => self.line.lock().join(tell),
        };
        let mut place = Place { shared: self.clone(), number, told };
        if begin {
            let trier = (patience == Patience::Try).then_some(number);
            let agent = Agent { shared: self.clone(), done: false };
            in_background(&self.handle.session, agent.run(trier));
        }
        let told = match patience {
            Patience::Until(at) => match timeout_at(at, &mut place.told).await {
                Ok(told) => told,
                // Its turn may have come in this moment: then it is told.
                Err(_) if self.leave(number) => return Ok(None),
                Err(_) => (&mut place.told).await,
            },
            Patience::Try | Patience::Endless => (&mut place.told).await,
        };
        told.unwrap_or_else(|_| Err(nobody_asks()))
    }

    /// Whether the waiter was still waiting.
    fn leave(&self, number: u64) -> bool {
        let (waiter, for_nobody) = self.line.lock().leave(number);
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
            let turn = Turn { shared: self.clone(), number, grant: Some(grant.clone()) };
            match waiter.send(Ok(Some(Held::for_turn(grant, turn)))) {
                Err(Ok(Some(refused))) => grant = refused.forget_turn(),
                Ok(()) | Err(_) => return None,
            }
            match self.next(number, &grant) {
                Next::Pass(next) => waiter = next,
                Next::GiveBack => return Some(grant),
                Next::Nothing => return None,
            }
        }
    }

    fn next(&self, number: u64, grant: &Grant) -> Next<Waiter> {
        let lost = grant.loss().is_some();
        self.line.lock().turn_ended(number, Moment::now(), lost)
    }

    /// A turn is over. Passes the grant on, or leaves it to the agent to give it back.
    fn end_turn(
        self: &Arc<Self>,
        number: u64,
        grant: Arc<Grant>,
        tell: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Ended {
        let back = match self.next(number, &grant) {
            Next::Pass(waiter) => self.start_turn(number, waiter, grant),
            Next::GiveBack => Some(grant),
            Next::Nothing => return Ended::Before,
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
pub(super) struct Turn {
    shared: Arc<SharedLine>,
    number: u64,
    /// None once it has ended.
    grant: Option<Arc<Grant>>,
}

impl Turn {
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

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.end_turn(self.number, grant, None);
        }
    }
}

/// The task that asks the cluster. Should its runtime end under it, those who wait are told.
struct Agent {
    shared: Arc<SharedLine>,
    done: bool,
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.done {
            let waiting = self.shared.line.lock().failed();
            waiting.into_iter().for_each(|waiter| drop(waiter.send(Err(nobody_asks()))));
        }
    }
}

impl Agent {
    /// Asks until nobody waits any more; the first time without waiting, if that is for one who only tries.
    async fn run(mut self, mut trier: Option<u64>) {
        let shared = self.shared.clone();
        loop {
            let patience = if trier.is_some() { Patience::Try } else { Patience::Endless };
            let again = match self.ask(patience).await {
                None => break,
                Some(Ok(Some(grant))) => self.serve(grant).await,
                Some(Ok(None)) => {
                    let tried = trier.and_then(|number| shared.line.lock().leave(number).0);
                    drop(tried.map(|waiter| waiter.send(Ok(None))));
                    shared.line.lock().over()
                }
                Some(Err(error)) => {
                    let waiting = shared.line.lock().failed();
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
    async fn ask(&self, patience: Patience) -> Option<Result<Option<Grant>, Error>> {
        let Handle { session, request } = &self.shared.handle;
        let mut asking = pin!(obtain(session, request, patience));
        loop {
            tokio::select! {
                biased;
                asked = &mut asking => return Some(asked),
                () = self.shared.left.notified() => if self.shared.line.lock().stop_asking() { return None },
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
        let (number, first) = shared.line.lock().granted(Moment::now());
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
        shared.line.lock().over()
    }
}
