//! Answers to peers' calls. [`crate::PeerAuth`] has authenticated the caller; a `ServeError` says that the call was not
//! acted on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesResponse, TransferLeaderRequest, VoteRequest};
use openraft::vote::RaftLeaderId;
use serde::Serialize;
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::admission::auth::PeerCaller;
use crate::admission::claim::Acknowledged;
use crate::application::{PeerService, StateMachine, Timekeeper};
use crate::calls::commit_notices::CommitWaits;
use crate::calls::peers::Peers;
use crate::calls::snapshot_receive::SnapshotReceiver;
use crate::calls::validation::{Validator, check_clock};
use crate::calls::wire::{
    self, Append, AppendReply, Command, KnownMembers, LivenessCheck, MembersReply, ProposeReply, ReadIndexReply,
    TransferReply,
};
use crate::claim_exchange::ClaimExchange;
use crate::connection::order::{CallOrder, in_turn};
use crate::error::{BarrierError, ChangeError, ProposeError, ServeError};
use crate::failure_detector::hold;
use crate::leader_transfer::LeaderTransfer;
use crate::membership::MembershipChanges;
use crate::propose::Proposer;
use crate::raft::log::log_store::LogStore;
use crate::raft::node::RaftNode;
use crate::raft::types::{Entry, MAX_INDEX, TypeConfig, Vote};
use crate::read_index::ReadRounds;
use crate::status::MemberChange;
use crate::transport::{CODE_GOING_DOWN, PeerKind};

/// A stop waits no longer than this for peers' messages that are being acted on.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

type CallResult = Result<Bytes, ServeError>;

fn stopped(error: RaftError<TypeConfig>) -> ServeError {
    ServeError::new("stopped", format!("consensus has stopped on this node: {error}"))
}

fn going_down() -> ServeError {
    ServeError::new(CODE_GOING_DOWN, "this node is going down")
}

fn answer<T: Serialize>(value: &T) -> CallResult {
    wire::encode(value).map_err(ServeError::malformed)
}

/// A vote must name the node that sends it, both in a leader's and in a candidate's calls.
fn check_sender(vote: &Vote, from: u64) -> Result<(), ServeError> {
    let named = *vote.leader_id().node_id();
    if named == from {
        return Ok(());
    }
    Err(ServeError::new("bad_identity", format!("node {from} speaks in the name of node {named}")))
}

/// A message that no node sends which follows the protocol; see [`crate::calls::validation`].
fn implausible(why: String) -> ServeError {
    ServeError::new("implausible", why)
}

/// Answers the calls of peers.
pub(crate) struct RpcHandler {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) peers: Peers,
    pub(crate) log: LogStore,
    pub(crate) machine: Arc<dyn StateMachine>,
    pub(crate) service: Arc<dyn PeerService>,
    pub(crate) time: Arc<dyn Timekeeper>,
    pub(crate) claims: Arc<ClaimExchange>,
    pub(crate) leader_rounds: ReadRounds,
    pub(crate) membership: Arc<MembershipChanges>,
    pub(crate) proposer: Arc<Proposer>,
    pub(crate) snapshots: SnapshotReceiver,
    pub(crate) transfer: Arc<LeaderTransfer>,
    pub(crate) order: CallOrder,
    pub(crate) commit_waits: CommitWaits,
    /// Held by each message while it is acted on: openraft logs an error for a message that comes after its stop.
    pub(crate) serving: RwLock<()>,
}

impl RpcHandler {
    /// Remembers that a candidate has voted for itself, or that a leader has the entries it reports: neither may forget
    /// them (see [`crate::admission::claim`]). Only for messages that Raft accepted: a stray one must not raise
    /// what an intact directory is compared with.
    fn acknowledged(&self, from: u64, vote: &Vote, index: u64) {
        self.peers.guard.acknowledged(from, Acknowledged { term: vote.leader_id().term(), index });
    }

