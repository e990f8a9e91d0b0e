//! Answers to peers. What arrives here has passed [`crate::PeerAuth`]; a `ServeError` says that the call was not acted on.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesResponse, TransferLeaderRequest, VoteRequest};
use openraft::vote::RaftLeaderId;
use serde::Serialize;
use tokio::time::Instant;

use crate::error::{BarrierError, ChangeError, ProposeError, ServeError};
use crate::inner::Inner;
use crate::peer::directory_claim::Acknowledged;
use crate::peer::peer_auth::PeerCaller;
use crate::peer::rollback_guard;
use crate::peer::transport::PeerKind;
use crate::peer::validation::{MAX_INDEX, check_clock};
use crate::peer::wire::{
    self, Append, AppendReply, Command, LivenessCheck, MembersReply, ProposeReply, ReadIndexReply, TransferReply,
};
use crate::raft_types::{Entry, TypeConfig, Vote};
use crate::snapshot_receive::receive_piece;
use crate::{failure_detector, membership, propose};

type Answer = Result<Bytes, ServeError>;

fn malformed(error: io::Error) -> ServeError {
    ServeError::new("malformed", error.to_string())
}

fn stopped(error: RaftError<TypeConfig>) -> ServeError {
    ServeError::new("stopped", format!("consensus has stopped on this node: {error}"))
}

fn going_down() -> ServeError {
    ServeError::new(failure_detector::GOING_DOWN, "this node is going down")
}

fn answer<T: Serialize>(value: &T) -> Answer {
    wire::encode(value).map_err(malformed)
}

/// A vote must name the node that sends it: for a leader's calls and a candidate's alike.
fn check_sender(vote: &Vote, from: u64) -> Result<(), ServeError> {
    let speaker = *vote.leader_id().node_id();
    if speaker == from {
        return Ok(());
    }
    Err(ServeError::new("bad_identity", format!("node {from} speaks in the name of node {speaker}")))
}

/// A message that nobody who follows the protocol sends; see [`crate::peer::validation`].
fn implausible(why: String) -> ServeError {
    ServeError::new("implausible", why)
}

/// A candidate has voted for itself, and a leader has what it says: neither may forget it (see [`crate::peer::directory_claim`]). Only for messages that
/// Raft has taken: a stray one must not raise what an intact directory is measured by.
fn acknowledged(inner: &Inner, from: u64, vote: &Vote, index: u64) {
    inner.peers.guard.acknowledged(from, Acknowledged { term: vote.leader_id().term(), index });
}

/// Dispatches a call.
pub(crate) async fn serve(inner: &Arc<Inner>, caller: PeerCaller, kind: PeerKind, body: Bytes) -> Answer {
    let answer = dispatch(inner, caller, kind, body).await;
    if let Err(refused) = &answer
        && matches!(refused.code.as_str(), "implausible" | "malformed" | "too_large" | "bad_identity")
    {
        inner.refusals.note(caller.node, kind, "request", &refused.detail);
    }
    answer
}

async fn dispatch(inner: &Arc<Inner>, caller: PeerCaller, kind: PeerKind, body: Bytes) -> Answer {
    let from = caller.node;
    if body.len() > kind.max_body_bytes() {
        return Err(ServeError::new("too_large", format!("{} bytes exceed the bound of {kind}", body.len())));
    }
    if !matches!(kind, PeerKind::Admission | PeerKind::Lifeline) {
        inner.peers.guard.check_caller(caller)?;
    }
    let _serving = inner.serving.try_read().map_err(|_| going_down())?;
    if inner.stop.is_cancelled() {
        return Err(going_down());
    }
    match kind {
        PeerKind::Admission => {
            let claim = wire::decode(&body).map_err(malformed)?;
            answer(&rollback_guard::answer_claim(inner, caller, claim).await?)
        }
        PeerKind::Append | PeerKind::Heartbeat => append(inner, from, body).await,
        PeerKind::Vote => {
            let request = vote_request(inner, from, &body)?;
            let vote = request.vote;
            let reply = inner.raft.vote(request).await.map_err(stopped)?;
            acknowledged(inner, from, &vote, 0);
            answer(&reply)
        }
        PeerKind::PreVote => {
            let request = vote_request(inner, from, &body)?;
            answer(&inner.raft.pre_vote(request).await.map_err(stopped)?)
        }
        PeerKind::Snapshot => {
            let (head, piece) = wire::decode_piece(body).map_err(malformed)?;
            check_sender(&head.vote, from)?;
            answer(&receive_piece(inner, head, piece).await?)
        }
        PeerKind::TransferLeader => {
            let request: TransferLeaderRequest<TypeConfig> = wire::decode(&body).map_err(malformed)?;
            check_sender(request.from_leader(), from)?;
            inner.validator().check_transfer(&request).map_err(implausible)?;
            if inner.is_going_down() {
                return Err(going_down());
            }
            answer(&inner.raft.handle_transfer_leader(request).await.map_err(|fatal| stopped(fatal.into()))?)
        }
        PeerKind::ReadIndex => answer(&read_index(inner).await),
        PeerKind::Lifeline => {
            let check: LivenessCheck = wire::decode(&body).map_err(malformed)?;
            answer(&failure_detector::hold(inner, check).await.ok_or_else(going_down)?)
        }
        PeerKind::Propose => command(inner, from, wire::decode(&body).map_err(malformed)?).await,
        PeerKind::Service => {
            inner.service.serve(from, body).await.map_err(|error| ServeError { code: error.code, detail: error.detail })
        }
    }
}

