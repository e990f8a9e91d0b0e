//! The caller's end of one connection to a peer: many calls at a time, each with an answer of its own.
//!
//! The connection begins as an HTTP/1.1 request with the identity headers of [`crate::PeerAuth`], which the peer
//! upgrades to [`PEER_PROTOCOL`]. No call is sent before that.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use lockkeeper_tls::{causes, tls_failure};
use parking_lot::Mutex;
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Upgraded};
use tokio::io::AsyncRead;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::admission::auth::{PeerIdentity, PeerTarget, identity_headers};
use crate::connection::frame::{Answer, AnswerFrame, CallFrame, FrameDecoder, PEER_PROTOCOL, write_frames};
use crate::error::ServeError;
use crate::transport::{PeerKind, TransportError};

/// Marks a reply as a peer's rejection and names its reason; its text is the body.
pub const HEADER_CODE: &str = "lockkeeper-code";
/// Where a peer's listener upgrades connections.
pub const PEER_PATH: &str = "/peer/v1/calls";

/// Longest time for a peer to upgrade a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_DETAIL_BYTES: usize = 4 * 1024;
/// Most calls of a connection that wait to be sent, and most bytes of them.
const MAX_QUEUED: usize = 4_096;
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

type Outcome = Result<Bytes, TransportError>;

/// One connection. It ends when it breaks, or with the last of its owners.
pub(crate) struct PeerConnection {
    /// The process that it was made for.
    pub(crate) target: PeerTarget,
    queue: Sender<CallFrame>,
    calls: Arc<Mutex<Calls>>,
    _end: DropGuard,
}

/// The calls of a connection.
#[derive(Default)]
struct Calls {
    next: u64,
    /// The peer has upgraded the connection.
    is_made: bool,
    /// Why calls that come later are not sent: the connection has ended.
    ended: Option<TransportError>,
    /// Of those whose callers wait.
    unanswered: HashMap<u64, oneshot::Sender<Outcome>>,
    queued_bytes: usize,
    /// Since when nothing has come in spite of a call that was sent.
    silent_since: Option<Instant>,
}

impl Calls {
    /// A call is taken from the queue. False if its caller waits no longer.
    fn sends(&mut self, call: &CallFrame) -> bool {
        self.queued_bytes -= call.body.len();
        let is_wanted = self.unanswered.contains_key(&call.number);
        if is_wanted {
            self.silent_since.get_or_insert_with(Instant::now);
        }
        is_wanted
    }

    fn answered(&mut self, number: u64, answer: Outcome) {
        self.complete(number, answer);
        self.silent_since = (!self.unanswered.is_empty()).then(Instant::now);
    }

    fn complete(&mut self, number: u64, outcome: Outcome) {
        if let Some(caller) = self.unanswered.remove(&number) {
            // The caller may wait no longer.
            let _ = caller.send(outcome);
        }
    }
}

/// Forgets a call whose caller waits no longer.
struct ForgetOnDrop<'c> {
    calls: &'c Mutex<Calls>,
    number: u64,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.calls.lock().unanswered.remove(&self.number);
    }
}

impl PeerConnection {
    /// A connection that is being made, in a task of its own.
    pub(crate) fn open(http: &Client, scheme: &str, own: &PeerIdentity, target: PeerTarget) -> PeerConnection {
        let (queue, queued) = channel(MAX_QUEUED);
        let calls = Arc::<Mutex<Calls>>::default();
        let scheme = if target.address.contains("://") { String::new() } else { format!("{scheme}://") };
        let mut request = http
            .get(format!("{scheme}{}{PEER_PATH}", target.address.trim_end_matches('/')))
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, PEER_PROTOCOL);
        for (name, value) in identity_headers(own, &target) {
            request = request.header(name, value);
        }
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(run(request, queued, calls.clone())));
        PeerConnection { target, queue, calls, _end: end.drop_guard() }
    }

    /// False once the connection has ended.
    pub(crate) fn is_open(&self) -> bool {
        !self.queue.is_closed()
    }

    /// True once the peer has upgraded the connection.
    pub(crate) fn is_made(&self) -> bool {
        self.calls.lock().is_made
    }

    /// For how long nothing has come in spite of a call.
    pub(crate) fn silent_for(&self) -> Duration {
        self.calls.lock().silent_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Sends a call and waits for its answer.
    pub(crate) async fn call(&self, kind: PeerKind, body: Bytes, wait: Duration) -> Outcome {
        if body.len() > kind.max_body_bytes() {
            let detail = format!("{} bytes exceed the bound of {kind}", body.len());
            return Err(TransportError::Rejected { code: "too_large".into(), detail });
        }
        let (caller, outcome) = oneshot::channel();
        let number = {
            let mut calls = self.calls.lock();
            let number = calls.next;
            let bytes = calls.queued_bytes + body.len();
            if bytes > MAX_QUEUED_BYTES || self.queue.try_send(CallFrame { number, kind, wait, body }).is_err() {
                let full = || TransportError::Unreachable("its connection takes no more calls".into());
                return Err(calls.ended.clone().unwrap_or_else(full));
            }
            calls.next += 1;
            calls.queued_bytes = bytes;
            calls.unanswered.insert(number, caller);
            number
        };
        let _forget = ForgetOnDrop { calls: &self.calls, number };
        let answer = match timeout(wait, outcome).await {
            Ok(outcome) => outcome.unwrap_or(Err(TransportError::Reset))?,
            Err(_) => return Err(TransportError::TimedOut),
        };
        if answer.len() > kind.max_answer_bytes() {
            return Err(TransportError::Garbled(format!("the answer exceeds {} bytes", kind.max_answer_bytes())));
        }
        Ok(answer)
    }
}