    /// Dispatches a call.
    pub(crate) async fn serve(&self, caller: PeerCaller, kind: PeerKind, body: Bytes) -> CallResult {
        let answer = self.dispatch(caller, kind, body).await;
        if let Err(refused) = &answer
            && matches!(refused.code.as_str(), "implausible" | "malformed" | "too_large" | "bad_identity")
        {
            self.peers.refused(caller.node, kind, "request", &refused.detail);
        }
        answer
    }

    async fn dispatch(&self, caller: PeerCaller, kind: PeerKind, body: Bytes) -> CallResult {
        let from = caller.node;
        if body.len() > kind.max_body_bytes() {
            return Err(ServeError::new("too_large", format!("{} bytes exceed the bound of {kind}", body.len())));
        }
        if !matches!(kind, PeerKind::Admission | PeerKind::LivenessCheck | PeerKind::Members) {
            self.peers.guard.check_caller(caller)?;
        }
        let _serving = self.serving.try_read().map_err(|_| going_down())?;
        if self.node.tasks.stop.is_cancelled() {
            return Err(going_down());
        }
        match kind {
            PeerKind::Admission => {
                let (claim, level) = wire::decode_announced(&body).map_err(ServeError::malformed)?;
                self.claims.answer_claim(caller, claim, level).await
            }
            // A node that joins exchanges no claims before it knows its peers. What it gets here are addresses.
            PeerKind::Members => answer(&KnownMembers::of(self.node.config.node, &self.node.members.borrow())),
            PeerKind::Append | PeerKind::Heartbeat => self.append(caller, body).await,
            PeerKind::Vote => {
                let request = self.vote_request(from, &body)?;
                let vote = request.vote;
                let reply = self.node.raft.vote(request).await.map_err(stopped)?;
                self.acknowledged(from, &vote, 0);
                answer(&reply)
            }
            PeerKind::PreVote => {
                let request = self.vote_request(from, &body)?;
                answer(&self.node.raft.pre_vote(request).await.map_err(stopped)?)
            }
            PeerKind::Snapshot => {
                let (head, piece) = wire::decode_piece(body).map_err(ServeError::malformed)?;
                check_sender(&head.vote, from)?;
                answer(&self.snapshots.receive_piece(head, piece).await?)
            }
            PeerKind::TransferLeader => {
                let request: TransferLeaderRequest<TypeConfig> = wire::decode(&body).map_err(ServeError::malformed)?;
                check_sender(request.from_leader(), from)?;
                Validator::of(&self.node).check_transfer(&request).map_err(implausible)?;
                if self.node.is_going_down() {
                    return Err(going_down());
                }
                answer(&self.node.raft.handle_transfer_leader(request).await.map_err(|fatal| stopped(fatal.into()))?)
            }
            PeerKind::ReadIndex => answer(&self.read_index(from).await),
            PeerKind::LivenessCheck => {
                let check: LivenessCheck = wire::decode(&body).map_err(ServeError::malformed)?;
                answer(&hold(&self.node, check).await.ok_or_else(going_down)?)
            }
            PeerKind::Propose => self.command(caller, wire::decode(&body).map_err(ServeError::malformed)?).await,
            PeerKind::Service => {
                let served = self.service.serve(from, body).await;
                // The answer may speak of anything that is applied here.
                self.commit_waits.await_index(from, *self.node.applied.borrow());
                served.map_err(|error| ServeError { code: error.code, detail: error.detail })
            }
        }
    }

