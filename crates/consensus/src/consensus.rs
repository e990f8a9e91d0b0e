//! The handle that the rest of the program holds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{LogPosition, LogStorage, Opened, SnapshotStorage};
use openraft::SnapshotPolicy;
use openraft::vote::RaftLeaderId;
use tokio::sync::{RwLock, watch};

use crate::admission::auth::PeerCaller;
use crate::admission::claim::{DirectoryClaim, PeerMemory, STARTS_KEPT, Start, StartId};
use crate::admission::guard::RollbackGuard;
use crate::admission::levels::AnnouncedLevels;
use crate::application::{FatalHook, PeerService, StateMachine, Timekeeper};
use crate::blocking::{Blocking, blocking};
use crate::bootstrap::waits_for;
use crate::calls::network::Network;
use crate::calls::peers::Peers;
use crate::calls::snapshot_receive::SnapshotReceiver;
use crate::claim_exchange::ClaimExchange;
use crate::config::Config;
use crate::connection::order::CallOrder;
use crate::error::{BarrierError, ChangeError, ProposeError, ServeError, StartError};
use crate::failure_detector;
use crate::join::find_members;
use crate::leader_transfer::LeaderTransfer;
use crate::majority_watch::MajorityWatch;
use crate::membership::MembershipChanges;
use crate::propose::Proposer;
use crate::raft::log::codec;
use crate::raft::log::compaction::{LogCompactor, LogLimits};
use crate::raft::log::log_store::LogStore;
use crate::raft::node::{RaftNode, Tasks};
use crate::raft::state_machine::{Raft, StateMachineAdapter};
use crate::read_index::{Coalescer, ReadRounds, WAITING_CALLERS, leader_round, read_round};
use crate::rpc_handler::RpcHandler;
use crate::status::{ConsensusStatus, Leadership, MemberAddresses, MemberChange, MemberRole, Members, ReadIndex};
use crate::status_publisher::{StatusPublisher, status_of};
use crate::transport::{PeerKind, Transport, TransportError};

/// What consensus is made of.
pub struct Parts {
    /// Settings.
    pub config: Config,
    /// Log and vote.
    pub store: Arc<dyn LogStorage>,
    /// What opening the store found.
    pub opened: Opened,
    /// Snapshot files.
    pub snapshots: Arc<dyn SnapshotStorage>,
    /// Where work that blocks is done.
    pub blocking: Arc<dyn Blocking>,
    /// The state machine; empty when handed over, consensus restores it.
    pub machine: Arc<dyn StateMachine>,
    /// The layer above, for messages between nodes.
    pub service: Arc<dyn PeerService>,
    /// Calls to peers.
    pub transport: Arc<dyn Transport>,
    /// What this node durably remembers of its own starts and of its peers.
    pub memory: Arc<dyn PeerMemory>,
    /// Drawn at random for this start; the same as in the transport's identity of this node.
    pub boot: u64,
    /// The replicated clock, for the stamps of proposals.
    pub time: Arc<dyn Timekeeper>,
    /// Called when the process must end.
    pub fatal: FatalHook,
}

/// Handle of consensus; cheap to clone.
#[derive(Clone)]
pub struct Consensus {
    running: Arc<Running>,
}

struct Running {
    /// It has the parts that calls of peers use; so do those of this node.
    handler: RpcHandler,
    read_rounds: ReadRounds,
}