/// Connects, and sends and receives until the connection breaks.
async fn run(request: RequestBuilder, mut queued: Receiver<CallFrame>, calls: Arc<Mutex<Calls>>) {
    let not_answered = || TransportError::Unreachable("it does not answer a handshake".into());
    let connected = timeout(HANDSHAKE_TIMEOUT, upgrade(request)).await.unwrap_or_else(|_| Err(not_answered()));
    let (unsent, unanswered) = match connected {
        Ok(socket) => {
            calls.lock().is_made = true;
            let (reading, writing) = tokio::io::split(socket);
            let broken = tokio::select! {
                written = write_frames(&mut queued, writing, |call| calls.lock().sends(call)) => written,
                read = read_answers(reading, &calls) => read,
            };
            let unanswered = match broken {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => TransportError::Garbled(error.to_string()),
                _ => TransportError::Reset,
            };
            (TransportError::Unreachable("the connection broke before the call was sent".into()), unanswered)
        }
        Err(why) => (why.clone(), why),
    };
    let mut calls = calls.lock();
    // Both under the lock, so that a caller who finds the queue closed finds the reason.
    calls.ended = Some(unsent.clone());
    queued.close();
    while let Ok(call) = queued.try_recv() {
        calls.complete(call.number, Err(unsent.clone()));
    }
    let rest: Vec<u64> = calls.unanswered.keys().copied().collect();
    rest.into_iter().for_each(|number| calls.complete(number, Err(unanswered.clone())));
}

async fn read_answers(socket: impl AsyncRead + Unpin, calls: &Mutex<Calls>) -> io::Result<()> {
    let mut answers = FrameDecoder::<AnswerFrame>::read(socket);
    while let Some(answer) = answers.next().await {
        let AnswerFrame { number, answer } = answer?;
        let outcome = match answer {
            Answer::Body(body) => Ok(body),
            Answer::Rejection(ServeError { code, detail }) => Err(TransportError::Rejected { code, detail }),
            Answer::None => Err(TransportError::TimedOut),
        };
        calls.lock().answered(number, outcome);
    }
    Ok(())
}

async fn upgrade(request: RequestBuilder) -> Result<Upgraded, TransportError> {
    let response = request.send().await.map_err(|error| not_connected(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return response.upgrade().await.map_err(|error| TransportError::Unreachable(text(&error)));
    }
    Err(rejection(response).await)
}

/// The peer does not upgrade the connection. A status without [`HEADER_CODE`] does not come from a peer's listener.
async fn rejection(mut response: Response) -> TransportError {
    let status = response.status();
    let code = response.headers().get(HEADER_CODE).and_then(|code| code.to_str().ok()).map(str::to_owned);
    let mut detail = BytesMut::new();
    while let Ok(Some(chunk)) = response.chunk().await
        && detail.len() < MAX_DETAIL_BYTES
    {
        detail.extend_from_slice(&chunk);
    }
    detail.truncate(MAX_DETAIL_BYTES);
    let detail = String::from_utf8_lossy(&detail).into_owned();
    match code {
        Some(code) => TransportError::Rejected { code, detail },
        None => TransportError::Unreachable(format!("no peer listens there: status {status}: {detail}")),
    }
}

fn not_connected(error: &reqwest::Error) -> TransportError {
    if let Some(failure) = tls_failure(error) {
        // No call was sent: the peer upgrades no connection before it knows the certificate.
        let url = error.url().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(failure, url, "no TLS connection to a peer");
        return TransportError::Unreachable(failure);
    }
    let io_errors = || causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    match io_errors().map(io::Error::kind).find(|kind| *kind == io::ErrorKind::ConnectionRefused) {
        Some(_) => TransportError::Refused,
        // A process that is dying breaks connections off in the middle of a TLS handshake.
        None if error.is_connect() && io_errors().any(broke_off) => TransportError::Reset,
        // A process that is dying, or a proxy whose peer is gone, takes connections and resets them.
        None if !error.is_connect() && !error.is_builder() && !error.is_timeout() => TransportError::Reset,
        None => TransportError::Unreachable(text(error)),
    }
}

fn broke_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

fn text(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}
