//! openraft's network on top of the transport: encoding, deadlines, and what a failure means to openraft.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use lockkeeper_store::SnapshotStorage;
use openraft::RPCTypes;
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::admission::claim::Acknowledged;
use crate::application::Timekeeper;
use crate::blocking::{Blocking, blocking};
use crate::calls::append_pipeline::{AppendItem, AppendOutcome, AppendPipeline};
use crate::calls::commit_notices::{CommitNotices, CommitWaits};
use crate::calls::peers::Peers;
use crate::calls::validation::{Validator, check_clocks};
use crate::calls::wire::{self, AppendReply, PIECE_BYTES, PieceHead, PieceReply};
use crate::connection::order::Ticket;
use crate::raft::log::log_store::LogStore;
use crate::raft::state_machine::{SnapshotData, encode_meta};
use crate::raft::types::{LogId, TypeConfig, Vote};
use crate::status::MemberEntry;
use crate::transport::{PeerKind, TransportError};

/// A follower's disk may take this long; openraft's own limit (one heartbeat) is meant for heartbeats.
const BULK_DEADLINE: Duration = Duration::from_secs(2);
/// For one piece of a snapshot.
const PIECE_DEADLINE: Duration = Duration::from_secs(10);
/// For the last piece, which is answered when the snapshot is installed: some 4 s for a million nodes. A call lost in a
/// partition delays the follower for as long.
const INSTALL_DEADLINE: Duration = Duration::from_secs(30);

/// Makes clients.
#[derive(Clone)]
pub(crate) struct Network {
    peers: Peers,
    time: Arc<dyn Timekeeper>,
    /// The last acknowledgement of each peer.
    matched: Arc<Mutex<BTreeMap<u64, Matched>>>,
    snapshots: Arc<dyn SnapshotStorage>,
    blocking: Arc<dyn Blocking>,
    /// See [`LogStore::durable`].
    durable: Arc<AtomicU64>,
    notices: CommitNotices,
}

#[derive(Clone, Copy)]
struct Matched {
    /// Under this vote of this node; under a later vote nothing is known yet.
    vote: Vote,
    upto: Option<LogId>,
}

impl Network {
    pub(crate) fn new(
        peers: Peers,
        time: Arc<dyn Timekeeper>,
        snapshots: Arc<dyn SnapshotStorage>,
        blocking: Arc<dyn Blocking>,
        log: &LogStore,
    ) -> Network {
        let (matched, durable, notices) = (Arc::default(), log.durable(), CommitNotices::of(log));
        Network { peers, time, matched, snapshots, blocking, durable, notices }
    }

    /// Where it is noted who waits for commits.
    pub(crate) fn commit_waits(&self) -> CommitWaits {
        self.notices.waits.clone()
    }

    fn matched(&self, peer: u64, vote: &Vote) -> Option<LogId> {
        self.matched.lock().get(&peer).filter(|known| known.vote == *vote).and_then(|known| known.upto)
    }

    fn acknowledged(&self, peer: u64, vote: &Vote, upto: Option<LogId>) {
        let upto = upto.max(self.matched(peer, vote));
        self.matched.lock().insert(peer, Matched { vote: *vote, upto });
        let index = upto.as_ref().map_or(0, LogId::index);
        self.peers.guard.acknowledged(peer, Acknowledged { term: vote.leader_id().term(), index });
    }