async fn append(inner: &Arc<Inner>, from: u64, body: Bytes) -> Answer {
    let arrived = Instant::now();
    let Append { mut request, clock_ms, durable } = wire::decode_append(body).map_err(malformed)?;
    check_sender(&request.vote, from)?;
    inner.validator().check_append(&mut request).map_err(implausible)?;
    check_clock(clock_ms).map_err(implausible)?;
    for entry in &request.entries {
        if let EntryPayload::Normal(stamped) = &entry.payload {
            let readable = inner.machine.check(None, &stamped.payload);
            readable.map_err(|why| implausible(format!("entry {} cannot be read: {why}", entry.log_id())))?;
        }
    }
    if durable > MAX_INDEX {
        return Err(implausible(format!("no log is durable up to {durable}")));
    }
    inner.log.check_append(&request).await.map_err(|why| ServeError::new("contradicts_applied", why.to_string()))?;
    let vote = request.vote;
    let last = request.entries.last().map(Entry::log_id).or(request.prev_log_id).map_or(0, |last| last.index());
    let response = inner.raft.append_entries(request).await.map_err(stopped)?;
    if matches!(response, AppendEntriesResponse::Success) {
        acknowledged(inner, from, &vote, durable.min(last));
    }
    // Only the leader that this node follows tells it the time.
    if matches!(response, AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_)) {
        inner.time.follow(clock_ms, arrived.elapsed());
    }
    answer(&AppendReply { clocks: inner.time.report(), answer: response })
}

fn vote_request(inner: &Inner, from: u64, body: &[u8]) -> Result<VoteRequest<TypeConfig>, ServeError> {
    let request: VoteRequest<TypeConfig> = wire::decode(body).map_err(malformed)?;
    check_sender(&request.vote, from)?;
    inner.validator().check_vote_request(&request).map_err(implausible)?;
    Ok(request)
}

async fn read_index(inner: &Arc<Inner>) -> ReadIndexReply {
    if !inner.leads().leading {
        return Err(BarrierError::NoLeader);
    }
    inner.leader_rounds.read_index().await.map(|read| (read.term, read.index))
}

/// A command of a peer that takes this node for the leader. It is never passed on a second time.
async fn command(inner: &Arc<Inner>, from: u64, command: Command) -> Answer {
    let leading = inner.leads().leading;
    let closing = inner.is_closing();
    match command {
        Command::Propose(payload) => {
            let reply: ProposeReply = if closing || !leading {
                Err(ProposeError::NoLeader)
            } else if payload.len() > inner.config.max_proposal_bytes {
                Err(ProposeError::TooLarge { bytes: payload.len(), max_bytes: inner.config.max_proposal_bytes })
            } else {
                propose::propose_here(inner, from, payload).await.map(|position| (position.term, position.index))
            };
            answer(&reply)
        }
        Command::Transfer { to } => {
            let reply: TransferReply = if closing || !leading {
                Err(ChangeError::NoLeader)
            } else {
                membership::transfer_here(inner, to).await
            };
            answer(&reply)
        }
        change => {
            let reply: MembersReply = if closing || !leading {
                Err(ChangeError::NoLeader)
            } else {
                membership::change_here(inner, change).await
            };
            answer(&reply)
        }
    }
}
