//! One connection: writes queued messages, dispatches received ones, and returns why it ended.
//!
//! It reads while it writes, so that two sides with full buffers cannot wait for each other. It collects all messages
//! that are ready into one write.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use lockkeeper_api::stream::{FromServer, StreamAnswer, VERSION, close};
use lockkeeper_api::{Code, Problem};
use lockkeeper_mutants::mutant;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{self, Message};

use super::connect::{OpenedStream, Socket, close_away};
use super::frames;
use super::handle::{Phase, StreamHandle};
use super::leader_move::LeaderMove;
use super::pending::{Outgoing, Reply, is_service};
use crate::clock::Moment;

/// Most bytes per write, so that reading gets its turn.
const BATCH_BYTES: usize = 64 << 10;
/// Most messages per read, so that writing gets its turn.
const BATCH_MESSAGES: usize = 256;
/// How long detached requests may take after the stream was stopped.
const LONGEST_LINGER: Duration = Duration::from_secs(2);

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// The stream was stopped, and all detached requests are answered.
    Stopped,
    /// The session is over.
    Over(String),
    /// The connection broke, or the node closed it.
    Broken(String),
    /// The stream moves to the leader's node, at the endpoint with that index.
    MovesToLeader(usize),
    /// Another part of this client asked for a new connection.
    ReconnectRequested(String),
    /// The other side does not follow Lockkeeper's protocol, or does not understand this client.
    NotLockkeeper(String),
    /// The node speaks another version of the stream; its HTTP interface serves this client.
    OtherVersion(String),
}

/// See the module's text.
pub(super) struct StreamConnection<'a> {
    stream: &'a Arc<StreamHandle>,
    sink: SplitSink<Socket, Message>,
    source: SplitStream<Socket>,
    index: usize,
    generation: u64,
    /// When the handshake was begun, and the grants that guards watched then.
    sent: Moment,
    watched: Vec<(String, u64)>,
    leader_move: &'a mut LeaderMove,
    /// The endpoint that the stream moves to, once everything written has reached the operating system.
    moves_to: Option<usize>,
    /// Some written messages have not reached the operating system yet.
    flushing: bool,
    /// Whether the node has served the session.
    pub(super) served: bool,
    /// When the last message was received, and whether a ping was sent since.
    last_received: Instant,
    pinged: bool,
    /// The server's reason for closing the stream.
    goodbye: Option<Box<Problem>>,
    /// Whether the server takes the traces of requests.
    traces: bool,
}

impl<'a> StreamConnection<'a> {
    /// Sends all unanswered requests again, in the order of submission; watches go first.
    pub(super) fn begin(
        stream: &'a Arc<StreamHandle>,
        opened: OpenedStream,
        generation: u64,
        leader_move: &'a mut LeaderMove,
    ) -> Self {
        let OpenedStream { index, socket, traces, sent, watched } = opened;
        let (sink, source) = (*socket).split();
        {
            let mut guard = stream.inner.lock();
            let inner = &mut *guard;
            inner.pending.connection_lost();
            inner.reconnect_request = None;
            let forgotten = generation > 1 && mutant!(DropWatchAtReconnect);
            inner.watches.ids().filter(|_| !forgotten).for_each(|id| inner.pending.watch(id));
            stream.enter(Phase::Up { index, generation });
        }
        Self {
            stream,
            sink,
            source,
            index,
            generation,
            sent,
            watched,
            leader_move,
            moves_to: None,
            flushing: false,
            served: false,
            last_received: Instant::now(),
            pinged: false,
            goodbye: None,
            traces,
        }
    }

    pub(super) async fn run(&mut self) -> CloseReason {
        let every = self.stream.context.options.liveness_interval.max(Duration::from_millis(10));
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let mut stopping_since = None;
        loop {
            if let Some(reason) = self.close_requested(&mut stopping_since) {
                return reason;
            }
            if let Err(reason) = self.write() {
                return reason;
            }
            // Cancels that were not sent would be forgotten.
            if let Some(leader) = self.moves_to.filter(|_| !self.flushing) {
                return CloseReason::MovesToLeader(leader);
            }
            let step = tokio::select! {
                message = self.source.next() => self.read(message),
                done = self.sink.flush(), if self.flushing => {
                    self.flushing = false;
                    done.map_err(|e| CloseReason::Broken(e.to_string()))
                }
                () = self.stream.wake.notified() => Ok(()),
                _ = ticks.tick() => self.check(every),
                leader = self.leader_move.due(), if stopping_since.is_none() => {
                    self.moves_to = Some(leader);
                    Ok(())
                }
            };
            if let Err(reason) = step {
                return reason;
            }
        }
    }

