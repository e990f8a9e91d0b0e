//! The handle that callers and the reconnect task share: the pending requests, the watches, and the stream's phase.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::stream::Watch;
use lockkeeper_mutants::mutant;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::loss_reports::LossReports;
use super::pending::{FinalReply, PendingRequest, PendingRequests, Reply, ReplyTo, SubmitError};
use super::watches::{WatchMessage, Watches};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, Tried};
use crate::request_spec::RequestSpec;

/// Why the outcome of a request is unknown that was sent and not answered.
pub(crate) const SENT: &str = "it was sent over the session's stream, which ended before an answer came";

/// When an acknowledged keepalive was sent, and the timeout that came with the acknowledgement.
pub(crate) type Renewal = (Moment, Duration);

/// How sending a request over the stream ended.
pub(crate) enum StreamOutcome {
    Reply {
        reply: Reply,
        /// Whether the outcome of some attempt other than the replied one is unknown.
        outcome_unknown: bool,
    },
    /// No answer came in time; `sent` says whether the request was ever sent.
    GaveUp { sent: bool },
}

impl StreamOutcome {
    fn unsent(reply: Reply) -> Self {
        Self::Reply { reply, outcome_unknown: false }
    }
}

/// A detached request that the stream could not get decided.
pub(crate) struct DetachedRequest {
    pub(crate) spec: RequestSpec,
    pub(crate) request_id: Option<Uuid>,
    /// Why it may have been carried out already.
    pub(crate) outcome_unknown: Option<String>,
}

/// Gets a detached request decided outside of the stream.
pub(crate) type RetryDetached = Box<dyn Fn(&Arc<StreamHandle>, DetachedRequest) + Send + Sync>;

/// The state of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No connection; the reconnect task looks for one.
    Connecting,
    /// Connected to the endpoint at this index.
    Up { index: usize, generation: u64 },
    /// The endpoints answer, but none serves a stream. Requests go over HTTP while the reconnect task keeps looking.
    None,
    /// The session is over.
    Over(String),
    /// The last handle of the session was dropped, or the session was closed.
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
    /// The connection of that generation is to be closed, and why.
    pub(super) reconnect_request: Option<(u64, String)>,
}

/// See the module's text.
pub(crate) struct StreamHandle {
    pub(super) inner: Mutex<StreamShared>,
    pub(super) phase: watch::Sender<Phase>,
    /// Wakes the connection: there is a message to write, or a change of phase.
    pub(super) wake: Notify,
    /// The newest acknowledged keepalive.
    alive: watch::Sender<Option<Renewal>>,
    /// Messages received so far, over all connections.
    pub(super) messages_received: AtomicU64,
    pub(crate) loss_reports: LossReports,
    pub(super) context: Context,
    /// The session's timeout when it was opened; how long to wait for a slow endpoint follows from it.
    pub(super) timeout: Duration,
    retry_detached: RetryDetached,
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle").field("phase", &*self.phase.borrow()).finish_non_exhaustive()
    }
}