    async fn append(&self, caller: PeerCaller, body: Bytes) -> CallResult {
        let (arrived, from) = (Instant::now(), caller.node);
        let Append { mut request, clock_ms, durable, ticket } =
            wire::decode_append(body).map_err(ServeError::malformed)?;
        check_sender(&request.vote, from)?;
        Validator::of(&self.node).check_append(&mut request).map_err(implausible)?;
        check_clock(clock_ms).map_err(implausible)?;
        for entry in &request.entries {
            if let EntryPayload::Normal(stamped) = &entry.payload {
                let readable = self.machine.check(None, &stamped.payload);
                readable.map_err(|why| implausible(format!("entry {} cannot be read: {why}", entry.log_id())))?;
            }
        }
        if durable > MAX_INDEX {
            return Err(implausible(format!("no log is durable up to {durable}")));
        }
        let turn = match ticket {
            Some(ticket) => Some(self.order.turn(caller, PeerKind::Append, ticket).await),
            None => None,
        };
        self.log.check_append(&request).await.map_err(|why| ServeError::new("contradicts_applied", why.to_string()))?;
        let vote = request.vote;
        let last = request.entries.last().map(Entry::log_id).or(request.prev_log_id).map_or(0, |last| last.index());
        let response = in_turn(turn, self.node.raft.append_entries(request)).await.map_err(stopped)?;
        if matches!(response, AppendEntriesResponse::Success) {
            self.acknowledged(from, &vote, durable.min(last));
        }
        // Only the leader that this node follows sets its replicated clock.
        if matches!(response, AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_)) {
            self.time.follow(clock_ms, arrived.elapsed());
        }
        let (clocks, observes) = (self.time.report(), self.machine.is_observed());
        wire::encode_append_reply(&AppendReply { clocks, answer: response, observes }).map_err(ServeError::malformed)
    }

    fn vote_request(&self, from: u64, body: &[u8]) -> Result<VoteRequest<TypeConfig>, ServeError> {
        let request: VoteRequest<TypeConfig> = wire::decode(body).map_err(ServeError::malformed)?;
        check_sender(&request.vote, from)?;
        Validator::of(&self.node).check_vote_request(&request).map_err(implausible)?;
        Ok(request)
    }

    async fn read_index(&self, from: u64) -> ReadIndexReply {
        if !self.node.leads().leading {
            return Err(BarrierError::NoLeader);
        }
        let read = self.leader_rounds.read_index().await?;
        self.commit_waits.await_index(from, read.index);
        Ok((read.term, read.index))
    }

    /// A command of a peer that takes this node for the leader. It is never forwarded again.
    async fn command(&self, caller: PeerCaller, command: Command) -> CallResult {
        let leading = self.node.leads().leading;
        let closing = self.node.is_closing();
        match command {
            Command::Propose { payload, ticket } => {
                let reply: ProposeReply = if closing || !leading {
                    Err(ProposeError::NoLeader)
                } else if payload.len() > self.node.config.max_proposal_bytes {
                    Err(ProposeError::TooLarge { bytes: payload.len(), max_bytes: self.node.config.max_proposal_bytes })
                } else {
                    let _under_way = self.commit_waits.begin_proposal(caller.node);
                    let turn = self.order.turn(caller, PeerKind::Propose, ticket).await;
                    let outcome = in_turn(Some(turn), self.proposer.propose_here(caller.node, payload)).await;
                    outcome.map(|position| {
                        self.commit_waits.await_index(caller.node, position.index);
                        (position.term, position.index)
                    })
                };
                answer(&reply)
            }
            Command::Transfer { to } => {
                let reply: TransferReply = if closing || !leading {
                    Err(ChangeError::NoLeader)
                } else {
                    self.transfer.transfer_here(to).await
                };
                answer(&reply)
            }
            Command::Change { change, if_version } => self.change_members(change, if_version).await,
        }
    }

    async fn change_members(&self, change: MemberChange, if_version: Option<u64>) -> CallResult {
        let reply: MembersReply = if self.node.is_closing() || !self.node.leads().leading {
            Err(ChangeError::NoLeader)
        } else {
            self.membership.change_here(change, if_version).await
        };
        answer(&reply)
    }

    /// Waits until no message is acted on any more, and takes no other; at most for the time of a stop.
    pub(crate) async fn drain(&self) {
        let _drained = tokio::time::timeout(DRAIN_TIMEOUT, self.serving.write()).await;
    }
}
