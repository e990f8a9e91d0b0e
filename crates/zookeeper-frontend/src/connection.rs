//! Serves one connection: the connect request, then its requests in order, until either side closes.
//!
//! Replies keep the order of the requests. A write is submitted and the next request is read at once. A read waits
//! until every write before it has been applied here, and is answered under the state's lock, so that no event of its
//! watch can be missed.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_core::{AccessOp, Actor, Refusal, State};
use lockkeeper_node::{At, Consistency, NodeError};
use lockkeeper_service::audit::{AuthenticationMethod, Requester};
use lockkeeper_service::bounds::Room;
use lockkeeper_service::principals::prove_certificate;
use lockkeeper_service::socket::{Socket, SocketReader, SocketWriter, bound_unsent};
use lockkeeper_service::tls::{TLS_HANDSHAKE_BYTE, TLS_HANDSHAKE_TIMEOUT, TlsHandshake, TlsListener};
use lockkeeper_zookeeper::request::{OtherRequest, RequestGroup};
use lockkeeper_zookeeper::{
    ErrorCode, FrameDecoder, FrameError, Inbound, OpCode, Reply, ReplyHeader, Request, RequestHeader, xid,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::auth::Identity;
use super::changes::{self, Change};
use super::connection_handle::{AttachedSession, ConnectionHandle, holder};
use super::frontend::{Frontend, RegisteredConnection};
use super::handshake::{self, Handshake};
use super::metrics::{Counts, RequestCounters};
use super::outbox::{Close, Next};
use super::reads::{self, ReadContext};
use super::set_watches::{self, RewatchRequest};
use super::values::{code, zxid};
use super::{admin_commands, throttle};

/// The connect request must arrive within this time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Watches that setWatches sets under one hold of the state's lock.
const WATCH_BATCH: usize = 1_000;
/// Before the next request of a client whose watch was refused: a client that goes on asking must cost little (P13).
const PAUSE_AFTER_REFUSED_WATCH: Duration = Duration::from_millis(20);
/// Requests served before yielding to other tasks.
const REQUESTS_PER_YIELD: u64 = 32;
/// How often overdue replies are looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves a connection to its end.
pub(super) async fn serve(registered: RegisteredConnection, stream: TcpStream, tls: Option<TlsListener>) {
    let _ = stream.set_nodelay(true).and_then(|()| bound_unsent(&stream));
    let (socket, certificate) = match tls {
        None => (Socket::Plain(stream), None),
        Some(tls) => {
            let address = SocketAddr::new(registered.handle.address, registered.handle.port);
            // Boxed, because it is large, and connections without TLS need no room for it.
            match Box::pin(tls.accept(stream, address, TLS_HANDSHAKE_TIMEOUT, || ())).await {
                TlsHandshake::Done(socket, certificate) => (socket, certificate),
                TlsHandshake::PlainText(_) | TlsHandshake::Failed => return,
            }
        }
    };
    if let Some(certificate) = certificate {
        let mut principals = registered.handle.principals();
        prove_certificate(&mut principals, &certificate);
        registered.handle.set_principals(&principals);
    }
    let (reading, writing) = socket.into_split();
    let (frontend, handle) = (registered.frontend.clone(), registered.handle.clone());
    let writer = tokio::spawn(write_replies(frontend.clone(), handle.clone(), writing));
    let decoder = FrameDecoder::for_server(frontend.settings.max_frame_bytes);
    let room = Room::of(&frontend.settings.request_bytes, holder(handle.id, handle.address));
    let mut reader =
        FrameReader { reading, decoder, room, frontend: frontend.clone(), handle: handle.clone(), failed: None };
    let why = run(&frontend, &handle, &mut reader).await;
    tracing::debug!(connection = handle.id, address = %handle.address, why, "a connection of a ZooKeeper client ends");
    handle.outbox.close(Close::AfterFlush);
    // Let the client read what is queued.
    let _ = timeout(frontend.settings.write_timeout, writer).await;
}

/// Writes the outbox to the socket until it is closed or the client stops reading.
async fn write_replies(frontend: Arc<Frontend>, handle: Arc<ConnectionHandle>, mut writing: SocketWriter) {
    while let Next::Write(bytes) = handle.outbox.next().await {
        let write = async {
            writing.write_all(&bytes).await?;
            writing.flush().await
        };
        match timeout(frontend.settings.write_timeout, write).await {
            Ok(Ok(())) => drop(handle.sent.fetch_add(1, Ordering::Relaxed)),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    handle.outbox.close(Close::Immediately);
    // Over TLS it has to write, which a client that does not read can hold up.
    let _ = timeout(frontend.settings.write_timeout, writing.shutdown()).await;
}

/// Reads frames from the socket.
struct FrameReader {
    reading: SocketReader,
    decoder: FrameDecoder,
    frontend: Arc<Frontend>,
    /// Budget taken by the incomplete frame.
    room: Room,
    handle: Arc<ConnectionHandle>,
    /// Why nothing more can be read.
    failed: Option<&'static str>,
}

impl FrameReader {
    /// Completes when there is more to read. It may be cancelled; what has been read is kept.
    async fn readable(&mut self) {
        if self.decoder.buffered_bytes() == 0 {
            self.failed = self.fill().await.err();
        }
    }

    /// The next frame or four-letter command, or why there is none.
    async fn next(&mut self) -> Result<Inbound, &'static str> {
        loop {
            match self.decoder.next_inbound() {
                Ok(Some(inbound)) => {
                    self.room.release();
                    self.handle.received.fetch_add(1, Ordering::Relaxed);
                    return Ok(inbound);
                }
                Ok(None) => {}
                Err(error) => return Err(self.refuse(&error)),
            }
            if let Some(why) = self.failed {
                return Err(why);
            }
            self.fill().await?;
        }
    }

    /// Logs and counts a frame that is refused, and says why. Its connection ends: where the next frame begins is
    /// unknown.
    fn refuse(&mut self, error: &FrameError) -> &'static str {
        let address = self.handle.address;
        let speaks_tls = self.decoder.buffer_mut().first() == Some(&TLS_HANDSHAKE_BYTE);
        let (why, ends) = match error {
            _ if speaks_tls => {
                tracing::info!(%address, "a ZooKeeper client speaks TLS to a port without TLS");
                ("tls", "it speaks TLS")
            }
            FrameError::TooLong { length, max } => {
                tracing::warn!(
                    %address,
                    "a ZooKeeper client's request of {length} bytes is longer than zookeeper.max_frame_bytes ({max}); \
                     its connection is closed"
                );
                ("too_long", "its request is longer than zookeeper.max_frame_bytes")
            }
            FrameError::Negative { .. } => {
                tracing::debug!(%address, %error, "malformed frame");
                ("malformed", "it sent a malformed frame")
            }
        };
        metrics::counter!("lockkeeper_zookeeper_frames_refused_total", "why" => why).increment(1);
        ends
    }

    /// Reads some bytes.
    async fn fill(&mut self) -> Result<(), &'static str> {
        match self.reading.read_buf(self.decoder.buffer_mut()).await {
            Ok(count @ 1..) => Counts::add(&self.frontend.counts.bytes_received, count as u64),
            Ok(0) | Err(_) => return Err("the client closed the connection"),
        }
        if let Err(exceeded) = self.room.fit(self.decoder.buffer_mut().len()) {
            tracing::debug!(%exceeded, connection = self.handle.id, "no budget for a frame");
            return Err("no room for its frame (limits.request_bytes_in_flight)");
        }
        Ok(())
    }
}

