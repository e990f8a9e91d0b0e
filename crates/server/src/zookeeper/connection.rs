//! The life of one connection: its first frame, then requests one after the other, until either side has had enough.
//!
//! Requests are answered in the order in which they came, reads and writes alike. A write is handed over and the next request looked at
//! at once; a read waits until every write before it has been applied here, and is then answered under the state's lock, so that no event
//! can come too late for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_core::{Actor, State};
use lockkeeper_node::{At, Consistency, Credential, NodeError};
use lockkeeper_zookeeper::request::SetWatches2Request;
use lockkeeper_zookeeper::{ErrorCode, FrameDecoder, Inbound, OpCode, Reply, ReplyHeader, Request, RequestHeader, xid};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::auth::Known;
use super::changes::{self, Change};
use super::door::{Door, Entered};
use super::figures::{Counts, Requests};
use super::hello::{self, Greeted};
use super::line::{Carried, Line, holder};
use super::outbox::{End, Next};
use super::reads::{self, Reader};
use super::values::{code, zxid};
use super::{rearm, words};
use crate::extract::Room;
use crate::http::connection::bound_unsent;

/// A client that has connected says who it is within this.
const HELLO_WITHIN: Duration = Duration::from_secs(30);
/// So many watches are set anew while nothing is applied.
const AT_ONCE: usize = 1_000;
/// So many requests are served in one go.
const TURN: u64 = 32;
/// How often it is looked whether answers are late.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Serves a connection to its end.
pub(super) async fn serve(entered: Entered, stream: TcpStream) {
    let _ = stream.set_nodelay(true).and_then(|()| bound_unsent(&stream));
    let (reading, writing) = stream.into_split();
    let (door, line) = (entered.door.clone(), entered.line.clone());
    let mouth = tokio::spawn(speak(door.clone(), line.clone(), writing));
    let decoder = FrameDecoder::for_server(door.settings.max_frame_bytes);
    let room = Room::of(&door.settings.request_bytes, holder(line.id, line.address));
    let mut ear = Ear { reading, decoder, room, door: door.clone(), line: line.clone() };
    let why = converse(&door, &line, &mut ear).await;
    tracing::debug!(connection = line.id, address = %line.address, why, "a connection of a ZooKeeper client ends");
    line.outbox.end(End::WhenSaid);
    // What has been said is still read by some.
    let _ = timeout(door.settings.write_timeout, mouth).await;
}

/// Writes what is to be said, until there is nothing more or nobody listens.
async fn speak(door: Arc<Door>, line: Arc<Line>, mut writing: OwnedWriteHalf) {
    while let Next::Write(bytes) = line.outbox.next().await {
        match timeout(door.settings.write_timeout, writing.write_all(&bytes)).await {
            Ok(Ok(())) => drop(line.sent.fetch_add(1, Ordering::Relaxed)),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    line.outbox.end(End::AtOnce);
    let _ = writing.shutdown().await;
}

/// Hears frames.
struct Ear {
    reading: OwnedReadHalf,
    decoder: FrameDecoder,
    door: Arc<Door>,
    /// For the frame that is not whole yet.
    room: Room,
    line: Arc<Line>,
}

impl Ear {
    /// The next frame or word; none at the end of the stream, or where what came is none.
    async fn next(&mut self) -> Result<Inbound, &'static str> {
        loop {
            match self.decoder.next_inbound() {
                Ok(Some(inbound)) => {
                    self.room.release();
                    self.line.received.fetch_add(1, Ordering::Relaxed);
                    return Ok(inbound);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, connection = self.line.id, "a frame that cannot be");
                    return Err("it sent no frame of this protocol, or one too long");
                }
            }
            match self.reading.read_buf(self.decoder.buffer_mut()).await {
                Ok(count @ 1..) => Counts::add(&self.door.counts.bytes_received, count as u64),
                Ok(0) | Err(_) => return Err("its client has gone"),
            }
            if let Err(exceeded) = self.room.fit(self.decoder.buffer_mut().len()) {
                tracing::debug!(%exceeded, connection = self.line.id, "no room for a frame");
                return Err("there was no room for the frame that it sent (limits.request_bytes_in_flight)");
            }
        }
    }
}

