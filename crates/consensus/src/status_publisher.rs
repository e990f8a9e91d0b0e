//! Turns openraft's metrics into our values: leadership, members, gauges, and the one line that names the reason of a
//! stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::vote::RaftLeaderId;
use openraft::{Instant as _, ServerState};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::application::FatalHook;
use crate::application::Timekeeper;
use crate::calls::peers::Peers;
use crate::majority_watch::{MajorityWatch, VoterView};
use crate::own_role;
use crate::raft::node::RaftNode;
use crate::raft::state_machine::Raft;
use crate::raft::types::{LogId, StoredMembership, position_of};
use crate::status::{ConsensusStatus, Follower, Leadership, MemberRole, Members};

/// A member that lags by more entries delays commits as a voter, and everything as the leader.
pub(crate) const CAUGHT_UP_ENTRIES: u64 = 1_000;
/// How often openraft's running state is checked when nothing else changes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct StatusPublisher {
    pub(crate) node: u64,
    /// By its configuration.
    pub(crate) role: MemberRole,
    pub(crate) majority: MajorityWatch,
    pub(crate) raft: Raft,
    pub(crate) peers: Peers,
    pub(crate) time: Arc<dyn Timekeeper>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) members: watch::Sender<Members>,
    pub(crate) fatal: FatalHook,
    pub(crate) stop: CancellationToken,
}

impl StatusPublisher {
    /// Runs until consensus stops.
    pub(crate) async fn run(mut self) {
        let mut metrics = self.raft.server_metrics();
        loop {
            self.publish();
            self.look_for_majority();
            let changed = tokio::select! {
                () = self.stop.cancelled() => break,
                changed = metrics.changed() => changed.is_ok(),
                () = tokio::time::sleep(LOOK_EVERY) => true,
            };
            if let Some(why) = self.contradiction() {
                (self.fatal)(why);
                break;
            }
            let failed = self.raft.metrics().borrow_watched().running_state.clone().err();
            if (failed.is_some() || !changed) && !self.stop.is_cancelled() {
                let why = failed.map_or_else(|| "its task has ended".to_owned(), |fatal| fatal.to_string());
                (self.fatal)(format!("consensus has stopped: {why}; the process must end; start it again"));
                break;
            }
        }
        self.leadership.send_modify(|now| *now = Leadership { term: now.term, leader: None, leading: false });
    }

    fn look_for_majority(&mut self) {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let heartbeats = metrics.heartbeat.unwrap_or_default();
        let view = VoterView {
            members: members_of(&metrics.membership_config),
            leader: metrics.current_leader,
            leading: metrics.state == ServerState::Leader,
            silent_for: heartbeats.iter().filter_map(|(id, at)| Some((*id, at.as_ref()?.elapsed()))).collect(),
            failures: self.peers.failures(),
        };
        let leads = self.majority.look(&view, Instant::now());
        metrics::gauge!("lockkeeper_is_leader").set(if leads { 1.0 } else { 0.0 });
    }

    fn contradiction(&self) -> Option<String> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        own_role::contradiction(self.node, self.role, &metrics.membership_config, metrics.last_applied.as_ref())
    }

    fn publish(&self) {
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        let leading = metrics.state == ServerState::Leader;
        let now = Leadership { term: metrics.vote.leader_id().term(), leader: metrics.current_leader, leading };
        self.leadership.send_if_modified(|before| {
            if *before == now {
                return false;
            }
            if now.leader.is_some() && (now.leader, now.term) != (before.leader, before.term) {
                metrics::counter!("lockkeeper_elections_total").increment(1);
                tracing::info!(term = now.term, leader = now.leader, leading, "a leader is established");
            }
            *before = now;
            true
        });
        metrics::gauge!("lockkeeper_term").set(now.term as f64);
        let members = members_of(&metrics.membership_config);
        self.members.send_if_modified(|before| {
            if *before == members {
                return false;
            }
            self.time.set_voters(members.voters.keys().copied().collect());
            let all = |members: &Members| -> BTreeMap<u64, String> {
                members.all().map(|(node, at)| (*node, at.peer.clone())).collect()
            };
            let now = all(&members);
            for (node, address) in &now {
                self.peers.learn(*node, address);
            }
            for node in all(before).keys().filter(|node| !now.contains_key(node)) {
                self.peers.forget(*node);
            }
            *before = members;
            true
        });
    }
}