impl Consensus {
    /// Restores the state machine, starts the protocol, and at the first start of a cluster forms it.
    pub async fn start(parts: Parts) -> Result<Consensus, StartError> {
        let Parts { config, store, opened, snapshots, blocking: place, machine, service, transport, .. } = parts;
        let (memory, time, fatal) = (parts.memory, parts.time, parts.fatal);
        config.validate().map_err(StartError::Config)?;
        let raft_config = Arc::new(raft_config(&config)?);
        let (applied_sender, applied) = watch::channel(0);
        let adapter = {
            let (machine, snapshots, for_adapter) = (machine.clone(), snapshots.clone(), place.clone());
            let restore = move || StateMachineAdapter::restore(machine, snapshots, for_adapter, applied_sender);
            blocking(&*place, restore).await.map_err(|error| StartError::Stored(error.to_string()))?
        };
        let fresh = opened.vote.is_none() && opened.last.is_none() && snapshots.latest().is_none();
        let claim = claim(&opened, parts.boot, &*snapshots, &*memory)?;
        let configured = config.peers.keys().copied().collect();
        let (guard, wanted) = RollbackGuard::new(config.node, claim, memory, fatal.clone(), configured, fresh);
        let peers = Peers::new(config.node, transport, guard, AnnouncedLevels::new(config.feature_level));
        let covered = snapshots.latest().map_or(0, |snapshot| snapshot.position.index);
        let log = {
            let (place_of_log, fatal) = (place.clone(), fatal.clone());
            let open = move || LogStore::new(store, covered, place_of_log, fatal).map_err(std::io::Error::other);
            let log = blocking(&*place, open).await.map_err(|error| StartError::Stored(error.to_string()))?;
            log.followed_by(machine.clone())
        };
        let busy = LogLimits { snapshot_every_bytes: config.snapshot_every_bytes, keep_bytes: config.keep_bytes };
        let compactor = LogCompactor::new(log.size(), snapshots.clone(), busy);
        let network = Network::new(peers.clone(), time.clone(), snapshots.clone(), place.clone(), &log);
        let (tasks, commit_waits) = (Tasks::default(), network.commit_waits());
        let raft = Raft::new(config.node, raft_config, network, log.clone(), adapter).await.map_err(not_started)?;

        let (leadership_sender, leadership) = watch::channel(Leadership::default());
        let (members_sender, members) = watch::channel(Members::default());
        let node = RaftNode::new(config, raft.clone(), leadership, members, applied, tasks.clone());
        let of_leader = raft.clone();
        let (leader_rounds, run_leader_rounds) = Coalescer::new(WAITING_CALLERS, move || {
            let raft = of_leader.clone();
            async move { leader_round(&raft).await }
        });
        let of_reads = (node.clone(), peers.clone(), leader_rounds.clone());
        let (read_rounds, run_read_rounds) = Coalescer::new(WAITING_CALLERS, move || {
            let (node, peers, leader_rounds) = of_reads.clone();
            async move { read_round(&node, &peers, &leader_rounds).await }
        });
        // Before anybody can ask for the status.
        node.not_formed.set(fresh.then(|| waits_for(&node.config, &peers.guard)));
        let proposer = Arc::new(Proposer::new(node.clone(), peers.clone(), machine.clone(), time.clone()));
        let membership = MembershipChanges::new(node.clone(), peers.clone(), machine.clone(), leader_rounds.clone());
        let claims = Arc::new(ClaimExchange {
            node: node.clone(),
            peers: peers.clone(),
            machine: machine.clone(),
            blocking: place.clone(),
        });
        let publisher = StatusPublisher {
            node: node.config.node,
            role: node.config.role,
            majority: MajorityWatch::new(&node.config, node.no_majority.clone()),
            raft: raft.clone(),
            peers: peers.clone(),
            time: time.clone(),
            leadership: leadership_sender,
            members: members_sender,
            fatal,
            stop: tasks.stop.clone(),
        };
        tasks.spawn(run_leader_rounds);
        tasks.spawn(run_read_rounds);
        tasks.spawn_until_stopped(publisher.run());
        tasks.spawn(compactor.run(raft, machine.clone()));
        tasks.spawn(failure_detector::run(node.clone(), peers.clone()));
        tasks.spawn(claims.clone().run(wanted, fresh));
        if !node.config.join.is_empty() {
            tasks.spawn(find_members(node.clone(), peers.clone()));
        }
        let handler = RpcHandler {
            node: node.clone(),
            transfer: Arc::new(LeaderTransfer { node: node.clone(), peers: peers.clone() }),
            peers,
            log,
            machine: machine.clone(),
            service,
            time,
            claims,
            leader_rounds,
            membership: Arc::new(membership),
            proposer,
            snapshots: SnapshotReceiver::new(node, machine, snapshots, place),
            order: CallOrder::default(),
            commit_waits,
            serving: RwLock::default(),
        };
        Ok(Consensus { running: Arc::new(Running { handler, read_rounds }) })
    }

