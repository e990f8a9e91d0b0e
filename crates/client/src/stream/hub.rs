//! What callers and the driver share: the table, the watches, and how the stream stands.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::stream::Watch;
use lockkeeper_api::{Code, Problem};
use lockkeeper_mutants::mutant;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::grants::Grants;
use super::table::{Full, Listener, Request, Table};
use super::watches::{Subscription, Watches};
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Tried};
use crate::transport::Ask;

/// Pause before a request that nobody waits for is sent again after the cluster could not serve it.
const PAUSE_OF_POSTED: Duration = Duration::from_millis(100);

/// Why the outcome of a request is open that was sent and not answered.
pub(crate) const SENT: &str = "it was sent over the session's stream, which ended before an answer came";

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Reply {
    Answered {
        place: usize,
        bytes: Bytes,
    },
    Problem {
        place: usize,
        generation: u64,
        problem: Box<Problem>,
    },
    /// The node does not speak as Lockkeeper does.
    NotLockkeeper {
        place: usize,
        why: String,
    },
    /// It cannot be asked at all.
    Impossible(Error),
    /// The session is over.
    Over(String),
    /// There is no stream: ask over HTTP.
    Elsewhere,
}

/// An acknowledged sending, and the timeout that came with the acknowledgement.
pub(crate) type Renewal = (Moment, Duration);

/// How asking went.
pub(crate) enum Asked {
    Reply {
        reply: Reply,
        /// Beside what the reply speaks of: whether some sending over the stream has found no end.
        open: bool,
    },
    /// No answer in time. Whether it was ever sent.
    GaveUp { sent: bool },
}

impl Asked {
    /// It did not get as far as the stream.
    fn unsent(reply: Reply) -> Self {
        Self::Reply { reply, open: false }
    }
}

/// What a caller that waits is told; see [`Asked`].
#[derive(Debug)]
pub(super) struct Concluded {
    reply: Reply,
    open: bool,
}

/// How the stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No connection; one is being looked for.
    Connecting,
    /// The endpoint at this place serves it.
    Up { place: usize, generation: u64 },
    /// The endpoints answer, but none serves a stream. It is looked for on and on; meanwhile HTTP serves.
    None,
    /// The session is over.
    Over(String),
    /// Nobody has the session any more.
    Stopped,
}

impl Phase {
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Over(_) | Self::Stopped)
    }
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) table: Table,
    pub(super) watches: Watches,
    pub(super) tried: Vec<Tried>,
    /// The connection of that generation is to be given up, and why.
    pub(super) abandon: Option<(u64, String)>,
}

/// See the module's text.
pub(crate) struct Hub {
    pub(super) inner: Mutex<Inner>,
    pub(super) phase: watch::Sender<Phase>,
    /// There is something to write, or to look at.
    pub(super) wake: Notify,
    /// When the last acknowledged keepalive was sent, and the timeout that came with it.
    alive: watch::Sender<Option<Renewal>>,
    /// Messages received so far, over all connections.
    pub(super) heard: AtomicU64,
    pub(crate) grants: Grants,
    /// Speaks for the session over HTTP.
    pub(super) client: Client,
    /// The session's timeout when it was opened: how long a slow endpoint is waited for follows from it.
    pub(super) timeout: Duration,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("phase", &*self.phase.borrow()).finish_non_exhaustive()
    }
}

/// A caller that waits. Dropped before the answer has come, it gives the request up.
struct Caller<'a> {
    hub: &'a Hub,
    id: u64,
    answered: bool,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.answered && self.hub.inner.lock().table.give_up(self.id) {
            self.hub.wake.notify_one();
        }
    }
}

impl Hub {
    /// A hub whose driver runs on the current runtime until [`stop`](Self::stop) is called or the session is over.
    pub(crate) fn start(client: &Client, timeout: Duration) -> Arc<Self> {
        let hub = Arc::new(Self {
            inner: Mutex::default(),
            phase: watch::Sender::new(Phase::Connecting),
            wake: Notify::new(),
            alive: watch::Sender::new(None),
            heard: AtomicU64::new(0),
            grants: Grants::default(),
            client: client.clone(),
            timeout,
        });
        tokio::spawn(super::driver::drive(hub.clone()));
        hub
    }

