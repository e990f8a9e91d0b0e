//! The task of one stream. Each turn reads the messages that have arrived, polls the requests, drains the watches,
//! writes the answers, and flushes once.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{AbortHandle, poll_fn};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, SinkExt, StreamExt};
use lockkeeper_api::stream::{FromServer, Held, VERSION, Watch, WatchChange};
use lockkeeper_api::{Code, Problem};
use lockkeeper_core::{LockName, NodePath, Refusal, Zxid};
use lockkeeper_node::{At, Bound, NodeError, SessionEvent, SessionEvents, WatchItem, WatchSpec};
use lockkeeper_service::budget::{Exceeded, Taken};
use lockkeeper_service::failure::{Failure, compacted};
use lockkeeper_service::principals::{may_read, readable};
use lockkeeper_service::reply::kind_out;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::Utf8Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::close::{self, CloseReason};
use super::frame::{self, Incoming};
use super::grants::Grants;
use super::metrics::{ended, metrics};
use super::request::{self, Finished, Open};
use super::socket::StreamSocket;
use super::watches::StreamWatches;
use super::{GRACE, HIGH_WATER_BYTES, MAX_KEEPALIVES, MAX_OPEN, MAX_WATCHES, Session};

/// Rounds of a turn before it flushes and yields.
const ROUNDS: usize = 8;
/// Longest time to answer the requests of a session that has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Longest time to answer requests at shutdown, and to carry out those of a client that disconnected.
const LAST_ANSWERS_GOING_DOWN: Duration = Duration::from_secs(10);

/// See the module's text.
pub(super) struct SessionTask {
    session: Arc<Session>,
    socket: WebSocketStream<StreamSocket>,
    message_bytes: usize,
    session_events: SessionEvents,
    grants: Grants,
    watches: StreamWatches,
    open: FuturesUnordered<Open>,
    /// The requests at work, with the handle that cancels a lock request.
    ids: HashMap<u64, Option<AbortHandle>>,
    /// Lost locks, not written yet: earlier events of watches go first.
    lost: Vec<FromServer>,
    /// Finished and not written yet: an event may have to go first.
    done: Vec<Finished>,
    done_bytes: usize,
    unflushed_bytes: usize,
    /// Room taken for unread output, and the refusal of more.
    unread: Option<Taken>,
    no_room: Option<Exceeded>,
    /// The leader that the stream named last.
    leader: Option<u64>,
    heard_at: Instant,
    silence: Pin<Box<Sleep>>,
    /// Until the caller's JWT stops to count.
    expiry: Option<Pin<Box<Sleep>>>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The stream ends once the requests at work are answered, or at that time.
    ending: Option<(CloseReason, Pin<Box<Sleep>>)>,
}

impl SessionTask {
    pub(super) fn new(
        session: Arc<Session>,
        session_events: At<SessionEvents>,
        socket: WebSocketStream<StreamSocket>,
        message_bytes: usize,
    ) -> Self {
        let now = Instant::now();
        let stopping = Box::pin(session.context.stopping.clone().cancelled_owned());
        let silence = Box::pin(sleep_until(now + session.timeout()));
        let expiry = session.expires.map(|at| Box::pin(sleep_until(at)));
        let mut session_task = Self {
            session,
            socket,
            message_bytes,
            session_events: session_events.value,
            grants: Grants::default(),
            watches: StreamWatches::default(),
            open: FuturesUnordered::new(),
            ids: HashMap::new(),
            lost: Vec::new(),
            done: Vec::new(),
            done_bytes: 0,
            unflushed_bytes: 0,
            unread: None,
            no_room: None,
            leader: None,
            heard_at: now,
            silence,
            expiry,
            stopping,
            ending: None,
        };
        session_task.send_hello(session_events.zxid);
        session_task
    }

    fn send_hello(&mut self, zxid: Zxid) {
        let mut held = Vec::new();
        for request in self.session_events.take_held() {
            let lock = request.path.parent().and_then(|directory| LockName::of_directory(&directory));
            if let Some(lock) = lock {
                held.push(Held { lock: lock.to_string(), token: request.token.0 });
                self.grants.note(request.token.0, request.path);
            }
        }
        let (timeout_ms, leader) = (self.session.timeout_ms, self.new_leader());
        let cluster = Some(self.session.context.cluster_identity().to_string());
        self.send(&FromServer::Hello { version: VERSION, timeout_ms, zxid: zxid.0, held, cluster, leader });
    }