async fn run(frontend: &Arc<Frontend>, handle: &Arc<ConnectionHandle>, reader: &mut FrameReader) -> &'static str {
    let first = match timeout(HANDSHAKE_TIMEOUT, reader.next()).await {
        Ok(Ok(Inbound::Frame(frame))) => frame,
        Ok(Ok(Inbound::Word(word))) => {
            let answer = admin_commands::answer(frontend, word).await;
            handle.outbox.push(|out| out.extend_from_slice(answer.as_bytes()));
            return "it sent a four-letter command";
        }
        Ok(Err(why)) => return why,
        Err(_) => return "it sent no connect request in time",
    };
    let began = Instant::now();
    let session = match handshake::handshake(frontend, handle, first).await {
        Handshake::Accepted(session) => {
            handle.last.set_zxid(zxid(session.attachment));
            record_reply(frontend, handle, (OpCode::CreateSession.number(), 0), began);
            session
        }
        Handshake::Rejected(why) => return why,
    };
    let mut requests = RequestCounters::default();
    let mut connection = SessionConnection {
        frontend: frontend.clone(),
        handle: handle.clone(),
        session,
        identity: Identity::of(handle.principals()),
    };
    for number in 1_u64.. {
        // Buffered requests are served without waiting for anything, so other tasks need a turn.
        if number % REQUESTS_PER_YIELD == 0 {
            tokio::task::yield_now().await;
        }
        let frame = tokio::select! {
            inbound = reader.next() => inbound,
            why = connection.should_close() => return why,
        };
        let frame = match frame {
            Ok(Inbound::Frame(frame)) => frame,
            Ok(Inbound::Word(_)) => return "it sent a four-letter command among its requests",
            Err(why) => return why,
        };
        frontend.node.touch(session.id, session.timeout_ms);
        let Ok((header, body)) = RequestHeader::split(frame) else { return "it sent a request without a header" };
        requests.count(header);
        let began = Instant::now();
        let flow = match Request::decode(header.opcode, body) {
            Ok(request) => connection.serve(reader, header, &request, began).await,
            Err(error) => {
                tracing::debug!(%error, connection = handle.id, "malformed request");
                connection.reply_in_order(header.xid, Err(ErrorCode::MarshallingError)).await
            }
        };
        if let ControlFlow::Break(why) = flow {
            return why;
        }
    }
    "it has used up its request numbers"
}

