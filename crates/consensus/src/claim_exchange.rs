//! The tasks of the rollback guard: claims to every peer, answers to theirs, and the durable copy of what peers have
//! acknowledged. What follows from a claim is decided in [`crate::admission::guard`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::vote::RaftLeaderId;
use tokio::sync::{Notify, mpsc};

use crate::admission::auth::PeerCaller;
use crate::admission::claim::{ClaimReply, DirectoryClaim};
use crate::admission::guard::{CODE_NOT_ADMITTED, MALFORMED, Wanted};
use crate::application::StateMachine;
use crate::blocking::{Blocking, blocking};
use crate::bootstrap::bootstrap_when_ready;
use crate::calls::peers::Peers;
use crate::calls::wire;
use crate::error::ServeError;
use crate::raft::node::RaftNode;
use crate::raft::types::LogId;
use crate::transport::{PeerKind, TransportError};

const CLAIM_DEADLINE: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// While this node is not admitted.
const PAUSE_WAITING: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often what peers have acknowledged is saved.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Exchanges claims with all peers.
pub(crate) struct ClaimExchange {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) peers: Peers,
    pub(crate) machine: Arc<dyn StateMachine>,
    pub(crate) blocking: Arc<dyn Blocking>,
}

impl ClaimExchange {
    /// Runs as long as the node: starts a task for each peer, one that forms the cluster, one that saves what peers
    /// acknowledged.
    pub(crate) async fn run(self: Arc<Self>, mut wanted: mpsc::UnboundedReceiver<Wanted>, fresh: bool) {
        let guard = &self.peers.guard;
        if !fresh {
            self.membership_published().await;
        }
        guard.learn_voters(self.voters());
        guard.admit_if_due();
        let tasks = &self.node.tasks;
        tasks.spawn(self.clone().save_periodically());
        if fresh {
            tasks.spawn(bootstrap_when_ready(self.node.clone(), guard.clone()));
        }
        while let Some((peer, now)) = wanted.recv().await {
            tasks.spawn(self.clone().claim_at(peer, now));
        }
    }

    /// Waits until openraft has published the membership that this node's directory, which has a vote or a log, holds:
    /// a majority of the configured peers may not be a majority of the voters.
    async fn membership_published(&self) {
        let mut metrics = self.node.raft.server_metrics();
        loop {
            let published = {
                let metrics = metrics.borrow_watched();
                metrics.vote.leader_id().term() > 0 || metrics.membership_config.log_id().is_some()
            };
            if published || metrics.changed().await.is_err() {
                return;
            }
        }
    }

    fn voters(&self) -> Option<(u64, Vec<u64>)> {
        let membership = self.node.raft.server_metrics().borrow_watched().membership_config.clone();
        let index = membership.log_id().as_ref().map(LogId::index)?;
        Some((index, membership.membership().voter_ids().collect()))
    }

    /// Claims this node's starts at a peer whenever that is due. Ends when the peer is forgotten.
    async fn claim_at(self: Arc<Self>, peer: u64, now: Arc<Notify>) {
        let guard = &self.peers.guard;
        let mut pause = PAUSE_MIN;
        while let Some(open) = guard.must_claim(peer, &now) {
            if !open {
                pause = PAUSE_MIN;
                now.notified().await;
                continue;
            }
            let outcome = match wire::encode_announced(&guard.claim, self.peers.levels.own) {
                Ok(body) => self.peers.call(peer, PeerKind::Admission, body, CLAIM_DEADLINE).await,
                Err(error) => Err(TransportError::Unreachable(error.to_string())),
            };
            let outcome = outcome.and_then(|body| {
                wire::decode_announced(&body).map_err(|error| TransportError::Garbled(error.to_string()))
            });
            let judged = {
                let peers = self.peers.clone();
                blocking(&*self.blocking, move || Ok(take_answer(&peers, peer, outcome))).await
            };
            if judged.unwrap_or(false) {
                pause = PAUSE_MIN;
                continue;
            }
            let most = if guard.not_admitted_because().is_some() { PAUSE_WAITING } else { PAUSE_MAX };
            tokio::select! {
                () = tokio::time::sleep(pause.min(most)) => pause = (pause * 2).min(most),
                () = now.notified() => pause = PAUSE_MIN,
            }
        }
    }

    /// Answers a peer's claim, behind which it announces a feature level.
    pub(crate) async fn answer_claim(
        &self,
        caller: PeerCaller,
        claim: DirectoryClaim,
        level: u32,
    ) -> Result<Bytes, ServeError> {
        let guard = &self.peers.guard;
        if !claim.is_well_formed() || claim.start() != caller.start {
            return Err(ServeError::new("malformed", format!("the claim {MALFORMED}")));
        }
        let replicated = self.machine.start_seen(caller.node);
        // The memory of the caller is durable before the answer; that waits for the disk.
        let judged = {
            let guard = guard.clone();
            blocking(&*self.blocking, move || Ok(guard.judge(caller.node, &claim, replicated))).await
        };
        judged
            .map_err(|error| ServeError::new(CODE_NOT_ADMITTED, error.to_string()))?
            .map_err(|no| ServeError::new(no.code, no.detail))?;
        guard.accepted(caller);
        self.peers.levels.note(caller.node, caller.start, level);
        let formed = self.node.raft.is_initialized().await.unwrap_or(true);
        let role = self.node.config.role;
        let reply = ClaimReply { claim: guard.claim.clone(), formed, role, voters: self.voters() };
        wire::encode_announced(&reply, self.peers.levels.own).map_err(ServeError::malformed)
    }

    /// Saves now and then what peers have acknowledged.
    async fn save_periodically(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SAVE_EVERY).await;
            self.save_acknowledged().await;
        }
    }

    /// Saves what peers have acknowledged.
    pub(crate) async fn save_acknowledged(&self) {
        let changed = self.peers.guard.unsaved();
        if changed.is_empty() {
            return;
        }
        let guard = self.peers.guard.clone();
        let write = move || changed.into_iter().try_for_each(|(peer, what)| guard.save(peer, what));
        if let Err(error) = blocking(&*self.blocking, write).await {
            tracing::warn!(%error, "cannot write down what peers have acknowledged; check the disk");
        }
    }
}

/// Judges the answer to a claim, behind which the peer announces a feature level; returns whether the two have found
/// each other in order now.
fn take_answer(peers: &Peers, peer: u64, outcome: Result<(ClaimReply, u32), TransportError>) -> bool {
    let announced = outcome.as_ref().ok().map(|(reply, level)| (reply.claim.start(), *level));
    let complete = peers.guard.answered(peer, outcome.map(|(reply, _)| reply));
    if let Some((start, level)) = announced.filter(|_| complete) {
        peers.levels.note(peer, start, level);
    }
    complete
}