    /// Where clients reach the leader, if it is another than the one that the stream named last.
    fn new_leader(&mut self) -> Option<String> {
        let leader = self.session.context.leader().filter(|leader| self.leader != Some(*leader))?;
        let address = self.session.context.client_address(leader)?;
        self.leader = Some(leader);
        Some(address)
    }

    /// Serves until the end.
    pub(super) async fn run(mut self) {
        let why = loop {
            if let Err(why) = self.flush().await {
                break self.read_remaining(why).await;
            }
            if let Err(why) = poll_fn(|context| self.poll_turn(context)).await {
                break why;
            }
        };
        // The end needs more room than all the time before it.
        Box::pin(self.end(why)).await;
    }

    async fn end(self, why: CloseReason) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            tracing::debug!(session = %self.session.credential.session, why = why.describe(), "a stream ended");
        }
        ended(why.label());
        let Self { session, open, done, socket, .. } = self;
        // A client that is done has no use for grants that were not written. Any other client may ask again and learn
        // that it holds.
        if matches!(why, CloseReason::ClientDone) {
            request::give_back(&session, done);
        }
        let mut left = request::Unfinished::of(open);
        let waiting = std::mem::take(&mut left.waiting);
        // Requests that are not kept leave their queues when they are dropped.
        if why.may_return() {
            keep_queue_places(&session, waiting);
        } else {
            drop(waiting);
        }
        // A request that arrived whole takes place, answered or not. The close frame tells a client that closes that
        // its requests have.
        let carry_out = timeout(LAST_ANSWERS_GOING_DOWN, left.carry_out());
        if why.is_closed_by_client() {
            let _ = carry_out.await;
            close::close(socket, &why).await;
        } else {
            let _ = tokio::join!(carry_out, close::close(socket, &why));
        }
    }

    /// Reads the messages that arrived before the connection failed to write: requests, and perhaps the client's close
    /// frame.
    async fn read_remaining(&mut self, why: CloseReason) -> CloseReason {
        if !matches!(why, CloseReason::Broken(_)) {
            return why;
        }
        loop {
            match poll_fn(|context| Poll::Ready(self.read_messages(context))).await {
                Ok(true) => {}
                Ok(false) => return why,
                Err(read) => return if read.is_closed_by_client() { read } else { why },
            }
        }
    }

    /// Ready when there is something to flush.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        // Also where so much comes that the timer below is never looked at.
        if self.session.has_expired() {
            return Poll::Ready(Err(CloseReason::CredentialExpired));
        }
        for _ in 0..ROUNDS {
            let read = self.read_messages(context)?;
            let finished = self.poll_requests(context);
            let unflushed = self.unflushed_bytes;
            self.poll_session_events(context);
            // While an event is held back, so is everything that may reveal it: lost locks, and answers, which may
            // reveal lost locks too.
            if self.drain_watches(context) {
                for lost in std::mem::take(&mut self.lost) {
                    self.send(&lost);
                }
                self.write_answers()?;
            }
            let told = self.unflushed_bytes > unflushed;
            if self.unflushed_bytes >= HIGH_WATER_BYTES {
                return Poll::Ready(Ok(()));
            }
            if !(read || finished || told) {
                return self.poll_idle(context);
            }
        }
        context.waker().wake_by_ref();
        if self.unflushed_bytes > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Polls the timers and signals that end the stream; nothing else is ready.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        if self.unflushed_bytes > 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some((_, until)) = &mut self.ending {
            if (self.open.is_empty() && self.done.is_empty()) || until.poll_unpin(context).is_ready() {
                return Poll::Ready(Err(self.ending.take().map_or(CloseReason::GoingDown, |(why, _)| why)));
            }
            return Poll::Pending;
        }
        if self.stopping.poll_unpin(context).is_ready() {
            self.end_after(CloseReason::GoingDown, LAST_ANSWERS_GOING_DOWN);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.expiry.as_mut().is_some_and(|expiry| expiry.poll_unpin(context).is_ready()) {
            return Poll::Ready(Err(CloseReason::CredentialExpired));
        }
        while self.silence.poll_unpin(context).is_ready() {
            let timeout = self.session.timeout();
            if self.heard_at.elapsed() >= timeout {
                return Poll::Ready(Err(CloseReason::Silent(timeout)));
            }
            self.silence.as_mut().reset(self.heard_at + timeout);
        }
        Poll::Pending
    }

    fn end_after(&mut self, why: CloseReason, time: Duration) {
        if self.ending.is_none() {
            self.ending = Some((why, Box::pin(sleep_until(Instant::now() + time))));
        }
    }

    /// Reads the messages that have arrived, however many requests are at work: keepalives and cancels must get
    /// through. True if any was read.
    fn read_messages(&mut self, context: &mut Context<'_>) -> Result<bool, CloseReason> {
        let mut any = false;
        let were_full = self.is_full();
        // Replies that are sent at once count as unflushed. Finished requests may make room before a request is
        // refused.
        while self.ending.is_none() && self.unflushed_bytes < HIGH_WATER_BYTES && (were_full || !self.is_full()) {
            let Poll::Ready(read) = self.socket.poll_next_unpin(context) else { break };
            any = true;
            match read {
                Some(Ok(message)) => {
                    self.socket.get_mut().whole();
                    self.on_message(message)?;
                }
                Some(Err(error)) => return Err(self.broken(error)),
                None => return Err(CloseReason::Broken("the connection ended".into())),
            }
        }
        if any {
            // Any message is a sign of life of its session.
            self.session.context.node.touch(self.session.credential.session, self.session.timeout_ms);
        }
        Ok(any)
    }

    /// Whether the stream has as many unanswered requests as it may.
    fn is_full(&self) -> bool {
        self.ids.len() >= MAX_OPEN
    }

    /// Unanswered keepalives: everything that is no request.
    fn keepalives(&self) -> usize {
        (self.open.len() + self.done.len()).saturating_sub(self.ids.len())
    }

    fn broken(&self, error: SocketError) -> CloseReason {
        match error {
            SocketError::Capacity(CapacityError::MessageTooLong { .. }) => CloseReason::TooLarge(self.message_bytes),
            SocketError::Utf8(_) => CloseReason::BadMessage("a text message must be UTF-8".into()),
            SocketError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                CloseReason::Broken("it was cut".into())
            }
            SocketError::Protocol(error) => {
                CloseReason::BadMessage(format!("this is not a WebSocket's frame: {error}"))
            }
            error => match self.socket.get_ref().exceeded() {
                Some(exceeded) => CloseReason::NoRoom(Box::new(exceeded.clone())),
                None => CloseReason::Broken(error.to_string()),
            },
        }
    }

    fn on_message(&mut self, message: Message) -> Result<(), CloseReason> {
        self.heard_at = Instant::now();
        match message {
            Message::Text(text) => self.on_text(&text),
            Message::Binary(_) => {
                Err(CloseReason::BadMessage("messages of this protocol are text; this one was binary".into()))
            }
            Message::Close(Some(frame)) if frame.code == CloseCode::Normal => Err(CloseReason::ClientDone),
            Message::Close(_) => Err(CloseReason::Moved),
            // tungstenite has queued the pong, which only the next flush sends.
            Message::Ping(_) => {
                self.unflushed_bytes += 1;
                Ok(())
            }
            Message::Pong(_) | Message::Frame(_) => Ok(()),
        }
    }

    fn on_text(&mut self, text: &str) -> Result<(), CloseReason> {
        let message = serde_json::from_str(text).map_err(|error| {
            CloseReason::BadMessage(format!(
                "the message is not one of those in docs/stream.md (version {VERSION} of the protocol): {error}"
            ))
        })?;
        match message {
            Incoming::Request(request) => {
                metrics().requests.increment(1);
                if self.ids.contains_key(&request.id) {
                    let detail = format!("request id {} belongs to a request that is not answered yet", request.id);
                    return Err(CloseReason::BadMessage(detail));
                }
                if self.is_full() {
                    // The refusal reveals nothing, so it waits for no event.
                    return self.write(request::refused_text(request.id, &too_many()));
                }
                let begun = request::begin(&self.session, &request);
                if let Some(releasing) = &begun.releasing {
                    self.grants.part(&self.session_events, releasing);
                }
                self.ids.insert(request.id, begun.open.cancel.clone());
                self.open.push(begun.open);
            }
            Incoming::Keepalive(number) => {
                metrics().keepalives.increment(1);
                if self.keepalives() < MAX_KEEPALIVES {
                    self.open.push(request::keepalive(&self.session, number));
                } else {
                    let detail = format!(
                        "this stream has {MAX_KEEPALIVES} unconfirmed keepalives; send one every third of the timeout"
                    );
                    let problem = Failure::new(Code::Overloaded, detail).retry_after(1_000).into_problem();
                    self.send(&FromServer::NotConfirmed { number, problem: Box::new(problem) });
                }
            }
            Incoming::Cancel(id) => {
                metrics().other.increment(1);
                // A request that was answered meanwhile is gone.
                if let Some(Some(cancel)) = self.ids.get(&id) {
                    cancel.abort();
                }
            }
            Incoming::Watch(watch) => {
                metrics().other.increment(1);
                if self.watches.has(watch.id) {
                    return Err(CloseReason::BadMessage(format!(
                        "watch id {} belongs to a watch that goes on",
                        watch.id
                    )));
                }
                self.begin_watch(&watch);
            }
            Incoming::Unwatch(id) => {
                metrics().other.increment(1);
                self.watches.remove(id);
            }
        }
        Ok(())
    }

    fn begin_watch(&mut self, watch: &Watch) {
        let begun = match self.try_watch(watch) {
            Ok(zxid) => FromServer::Watching { id: watch.id, zxid },
            Err(failure) => {
                self.session.note_refusal(&failure);
                FromServer::WatchEnded { id: watch.id, problem: Box::new(failure.into_problem()) }
            }
        };
        self.send(&begun);
    }

    fn try_watch(&mut self, watch: &Watch) -> Result<u64, Failure> {
        if self.watches.len() >= MAX_WATCHES {
            let detail = format!("a stream has at most {MAX_WATCHES} watches; end some, or watch a subtree");
            return Err(Failure::new(Code::Overloaded, detail).retry_after(1_000));
        }
        let spec =
            WatchSpec { path: NodePath::parse(&watch.path)?, recursive: watch.recursive, from: watch.from.map(Zxid) };
        let (node, principals) = (&self.session.context.node, &self.session.principals);
        node.look(|state| may_read(principals, state, &spec.path)).map_err(NodeError::Refused)?;
        let place = self.session.context.admission.watches.take(self.session.holder(), 1)?;
        // This does not wait.
        let begun = self.session.context.node.watch(spec).now_or_never();
        let items = begun.unwrap_or(Err(NodeError::Overloaded { bound: Bound::Watches, retry_after_ms: 100 }))?;
        let after = items.after().0;
        self.watches.add(watch.id, items, place);
        Ok(after)
    }

    /// Polls the requests and keepalives at work. True if any finished.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> bool {
        let before = self.done.len();
        while self.done_bytes < HIGH_WATER_BYTES
            && let Poll::Ready(Some(finished)) = self.open.poll_next_unpin(context)
        {
            if let Finished::Answer { text, .. } = &finished {
                self.done_bytes += text.len();
            }
            self.done.push(finished);
        }
        self.done.len() > before
    }

    /// Polls for lost locks and the end of the session.
    fn poll_session_events(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(told) = self.session_events.poll_next(context) {
            match told {
                SessionEvent::LockGone { path, zxid } => {
                    if let Some(lost) = self.grants.gone(&path, zxid) {
                        metrics().losses.increment(1);
                        self.lost.push(lost);
                    }
                }
                SessionEvent::SessionEnded { zxid } => self.end_session(Some(zxid)),
            }
        }
    }

    fn end_session(&mut self, zxid: Option<Zxid>) {
        let refusal = Refusal::SessionExpired(self.session.credential.session);
        let mut problem: Problem = Failure::from(NodeError::Refused(refusal)).into_problem();
        if let Some(zxid) = zxid {
            problem.detail.push_str(&format!("; that was at zxid {zxid}"));
        }
        self.end_after(CloseReason::SessionOver(Box::new(problem)), LAST_ANSWERS);
    }

    /// Sends the events of the watches. True if none is left.
    fn drain_watches(&mut self, context: &mut Context<'_>) -> bool {
        let mut watches = std::mem::take(&mut self.watches);
        let drained = watches.drain(context, |id, item| {
            let session = self.session.clone();
            let item = session.context.node.look(|state| readable(&session.principals, state, item));
            self.send(&watched(id, item));
            self.unflushed_bytes < HIGH_WATER_BYTES
        });
        self.watches = watches;
        drained
    }

    fn write_answers(&mut self) -> Result<(), CloseReason> {
        self.done_bytes = 0;
        for finished in std::mem::take(&mut self.done) {
            match finished {
                Finished::Answer { id, text, effect } => {
                    self.ids.remove(&id);
                    metrics().answers.increment(1);
                    self.write(text)?;
                    // After the answer, so that the client never reads of a loss before the grant.
                    self.grants.follow(&self.session_events, effect);
                }
                Finished::Keepalive { number, heard: Ok(kept) } => {
                    let leader = self.new_leader();
                    self.send(&FromServer::Alive { number, timeout_ms: kept.value.timeout_ms, leader });
                }
                Finished::Keepalive { heard: Err(NodeError::Refused(Refusal::SessionExpired(_))), .. } => {
                    self.end_session(None);
                }
                Finished::Keepalive { number, heard: Err(error) } => {
                    let problem = Box::new(Failure::from(error).into_problem());
                    self.send(&FromServer::NotConfirmed { number, problem });
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, message: &FromServer) {
        if matches!(message, FromServer::Changes { .. }) {
            metrics().changes.increment(1);
        }
        // The flush reports a connection that cannot be written to.
        let _ = self.write(frame::message(message));
    }

    fn write(&mut self, text: Vec<u8>) -> Result<(), CloseReason> {
        self.unflushed_bytes += text.len();
        self.count_unread();
        let text = Utf8Bytes::try_from(Bytes::from(text)).map_err(|error| CloseReason::Broken(error.to_string()))?;
        self.socket.start_send_unpin(Message::Text(text)).map_err(|error| CloseReason::Broken(error.to_string()))
    }

    /// Takes room for unflushed output beyond the part that every stream has.
    fn count_unread(&mut self) {
        let counted = HIGH_WATER_BYTES + self.unread.as_ref().map_or(0, Taken::amount);
        let Some(more) = self.unflushed_bytes.checked_sub(counted).filter(|more| *more > 0) else { return };
        let budget = &self.session.context.admission.reply_bytes;
        let taken = match &mut self.unread {
            Some(taken) => taken.grow(more),
            none => budget.take(self.session.holder(), more).map(|taken| *none = Some(taken)),
        };
        if let Err(exceeded) = taken {
            self.no_room = Some(exceeded);
        }
    }

    /// Flushes. A client that reads too slowly ends the stream, and at once if there is no room for its unread output.
    async fn flush(&mut self) -> Result<(), CloseReason> {
        metrics().flushes.increment(1);
        self.unflushed_bytes = 0;
        let flushed = match self.socket.flush().now_or_never() {
            Some(flushed) => flushed,
            None => {
                if let Some(exceeded) = self.no_room.take() {
                    return Err(CloseReason::NoRoom(Box::new(exceeded)));
                }
                let limit = self.session.write_timeout;
                timeout(limit, self.socket.flush()).await.map_err(|_| CloseReason::TooSlow(limit))?
            }
        };
        (self.unread, self.no_room) = (None, None);
        flushed.map_err(|error| CloseReason::Broken(error.to_string()))
    }
}

fn too_many() -> Failure {
    let detail =
        format!("this stream has {MAX_OPEN} unanswered requests; not executed; retry after an answer, or over HTTP");
    Failure::new(Code::Overloaded, detail).retry_after(100)
}

fn watched(id: u64, item: WatchItem) -> FromServer {
    match item {
        WatchItem::Changes(events) => FromServer::Changes {
            id,
            zxid: events.first().map_or(0, |event| event.zxid.0),
            changes: events
                .into_iter()
                .map(|event| WatchChange { kind: kind_out(event.kind), path: event.path.to_string() })
                .collect(),
        },
        WatchItem::Bookmark(zxid) => FromServer::Bookmark { id, zxid: zxid.0 },
        WatchItem::Lost { oldest } => {
            FromServer::WatchEnded { id, problem: Box::new(compacted(oldest).into_problem()) }
        }
    }
}

/// Keeps waiting lock requests in their queues for a while: a client that reconnects, here or at another node, and asks
/// again under the same request id finds its place. They are not polled meanwhile, so a grant that nobody asks for
/// again is released.
fn keep_queue_places(session: &Arc<Session>, mut places: Vec<Open>) {
    if places.is_empty() {
        return;
    }
    let grace = session.timeout().min(GRACE);
    let stopping = session.context.stopping.clone();
    session.context.tasks.spawn(async move {
        tokio::select! {
            () = tokio::time::sleep(grace) => {}
            // At shutdown each call ends by itself.
            () = stopping.cancelled() => drop(timeout(GRACE, futures::future::join_all(places.drain(..))).await),
        }
        drop(places);
    });
}