/// Whether the connection goes on, or why it is closed.
type ConnectionFlow = ControlFlow<&'static str>;

/// State of a session as this replica knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It is attached to this connection.
    Here,
    /// It is attached to another one.
    Moved,
    Gone,
}

/// A connection with its session.
struct SessionConnection {
    frontend: Arc<Frontend>,
    handle: Arc<ConnectionHandle>,
    session: AttachedSession,
    identity: Identity,
}

impl SessionConnection {
    /// Completes when the connection must be closed whatever the client sends.
    async fn should_close(&self) -> &'static str {
        loop {
            if self.handle.outbox.is_closed() {
                return "its session has ended or moved, or it read too slowly";
            }
            if self.handle.is_overdue(self.frontend.settings.request_timeout) {
                return "a request was not answered in time";
            }
            // Without pending requests nothing can be overdue: an idle connection needs no timer.
            match self.handle.pending() {
                0 => self.handle.outbox.closed().await,
                _ => drop(timeout(CHECK_INTERVAL, self.handle.outbox.closed()).await),
            }
        }
    }

    async fn serve(
        &mut self,
        reader: &mut FrameReader,
        header: RequestHeader,
        request: &Request,
        began: Instant,
    ) -> ConnectionFlow {
        self.handle.outbox.room().await;
        let xid = header.xid;
        if let Err(code) = throttle::turn(&self.frontend, &self.identity, request).await {
            return self.reply_in_order(xid, Err(code)).await;
        }
        let flow = match request.group() {
            RequestGroup::ChangeRequest(change) => {
                return self.change(header, changes::change(change, &self.identity), began).await;
            }
            RequestGroup::ReadRequest(read) => {
                self.read(xid, |state, context, frame| {
                    let (answered, watch) = context.answer(state, read, xid, frame);
                    if let Some(watch) = watch {
                        set_watches::watch_read(&self.frontend, &self.handle, state, watch, answered.is_ok())?;
                    }
                    answered
                })
                .await
            }
            RequestGroup::WatchRequest(watch) => {
                self.read(xid, |state, _, frame| {
                    set_watches::answer(&self.frontend, &self.handle, state, watch, xid, frame)
                })
                .await
            }
            RequestGroup::OtherRequest(other) => return self.answer(reader, header, other, began).await,
            RequestGroup::Unknown => self.reply_in_order(xid, Err(ErrorCode::Unimplemented)).await,
        };
        record_reply(&self.frontend, &self.handle, (header.opcode, xid), began);
        match self.handle.take_refused_watch() {
            true if flow.is_continue() => self.pause_after_refused_watch().await,
            _ => flow,
        }
    }

    async fn pause_after_refused_watch(&self) -> ConnectionFlow {
        tokio::select! {
            () = tokio::time::sleep(PAUSE_AFTER_REFUSED_WATCH) => ControlFlow::Continue(()),
            why = self.should_close() => ControlFlow::Break(why),
        }
    }

    /// Answers a request about the session, its connection or the whole tree.
    async fn answer(
        &mut self,
        reader: &mut FrameReader,
        header: RequestHeader,
        request: OtherRequest<'_>,
        began: Instant,
    ) -> ConnectionFlow {
        let xid = header.xid;
        let flow = match request {
            OtherRequest::Ping => return self.ping(reader).await,
            OtherRequest::CloseSession => self.close_session(xid).await,
            OtherRequest::Auth(auth) => {
                // The new identity counts from the reply on.
                let super_digest = self.frontend.settings.super_user.for_caller(self.handle.is_local);
                let taken = self.identity.authenticate(&auth.scheme, &auth.credentials, super_digest);
                self.handle.set_principals(self.identity.principals());
                if taken.is_ok() {
                    self.identify();
                }
                let flow = self.reply_in_order(xid, taken.map(|()| Reply::Empty)).await;
                match taken {
                    Ok(()) => flow,
                    Err(_) => {
                        Counts::add(&self.frontend.counts.auth_failures, 1);
                        let requester = Requester::at(self.handle.address);
                        self.frontend.audit.authentication_failed(requester, AuthenticationMethod::ZookeeperAuth);
                        ControlFlow::Break("its credentials are wrong")
                    }
                }
            }
            OtherRequest::Sync(at) => self.sync(xid, at.clone()).await,
            OtherRequest::Reconfig(_) => self.reply_in_order(xid, Err(ErrorCode::ReconfigDisabled)).await,
            OtherRequest::Sasl(_) => self.reply_in_order(xid, Err(ErrorCode::Unimplemented)).await,
            OtherRequest::SetWatches(again) => {
                self.set_watches(xid, again.relative_zxid, || set_watches::rewatch_requests(again)).await
            }
            OtherRequest::SetWatches2(again) => {
                self.set_watches(xid, again.relative_zxid, || set_watches::rewatch_requests_with_persistent(again))
                    .await
            }
            OtherRequest::GetAllChildrenNumber(at) => self.count_below(xid, at.clone()).await,
        };
        record_reply(&self.frontend, &self.handle, (header.opcode, xid), began);
        flow
    }

    /// Makes the session that of the client's principal, if it is nobody's yet. If this does not come to pass, nobody
    /// owns the session, as before; but if the principal's namespace has no room for it, the connection is closed.
    fn identify(&self) {
        let actor = Actor { principals: self.identity.principals().clone(), ..Actor::of(self.session.id) };
        let handle = self.handle.clone();
        let identified = move |outcome: lockkeeper_node::OrderedReply| {
            if let Ok(At { value: Err(refusal @ Refusal::NamespaceFull { .. }), .. }) = outcome {
                tracing::info!(address = %handle.address, "a ZooKeeper client is turned away: {refusal}");
                handle.outbox.close(Close::AfterFlush);
            }
        };
        let _ = self.frontend.node.submit(actor, AccessOp::Identify.into(), identified);
    }

    /// Submits a change. Its reply is queued when it has been applied here.
    async fn change(
        &mut self,
        header: RequestHeader,
        change: Result<Change, ErrorCode>,
        began: Instant,
    ) -> ConnectionFlow {
        let xid = header.xid;
        let (op, encoder) = match change {
            Ok(change) => change.into_parts(),
            Err(code) => return self.reply_in_order(xid, Err(code)).await,
        };
        self.pending_at_most(self.frontend.settings.outstanding.saturating_sub(1)).await?;
        let actor = Actor {
            session: Some(self.session.id),
            request: None,
            attachment: Some(self.session.attachment),
            principals: self.identity.principals().clone(),
            may_force: self.frontend.settings.may_force,
        };
        if self.frontend.node.is_full_for(&actor, &op) {
            // The changes before it may make room.
            self.pending_at_most(0).await?;
            if let Err(NodeError::Refused(refusal)) = self.frontend.node.refuse_when_full(&actor, &op).await
                && let Some(answer) = encoder.answer(Err(refusal))
            {
                return self.reply_in_order(xid, answer).await;
            }
        }
        let encoder = Arc::new(encoder);
        let submit = || {
            let answer = self.when_applied(header, encoder.clone(), began);
            self.frontend.node.submit(actor.clone(), op.clone(), answer)
        };
        match self.submit_with_retry(began, submit).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(NodeError::Refused(refusal)) => self.reply_in_order(xid, Err(code(&refusal))).await,
            Err(error) => ControlFlow::Break(not_accepted(&error)),
        }
    }

    /// Submits a change and counts it as pending. While the node is overloaded, by whichever client, this waits and
    /// retries, for at most the request timeout.
    async fn submit_with_retry(
        &self,
        began: Instant,
        mut submit: impl FnMut() -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        loop {
            self.handle.add_pending();
            let Err(error) = submit() else { return Ok(()) };
            self.handle.complete_pending();
            match error {
                NodeError::Overloaded { retry_after_ms, .. }
                    if began.elapsed() < self.frontend.settings.request_timeout =>
                {
                    metrics::counter!("lockkeeper_zookeeper_held_back_total").increment(1);
                    tokio::time::sleep(Duration::from_millis(retry_after_ms.clamp(1, 100))).await;
                }
                error => return Err(error),
            }
        }
    }

    /// The callback that queues a change's reply.
    fn when_applied(
        &self,
        RequestHeader { xid, opcode }: RequestHeader,
        encoder: Arc<changes::ReplyEncoder>,
        began: Instant,
    ) -> impl FnOnce(lockkeeper_node::OrderedReply) + Send + 'static {
        let (frontend, handle) = (self.frontend.clone(), self.handle.clone());
        move |outcome| {
            if let Ok(At { value: Err(refusal), .. }) = &outcome {
                changes::log_foreign_names(refusal, handle.address);
            }
            if let Ok(done) = &outcome {
                handle.last.set_zxid(zxid(done.zxid));
            }
            match outcome.map(|answered| (encoder.answer(answered.value), zxid(answered.zxid))) {
                Ok((Some(Ok(reply)), at)) => handle.outbox.push(|out| reply.encode(xid, at, out)),
                Ok((Some(Err(code)), at)) => handle.outbox.push(|out| ReplyHeader::failed(xid, at, code).encode(out)),
                // The outcome does not fit the request, or is unknown.
                Ok((None, _)) | Err(_) => handle.outbox.close(Close::AfterFlush),
            }
            record_reply(&frontend, &handle, (opcode, xid), began);
            handle.complete_pending();
        }
    }

    /// Waits until at most `count` changes are pending, or the connection must be closed. The next request of the
    /// client may be the one that releases a lock, so no change waits for another one meanwhile.
    async fn pending_at_most(&self, count: usize) -> ConnectionFlow {
        if self.handle.pending() > count {
            self.frontend.node.propose_delayed();
        }
        tokio::select! {
            biased;
            () = self.handle.pending_at_most(count) => ControlFlow::Continue(()),
            why = self.should_close() => ControlFlow::Break(why),
        }
    }

    /// Queues a reply that needs no data, after those of all earlier requests.
    async fn reply_in_order(&self, xid: i32, answer: Result<Reply, ErrorCode>) -> ConnectionFlow {
        self.pending_at_most(0).await?;
        self.frontend.node.look(|state| {
            let at = zxid(state.zxid());
            self.handle.last.set_zxid(at);
            self.handle.outbox.push(|out| match &answer {
                Ok(reply) => reply.encode(xid, at, out),
                Err(code) => ReplyHeader::failed(xid, at, *code).encode(out),
            });
        });
        ControlFlow::Continue(())
    }

    /// Answers a request under the state's lock, so that its reply and its watch agree.
    async fn read(
        &self,
        xid: i32,
        answer: impl FnOnce(&State, ReadContext<'_>, &mut BytesMut) -> Result<(), ErrorCode>,
    ) -> ConnectionFlow {
        self.pending_at_most(0).await?;
        if self.frontend.settings.linearizable_reads
            && let Err(error) = self.frontend.node.read(Consistency::Linearizable, |_| ()).await
        {
            tracing::debug!(%error, connection = self.handle.id, "linearizable read failed");
            return ControlFlow::Break("a linearizable read is not possible at the moment");
        }
        if let Err(error) = self.frontend.node.rights_are_current().await {
            tracing::debug!(%error, connection = self.handle.id, "cannot tell who may read");
            return ControlFlow::Break("this node does not know who may read");
        }
        let known = self.frontend.node.look(|state| {
            let standing = self.standing(state);
            if standing == Standing::Gone {
                return false;
            }
            let mut frame = BytesMut::new();
            let system_nodes = self.frontend.system_nodes.read();
            let context = ReadContext {
                session: self.session.id,
                identity: &self.identity,
                system_nodes: &system_nodes,
                most_bytes: self.frontend.settings.max_unread_bytes / 2,
            };
            let answered = match standing == Standing::Moved {
                true => Err(ErrorCode::SessionMoved),
                false => answer(state, context, &mut frame),
            };
            if let Err(code) = answered {
                // A reply that was written before its watch was refused does not go out.
                frame.clear();
                reads::refuse(state, xid, code, &mut frame);
            }
            self.handle.last.set_zxid(zxid(state.zxid()));
            self.handle.outbox.push(|out| out.unsplit(frame));
            true
        });
        if known { ControlFlow::Continue(()) } else { ControlFlow::Break("its session has ended") }
    }

    /// Sets a reconnected client's watches again, in batches: each batch holds up the applying of log entries. The list
    /// of `requests` is made after the wait for pending changes, so that it takes no memory meanwhile.
    async fn set_watches<'a>(
        &self,
        xid: i32,
        seen: i64,
        requests: impl FnOnce() -> Vec<RewatchRequest<'a>>,
    ) -> ConnectionFlow {
        self.pending_at_most(0).await?;
        for some in requests().chunks(WATCH_BATCH) {
            let standing = self.frontend.node.look(|state| {
                let standing = self.standing(state);
                if standing == Standing::Here {
                    set_watches::set_again(&self.frontend, &self.handle, state, seen, some);
                }
                standing
            });
            match standing {
                Standing::Here => {}
                Standing::Moved => return self.reply_in_order(xid, Err(ErrorCode::SessionMoved)).await,
                Standing::Gone => return ControlFlow::Break("its session has ended"),
            }
            tokio::task::yield_now().await;
        }
        self.reply_in_order(xid, Ok(Reply::Empty)).await
    }

    /// Counts descendants on a copy of the state in a blocking thread: there may be a million.
    async fn count_below(&self, xid: i32, at: String) -> ConnectionFlow {
        self.pending_at_most(0).await?;
        let Ok(turn) = self.frontend.counting.clone().acquire_owned().await else {
            return ControlFlow::Break("this node is going down");
        };
        let state = self.frontend.node.state();
        let (system_nodes, identity) = (self.frontend.system_nodes.read().clone(), self.identity.clone());
        let session = self.session.id;
        let counting = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let reader = ReadContext { session, identity: &identity, system_nodes: &system_nodes, most_bytes: 0 };
            reader.count_below(&state, &at).map(Reply::ChildrenNumber)
        });
        match counting.await {
            Ok(answer) => self.reply_in_order(xid, answer).await,
            Err(_) => ControlFlow::Break("counting its nodes failed"),
        }
    }

    fn standing(&self, state: &State) -> Standing {
        match state.session(self.session.id) {
            None => Standing::Gone,
            Some(session) if session.attachment != self.session.attachment => Standing::Moved,
            Some(_) => Standing::Here,
        }
    }

    /// A read barrier: later reads see every change that was acknowledged to any client before it.
    async fn sync(&self, xid: i32, at: String) -> ConnectionFlow {
        self.pending_at_most(0).await?;
        match self.frontend.node.read(Consistency::Linearizable, |_| ()).await {
            Ok(_) => self.reply_in_order(xid, Ok(Reply::Path(at))).await,
            Err(error) => {
                tracing::debug!(%error, connection = self.handle.id, "no sync");
                ControlFlow::Break("a linearizable read is not possible at the moment")
            }
        }
    }

    /// Answers once the leader has received the keepalive, so that the client of an isolated node notices. The
    /// keepalive waits for others, but no longer than until the next request arrives.
    async fn ping(&self, reader: &mut FrameReader) -> ConnectionFlow {
        // A client that came with the session's password alone must not keep it alive for another principal.
        if self.check_owner().is_err() {
            return ControlFlow::Break("its session belongs to another principal");
        }
        self.pending_at_most(0).await?;
        let node = &self.frontend.node;
        let mut keepalive = pin!(node.keepalive_of_verified(self.session.id));
        let kept = tokio::select! {
            biased;
            kept = &mut keepalive => kept,
            () = reader.readable() => {
                node.send_keepalives();
                keepalive.await
            }
        };
        if let Err(error) = kept {
            // The session has ended or this node reaches no leader. Without a reply the client tries another node in
            // time.
            tracing::debug!(%error, connection = self.handle.id, "no pong");
            return ControlFlow::Continue(());
        }
        let standing = self.frontend.node.look(|state| {
            let at = zxid(state.zxid());
            self.handle.last.set_zxid(at);
            self.handle.outbox.push(|out| ReplyHeader::ok(xid::PING, at).encode(out));
            self.standing(state)
        });
        // Its time says nothing about this node's work.
        record_reply(&self.frontend, &self.handle, (OpCode::Ping.number(), xid::PING), Instant::now());
        if standing == Standing::Here {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break("its session has ended or moved")
        }
    }

    /// Checks that the session is the client's: its password is not enough where another principal opened it.
    fn check_owner(&self) -> Result<(), Refusal> {
        self.frontend.node.look(|state| state.check_owner(self.identity.principals(), self.session.id))
    }

    async fn close_session(&self, xid: i32) -> ConnectionFlow {
        if self.frontend.node.look(|state| self.standing(state)) == Standing::Moved {
            return self.reply_in_order(xid, Err(ErrorCode::SessionMoved)).await;
        }
        if let Err(refusal) = self.check_owner() {
            return self.reply_in_order(xid, Err(code(&refusal))).await;
        }
        self.handle.begin_closing();
        let submit = || {
            let handle = self.handle.clone();
            self.frontend.node.submit_close(self.session.id, move |outcome| {
                if let Ok(done) = outcome {
                    handle.outbox.push(|out| ReplyHeader::ok(xid, zxid(done.zxid)).encode(out));
                }
                handle.outbox.close(Close::AfterFlush);
                handle.complete_pending();
            })
        };
        match self.submit_with_retry(Instant::now(), submit).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(not_accepted(&error)),
        }
    }
}

/// Records the latency of a reply.
fn record_reply(frontend: &Frontend, handle: &ConnectionHandle, operation: (i32, i32), began: Instant) {
    let took = began.elapsed();
    frontend.latency.record(took);
    handle.last.record(operation, took, frontend.started.elapsed());
}

/// Why a connection is closed whose change was not accepted.
fn not_accepted(error: &NodeError) -> &'static str {
    match error {
        NodeError::Overloaded { .. } => "this node was overloaded",
        _ => "this node cannot accept changes at the moment",
    }
}
