//! The state of consensus, as plain values for the layers above.

use std::collections::BTreeMap;

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
}

impl Members {
    /// Every member, whatever it is to the cluster.
    pub fn all(&self) -> impl Iterator<Item = (&u64, &MemberAddresses)> {
        self.voters.iter().chain(&self.learners).chain(&self.fronts)
    }

    /// The addresses of a member.
    pub fn get(&self, node: u64) -> Option<&MemberAddresses> {
        [&self.voters, &self.learners, &self.fronts].into_iter().find_map(|members| members.get(&node))
    }
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
    /// Leader, when known.
    pub leader: Option<u64>,
    /// True when this node leads.
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
    /// Peers that this node rejects because their data directories lack what they acknowledged, and why.
    pub turned_away: BTreeMap<u64, String>,
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

    fn synced_among<T>(&self, members: &BTreeMap<u64, T>) -> usize {
        self.followers.iter().filter(|(id, follower)| follower.synced && members.contains_key(id)).count()
    }
}