    /// Whether the rest of the client wants this connection closed.
    fn close_requested(&self, stopping_since: &mut Option<Instant>) -> Option<CloseReason> {
        let mut inner = self.stream.inner.lock();
        if let Some((generation, why)) = inner.reconnect_request.take()
            && generation == self.generation
        {
            return Some(CloseReason::ReconnectRequested(why));
        }
        if self.stream.phase.borrow().is_final() {
            let since = *stopping_since.get_or_insert_with(Instant::now);
            if inner.pending.is_empty() || since.elapsed() >= LONGEST_LINGER {
                return Some(CloseReason::Stopped);
            }
        }
        None
    }

    /// Writes the messages that are ready, up to a bound, in one flush.
    fn write(&mut self) -> Result<(), CloseReason> {
        let mut written = 0;
        while !self.flushing && written < BATCH_BYTES {
            let Some(text) = self.next_text() else { break };
            written += text.len();
            match self.sink.feed(Message::text(text)).now_or_never() {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(CloseReason::Broken(error.to_string())),
                // Cannot happen: all earlier messages were flushed. The next connection sends the request again.
                None => return Err(CloseReason::Broken("the connection does not accept messages".into())),
            }
        }
        if written > 0 {
            match self.sink.flush().now_or_never() {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(CloseReason::Broken(error.to_string())),
                None => self.flushing = true,
            }
            if written >= BATCH_BYTES {
                // There may be more.
                self.stream.wake.notify_one();
            }
        }
        Ok(())
    }

    /// The next message as text. A request that cannot be encoded is completed with an error.
    fn next_text(&self) -> Option<String> {
        loop {
            let mut guard = self.stream.inner.lock();
            let inner = &mut *guard;
            let text = match inner.pending.next_out()? {
                Outgoing::Cancel(id) => frames::cancel(id),
                Outgoing::Keepalive(number) => frames::keepalive(number),
                Outgoing::Unwatch(id) => frames::unwatch(id),
                Outgoing::Watch(id) => match inner.watches.get(id) {
                    Some(watch) => frames::watch(watch),
                    None => continue,
                },
                Outgoing::Request(id) => {
                    let Some(request) = inner.pending.get(id) else { continue };
                    let done = match (&self.stream.context.identity, request.request_id) {
                        (Some(identity), Some(_)) => identity.acknowledgements.take(usize::MAX),
                        _ => Vec::new(),
                    };
                    let text = frames::request(id, request, &done, self.traces);
                    if let Err(error) = text {
                        let request = inner.pending.remove(id);
                        drop(guard);
                        request.into_iter().for_each(|r| self.stream.complete(r, Reply::Unsendable(error.clone())));
                        continue;
                    }
                    text
                }
            };
            // Numbers and paths can always be encoded.
            if let Ok(text) = text {
                return Some(text);
            }
        }
    }

    /// Handles a message, and further ones that have already arrived.
    fn read(&mut self, first: Option<Result<Message, tungstenite::Error>>) -> Result<(), CloseReason> {
        let mut message = first;
        for left in (0..BATCH_MESSAGES).rev() {
            (self.last_received, self.pinged) = (Instant::now(), false);
            self.stream.messages_received.fetch_add(1, Ordering::Relaxed);
            match message {
                Some(Ok(Message::Text(text))) => self.dispatch(text.as_str())?,
                Some(Ok(Message::Close(frame))) => return Err(self.closed(frame.as_ref())),
                // tungstenite answers pings itself, with the next write.
                Some(Ok(Message::Ping(_))) => self.flushing = true,
                Some(Ok(Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    return Err(CloseReason::NotLockkeeper("a binary message on a stream of text messages".into()));
                }
                Some(Err(error)) => return Err(self.failed(&error)),
                None => return Err(self.closed(None)),
            }
            // A message that is taken must be handled, so none is taken after the last of a batch.
            if left == 0 {
                break;
            }
            match self.source.next().now_or_never() {
                Some(next) => message = next,
                None => break,
            }
        }
        Ok(())
    }

    fn failed(&self, error: &tungstenite::Error) -> CloseReason {
        match error {
            tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)
            | tungstenite::Error::Io(_)
            | tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed => match self.closed(None) {
                CloseReason::Broken(_) => CloseReason::Broken(error.to_string()),
                known => known,
            },
            _ => CloseReason::NotLockkeeper(error.to_string()),
        }
    }

    /// The reason for the end of the connection.
    fn closed(&self, frame: Option<&CloseFrame>) -> CloseReason {
        let goodbye = self.goodbye.as_ref().map(|problem| problem.to_string());
        let code = frame.map(|frame| u16::from(frame.code));
        let frame_reason = frame.map(|frame| frame.reason.as_str().to_owned()).filter(|reason| !reason.is_empty());
        let why = goodbye.or(frame_reason).unwrap_or_else(|| "the node ended the stream".into());
        let session_over = self.goodbye.as_ref().is_some_and(|problem| problem.code == Code::SessionExpired);
        match code {
            Some(close::SESSION_OVER) => CloseReason::Over(why),
            _ if session_over => CloseReason::Over(why),
            Some(close::BAD_MESSAGE | close::TOO_LARGE) => CloseReason::NotLockkeeper(why),
            _ => CloseReason::Broken(why),
        }
    }