async fn converse(door: &Arc<Door>, line: &Arc<Line>, ear: &mut Ear) -> &'static str {
    let first = match timeout(HELLO_WITHIN, ear.next()).await {
        Ok(Ok(Inbound::Frame(frame))) => frame,
        Ok(Ok(Inbound::Word(word))) => {
            let answer = words::answer(door, word).await;
            line.outbox.say(|out| out.extend_from_slice(answer.as_bytes()));
            return "it asked by a word";
        }
        Ok(Err(why)) => return why,
        Err(_) => return "it said nothing",
    };
    let began = Instant::now();
    let carried = match hello::greet(door, line, first).await {
        Greeted::In(carried) => {
            line.last.carries(zxid(carried.attachment));
            answered(door, line, (OpCode::CreateSession.number(), 0), began);
            carried
        }
        Greeted::Out(why) => return why,
    };
    let mut figures = Requests::default();
    let mut guest = Guest { door: door.clone(), line: line.clone(), carried, known: Known::at(line.address) };
    for number in 1_u64.. {
        // What is buffered is served without waiting for anything: others want a turn too.
        if number % TURN == 0 {
            tokio::task::yield_now().await;
        }
        let frame = tokio::select! {
            heard = ear.next() => heard,
            why = guest.enough() => return why,
        };
        let frame = match frame {
            Ok(Inbound::Frame(frame)) => frame,
            Ok(Inbound::Word(_)) => return "a word amid requests",
            Err(why) => return why,
        };
        door.node.touch(carried.id, carried.timeout_ms);
        let Ok((header, body)) = RequestHeader::split(frame) else { return "it sent a request without a header" };
        figures.count(header);
        let began = Instant::now();
        let flow = match Request::decode(header.opcode, body) {
            Ok(request) => guest.serve(header, request, began).await,
            Err(error) => {
                tracing::debug!(%error, connection = line.id, "a request that cannot be read");
                guest.say_after_all(header.xid, Err(ErrorCode::MarshallingError)).await
            }
        };
        if let Flow::End(why) = flow {
            return why;
        }
    }
    "it has asked for everything there is"
}

/// Whether the connection goes on.
enum Flow {
    GoOn,
    End(&'static str),
}

/// How a session stands, as this replica knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It is used over this line.
    Here,
    /// It is used elsewhere.
    Moved,
    Gone,
}

/// A client whose session this line carries.
struct Guest {
    door: Arc<Door>,
    line: Arc<Line>,
    carried: Carried,
    known: Known,
}

