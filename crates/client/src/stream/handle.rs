//! What callers and the reconnect task share: the pending requests, the watches, and how the stream stands.

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

use super::lock_loss::LockLoss;
use super::pending::{PendingRequest, PendingRequests, ReplyTo, SubmitError};
use super::watches::{WatchSubscription, Watches};
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Tried};
use crate::transport::RequestSpec;

/// Pause before a request that nobody waits for is sent again after the cluster could not serve it.
const PAUSE_OF_POSTED: Duration = Duration::from_millis(100);

/// Why the outcome of a request is open that was sent and not answered.
pub(crate) const SENT: &str = "it was sent over the session's stream, which ended before an answer came";

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Reply {
    Answered {
        index: usize,
        bytes: Bytes,
    },
    Problem {
        index: usize,
        generation: u64,
        problem: Box<Problem>,
    },
    /// The node does not speak as Lockkeeper does.
    NotLockkeeper {
        index: usize,
        why: String,
    },
    /// It cannot be asked at all.
    Unsendable(Error),
    /// The session is over.
    SessionOver(String),
    /// There is no stream: ask over HTTP.
    UseHttp,
}

/// An acknowledged sending, and the timeout that came with the acknowledgement.
pub(crate) type Renewal = (Moment, Duration);

/// How asking went.
pub(crate) enum StreamOutcome {
    Reply {
        reply: Reply,
        /// Beside what the reply speaks of: whether some sending over the stream has found no end.
        outcome_unknown: bool,
    },
    /// No answer in time. Whether it was ever sent.
    GaveUp { sent: bool },
}

impl StreamOutcome {
    /// It did not get as far as the stream.
    fn unsent(reply: Reply) -> Self {
        Self::Reply { reply, outcome_unknown: false }
    }
}

/// What a caller that waits is told; see [`StreamOutcome`].
#[derive(Debug)]
pub(super) struct FinalReply {
    reply: Reply,
    outcome_unknown: bool,
}

/// How the stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No connection; one is being looked for.
    Connecting,
    /// The endpoint at this index serves it.
    Up { index: usize, generation: u64 },
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
pub(super) struct StreamShared {
    pub(super) pending: PendingRequests,
    pub(super) watches: Watches,
    pub(super) tried: Vec<Tried>,
    /// The connection of that generation is to be given up, and why.
    pub(super) abandon: Option<(u64, String)>,
}

/// See the module's text.
pub(crate) struct StreamHandle {
    pub(super) inner: Mutex<StreamShared>,
    pub(super) phase: watch::Sender<Phase>,
    /// There is something to write, or to look at.
    pub(super) wake: Notify,
    /// When the last acknowledged keepalive was sent, and the timeout that came with it.
    alive: watch::Sender<Option<Renewal>>,
    /// Messages received so far, over all connections.
    pub(super) messages_received: AtomicU64,
    pub(crate) grants: LockLoss,
    /// Speaks for the session over HTTP.
    pub(super) client: Client,
    /// The session's timeout when it was opened: how long a slow endpoint is waited for follows from it.
    pub(super) timeout: Duration,
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle").field("phase", &*self.phase.borrow()).finish_non_exhaustive()
    }
}

/// A caller that waits. Dropped before the answer has come, it gives the request up.
struct Caller<'a> {
    stream: &'a StreamHandle,
    id: u64,
    answered: bool,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.answered && self.stream.inner.lock().pending.cancel(self.id) {
            self.stream.wake.notify_one();
        }
    }
}

impl StreamHandle {
    /// A stream whose reconnect task runs on the current runtime until [`stop`](Self::stop) is called or the session is over.
    pub(crate) fn start(client: &Client, timeout: Duration) -> Arc<Self> {
        let stream = Arc::new(Self {
            inner: Mutex::default(),
            phase: watch::Sender::new(Phase::Connecting),
            wake: Notify::new(),
            alive: watch::Sender::new(None),
            messages_received: AtomicU64::new(0),
            grants: LockLoss::default(),
            client: client.clone(),
            timeout,
        });
        tokio::spawn(super::reconnect::reconnect(stream.clone()));
        stream
    }