    fn client(&self, target: u64, node: &MemberEntry, append: PeerKind) -> PeerClient {
        self.peers.learn(target, &node.addresses.peer);
        PeerClient { network: self.clone(), target, append }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, node: &MemberEntry) -> PeerClient {
        self.client(target, node, PeerKind::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &MemberEntry) -> PeerClient {
        self.client(target, node, PeerKind::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &MemberEntry) -> PeerClient {
        self.client(target, node, PeerKind::Snapshot)
    }
}

/// Calls to one peer.
#[derive(Clone)]
pub(crate) struct PeerClient {
    network: Network,
    target: u64,
    append: PeerKind,
}

impl PeerClient {
    async fn call<T: DeserializeOwned>(
        &self,
        kind: PeerKind,
        action: RPCTypes,
        body: io::Result<Bytes>,
        deadline: Duration,
    ) -> Result<T, RPCError<TypeConfig>> {
        let answer = self.call_bytes(kind, action, body, deadline).await?;
        wire::decode(&answer).map_err(|error| RPCError::Network(NetworkError::new(&error)))
    }

    async fn call_bytes(
        &self,
        kind: PeerKind,
        action: RPCTypes,
        body: io::Result<Bytes>,
        deadline: Duration,
    ) -> Result<Bytes, RPCError<TypeConfig>> {
        let body = body.map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        let answer = self.network.peers.call(self.target, kind, body, deadline).await;
        answer.map_err(|error| self.rpc_error(action, deadline, &error))
    }

    fn append_deadline(&self, option: &RPCOption) -> Duration {
        match self.append {
            PeerKind::Heartbeat => option.hard_ttl().max(Duration::from_millis(200)),
            _ => option.hard_ttl().max(BULK_DEADLINE),
        }
    }

    /// Sends an append. What it says of this node's clock and log is as of this call.
    pub(crate) fn append(
        &self,
        rpc: AppendEntriesRequest<TypeConfig>,
        deadline: Duration,
        ticket: Option<Ticket>,
    ) -> impl Future<Output = AppendOutcome> + Send + 'static {
        let client = self.clone();
        let durable = self.network.durable.load(Ordering::Acquire);
        let body = wire::encode_append(&rpc, self.network.time.reading_to_send(), durable, ticket);
        // As of now: a later append may be acknowledged before this one is answered.
        let matched = self.network.matched(self.target, &rpc.vote);
        async move { client.sent_append(rpc, body, deadline, matched).await }
    }

    async fn sent_append(
        &self,
        rpc: AppendEntriesRequest<TypeConfig>,
        body: io::Result<Bytes>,
        deadline: Duration,
        matched: Option<LogId>,
    ) -> AppendOutcome {
        let reply = self.call_bytes(self.append, RPCTypes::AppendEntries, body, deadline).await?;
        let reply = wire::decode_append_reply(&reply).map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        let AppendReply { clocks, answer, observes } = reply;
        check_clocks(&clocks).map_err(|why| RPCError::Unreachable(self.refuse(self.append, &why)))?;
        self.network.time.reported(self.target, clocks);
        // The answer to a heartbeat comes over a connection of its own, and may be older than what is known.
        if observes || self.append == PeerKind::Append {
            self.network.notices.waits.set_observes(self.target, observes);
        }
        let checked = self.validator(&rpc.vote).check_append_answer(self.target, &rpc, matched, answer);
        let answer = checked.map_err(|why| RPCError::Unreachable(self.refuse(self.append, &why)))?;
        match &answer {
            AppendEntriesResponse::Success => {
                let last = rpc.entries.last().map(RaftEntry::log_id).or(rpc.prev_log_id);
                self.network.acknowledged(self.target, &rpc.vote, last);
            }
            AppendEntriesResponse::PartialSuccess(upto) => {
                self.network.acknowledged(self.target, &rpc.vote, *upto);
            }
            AppendEntriesResponse::Conflict | AppendEntriesResponse::HigherVote(_) => {}
        }
        Ok(answer)
    }

    /// Checks of an answer to a call under `vote`, this node's own.
    fn validator(&self, vote: &Vote) -> Validator {
        Validator { node: self.network.peers.node, term: vote.leader_id().term(), fresh: false }
    }

    /// An impossible answer counts as no answer, and openraft backs off.
    fn refuse(&self, kind: PeerKind, why: &str) -> Unreachable<TypeConfig> {
        self.network.peers.refused(self.target, kind, "answer", why);
        Unreachable::from_string(format!("node {} gave an answer that cannot be: {why}", self.target))
    }

    fn check_vote(
        &self,
        kind: PeerKind,
        asked: &Vote,
        answer: VoteResponse<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let checked = self.validator(asked).check_vote_answer(self.target, asked, answer);
        checked.map_err(|why| RPCError::Unreachable(self.refuse(kind, &why)))
    }

    /// The vote with which a follower answers a snapshot: the sender's own, or a higher one.
    fn check_snapshot_vote(&self, own: Vote, answered: Vote) -> Result<Vote, StreamingError<TypeConfig>> {
        if answered == own {
            return Ok(own);
        }
        let checked = self.validator(&own).check_higher_vote(self.target, &own, &answered);
        checked.map_err(|why| StreamingError::Unreachable(self.refuse(PeerKind::Snapshot, &why)))
    }

    fn rpc_error(&self, action: RPCTypes, timeout: Duration, error: &TransportError) -> RPCError<TypeConfig> {
        match error {
            TransportError::TimedOut => {
                RPCError::Timeout(Timeout { action, id: self.network.peers.node, target: self.target, timeout })
            }
            // Backs off. `Network` would try again at once.
            _ => RPCError::Unreachable(Unreachable::new(error)),
        }
    }

    async fn send_pieces(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let broken = |error: &io::Error| StreamingError::Network(NetworkError::new(error));
        let meta = encode_meta(&snapshot.meta).map_err(|error| broken(&error))?;
        let SnapshotData::Stored(file) = snapshot.snapshot else {
            return Err(StreamingError::Network(NetworkError::from_string("only a stored snapshot can be sent")));
        };
        let total = file.bytes;
        let mut reader =
            self.network.snapshots.reader(&file).map_err(|error| StreamingError::Network(NetworkError::new(&error)))?;
        let place = &*self.network.blocking;
        let mut offset = 0;
        loop {
            let read = blocking(place, move || read_piece(reader)).await;
            let (piece, back) = read.map_err(|error| broken(&error))?;
            reader = back;
            let last = offset + piece.len() as u64 >= total;
            if piece.is_empty() && !last {
                return Err(broken(&io::Error::other("the snapshot's file is shorter than it should be")));
            }
            if last {
                // Read to the end before the last piece is sent: only then has the file's checksum been checked.
                let end = blocking(place, move || read_piece(reader)).await;
                let (rest, back) = end.map_err(|error| broken(&error))?;
                reader = back;
                if !rest.is_empty() {
                    return Err(broken(&io::Error::other("the snapshot's file is longer than it should be")));
                }
            }
            let head = PieceHead { vote, meta: meta.clone(), offset, last };
            let deadline = if last { INSTALL_DEADLINE } else { PIECE_DEADLINE };
            let body = wire::encode_piece(&head, &piece);
            let reply = self.call(PeerKind::Snapshot, RPCTypes::InstallSnapshot, body, deadline).await?;
            offset += piece.len() as u64;
            match reply {
                PieceReply::Taken { .. } if !last => {}
                PieceReply::Taken { vote: answered } | PieceReply::HigherVote { vote: answered } => {
                    let answered = self.check_snapshot_vote(vote, answered)?;
                    if answered == vote {
                        self.network.acknowledged(self.target, &vote, snapshot.meta.last_log_id);
                    }
                    return Ok(SnapshotResponse::new(answered));
                }
                PieceReply::Restart => {
                    return Err(StreamingError::Unreachable(Unreachable::from_string(
                        "the receiver has lost the beginning of the snapshot",
                    )));
                }
            }
        }
    }
}

fn read_piece<R: Read>(mut reader: R) -> io::Result<(Vec<u8>, R)> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    (&mut reader).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
    Ok((piece, reader))
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.append(rpc, self.append_deadline(&option), None).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendItem>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        if self.append == PeerKind::Heartbeat {
            return stream_append_sequential(self, input, option);
        }
        let (client, deadline) = (self.clone(), self.append_deadline(&option));
        let mut tickets = client.network.peers.begin_sequence(client.target);
        let send = move |request| {
            let ticket = client.network.peers.next_ticket(client.target, &mut tickets);
            client.append(request, deadline, Some(ticket)).boxed()
        };
        let notices = self.network.notices.to(self.target);
        async move { Ok(AppendPipeline::new(input, notices, send).boxed()) }.boxed()
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let answer = self.call(PeerKind::Vote, RPCTypes::Vote, wire::encode(&rpc), option.hard_ttl()).await?;
        let answer = self.check_vote(PeerKind::Vote, &rpc.vote, answer)?;
        if answer.vote_granted {
            self.network.acknowledged(self.target, &rpc.vote, None);
        }
        Ok(answer)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let answer = self.call(PeerKind::PreVote, RPCTypes::Vote, wire::encode(&rpc), option.hard_ttl()).await?;
        self.check_vote(PeerKind::PreVote, &rpc.vote, answer)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let sending = std::pin::pin!(self.send_pieces(vote, snapshot));
        match select(sending, std::pin::pin!(cancel)).await {
            Either::Left((result, _)) => result,
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let body = wire::encode(&req);
        self.call(PeerKind::TransferLeader, RPCTypes::TransferLeader, body, option.hard_ttl()).await
    }
}
