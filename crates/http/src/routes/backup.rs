//! `/v1/snapshot`: a backup of the whole state, streamed while it is encoded.
//!
//! The state is copied in O(1) after a read barrier and encoded on a thread for blocking work, so no write waits for
//! it. One backup is taken at a time, the thread works at most half of the time, and what the client has not read is
//! bounded.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State as Extract;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use lockkeeper_api::backup::{BackupWriter, CONTENT_TYPE, Header, SIZE_HEADER};
use lockkeeper_api::{Code, Problem, ZXID_HEADER};
use lockkeeper_consensus::{LogPosition, with_low_priority};
use lockkeeper_core::State;
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_node::{Consistency, NodeError};
use lockkeeper_service::audit::{AuditEvent, AuditOutcome, AuditRecord};
use lockkeeper_service::calls::CallScope;
use lockkeeper_service::context::Context;
use lockkeeper_service::failure::Failure;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::connection::Endless;
use crate::context::HttpContext;
use crate::extract::Reader;
use crate::response::HttpFailure;

/// Sent at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that the client has not read.
const PIECES_WAITING: usize = 4;
/// The longest pause between two pieces.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// When to come back if another backup is under way.
const RETRY_AFTER_MS: u64 = 2_000;

/// Either of these rights.
fn need() -> Need<'static> {
    Need::of(Resource::Cluster, "", Rights::TO_BACK_UP)
}

/// Takes a backup: everything that was acknowledged before the call, at one zxid. `lockkeeper snapshot` reads it. A
/// node takes one backup at a time.
#[utoipa::path(get, path = "/v1/snapshot", operation_id = "saveSnapshot", tag = "cluster",
    responses((status = 200, description = "The backup, whose end carries its length and its SHA-256",
               body = Vec<u8>, content_type = "application/vnd.lockkeeper.backup"),
              (status = "4XX", description = "Refused; 429 `overloaded`: this node takes a backup already",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn save(
    Extract(http): Extract<Arc<HttpContext>>,
    Reader(scope): Reader,
) -> Result<Response, HttpFailure> {
    let need = need();
    let (context, principals) = (scope.context.clone(), scope.caller.principals.clone());
    let allowed = context.node.read(Consistency::Linearizable, |state| state.check_right(&principals, &need)).await?;
    allowed.value.map_err(NodeError::Refused)?;
    let turn = http.backups.clone().try_acquire_owned().map_err(|_| {
        let detail = "this node takes a backup already; wait for it, or ask another node";
        Failure::new(Code::Overloaded, detail).retry_after(RETRY_AFTER_MS)
    })?;
    let waiting = scope.at_work.wait(&context.admission, None)?;
    let (state, position) = context.node.state_for_backup().await?;
    let (zxid, size) = (state.zxid(), state.bytes());
    let (sender, receiver) = mpsc::channel(PIECES_WAITING);
    let complete = Arc::new(AtomicBool::new(false));
    let pieces = Pieces {
        sender,
        runtime: Handle::current(),
        buffer: Vec::with_capacity(PIECE_BYTES),
        began: Instant::now(),
        sent: 0,
        write_timeout: http.stream_write_timeout,
        scope,
    };
    let finished = complete.clone();
    context.tasks.spawn_blocking(move || {
        let _until_the_end = (turn, waiting);
        with_low_priority(|| write_backup(&state, position, pieces, &finished));
    });
    let mut response = Response::new(body(receiver, complete));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ZXID_HEADER, HeaderValue::from(zxid.0));
    headers.insert(SIZE_HEADER, HeaderValue::from(size));
    // The connection ends with the stream, as that of a watch does: a large one takes longer than it may be idle.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response.extensions_mut().insert(Endless);
    Ok(response)
}

/// The pieces as they come. If they end before the backup is complete, so does the connection, and not as if it were.
fn body(receiver: mpsc::Receiver<Bytes>, complete: Arc<AtomicBool>) -> Body {
    let pieces = futures::stream::unfold(Some((receiver, complete)), |state| async move {
        let (mut receiver, complete) = state?;
        match receiver.recv().await {
            Some(piece) => Some((Ok(piece), Some((receiver, complete)))),
            None if complete.load(Ordering::Acquire) => None,
            None => Some((Err(io::Error::other("the backup broke off")), None)),
        }
    });
    Body::from_stream(pieces)
}

/// Encodes and sends the backup, and writes its audit record. Blocks.
fn write_backup(state: &State, position: LogPosition, pieces: Pieces, complete: &AtomicBool) {
    let (context, requester) = (pieces.scope.context.clone(), pieces.scope.requester());
    let written = encode(&context, state, position, pieces, complete);
    if written.is_ok() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        metrics::gauge!("lockkeeper_last_backup_timestamp_seconds").set(now.as_secs_f64());
    }
    let bytes = written.as_ref().copied().unwrap_or_default();
    let outcome = match written {
        Ok(_) => AuditOutcome::Done(Some(state.zxid())),
        Err(error) => AuditOutcome::NotDone(Some(error.to_string())),
    };
    context.audit.record(&AuditRecord { event: AuditEvent::BackupTaken { bytes }, requester, outcome });
}

fn encode(
    context: &Context,
    state: &State,
    position: LogPosition,
    pieces: Pieces,
    complete: &AtomicBool,
) -> io::Result<u64> {
    let header = Header {
        cluster: context.cluster.clone(),
        node_id: context.node.consensus().status().node,
        version: env!("CARGO_PKG_VERSION").into(),
        zxid: state.zxid().0,
        time_ms: state.clock_ms(),
        log_term: position.term,
        log_index: position.index,
    };
    let mut writer = BackupWriter::new(&header, pieces)?;
    state.write_snapshot(&mut writer).map_err(io::Error::other)?;
    let pieces = writer.finish()?;
    // Before the channel closes.
    complete.store(true, Ordering::Release);
    Ok(pieces.sent)
}

/// Sends what is written to it, in pieces.
struct Pieces {
    sender: mpsc::Sender<Bytes>,
    runtime: Handle,
    buffer: Vec<u8>,
    /// When the present piece was begun.
    began: Instant,
    sent: u64,
    /// Longest time for the client to take a piece.
    write_timeout: Duration,
    scope: CallScope,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        let took = self.began.elapsed();
        self.check_go_on()?;
        let piece = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE_BYTES)));
        self.sent += piece.len() as u64;
        let within = self.write_timeout;
        let sent = self.runtime.block_on(async { timeout(within, self.sender.send(piece)).await });
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(io::Error::other("the client has disconnected")),
            Err(_) => return Err(io::Error::other("the client does not read (limits.stream_write_timeout_ms)")),
        }
        // Others need the processor too.
        std::thread::sleep(took.min(LONGEST_PAUSE));
        self.began = Instant::now();
        Ok(())
    }

    /// A backup that takes long ends when the node goes down or its caller has lost the right to it.
    fn check_go_on(&self) -> io::Result<()> {
        let CallScope { context, caller, expires, .. } = &self.scope;
        if context.stopping.is_cancelled() {
            return Err(io::Error::other("the node is shutting down"));
        }
        if expires.is_some_and(|at| at <= tokio::time::Instant::now()) {
            return Err(io::Error::other("the caller's JWT has expired"));
        }
        context.node.look(|state| state.check_right(&caller.principals, &need())).map_err(io::Error::other)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == PIECE_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.send() }
    }
}