    /// Nobody has the session any more: what was posted is still sent, then the connection is closed.
    pub(crate) fn stop(self: &Arc<Self>) {
        self.enter(Phase::Stopped);
        self.wake.notify_one();
        let callers = self.inner.lock().pending.drain_callers();
        callers.into_iter().for_each(|request| self.complete(request, Reply::UseHttp));
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

    /// The index and generation of the connection, where there is one.
    pub(crate) fn up(&self) -> Option<(usize, u64)> {
        match *self.phase.borrow() {
            Phase::Up { index, generation } => Some((index, generation)),
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

    /// Asks and waits for what comes of it. Dropped before that, it takes the request back. `outcome_unknown` is whether an earlier sending
    /// under the same request id has found no end.
    pub(crate) async fn ask(
        &self,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        outcome_unknown: bool,
        give_up_at: Instant,
    ) -> StreamOutcome {
        let (tell, answer) = oneshot::channel();
        let id = {
            let mut inner = self.inner.lock();
            // Checked under the lock of the pending requests, so that a reconnect task that ends finds this request or this finds that it has ended.
            if let Phase::Over(why) = &*self.phase.borrow() {
                return StreamOutcome::unsent(Reply::SessionOver(why.clone()));
            }
            if !self.serves() {
                return StreamOutcome::unsent(Reply::UseHttp);
            }
            match inner.pending.submit(spec.clone(), request_id, ReplyTo::Caller(tell)) {
                Ok(id) => {
                    if outcome_unknown {
                        inner.pending.note_outcome_unknown(id);
                    }
                    id
                }
                Err(SubmitError::Waits) => return StreamOutcome::unsent(Reply::UseHttp),
                Err(SubmitError::Requests) => {
                    let why = "this session asks too much at a time; wait for answers before asking on";
                    return StreamOutcome::unsent(Reply::Unsendable(Error::refused(Code::Overloaded, why)));
                }
            }
        };
        self.wake.notify_one();
        let mut caller = Caller { stream: self, id, answered: false };
        match timeout_at(give_up_at, answer).await {
            Ok(reply) => {
                caller.answered = true;
                // Without an answer the request was dropped with the pending requests: the reconnect task has ended.
                let FinalReply { reply, outcome_unknown } =
                    reply.unwrap_or(FinalReply { reply: Reply::UseHttp, outcome_unknown: true });
                StreamOutcome::Reply { reply, outcome_unknown }
            }
            Err(_) => {
                let sent = self.inner.lock().pending.get(id).is_none_or(|request| request.ever_sent);
                StreamOutcome::GaveUp { sent }
            }
        }
    }

    /// Hands a request over, behind all that were asked before. Gives it back where there is no stream.
    pub(crate) fn send_detached(&self, spec: RequestSpec, request_id: Option<Uuid>) -> Result<(), RequestSpec> {
        let mut inner = self.inner.lock();
        if !self.serves() || inner.pending.submit(spec.clone(), request_id, ReplyTo::Detached).is_err() {
            return Err(spec);
        }
        drop(inner);
        self.wake.notify_one();
        Ok(())
    }

    /// Answers a request. One that nobody waits for is seen to where it could not be served.
    pub(super) fn complete(self: &Arc<Self>, request: PendingRequest, reply: Reply) {
        let outcome_unknown = match &reply {
            // To its last sending this is the end.
            Reply::Answered { .. } | Reply::Problem { .. } | Reply::Unsendable(_) => request.outcome_unknown,
            Reply::NotLockkeeper { .. } | Reply::SessionOver(_) | Reply::UseHttp => {
                request.outcome_unknown || request.sent
            }
        };
        let PendingRequest { spec, request_id, reply_to, .. } = request;
        match reply_to {
            // A caller that has gone in this moment does not mind; what it was granted is its own affair.
            ReplyTo::Caller(tell) => return drop(tell.send(FinalReply { reply, outcome_unknown })),
            ReplyTo::Cancelled => return,
            ReplyTo::Detached => {}
        }
        let again = match &reply {
            Reply::Problem { problem, .. } => problem.code.is_transient() || problem.code == Code::UnknownOutcome,
            // One page from something in between says nothing about the cluster.
            Reply::UseHttp | Reply::NotLockkeeper { .. } => true,
            Reply::Answered { .. } | Reply::SessionOver(_) | Reply::Unsendable(_) => false,
        };
        if again {
            let earlier = match &reply {
                Reply::Problem { problem, .. } if !problem.code.is_transient() => Some(problem.to_string()),
                _ => outcome_unknown.then(|| SENT.to_owned()),
            };
            let client = self.client.clone().over(self.clone());
            client.spawn(move |client| async move {
                sleep(PAUSE_OF_POSTED).await;
                client.retry_until_decided(&spec, request_id, earlier).await;
            });
        } else if !matches!(reply, Reply::Answered { .. }) {
            tracing::debug!(?reply, target = spec.target, "a request that nobody waits for came to nothing");
        }
    }

    /// Puts a keepalive on the stream; gives where its answer comes. Its time counts from now, which is before it is written.
    pub(crate) fn keepalive(&self) -> Option<oneshot::Receiver<Result<Duration, String>>> {
        let mut inner = self.inner.lock();
        self.up()?;
        let answer = inner.pending.keepalive(Moment::now());
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
        let sent = self.inner.lock().pending.kept_alive(number, Ok(timeout));
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
    pub(crate) fn messages_received(&self) -> u64 {
        self.messages_received.load(Ordering::Relaxed)
    }

    /// Gives the connection of that generation up, if it is still in use, for one to the next endpoint.
    pub(crate) fn abandon(&self, generation: u64, why: &str) {
        self.inner.lock().abandon = Some((generation, why.to_owned()));
        self.wake.notify_one();
    }

    /// Begins a watch; none where there is no stream.
    pub(crate) fn watch(self: &Arc<Self>, path: &str, recursive: bool, from: Option<u64>) -> Option<WatchSubscription> {
        let mut inner = self.inner.lock();
        if !self.serves() {
            return None;
        }
        let id = inner.pending.new_watch_id();
        let messages = inner.watches.begin(Watch { id, path: path.to_owned(), recursive, from });
        if self.up().is_some() {
            inner.pending.watch(id);
        }
        drop(inner);
        self.wake.notify_one();
        Some(WatchSubscription { id, messages, stream: self.clone() })
    }

    pub(super) fn unwatch(&self, id: u64) {
        let mut inner = self.inner.lock();
        if inner.watches.end(id) && self.up().is_some() {
            inner.pending.unwatch(id);
            drop(inner);
            self.wake.notify_one();
        }
    }
}