/// A caller that waits. Dropped before the answer has come, it cancels the request.
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
    pub(super) fn new(context: &Context, timeout: Duration, retry_detached: RetryDetached) -> Self {
        Self {
            inner: Mutex::default(),
            phase: watch::Sender::new(Phase::Connecting),
            wake: Notify::new(),
            alive: watch::Sender::new(None),
            messages_received: AtomicU64::new(0),
            loss_reports: LossReports::default(),
            context: context.clone(),
            timeout,
            retry_detached,
        }
    }

    /// Ends the stream: detached requests are still sent, then the connection is closed.
    pub(crate) fn stop(self: &Arc<Self>) {
        self.end(|| Reply::UseHttp);
    }

    /// The same for a session that its client has given up. No caller goes on waiting for it.
    pub(crate) fn give_up(self: &Arc<Self>, because: &str) {
        self.end(|| Reply::SessionOver(because.to_owned()));
    }

    fn end(self: &Arc<Self>, reply: impl Fn() -> Reply) {
        self.enter(Phase::Stopped);
        self.wake.notify_one();
        let callers = self.inner.lock().pending.drain_callers();
        callers.into_iter().for_each(|request| self.complete(request, reply()));
    }

    /// Enters a phase, unless the current one is final.
    pub(super) fn enter(&self, next: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let moves = !phase.is_final() && *phase != next;
            if moves {
                *phase = next;
            }
            moves
        })
    }

    /// The endpoint index and generation of the connection, if there is one.
    pub(crate) fn up(&self) -> Option<(usize, u64)> {
        match *self.phase.borrow() {
            Phase::Up { index, generation } => Some((index, generation)),
            _ => None,
        }
    }

    /// Completes, with the reason, when the cluster says on the stream that the session is over.
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

    /// Completes when there has been no connection for that long without a break.
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

    /// Sends a request and waits for its reply. Dropped before that, it cancels the request. `outcome_unknown` says
    /// whether the outcome of an earlier attempt under the same request id is unknown.
    pub(crate) async fn send(
        &self,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        outcome_unknown: bool,
        give_up_at: Instant,
    ) -> StreamOutcome {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut inner = self.inner.lock();
            // Checked under the lock of the pending requests: a reconnect task that ends either finds this request, or
            // has already set the phase that this check sees.
            if let Phase::Over(why) = &*self.phase.borrow() {
                return StreamOutcome::unsent(Reply::SessionOver(why.clone()));
            }
            if !self.serves() {
                return StreamOutcome::unsent(Reply::UseHttp);
            }
            match inner.pending.submit(spec.clone(), request_id, ReplyTo::Caller(sender)) {
                Ok(id) => {
                    if outcome_unknown {
                        inner.pending.note_outcome_unknown(id);
                    }
                    id
                }
                Err(SubmitError::TooManyWaits) => return StreamOutcome::unsent(Reply::UseHttp),
                Err(SubmitError::TooManyRequests) => {
                    let why = "this session has too many unanswered requests; wait for answers before sending more";
                    return StreamOutcome::unsent(Reply::Unsendable(Error::refused(Code::Overloaded, why)));
                }
            }
        };
        self.wake.notify_one();
        let mut caller = Caller { stream: self, id, answered: false };
        match timeout_at(give_up_at, answer).await {
            Ok(reply) => {
                caller.answered = true;
                // The sender was dropped: the reconnect task has ended and taken the request with it.
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

    /// Queues a request behind all earlier ones, without waiting for its reply. Returns `false` where there is no
    /// stream for it; then nothing was queued.
    pub(crate) fn send_detached(&self, spec: &RequestSpec, request_id: Option<Uuid>) -> bool {
        let mut inner = self.inner.lock();
        if !self.serves() || inner.pending.submit(spec.clone(), request_id, ReplyTo::Detached).is_err() {
            return false;
        }
        drop(inner);
        self.wake.notify_one();
        true
    }

    /// Completes a request with its reply. A detached request that could not be served is retried.
    pub(super) fn complete(self: &Arc<Self>, request: PendingRequest, reply: Reply) {
        let outcome_unknown = match &reply {
            // These end the attempt on this connection; an earlier attempt may still be on its way.
            Reply::Answered { .. } | Reply::Problem { .. } | Reply::Unsendable(_) => request.outcome_unknown,
            Reply::NotLockkeeper { .. } | Reply::SessionOver(_) | Reply::UseHttp => {
                request.outcome_unknown || request.sent
            }
        };
        let PendingRequest { spec, request_id, reply_to, .. } = request;
        match reply_to {
            // A caller that goes at this moment cleans up after itself.
            ReplyTo::Caller(caller) => return drop(caller.send(FinalReply { reply, outcome_unknown })),
            ReplyTo::Cancelled => return,
            ReplyTo::Detached => {}
        }
        let retry = match &reply {
            Reply::Problem { problem, .. } => problem.code.is_transient() || problem.code == Code::UnknownOutcome,
            // An answer from something in between says nothing about the cluster.
            Reply::UseHttp | Reply::NotLockkeeper { .. } => true,
            Reply::Answered { .. } | Reply::SessionOver(_) | Reply::Unsendable(_) => false,
        };
        if retry {
            let outcome_unknown = match &reply {
                Reply::Problem { problem, .. } if !problem.code.is_transient() => Some(problem.to_string()),
                _ => outcome_unknown.then(|| SENT.to_owned()),
            };
            (self.retry_detached)(self, DetachedRequest { spec, request_id, outcome_unknown });
        } else if !matches!(reply, Reply::Answered { .. }) {
            tracing::debug!(?reply, ?spec, "detached request failed for good");
        }
    }

    /// Queues a keepalive; returns where its answer comes. It counts from now, which is before it is written.
    pub(crate) fn keepalive(&self) -> Option<oneshot::Receiver<Result<Duration, String>>> {
        let mut inner = self.inner.lock();
        self.up()?;
        let answer = inner.pending.keepalive(Moment::now());
        drop(inner);
        self.wake.notify_one();
        Some(answer)
    }

    /// Follows the newest keepalive that was acknowledged on the stream, however late.
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

    /// A node has confirmed that the session lives, in answer to a message sent at `sent`.
    pub(super) fn note_lease(&self, sent: Moment, timeout_ms: u32) {
        let sent = if mutant!(LeaseFromAnswer) { Moment::now() } else { sent };
        self.alive.send_if_modified(|latest| {
            let newer = latest.is_none_or(|(before, _)| before < sent);
            if newer {
                *latest = Some((sent, Duration::from_millis(timeout_ms.into())));
            }
            newer
        });
    }

    /// How many messages have been received.
    pub(crate) fn messages_received(&self) -> u64 {
        self.messages_received.load(Ordering::Relaxed)
    }

    /// Closes the connection of that generation, if it is still in use, in favour of the next endpoint.
    pub(crate) fn request_reconnect(&self, generation: u64, why: &str) {
        self.inner.lock().reconnect_request = Some((generation, why.to_owned()));
        self.wake.notify_one();
    }

    /// Begins a watch; `None` where there is no stream.
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

    fn unwatch(&self, id: u64) {
        let mut inner = self.inner.lock();
        if inner.watches.end(id) && self.up().is_some() {
            inner.pending.unwatch(id);
            drop(inner);
            self.wake.notify_one();
        }
    }
}

/// The reader's side of a watch. Dropping it ends the watch.
pub(crate) struct WatchSubscription {
    id: u64,
    messages: mpsc::Receiver<WatchMessage>,
    stream: Arc<StreamHandle>,
}

impl WatchSubscription {
    /// The next message; `None` when no more will come.
    pub(crate) async fn next(&mut self) -> Option<WatchMessage> {
        self.messages.recv().await
    }

    pub(crate) fn stream(&self) -> &Arc<StreamHandle> {
        &self.stream
    }
}

impl Drop for WatchSubscription {
    fn drop(&mut self) {
        self.stream.unwatch(self.id);
    }
}
