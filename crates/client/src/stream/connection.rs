//! One connection at work: writes what is queued, hands on what comes, and says why it ended.
//!
//! It reads while it writes, so that two sides that are both full cannot wait for each other; it collects all that is ready into
//! one write.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use lockkeeper_api::stream::{Answer, FromServer, close};
use lockkeeper_api::{Code, Problem};
use lockkeeper_mutants::mutant;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};

use super::connect::{OpenedStream, Socket};
use super::frames;
use super::handle::{Phase, StreamHandle};
use super::pending::{Outgoing, Reply, is_service};
use crate::clock::Moment;

/// Written in one go at most, so that reading gets its turn.
const BATCH_BYTES: usize = 64 << 10;
/// Read in one go at most, so that writing gets its turn.
const BATCH_MESSAGES: usize = 256;
/// After the last handle is gone, how long what was posted may take.
const LONGEST_LINGER: Duration = Duration::from_secs(2);

/// Why a connection came to its end.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// Nobody has the session any more, and all that was posted is done.
    Stopped,
    /// The session is over.
    Over(String),
    /// It broke, or the node sent this client away.
    Broken(String),
    /// This client gave it up.
    Abandoned(String),
    /// The other side does not speak as Lockkeeper does, or does not understand this client.
    NotLockkeeper(String),
}

/// See the module's text.
pub(super) struct StreamConnection<'a> {
    stream: &'a Arc<StreamHandle>,
    sink: SplitSink<Socket, Message>,
    source: SplitStream<Socket>,
    index: usize,
    generation: u64,
    /// When the handshake was begun, and the grants that somebody listened for then.
    sent: Moment,
    watched: Vec<(String, u64)>,
    /// Something is written that is not with the operating system yet.
    flushing: bool,
    /// The node has answered something.
    pub(super) served: bool,
    /// When something was last received, and whether a sign of life was asked for since.
    last_received: Instant,
    pinged: bool,
    /// The server's last words.
    goodbye: Option<Box<Problem>>,
}

impl<'a> StreamConnection<'a> {
    /// All that is not answered is sent again, in the order in which it was asked; watches go first.
    pub(super) fn begin(stream: &'a Arc<StreamHandle>, opened: OpenedStream, generation: u64) -> Self {
        let OpenedStream { index, socket, sent, watched } = opened;
        let (sink, source) = (*socket).split();
        {
            let mut guard = stream.inner.lock();
            let inner = &mut *guard;
            inner.pending.connection_lost();
            inner.abandon = None;
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
            flushing: false,
            served: false,
            last_received: Instant::now(),
            pinged: false,
            goodbye: None,
        }
    }

    pub(super) async fn run(&mut self) -> CloseReason {
        let every = self.stream.context.options.liveness_interval.max(Duration::from_millis(10));
        let mut look = interval(every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.reset();
        let mut stopping_since = None;
        loop {
            if let Some(ending) = self.directed(&mut stopping_since) {
                return ending;
            }
            if let Err(ending) = self.write() {
                return ending;
            }
            let step = tokio::select! {
                message = self.source.next() => self.read(message),
                done = self.sink.flush(), if self.flushing => {
                    self.flushing = false;
                    done.map_err(|e| CloseReason::Broken(e.to_string()))
                }
                () = self.stream.wake.notified() => Ok(()),
                _ = look.tick() => self.check(every),
            };
            if let Err(ending) = step {
                return ending;
            }
        }
    }

    /// What the rest of the client wants done with this connection.
    fn directed(&self, stopping_since: &mut Option<Instant>) -> Option<CloseReason> {
        let mut inner = self.stream.inner.lock();
        if let Some((generation, why)) = inner.abandon.take()
            && generation == self.generation
        {
            return Some(CloseReason::Abandoned(why));
        }
        if self.stream.phase.borrow().is_final() {
            let since = *stopping_since.get_or_insert_with(Instant::now);
            if inner.pending.is_empty() || since.elapsed() >= LONGEST_LINGER {
                return Some(CloseReason::Stopped);
            }
        }
        None
    }

    /// Writes what is ready, up to a bound, and hands it to the operating system in one go.
    fn write(&mut self) -> Result<(), CloseReason> {
        let mut written = 0;
        while !self.flushing && written < BATCH_BYTES {
            let Some(text) = self.next_text() else { break };
            written += text.len();
            match self.sink.feed(Message::text(text)).now_or_never() {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(CloseReason::Broken(error.to_string())),
                // Cannot be: everything fed before has been flushed. The request is sent again after the connection is.
                None => return Err(CloseReason::Broken("the connection takes nothing".into())),
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

    /// The next message as text; what cannot be written is answered so.
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
                    let text = frames::request(id, request, &done);
                    if let Err(error) = text {
                        let request = inner.pending.remove(id);
                        drop(guard);
                        request.into_iter().for_each(|r| self.stream.complete(r, Reply::Unsendable(error.clone())));
                        continue;
                    }
                    text
                }
            };
            // Numbers and paths can always be written.
            if let Ok(text) = text {
                return Some(text);
            }
        }
    }

