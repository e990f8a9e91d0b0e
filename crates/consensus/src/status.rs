//! The state of consensus, as plain values for the layers above.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_store::LogPosition;
use serde::{Deserialize, Serialize};

/// The leadership, as this node knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// Its leader, when known.
    pub leader: Option<u64>,
    /// True when this node leads.
    pub leading: bool,
}

/// Where a member is reached. Part of the membership, so every node knows the addresses of every other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAddresses {
    /// By its peers.
    pub peer: String,
    /// By clients of the HTTP API, if given.
    pub client: Option<String>,
    /// By ZooKeeper's clients, if given.
    pub zookeeper: Option<String>,
}

impl MemberAddresses {
    /// All that there are.
    pub(crate) fn each(&self) -> impl Iterator<Item = &String> {
        [&self.peer].into_iter().chain(&self.client).chain(&self.zookeeper)
    }
}

/// Where its peers reach it, and nothing else.
impl<T: Into<String>> From<T> for MemberAddresses {
    fn from(peer: T) -> Self {
        Self { peer: peer.into(), ..Self::default() }
    }
}

/// What a member may become. It is fixed when the member is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberRole {
    /// A voter, or a learner that can be promoted to one.
    #[default]
    Member,
    /// A front node: receives the log and serves clients. It never votes.
    Front,
}

impl std::fmt::Display for MemberRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Member => "an ordinary member",
            Self::Front => "a front node",
        })
    }
}

/// A member's entry in the membership, the same on every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberEntry {
    pub(crate) addresses: MemberAddresses,
    pub(crate) role: MemberRole,
}

/// An ordinary member at these addresses.
impl<T: Into<MemberAddresses>> From<T> for MemberEntry {
    fn from(addresses: T) -> Self {
        Self { addresses: addresses.into(), role: MemberRole::Member }
    }
}

/// The most members of a cluster.
pub(crate) const MAX_MEMBERS: usize = 32;
/// The longest address of a member.
pub(crate) const MAX_ADDRESS_BYTES: usize = 256;

/// The membership: node ids and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Nodes that vote.
    pub voters: BTreeMap<u64, MemberAddresses>,
    /// Nodes that receive the log and do not vote yet.
    pub learners: BTreeMap<u64, MemberAddresses>,
    /// Nodes that receive the log and never vote.
    pub fronts: BTreeMap<u64, MemberAddresses>,
    /// Log index of this membership: each change has a larger one.
    pub version: u64,
    /// While a change of the voters is half done: the voters before it and those after it, each of which must have a
    /// majority. Otherwise empty.
    pub joint: Vec<BTreeSet<u64>>,
}

impl Members {
    /// Every member, whatever it is to the cluster.
    pub fn all(&self) -> impl Iterator<Item = (&u64, &MemberAddresses)> {
        self.voters.iter().chain(&self.learners).chain(&self.fronts)
    }

    /// The sets of voters each of which must have a majority: one, or two while a change of the voters is half done.
    pub(crate) fn quorums(&self) -> Vec<BTreeSet<u64>> {
        if self.joint.is_empty() { vec![self.voters.keys().copied().collect()] } else { self.joint.clone() }
    }

    /// The addresses of a member.
    pub fn get(&self, node: u64) -> Option<&MemberAddresses> {
        [&self.voters, &self.learners, &self.fronts].into_iter().find_map(|members| members.get(&node))
    }
}

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// Adds a node that does not vote. Of a member that is there already with this peer address, sets where clients
    /// reach it.
    Add {
        /// Its id.
        node: u64,
        /// Where it is reached.
        addresses: MemberAddresses,
        /// Without a role, a new node becomes an ordinary member, and a known one keeps its role.
        role: Option<MemberRole>,
    },
    /// Makes a learner a voter.
    Promote {
        /// Its id.
        node: u64,
    },
    /// Removes a member.
    Remove {
        /// Its id.
        node: u64,
    },
}

/// A point up to which reads are linearizable once it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIndex {
    /// Term of the leader that gave it.
    pub term: u64,
    /// Log index.
    pub index: u64,
}

/// Another member, as the leader knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// How far its log is known to match.
    pub matched: Option<u64>,
    /// Age in ms of the newest request this member acknowledged in the current term; `None` if none.
    pub answered_ms_ago: Option<u64>,
    /// It acknowledged a request sent within the longest election timeout, and its log lacks little: it can complete a
    /// quorum, or lead.
    pub synced: bool,
}

/// The state of consensus on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsensusStatus {
    /// This node.
    pub node: u64,
    /// Current term.
    pub term: u64,
    /// Leader, when known; none while no majority answers this node.
    pub leader: Option<u64>,
    /// True when this node leads, and a majority answers it.
    pub leading: bool,
    /// Last index in the log.
    pub last_log: Option<u64>,
    /// Last index known to be committed.
    pub committed: Option<LogPosition>,
    /// Last index applied here.
    pub applied: Option<LogPosition>,
    /// What the latest snapshot covers.
    pub snapshot: Option<LogPosition>,
    /// Up to where the log was cut.
    pub purged: Option<LogPosition>,
    /// On the leader: the other members.
    pub followers: BTreeMap<u64, Follower>,
    /// The members.
    pub members: Members,
    /// Why this node does not take part yet: its data directory is not confirmed by its peers.
    pub not_admitted_because: Option<String>,
    /// Why this node is in no cluster yet: for whom it waits, and why each does not answer.
    pub not_formed_because: Option<String>,
    /// That no majority of the voters answers this voter, and why each does not: nothing can be changed through it.
    pub no_majority_because: Option<String>,
    /// Peers that this node rejects because their data directories lack what they acknowledged, and why.
    pub turned_away: BTreeMap<u64, String>,
    /// The feature level that each node announced to this one in its present start: the highest that it supports and
    /// that its operator allows. Includes this node's own.
    pub feature_levels: BTreeMap<u64, u32>,
}

