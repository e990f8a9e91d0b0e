//! Transfers of leadership: on the leader, to a voter that runs and has caught up; other nodes forward them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::calls::peers::Peers;
use crate::calls::wire::{Command, TransferReply};
use crate::error::ChangeError;
use crate::leader_probe::is_staying;
use crate::membership::forward;
use crate::raft::node::RaftNode;
use crate::status::Leadership;
use crate::status_publisher::status_of;

/// How often the node that is to take over is probed.
const LOOK_AFTER_TARGET: Duration = Duration::from_millis(25);

/// Hands the leadership over.
pub(crate) struct LeaderTransfer {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) peers: Peers,
}

impl LeaderTransfer {
    /// Transfers the leadership, on any node.
    pub(crate) async fn transfer(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let leads = self.node.leads();
        if leads.leading {
            return self.transfer_here(to).await;
        }
        let reply: TransferReply = forward(&self.node, &self.peers, leads.leader, &Command::Transfer { to }).await?;
        reply
    }

    /// On the leader: hands over to `to` or the most up-to-date voter that answers; returns the new leader.
    pub(crate) async fn transfer_here(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let target = self.choose(to)?;
        let Some(target) = target else { return Ok(self.node.config.node) };
        let mut leadership = self.node.leadership.clone();
        self.begin_transfer(target).await?;
        let moved = moved(&mut leadership, self.node.config.node);
        match timeout(Duration::from_millis(self.node.config.transfer_timeout_ms), moved).await {
            Ok(leader) => leader,
            Err(_) => Err(self.too_late(target)),
        }
    }

    async fn begin_transfer(&self, target: u64) -> Result<(), ChangeError> {
        self.node.raft.trigger().transfer_leader(target).await.map_err(|fatal| ChangeError::Fatal(fatal.to_string()))
    }

    fn too_late(&self, target: u64) -> ChangeError {
        let limit_ms = self.node.config.transfer_timeout_ms;
        ChangeError::Unknown(format!("node {target} has not taken over within {limit_ms} ms"))
    }

    /// Before this leader goes down: hands over to a voter that stays, and returns the new leader; `None` if no other
    /// voter stays, as when a whole cluster is stopped.
    pub(crate) async fn hand_over(&self) -> Result<Option<u64>, ChangeError> {
        let own = self.node.config.node;
        let deadline = Instant::now() + Duration::from_millis(self.node.config.transfer_timeout_ms);
        let mut leadership = self.node.leadership.clone();
        let mut going = BTreeSet::new();
        loop {
            let status = status_of(&self.node, &self.peers);
            if !status.leading {
                return Ok(status.leader.filter(|leader| *leader != own));
            }
            let others: Vec<u64> =
                status.members.voters.keys().copied().filter(|node| *node != own && !going.contains(node)).collect();
            for node in &others {
                if !is_staying(&self.peers, *node).await {
                    going.insert(*node);
                }
            }
            if others.iter().all(|node| going.contains(node)) {
                return Ok(None);
            }
            let synced = |node: &&u64| !going.contains(*node) && status.followers.get(node).is_some_and(|it| it.synced);
            let matched = |node: &&u64| status.followers.get(node).and_then(|follower| follower.matched);
            let Some(target) = others.iter().filter(synced).max_by_key(matched).copied() else {
                return Err(ChangeError::Refused("no other voter answers and has caught up".into()));
            };
            self.begin_transfer(target).await?;
            // The target may be stopped at this moment, and then does not take over.
            loop {
                match timeout(LOOK_AFTER_TARGET, moved(&mut leadership, own)).await {
                    Ok(leader) => return leader.map(Some),
                    Err(_) if Instant::now() >= deadline => return Err(self.too_late(target)),
                    Err(_) if is_staying(&self.peers, target).await => {}
                    Err(_) => break,
                }
            }
            going.insert(target);
        }
    }

    /// The target: `None` when this node leads already as asked.
    fn choose(&self, to: Option<u64>) -> Result<Option<u64>, ChangeError> {
        let own = self.node.config.node;
        let status = status_of(&self.node, &self.peers);
        if !status.leading {
            return Err(ChangeError::NoLeader);
        }
        let voters = &status.members.voters;
        let synced = |node: &u64| status.followers.get(node).filter(|follower| follower.synced);
        match to {
            Some(node) if node == own => Ok(None),
            Some(node) if !voters.contains_key(&node) => {
                Err(ChangeError::Refused(format!("node {node} does not vote: only a voter can lead")))
            }
            Some(node) if synced(&node).is_none() => Err(ChangeError::Refused(format!(
                "node {node} does not answer or has not caught up: choose another, or try again later"
            ))),
            Some(node) => Ok(Some(node)),
            None => voters
                .keys()
                .filter_map(|node| synced(node).map(|follower| (follower.matched, *node)))
                .max()
                .map(|(_, node)| Some(node))
                .ok_or_else(|| ChangeError::Refused("no other voter answers and has caught up".into())),
        }
    }
}

/// Waits until another node leads.
async fn moved(leadership: &mut watch::Receiver<Leadership>, own: u64) -> Result<u64, ChangeError> {
    match leadership.wait_for(|now| now.leader.is_some_and(|leader| leader != own)).await {
        Ok(now) => now.leader.ok_or(ChangeError::NoLeader),
        Err(_) => Err(ChangeError::ShuttingDown),
    }
}