    /// Puts `payload` into the log, on any node. Returns once it is committed and applied at the leader; this node's
    /// own replica receives it through [`StateMachine::apply`].
    pub async fn propose(&self, payload: Bytes) -> Result<LogPosition, ProposeError> {
        self.handler().proposer.propose(payload).await
    }

    /// Makes a read on this replica linearizable: gets a read index from the leader, by a quorum round begun after this
    /// call, and waits until it is applied here. Concurrent calls share a round.
    pub async fn read_barrier(&self) -> Result<ReadIndex, BarrierError> {
        if self.node().is_closing() {
            return Err(BarrierError::ShuttingDown);
        }
        let read = self.running.read_rounds.read_index().await?;
        self.node().wait_applied(read.index).await?;
        Ok(read)
    }

    /// On the leader: confirms, by a quorum round begun after this call, that this node still leads in the term
    /// returned; everything committed before is applied here. Concurrent calls share a round.
    pub async fn confirm_leadership(&self) -> Result<u64, BarrierError> {
        if self.node().is_closing() {
            return Err(BarrierError::ShuttingDown);
        }
        if !self.node().leads().leading {
            return Err(BarrierError::NoLeader);
        }
        let read = self.handler().leader_rounds.read_index().await?;
        self.node().wait_applied(read.index).await?;
        Ok(read.term)
    }

    /// The leadership, as it changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.node().leadership.clone()
    }

    /// The members, as they change.
    pub fn members(&self) -> watch::Receiver<Members> {
        self.node().members.clone()
    }

    /// Index of the last entry applied here, as it moves.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.node().applied.clone()
    }

    /// The state of things.
    pub fn status(&self) -> ConsensusStatus {
        status_of(self.node(), &self.handler().peers)
    }

    /// Has this node take a snapshot of its applied state now, if it has applied anything. Returns before the snapshot
    /// is taken.
    pub async fn take_snapshot(&self) -> Result<(), BarrierError> {
        // With a snapshot, a directory is not a fresh one: its next start would wait for a membership before it joins.
        if self.status().applied.is_none() {
            return Ok(());
        }
        self.node().raft.trigger().snapshot().await.map_err(|fatal| BarrierError::Fatal(fatal.to_string()))
    }

    /// Adds a node that receives the log but does not vote yet; on any node. For a member with this peer address, sets
    /// where clients reach it. Changes are made one after another.
    pub async fn add_learner(
        &self,
        node: u64,
        addresses: impl Into<MemberAddresses> + Send,
    ) -> Result<Members, ChangeError> {
        self.add_member(node, addresses, None).await
    }

    /// Adds a learner or a front node; on any node. Without a role, a new node becomes a learner, and a known one keeps
    /// its role, which cannot be changed.
    pub async fn add_member(
        &self,
        node: u64,
        addresses: impl Into<MemberAddresses> + Send,
        role: Option<MemberRole>,
    ) -> Result<Members, ChangeError> {
        let addresses = addresses.into();
        self.change_membership(MemberChange::Add { node, addresses, role }, None).await
    }

    /// Makes a learner that has caught up a voter; on any node. A front node never becomes one.
    pub async fn promote(&self, node: u64) -> Result<Members, ChangeError> {
        self.change_membership(MemberChange::Promote { node }, None).await
    }

    /// Removes a voter or learner; on any node. Its id must not come back.
    pub async fn remove(&self, node: u64) -> Result<Members, ChangeError> {
        self.change_membership(MemberChange::Remove { node }, None).await
    }

    /// Changes the membership, on any node. With a version ([`Members::version`]), only if the membership still has it:
    /// of two operators who change what they have looked at, the second one is refused.
    pub async fn change_membership(
        &self,
        change: MemberChange,
        if_version: Option<u64>,
    ) -> Result<Members, ChangeError> {
        self.handler().membership.change(change, if_version).await
    }

    /// Hands leadership to `to`, or to the most up-to-date voter; on any node. Gives the new leader.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        self.handler().transfer.transfer(to).await
    }

    /// Sends a message of the layer above to the [`PeerService`] of node `to`.
    pub async fn call_service(&self, to: u64, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        self.handler().peers.call(to, PeerKind::Service, body, deadline).await
    }

    /// Answers a peer's call, which [`crate::PeerAuth`] has authenticated.
    pub async fn serve(&self, caller: PeerCaller, kind: PeerKind, body: Bytes) -> Result<Bytes, ServeError> {
        self.handler().serve(caller, kind, body).await
    }

    /// Before going down: takes no leadership over any more, and if this node leads, hands the leadership over within
    /// `transfer_timeout_ms`.
    pub async fn step_down(&self) {
        let first = self.node().begin_going_down();
        if !first || !self.node().leads().leading || self.node().members.borrow().voters.len() < 2 {
            return;
        }
        match self.handler().transfer.hand_over().await {
            Ok(Some(leader)) => tracing::info!(leader, "leadership handed over"),
            Ok(None) => tracing::info!("no other voter stays: nobody is there to hand leadership to"),
            Err(error) => tracing::warn!(%error, "leadership was not handed over; the others will elect"),
        }
    }

    /// Steps down, then stops. New work is refused from the first moment. Does not close the store.
    pub async fn shutdown(&self) {
        self.node().begin_closing();
        self.step_down().await;
        self.node().tasks.end().await;
        self.handler().claims.save_acknowledged().await;
        self.handler().drain().await;
        if let Err(error) = self.node().raft.shutdown().await {
            tracing::warn!(%error, "consensus did not stop cleanly");
        }
    }

    fn handler(&self) -> &RpcHandler {
        &self.running.handler
    }

    fn node(&self) -> &RaftNode {
        &self.running.handler.node
    }
}