    /// Nobody has the session any more: what was posted is still sent, then the connection is closed.
    pub(crate) fn stop(self: &Arc<Self>) {
        self.enter(Phase::Stopped);
        self.wake.notify_one();
        let callers = self.inner.lock().table.drain_callers();
        callers.into_iter().for_each(|request| self.conclude(request, Reply::Elsewhere));
    }

    /// Moves on to that phase, unless the present one is final.
    pub(super) fn enter(&self, next: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let moves = !phase.is_final() && *phase != next;
            if moves {
                *phase = next;
            }
            moves
        })
    }

    /// The place and generation of the connection, where there is one.
    pub(crate) fn up(&self) -> Option<(usize, u64)> {
        match *self.phase.borrow() {
            Phase::Up { place, generation } => Some((place, generation)),
            _ => None,
        }
    }

    /// Completes when the cluster has said on the stream that the session is over.
    pub(crate) async fn over(&self) -> String {
        let mut phase = self.phase.subscribe();
        loop {
            if let Phase::Over(why) = &*phase.borrow_and_update() {
                return why.clone();
            }
            if phase.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Completes when there has been no connection for that long at a stretch.
    pub(crate) async fn down_for(&self, patience: Duration) {
        let mut phase = self.phase.subscribe();
        loop {
            let up = matches!(*phase.borrow_and_update(), Phase::Up { .. });
            tokio::select! {
                () = sleep(patience), if !up => return,
                changed = phase.changed() => if changed.is_err() { return },
            }
        }
    }

    /// The last failure of each endpoint.
    pub(crate) fn tried(&self) -> Vec<Tried> {
        self.inner.lock().tried.clone()
    }

    fn serves(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Connecting | Phase::Up { .. })
    }

    /// Asks and waits for what comes of it. Dropped before that, it takes the request back. `open` is whether an earlier sending
    /// under the same request id has found no end.
    pub(crate) async fn ask(&self, ask: &Ask, request_id: Option<Uuid>, open: bool, give_up_at: Instant) -> Asked {
        let (tell, answer) = oneshot::channel();
        let id = {
            let mut inner = self.inner.lock();
            // Looked at under the table's lock, so that a driver that ends finds this request or this finds that it has ended.
            if let Phase::Over(why) = &*self.phase.borrow() {
                return Asked::unsent(Reply::Over(why.clone()));
            }
            if !self.serves() {
                return Asked::unsent(Reply::Elsewhere);
            }
            match inner.table.submit(ask.clone(), request_id, Listener::Caller(tell)) {
                Ok(id) => {
                    if open {
                        inner.table.note_open(id);
                    }
                    id
                }
                Err(Full::Waits) => return Asked::unsent(Reply::Elsewhere),
                Err(Full::Requests) => {
                    let why = "this session asks too much at a time; wait for answers before asking on";
                    return Asked::unsent(Reply::Impossible(Error::refused(Code::Overloaded, why)));
                }
            }
        };
        self.wake.notify_one();
        let mut caller = Caller { hub: self, id, answered: false };
        match timeout_at(give_up_at, answer).await {
            Ok(reply) => {
                caller.answered = true;
                // Without an answer the request was dropped with the table: nobody drives the stream any more.
                let Concluded { reply, open } = reply.unwrap_or(Concluded { reply: Reply::Elsewhere, open: true });
                Asked::Reply { reply, open }
            }
            Err(_) => {
                let sent = self.inner.lock().table.get(id).is_none_or(|request| request.ever_sent);
                Asked::GaveUp { sent }
            }
        }
    }

    /// Hands a request over, behind all that were asked before. Gives it back where there is no stream.
    pub(crate) fn post(&self, ask: Ask, request_id: Option<Uuid>) -> Result<(), Ask> {
        let mut inner = self.inner.lock();
        if !self.serves() || inner.table.submit(ask.clone(), request_id, Listener::Nobody).is_err() {
            return Err(ask);
        }
        drop(inner);
        self.wake.notify_one();
        Ok(())
    }

    /// Answers a request. One that nobody waits for is seen to where it could not be served.
    pub(super) fn conclude(self: &Arc<Self>, request: Request, reply: Reply) {
        let open = match &reply {
            // To its last sending this is the end.
            Reply::Answered { .. } | Reply::Problem { .. } | Reply::Impossible(_) => request.open,
            Reply::NotLockkeeper { .. } | Reply::Over(_) | Reply::Elsewhere => request.open || request.sent,
        };
        let Request { ask, request_id, listener, .. } = request;
        match listener {
            // A caller that has gone in this moment does not mind; what it was granted is its own affair.
            Listener::Caller(tell) => return drop(tell.send(Concluded { reply, open })),
            Listener::Gone => return,
            Listener::Nobody => {}
        }
        let again = match &reply {
            Reply::Problem { problem, .. } => problem.code.is_transient() || problem.code == Code::UnknownOutcome,
            // One page from something in between says nothing about the cluster.
            Reply::Elsewhere | Reply::NotLockkeeper { .. } => true,
            Reply::Answered { .. } | Reply::Over(_) | Reply::Impossible(_) => false,
        };
        if again {
            let earlier = match &reply {
                Reply::Problem { problem, .. } if !problem.code.is_transient() => Some(problem.to_string()),
                _ => open.then(|| SENT.to_owned()),
            };
            let client = self.client.clone().over(self.clone());
            client.spawn(move |client| async move {
                sleep(PAUSE_OF_POSTED).await;
                client.see_to(&ask, request_id, earlier).await;
            });
        } else if !matches!(reply, Reply::Answered { .. }) {
            tracing::debug!(?reply, target = ask.target, "a request that nobody waits for came to nothing");
        }
    }

    /// Puts a keepalive on the stream; gives where its answer comes. Its time counts from now, which is before it is written.
    pub(crate) fn keepalive(&self) -> Option<oneshot::Receiver<Result<Duration, String>>> {
        let mut inner = self.inner.lock();
        self.up()?;
        let answer = inner.table.keepalive(Moment::now());
        drop(inner);
        self.wake.notify_one();
        Some(answer)
    }

    /// The latest sending that was acknowledged on the stream, however late.
    pub(crate) fn renewals(&self) -> watch::Receiver<Option<Renewal>> {
        self.alive.subscribe()
    }

    pub(super) fn note_alive(&self, number: u64, timeout_ms: u32) {
        let timeout = Duration::from_millis(timeout_ms.into());
        let sent = self.inner.lock().table.kept_alive(number, Ok(timeout));
        if let Some(sent) = sent {
            self.note_lease(sent, timeout_ms);
        }
    }

    /// A node has said that the session lives, in answer to something that was sent then.
    pub(super) fn note_lease(&self, sent: Moment, timeout_ms: u32) {
        let sent = if mutant!(LeaseFromAnswer) { Moment::now() } else { sent };
        self.alive.send_if_modified(|latest| {
            let news = latest.is_none_or(|(before, _)| before < sent);
            if news {
                *latest = Some((sent, Duration::from_millis(timeout_ms.into())));
            }
            news
        });
    }

    /// How many messages have come.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Gives the connection of that generation up, if it is still in use, for one to the next endpoint.
    pub(crate) fn abandon(&self, generation: u64, why: &str) {
        self.inner.lock().abandon = Some((generation, why.to_owned()));
        self.wake.notify_one();
    }

    /// Begins a watch; none where there is no stream.
    pub(crate) fn watch(self: &Arc<Self>, path: &str, recursive: bool, from: Option<u64>) -> Option<Subscription> {
        let mut inner = self.inner.lock();
        if !self.serves() {
            return None;
        }
        let id = inner.table.new_watch_id();
        let told = inner.watches.begin(Watch { id, path: path.to_owned(), recursive, from });
        if self.up().is_some() {
            inner.table.watch(id);
        }
        drop(inner);
        self.wake.notify_one();
        Some(Subscription { id, told, hub: self.clone() })
    }

    pub(super) fn unwatch(&self, id: u64) {
        let mut inner = self.inner.lock();
        if inner.watches.end(id) && self.up().is_some() {
            inner.table.unwatch(id);
            drop(inner);
            self.wake.notify_one();
        }
    }
}