impl Guest {
    /// Completes when the connection is to end although its client says nothing.
    async fn enough(&self) -> &'static str {
        loop {
            if self.line.outbox.has_ended() {
                return "its session has ended or moved, or it read too slowly";
            }
            if self.line.is_late(self.door.settings.request_timeout) {
                return "what it asked for was not answered in time";
            }
            // Nothing can be late where nothing is owed: an idle connection costs nothing.
            match self.line.owes() {
                0 => self.line.outbox.ended().await,
                _ => drop(timeout(LOOK_EVERY, self.line.outbox.ended()).await),
            }
        }
    }

    async fn serve(&mut self, header: RequestHeader, request: Request, began: Instant) -> Flow {
        self.line.outbox.room().await;
        if let Some(change) = changes::change(&request, &self.known) {
            return self.change(header, change, began).await;
        }
        let flow = self.answer(header.xid, request).await;
        answered(&self.door, &self.line, (header.opcode, header.xid), began);
        flow
    }

    /// Whatever changes nothing in the tree.
    async fn answer(&mut self, xid: i32, request: Request) -> Flow {
        match request {
            Request::Ping => self.ping().await,
            Request::CloseSession => self.close(xid).await,
            Request::Auth(auth) => {
                // Who is known by more sees more: from the answer on.
                let taken = self.known.take(&auth.scheme, &auth.credentials, &self.door.settings.super_digest);
                self.line.know(self.known.principals());
                let flow = self.say_after_all(xid, taken.map(|()| Reply::Empty)).await;
                match taken {
                    Ok(()) => flow,
                    Err(_) => {
                        Counts::add(&self.door.counts.wrong_credentials, 1);
                        Flow::End("its credentials are wrong")
                    }
                }
            }
            Request::Sync(at) => self.sync(xid, at).await,
            Request::Reconfig(_) => self.say_after_all(xid, Err(ErrorCode::ReconfigDisabled)).await,
            Request::Sasl(_) | Request::Unknown { .. } => self.say_after_all(xid, Err(ErrorCode::Unimplemented)).await,
            Request::SetWatches(again) => self.set_watches(xid, &rearm::whole(again)).await,
            Request::SetWatches2(again) => self.set_watches(xid, &again).await,
            Request::GetAllChildrenNumber(at) => self.count_below(xid, at).await,
            read => self.read(xid, &read).await,
        }
    }

    /// Hands a change over; its answer comes when it has been applied here.
    async fn change(&mut self, header: RequestHeader, change: Result<Change, ErrorCode>, began: Instant) -> Flow {
        let xid = header.xid;
        let (op, answering) = match change {
            Ok(change) => change.into_parts(),
            Err(code) => return self.say_after_all(xid, Err(code)).await,
        };
        if let Flow::End(why) = self.until_owes(self.door.settings.outstanding.saturating_sub(1)).await {
            return Flow::End(why);
        }
        let actor = Actor {
            session: Some(self.carried.id),
            request: None,
            attachment: Some(self.carried.attachment),
            principals: self.known.principals().clone(),
            may_force: self.door.settings.may_force,
        };
        let answering = Arc::new(answering);
        let submit = || {
            let answer = self.when_applied(header, answering.clone(), began);
            self.door.node.submit(actor.clone(), op.clone(), answer)
        };
        match self.hand_over(began, submit).await {
            Ok(()) => Flow::GoOn,
            Err(NodeError::Refused(refusal)) => self.say_after_all(xid, Err(code(&refusal))).await,
            Err(error) => Flow::End(untaken(&error)),
        }
    }

    /// Hands something over that is owed then. Where too much waits at this node, of whomever, this client waits too, as it would for its
    /// own; but no longer than a request may take that began then.
    async fn hand_over(
        &self,
        began: Instant,
        mut submit: impl FnMut() -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        loop {
            self.line.owe();
            let Err(error) = submit() else { return Ok(()) };
            self.line.pay();
            match error {
                NodeError::Overloaded { retry_after_ms, .. }
                    if began.elapsed() < self.door.settings.request_timeout =>
                {
                    metrics::counter!("lockkeeper_zookeeper_held_back_total").increment(1);
                    tokio::time::sleep(Duration::from_millis(retry_after_ms.clamp(1, 100))).await;
                }
                error => return Err(error),
            }
        }
    }

    /// What is to be done with the outcome of a change, which is owed until then.
    fn when_applied(
        &self,
        RequestHeader { xid, opcode }: RequestHeader,
        answering: Arc<changes::Answering>,
        began: Instant,
    ) -> impl FnOnce(lockkeeper_node::OrderedReply) + Send + 'static {
        let (door, line) = (self.door.clone(), self.line.clone());
        move |outcome| {
            if let Ok(At { value: Err(refusal), .. }) = &outcome {
                changes::log_foreign_names(refusal, line.address);
            }
            if let Ok(done) = &outcome {
                line.last.carries(zxid(done.zxid));
            }
            match outcome.map(|answered| (answering.answer(answered.value), zxid(answered.zxid))) {
                Ok((Some(Ok(reply)), at)) => line.outbox.say(|out| reply.encode(xid, at, out)),
                Ok((Some(Err(code)), at)) => line.outbox.say(|out| ReplyHeader::failed(xid, at, code).encode(out)),
                // The state answered another question, or nobody knows what became of this one.
                Ok((None, _)) | Err(_) => line.outbox.end(End::WhenSaid),
            }
            answered(&door, &line, (opcode, xid), began);
            line.pay();
        }
    }

    /// Waits until no more than so many changes are unanswered, but not for ever.
    async fn until_owes(&self, count: usize) -> Flow {
        tokio::select! {
            biased;
            () = self.line.owes_at_most(count) => Flow::GoOn,
            why = self.enough() => Flow::End(why),
        }
    }

    /// Says something that needs nothing of the state, in its turn.
    async fn say_after_all(&self, xid: i32, answer: Result<Reply, ErrorCode>) -> Flow {
        if let Flow::End(why) = self.until_owes(0).await {
            return Flow::End(why);
        }
        self.door.node.look(|state| {
            let at = zxid(state.zxid());
            self.line.last.carries(at);
            self.line.outbox.say(|out| match &answer {
                Ok(reply) => reply.encode(xid, at, out),
                Err(code) => ReplyHeader::failed(xid, at, *code).encode(out),
            });
        });
        Flow::GoOn
    }

    /// Looks, and watches from here on.
    async fn read(&self, xid: i32, request: &Request) -> Flow {
        if let Flow::End(why) = self.until_owes(0).await {
            return Flow::End(why);
        }
        if self.door.settings.linearizable_reads
            && let Err(error) = self.door.node.read(Consistency::Linearizable, |_| ()).await
        {
            tracing::debug!(%error, connection = self.line.id, "no linearizable read");
            return Flow::End("this node cannot tell what is true at the moment");
        }
        let known = self.door.node.look(|state| {
            let standing = self.standing(state);
            if standing == Standing::Gone {
                return false;
            }
            let mut frame = BytesMut::new();
            let special = self.door.special.read();
            let reader = Reader {
                session: self.carried.id,
                known: &self.known,
                special: &special,
                most_bytes: self.door.settings.max_unread_bytes / 2,
            };
            let answered = match standing == Standing::Moved {
                true => Err(ErrorCode::SessionMoved),
                false => match reader.answer(state, request, xid, &mut frame) {
                    Some(answered) => match rearm::note(&self.door, &self.line, state, request, answered.is_ok()) {
                        Ok(()) => answered,
                        Err(code) => {
                            frame.clear();
                            Err(code)
                        }
                    },
                    None => rearm::answer(&self.door, &self.line, state, request, xid, &mut frame),
                },
            };
            if let Err(code) = answered {
                reads::refuse(state, xid, code, &mut frame);
            }
            self.line.last.carries(zxid(state.zxid()));
            self.line.outbox.say(|out| out.unsplit(frame));
            true
        });
        if known { Flow::GoOn } else { Flow::End("its session has ended") }
    }

    /// Sets watches anew, so many at a time: a client may have very many, and nothing is applied meanwhile.
    async fn set_watches(&self, xid: i32, again: &SetWatches2Request) -> Flow {
        if let Flow::End(why) = self.until_owes(0).await {
            return Flow::End(why);
        }
        let wishes = rearm::wishes(again);
        for some in wishes.chunks(AT_ONCE) {
            let standing = self.door.node.look(|state| {
                let standing = self.standing(state);
                if standing == Standing::Here {
                    rearm::set_again(&self.door, &self.line, state, again.relative_zxid, some);
                }
                standing
            });
            match standing {
                Standing::Here => {}
                Standing::Moved => return self.say_after_all(xid, Err(ErrorCode::SessionMoved)).await,
                Standing::Gone => return Flow::End("its session has ended"),
            }
            tokio::task::yield_now().await;
        }
        self.say_after_all(xid, Ok(Reply::Empty)).await
    }

    /// Counts on a copy of the state, and on a thread of its own: there may be a million of them.
    async fn count_below(&self, xid: i32, at: String) -> Flow {
        if let Flow::End(why) = self.until_owes(0).await {
            return Flow::End(why);
        }
        let Ok(turn) = self.door.counting.clone().acquire_owned().await else {
            return Flow::End("this node is going down");
        };
        let state = self.door.node.state();
        let (special, known) = (self.door.special.read().clone(), self.known.clone());
        let session = self.carried.id;
        let counting = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let reader = Reader { session, known: &known, special: &special, most_bytes: 0 };
            reader.count_below(&state, &at).map(Reply::ChildrenNumber)
        });
        match counting.await {
            Ok(answer) => self.say_after_all(xid, answer).await,
            Err(_) => Flow::End("the count was broken off"),
        }
    }

    fn standing(&self, state: &State) -> Standing {
        match state.session(self.carried.id) {
            None => Standing::Gone,
            Some(session) if session.attachment != self.carried.attachment => Standing::Moved,
            Some(_) => Standing::Here,
        }
    }

    /// A read barrier: what was acknowledged before it, to anybody, is seen by the reads after it.
    async fn sync(&self, xid: i32, at: String) -> Flow {
        if let Flow::End(why) = self.until_owes(0).await {
            return Flow::End(why);
        }
        match self.door.node.read(Consistency::Linearizable, |_| ()).await {
            Ok(_) => self.say_after_all(xid, Ok(Reply::Path(at))).await,
            Err(error) => {
                tracing::debug!(%error, connection = self.line.id, "no sync");
                Flow::End("this node cannot tell what is true at the moment")
            }
        }
    }

    /// Answered once the leader has heard of it, so that a client of a node that is cut off learns that it is.
    async fn ping(&self) -> Flow {
        if let Flow::End(why) = self.until_owes(0).await {
            return Flow::End(why);
        }
        if let Err(error) = self.door.node.keep_alive(self.carried.id).await {
            // Its session has gone, or this node hears of no leader: no answer, and its client looks for another node in time.
            tracing::debug!(%error, connection = self.line.id, "no pong");
            return Flow::GoOn;
        }
        let standing = self.door.node.look(|state| {
            let at = zxid(state.zxid());
            self.line.last.carries(at);
            self.line.outbox.say(|out| ReplyHeader::ok(xid::PING, at).encode(out));
            self.standing(state)
        });
        if standing == Standing::Here { Flow::GoOn } else { Flow::End("its session has ended or moved") }
    }

    async fn close(&self, xid: i32) -> Flow {
        if self.door.node.look(|state| self.standing(state)) == Standing::Moved {
            return self.say_after_all(xid, Err(ErrorCode::SessionMoved)).await;
        }
        self.line.begin_closing();
        let submit = || {
            let line = self.line.clone();
            self.door.node.submit_close(self.carried.id, move |outcome| {
                if let Ok(done) = outcome {
                    line.outbox.say(|out| ReplyHeader::ok(xid, zxid(done.zxid)).encode(out));
                }
                line.outbox.end(End::WhenSaid);
                line.pay();
            })
        };
        match self.hand_over(Instant::now(), submit).await {
            Ok(()) => Flow::GoOn,
            Err(error) => Flow::End(untaken(&error)),
        }
    }
}

/// Counts an answer, whose zxid has been noted.
fn answered(door: &Door, line: &Line, operation: (i32, i32), began: Instant) {
    let took = began.elapsed();
    door.latency.record(took);
    line.last.record(operation, took, door.since.elapsed());
}

/// Why a connection ends whose change was not taken.
fn untaken(error: &NodeError) -> &'static str {
    match error {
        NodeError::Overloaded { .. } => "this node had too much to do",
        _ => "this node cannot take changes at the moment",
    }
}

/// The credential that a client shows by its password.
pub(super) fn credential(session_id: i64, password: &[u8]) -> Option<Credential> {
    let secret = <[u8; 16]>::try_from(password).ok()?;
    Some(Credential { session: lockkeeper_core::SessionId(session_id.cast_unsigned()), secret })
}