pub(crate) fn members_of(stored: &StoredMembership) -> Members {
    let membership = stored.membership();
    let joint = membership.get_joint_config();
    let entry = |node: u64| membership.get_node(&node).cloned().unwrap_or_default();
    let not_voting = |role: MemberRole| {
        let entries = membership.learner_ids().map(|node| (node, entry(node)));
        entries.filter(|(_, entry)| entry.role == role).map(|(node, entry)| (node, entry.addresses)).collect()
    };
    Members {
        voters: membership.voter_ids().map(|node| (node, entry(node).addresses)).collect(),
        learners: not_voting(MemberRole::Member),
        fronts: not_voting(MemberRole::Front),
        version: stored.log_id().as_ref().map_or(0, LogId::index),
        joint: if joint.len() > 1 { joint.clone() } else { Vec::new() },
    }
}

/// Whether a log that matches up to one index lacks little of one that ends with the other.
pub(crate) fn is_caught_up(matched: u64, last: u64) -> bool {
    last.saturating_sub(matched) <= CAUGHT_UP_ENTRIES
}

/// The status as openraft's metrics and the rollback guard give it. A follower that has not answered for the lease may
/// be dead, however good its log.
pub(crate) fn status_of(node: &RaftNode, peers: &Peers) -> ConsensusStatus {
    let (own, lease) = (node.config.node, Duration::from_millis(node.config.election_timeout_max_ms));
    let turned_away = peers.guard.turned_away();
    let metrics = node.raft.metrics().borrow_watched().clone();
    let last = metrics.last_log_index.unwrap_or(0);
    let heartbeats = metrics.heartbeat.unwrap_or_default();
    let follower = |id: &u64, matched: &Option<LogId>| {
        let matched = matched.as_ref().map(LogId::index);
        let silent = heartbeats.get(id).and_then(Option::as_ref).map(|at| at.elapsed());
        Follower {
            matched,
            answered_ms_ago: silent.map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
            synced: silent.is_some_and(|silent| silent < lease)
                && !turned_away.contains_key(id)
                && matched.is_some_and(|matched| is_caught_up(matched, last)),
        }
    };
    let no_majority_because = node.no_majority.get();
    let is_led = no_majority_because.is_none();
    let position = |id: &Option<LogId>| id.as_ref().map(position_of);
    ConsensusStatus {
        node: own,
        term: metrics.current_term,
        leader: metrics.current_leader.filter(|_| is_led),
        leading: metrics.state == ServerState::Leader && is_led,
        last_log: metrics.last_log_index,
        committed: position(&metrics.local_committed),
        applied: position(&metrics.last_applied),
        snapshot: position(&metrics.snapshot),
        purged: position(&metrics.purged),
        followers: metrics
            .replication
            .iter()
            .flatten()
            .filter(|(id, _)| **id != own)
            .map(|(id, matched)| (*id, follower(id, matched)))
            .collect(),
        members: members_of(&metrics.membership_config),
        not_admitted_because: peers.guard.not_admitted_because(),
        not_formed_because: node.not_formed.get(),
        no_majority_because,
        feature_levels: peers.levels.all(own),
        turned_away: turned_away.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_near_up_to_a_thousand_entries() {
        assert!(
            is_caught_up(5_000, 5_000)
                && is_caught_up(4_000, 5_000)
                && is_caught_up(5_001, 5_000)
                && is_caught_up(0, 1_000)
        );
        assert!(!is_caught_up(3_999, 5_000) && !is_caught_up(0, 1_001));
    }
}