    /// Takes a message and those that are there behind it.
    fn read(&mut self, first: Option<Result<Message, WsError>>) -> Result<(), CloseReason> {
        let mut message = first;
        for left in (0..BATCH_MESSAGES).rev() {
            (self.last_received, self.pinged) = (Instant::now(), false);
            self.stream.messages_received.fetch_add(1, Ordering::Relaxed);
            match message {
                Some(Ok(Message::Text(text))) => self.understand(text.as_str())?,
                Some(Ok(Message::Close(frame))) => return Err(self.closed(frame.as_ref())),
                // tungstenite answers pings by itself, with the next write.
                Some(Ok(Message::Ping(_))) => self.flushing = true,
                Some(Ok(Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    return Err(CloseReason::NotLockkeeper("a binary message; this stream speaks text".into()));
                }
                Some(Err(error)) => return Err(self.failed(&error)),
                None => return Err(self.closed(None)),
            }
            // What is taken must be looked at: the last of a batch is followed by none. The rest stays where it is.
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

    fn failed(&self, error: &WsError) -> CloseReason {
        match error {
            WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake)
            | WsError::Io(_)
            | WsError::ConnectionClosed
            | WsError::AlreadyClosed => match self.closed(None) {
                CloseReason::Broken(_) => CloseReason::Broken(error.to_string()),
                known => known,
            },
            _ => CloseReason::NotLockkeeper(error.to_string()),
        }
    }

    /// What the end of the connection means.
    fn closed(&self, frame: Option<&CloseFrame>) -> CloseReason {
        let said = self.goodbye.as_ref().map(|problem| problem.to_string());
        let code = frame.map(|frame| u16::from(frame.code));
        let reason = frame.map(|frame| frame.reason.as_str().to_owned()).filter(|reason| !reason.is_empty());
        let why = said.or(reason).unwrap_or_else(|| "the node ended the stream".into());
        let session_over = self.goodbye.as_ref().is_some_and(|problem| problem.code == Code::SessionExpired);
        match code {
            Some(close::SESSION_OVER) => CloseReason::Over(why),
            _ if session_over => CloseReason::Over(why),
            Some(close::BAD_MESSAGE | close::TOO_LARGE) => CloseReason::NotLockkeeper(why),
            _ => CloseReason::Broken(why),
        }
    }

    fn understand(&mut self, text: &str) -> Result<(), CloseReason> {
        let Some(message) = frames::decode(text).map_err(CloseReason::NotLockkeeper)? else { return Ok(()) };
        self.served |= is_service(&message);
        match message {
            FromServer::Hello { timeout_ms, zxid, held } => {
                self.stream.note_lease(self.sent, timeout_ms);
                self.stream.lock_loss.compare(&std::mem::take(&mut self.watched), &held, zxid);
            }
            FromServer::Answer(answer) => self.answered(answer)?,
            FromServer::Alive { number, timeout_ms } => self.stream.note_alive(number, timeout_ms),
            FromServer::NotConfirmed { number, problem } => {
                let _ = self.stream.inner.lock().pending.kept_alive(number, Err(problem.to_string()));
            }
            FromServer::LockLost { lock, token, zxid } => {
                self.stream
                    .lock_loss
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

    fn answered(&self, answer: Answer) -> Result<(), CloseReason> {
        let Answer { id, status, body, .. } = answer;
        // The answer to a request that was given up, and forgotten, is nobody's.
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

    /// While something is asked and nothing is received, asks for a sign of life, and gives a node up that gives none.
    fn check(&mut self, every: Duration) -> Result<(), CloseReason> {
        if self.pinged {
            return Err(CloseReason::Broken(format!(
                "the node has said nothing for {} ms",
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
            // It takes nothing and gives nothing.
            self.pinged = true;
        }
        Ok(())
    }

    /// Ends the connection in good order where that is quick. "Away", since a client may go on over HTTP with what it asked here.
    pub(super) async fn close(mut self, ending: &CloseReason) {
        const LONGEST: Duration = Duration::from_millis(200);
        if matches!(ending, CloseReason::Stopped) {
            let away = CloseFrame { code: CloseCode::Away, reason: Utf8Bytes::from_static("the client is done") };
            let _ = timeout(LONGEST, self.sink.send(Message::Close(Some(away)))).await;
        }
    }
}