/// This start's claim about its directory; saved before any peer sees it.
fn claim(
    opened: &Opened,
    boot: u64,
    snapshots: &dyn SnapshotStorage,
    memory: &dyn PeerMemory,
) -> Result<DirectoryClaim, StartError> {
    let stored = |error: std::io::Error| StartError::Stored(error.to_string());
    let vote = opened.vote.as_deref().map(codec::decode_vote).transpose().map_err(stored)?;
    let covered = snapshots.latest().map_or(0, |snapshot| snapshot.position.index);
    let start = Start {
        id: StartId { number: opened.incarnation, boot },
        term: vote.map_or(0, |vote| vote.leader_id().term()),
        last: opened.last.map_or(0, |last| last.index).max(covered),
    };
    // A crash after counting a start and before saving it leaves a gap; no number is ever used twice.
    let mut starts: Vec<Start> =
        memory.starts().into_iter().filter(|before| before.id.number < start.id.number).collect();
    memory.add_start(start).map_err(stored)?;
    starts.drain(..starts.len().saturating_sub(STARTS_KEPT - 1));
    starts.push(start);
    Ok(DirectoryClaim { directory: opened.directory, starts })
}

fn raft_config(config: &Config) -> Result<openraft::Config, StartError> {
    let raft = openraft::Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: config.heartbeat_ms,
        election_timeout_min: config.election_timeout_min_ms,
        election_timeout_max: config.election_timeout_max_ms,
        max_payload_entries: config.max_payload_entries,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_every_entries),
        // Above the snapshot distance: otherwise a snapshot might not end the lag that called for it.
        replication_lag_threshold: config.snapshot_every_entries.saturating_mul(2).max(config.keep_entries),
        max_in_snapshot_log_to_keep: config.keep_entries,
        // The store purges lazily behind a mark, so one mark for each snapshot is cheap.
        purge_batch_size: 1,
        enable_pre_vote: Some(true),
        // A restarted leader must be elected again: what it had committed is known to the others, not to its disk.
        enable_leader_restore: Some(false),
        // A leader without a majority pauses its heartbeats in turns, so that a partial partition heals (openraft
        // #2080).
        quorum_loss_probe_interval: Some(2 * config.election_timeout_max_ms),
        install_snapshot_timeout: 120_000,
        backoff: "20ms 50ms 100ms ...500ms".to_owned(),
        ..openraft::Config::default()
    };
    raft.validate().map_err(|error| StartError::Config(error.to_string()))
}

fn not_started(error: impl std::fmt::Display) -> StartError {
    StartError::Raft(error.to_string())
}