impl ConsensusStatus {
    /// On the leader: how many of the other voters are synced.
    pub fn synced_voters(&self) -> usize {
        self.synced_among(&self.members.voters)
    }

    /// On the leader: how many of the learners are synced.
    pub fn synced_learners(&self) -> usize {
        self.synced_among(&self.members.learners)
    }

    /// On the leader: how many of the front nodes are synced.
    pub fn synced_fronts(&self) -> usize {
        self.synced_among(&self.members.fronts)
    }

    /// On the leader: how many more voters may be lost before the others are no majority. 0 where the next loss is an
    /// outage.
    pub fn failure_tolerance(&self) -> Option<usize> {
        let spare = |voters: &BTreeSet<u64>| {
            let present = voters.iter().filter(|node| self.is_in_step(**node)).count();
            present.saturating_sub(voters.len() / 2 + 1)
        };
        self.members.quorums().iter().map(spare).min().filter(|_| self.leading)
    }

    /// On the leader: the highest feature level that every member supports, if all members are synced.
    pub fn common_feature_level(&self) -> Option<u32> {
        let members = || self.members.all().map(|(node, _)| *node);
        if !self.leading || !members().all(|node| self.is_in_step(node)) {
            return None;
        }
        // A member that has announced none is one that this node has not met.
        members().map(|node| self.feature_levels.get(&node).copied()).min().flatten()
    }

    /// On the leader: whether this is the leader itself, or a member that is synced.
    fn is_in_step(&self, node: u64) -> bool {
        node == self.node || self.followers.get(&node).is_some_and(|it| it.synced)
    }

    fn synced_among<T>(&self, members: &BTreeMap<u64, T>) -> usize {
        self.followers.iter().filter(|(id, follower)| follower.synced && members.contains_key(id)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(voters: &[u64], joint: &[&[u64]], synced: &[u64]) -> ConsensusStatus {
        let in_step = |node: &u64| (*node, Follower { synced: true, ..Follower::default() });
        ConsensusStatus {
            node: 1,
            leading: true,
            followers: synced.iter().map(in_step).collect(),
            members: Members {
                voters: voters.iter().map(|node| (*node, MemberAddresses::default())).collect(),
                joint: joint.iter().map(|voters| voters.iter().copied().collect()).collect(),
                ..Members::default()
            },
            ..ConsensusStatus::default()
        }
    }

    #[test]
    fn the_common_feature_level_is_that_of_the_member_with_the_lowest() {
        let cluster = |levels: &[(u64, u32)], synced: &[u64]| {
            let mut status = led(&[1, 2, 3], &[], synced);
            status.members.learners.insert(4, MemberAddresses::default());
            status.members.fronts.insert(5, MemberAddresses::default());
            status.feature_levels = levels.iter().copied().collect();
            status
        };
        let all = [2, 3, 4, 5];
        let common = |levels: &[(u64, u32)], synced: &[u64]| cluster(levels, synced).common_feature_level();
        assert_eq!(common(&[(1, 3), (2, 2), (3, 3), (4, 3), (5, 3)], &all), Some(2));
        assert_eq!(common(&[(1, 3), (2, 3), (3, 3), (4, 1), (5, 3)], &all), Some(1), "a learner");
        assert_eq!(common(&[(1, 3), (2, 3), (3, 3), (4, 3), (5, 1)], &all), Some(1), "a front node");
        assert_eq!(common(&[(1, 3), (2, 3), (4, 3), (5, 3)], &all), None, "a member that was never met");
        assert_eq!(common(&[(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)], &[2, 3, 5]), None, "a member that is not in step");
        let follower = ConsensusStatus { leading: false, ..cluster(&[(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)], &all) };
        assert_eq!(follower.common_feature_level(), None);
    }

    #[test]
    fn the_failure_tolerance_counts_voters_in_step_beyond_a_majority() {
        for (voters, synced, tolerated) in [
            (&[1][..], &[][..], 0),
            (&[1, 2], &[2], 0),
            (&[1, 2, 3], &[2, 3], 1),
            (&[1, 2, 3], &[2], 0),
            (&[1, 2, 3], &[2, 9], 0),
            (&[1, 2, 3, 4, 5], &[2, 3, 4, 5], 2),
            (&[1, 2, 3, 4, 5], &[2, 4], 0),
            (&[1, 2, 3], &[], 0),
        ] {
            assert_eq!(led(voters, &[], synced).failure_tolerance(), Some(tolerated), "{voters:?} {synced:?}");
        }
        let half_done = led(&[1, 2, 3, 4], &[&[1, 2, 3], &[1, 2, 3, 4]], &[2, 3]);
        assert_eq!(half_done.failure_tolerance(), Some(0), "three of four are their majority, and no more");
        let follower = ConsensusStatus { leading: false, ..led(&[1, 2, 3], &[], &[2, 3]) };
        assert_eq!(follower.failure_tolerance(), None);
    }
}