    fn dispatch(&mut self, text: &str) -> Result<(), CloseReason> {
        let Some(message) = frames::decode(text).map_err(CloseReason::NotLockkeeper)? else { return Ok(()) };
        if let FromServer::Hello { version, .. } = message
            && version != VERSION
        {
            return Err(CloseReason::OtherVersion(format!(
                "the node speaks version {version} of the session stream, this client version {VERSION}; use a client \
                 and nodes of one release"
            )));
        }
        self.served |= is_service(&message);
        match message {
            FromServer::Hello { timeout_ms, zxid, held, leader, .. } => {
                self.stream.note_lease(self.sent, timeout_ms);
                self.on_leader(leader.as_deref());
                self.stream.loss_reports.compare(&std::mem::take(&mut self.watched), &held, zxid);
            }
            FromServer::Answer(answer) => self.answered(answer)?,
            FromServer::Alive { number, timeout_ms, leader } => {
                self.stream.note_alive(number, timeout_ms);
                self.on_leader(leader.as_deref());
            }
            FromServer::NotConfirmed { number, problem } => {
                let _ = self.stream.inner.lock().pending.kept_alive(number, Err(problem.to_string()));
            }
            FromServer::LockLost { lock, token, zxid } => {
                self.stream
                    .loss_reports
                    .lost(token, &format!("the lock '{lock}' was taken from its holder at zxid {zxid}"));
            }
            FromServer::Goodbye(problem) => self.goodbye = Some(problem),
            of_a_watch => {
                let mut inner = self.stream.inner.lock();
                if let Some(behind) = inner.watches.dispatch(of_a_watch) {
                    inner.pending.unwatch(behind);
                }
            }
        }
        Ok(())
    }

    fn on_leader(&mut self, address: Option<&str>) {
        if let Some(address) = address {
            self.moves_to = None;
            self.leader_move.on_leader(self.stream, self.index, address);
        }
    }

    fn answered(&self, answer: StreamAnswer) -> Result<(), CloseReason> {
        let StreamAnswer { id, status, body, .. } = answer;
        // The request was cancelled and forgotten.
        let Some(request) = self.stream.inner.lock().pending.remove(id) else { return Ok(()) };
        let reply = match status {
            ..400 => {
                if !request.outcome_unknown {
                    self.stream.context.acknowledge(request.request_id);
                }
                let text: Box<str> = body.into();
                Reply::Answered { index: self.index, bytes: Bytes::from(text.into_string()) }
            }
            _ => match serde_json::from_str::<Problem>(body.get()) {
                Ok(problem) => {
                    Reply::Problem { index: self.index, generation: self.generation, problem: Box::new(problem) }
                }
                Err(error) => {
                    let why = format!("status {status} without a problem document: {error}");
                    self.stream.complete(request, Reply::NotLockkeeper { index: self.index, why: why.clone() });
                    return Err(CloseReason::NotLockkeeper(why));
                }
            },
        };
        self.stream.complete(request, reply);
        Ok(())
    }

    /// Sends a ping while requests are unanswered and no message comes, and closes the connection to a node that does
    /// not answer it.
    fn check(&mut self, every: Duration) -> Result<(), CloseReason> {
        if self.pinged {
            return Err(CloseReason::Broken(format!(
                "the node has sent nothing for {} ms",
                self.last_received.elapsed().as_millis()
            )));
        }
        let quiet = self.last_received.elapsed() >= every / 2;
        if quiet && self.stream.inner.lock().pending.sent() > 0 && !self.flushing {
            self.pinged = true;
            match self.sink.feed(Message::Ping(Bytes::new())).now_or_never() {
                Some(Ok(())) => self.flushing = true,
                Some(Err(error)) => return Err(CloseReason::Broken(error.to_string())),
                None => {}
            }
        } else if self.flushing && quiet {
            // The node neither reads nor writes.
            self.pinged = true;
        }
        Ok(())
    }

    /// Closes the connection with a close frame where that is quick. The code is "away", since the client may repeat
    /// over HTTP what it asked here.
    pub(super) async fn close(mut self, reason: &CloseReason) {
        let why = match reason {
            CloseReason::Stopped => Some("the client is done"),
            CloseReason::MovesToLeader(_) => Some("the client moves to the leader"),
            _ => None,
        };
        if let Some(why) = why {
            close_away(&mut self.sink, why).await;
        }
    }
}
