//! The settings of consensus, checked once.

use std::collections::BTreeMap;

use crate::status::MemberRole;

/// Settings. [`Config::new`] has a server's.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the cluster.
    pub cluster: String,
    /// This node; not 0.
    pub node: u64,
    /// What this node is to the cluster; must agree with the membership.
    pub role: MemberRole,
    /// Peer addresses of the nodes that form the cluster at its first start, this one included unless it is a front
    /// node.
    pub peers: BTreeMap<u64, String>,
    /// Peer addresses of members of a cluster that this node joins, in place of `peers`: a node with these never forms
    /// a cluster.
    pub join: Vec<String>,
    /// Where clients reach them, as far as configured: goes into the membership when the cluster is formed.
    pub clients: BTreeMap<u64, String>,
    /// Where ZooKeeper's clients do.
    pub zookeeper: BTreeMap<u64, String>,
    /// Interval of a leader's heartbeats.
    pub heartbeat_ms: u64,
    /// Shortest election timeout. A leader counts as silent when it leaves two probes in a row unanswered, each for
    /// three quarters of this.
    pub election_timeout_min_ms: u64,
    /// Longest election timeout; also the leader lease that followers respect.
    pub election_timeout_max_ms: u64,
    /// A snapshot is taken after so many entries.
    pub snapshot_every_entries: u64,
    /// Entries kept in the log behind a snapshot, for followers that are a little late.
    pub keep_entries: u64,
    /// A snapshot is taken after so many bytes of log as well, or after as many as a snapshot has, if that is more: a
    /// large state is not written again and again.
    pub snapshot_every_bytes: u64,
    /// At most so many bytes of log stay behind a snapshot, or as many as the snapshot has, if that is more: beyond
    /// that, sending the snapshot is cheaper.
    pub keep_bytes: u64,
    /// Most entries in one append to a follower.
    pub max_payload_entries: u64,
    /// Largest proposal.
    pub max_proposal_bytes: usize,
    /// How long a proposal waits before its outcome is reported as unknown.
    pub propose_timeout_ms: u64,
    /// How long a shutdown waits for another node to take over.
    pub transfer_timeout_ms: u64,
    /// The feature level that this node announces to the others; from 1.
    pub feature_level: u32,
    /// Elect at once when the leader's process is found dead or does not answer, instead of after the election timeout.
    pub fast_path: bool,
}

impl Config {
    /// The usual settings.
    pub fn new(cluster: &str, node: u64, peers: BTreeMap<u64, String>) -> Config {
        Config {
            cluster: cluster.to_owned(),
            node,
            role: MemberRole::Member,
            peers,
            join: Vec::new(),
            clients: BTreeMap::new(),
            zookeeper: BTreeMap::new(),
            heartbeat_ms: 100,
            election_timeout_min_ms: 300,
            election_timeout_max_ms: 600,
            snapshot_every_entries: 50_000,
            keep_entries: 10_000,
            snapshot_every_bytes: 4 * 1024 * 1024,
            keep_bytes: 4 * 1024 * 1024,
            max_payload_entries: 1024,
            max_proposal_bytes: 32 * 1024 * 1024,
            propose_timeout_ms: 5_000,
            transfer_timeout_ms: 1_000,
            feature_level: 1,
            fast_path: true,
        }
    }

    /// Checks what the parts must have to do with each other; the text names the setting.
    pub fn validate(&self) -> Result<(), String> {
        if self.node == 0 {
            return Err("node id 0 is not allowed: give this node an id from 1".into());
        }
        if self.cluster.is_empty() || self.cluster.len() > 256 {
            return Err("the cluster name must have 1 to 256 bytes".into());
        }
        if !self.join.is_empty() && !self.peers.is_empty() {
            return Err(
                "join and peers exclude each other: peers form a cluster, and join is for one that exists".into()
            );
        }
        match (self.role, self.peers.contains_key(&self.node)) {
            _ if !self.join.is_empty() => {}
            (MemberRole::Member, false) => {
                return Err(format!("peers does not list this node ({}): add it with its own peer address", self.node));
            }
            (MemberRole::Front, true) => {
                return Err(format!(
                    "peers lists this node ({}), which is a front node: remove it, since those in peers vote",
                    self.node
                ));
            }
            (MemberRole::Front, false) if self.peers.is_empty() => {
                return Err("peers is empty: a front node needs the addresses of the members that vote".into());
            }
            _ => {}
        }
        if let Some((node, _)) = self.peers.iter().find(|(node, address)| **node == 0 || address.is_empty()) {
            return Err(format!("peers: node {node} needs an id from 1 and an address"));
        }
        if self.heartbeat_ms < 10 || self.election_timeout_min_ms < 2 * self.heartbeat_ms {
            return Err(format!(
                "election_timeout_min_ms ({}) must be at least twice heartbeat_ms ({}), which must be at least 10",
                self.election_timeout_min_ms, self.heartbeat_ms
            ));
        }
        if self.election_timeout_max_ms <= self.election_timeout_min_ms {
            return Err(format!(
                "election_timeout_max_ms ({}) must exceed election_timeout_min_ms ({})",
                self.election_timeout_max_ms, self.election_timeout_min_ms
            ));
        }
        if self.snapshot_every_entries == 0 || self.max_payload_entries == 0 || self.propose_timeout_ms == 0 {
            return Err("snapshot_every_entries, max_payload_entries and propose_timeout_ms must not be 0".into());
        }
        if self.snapshot_every_bytes == 0 {
            return Err("snapshot_every_bytes must not be 0".into());
        }
        if self.feature_level == 0 {
            return Err("feature_level must be at least 1".into());
        }
        if self.max_proposal_bytes == 0 || self.max_proposal_bytes > 32 * 1024 * 1024 {
            return Err("max_proposal_bytes must lie between 1 and 33554432".into());
        }
        Ok(())
    }
}
