//! How a node is, as plain values.

use lockkeeper_consensus::ConsensusStatus;
use lockkeeper_core::Zxid;

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The state of consensus.
    pub consensus: ConsensusStatus,
    /// The last transaction applied here.
    pub zxid: Zxid,
    /// Live sessions.
    pub sessions: usize,
    /// Nodes in the tree, with the root.
    pub nodes: usize,
    /// Ephemeral nodes.
    pub ephemerals: usize,
    /// What the replicated state takes in memory, in bytes, as every replica counts it.
    pub state_bytes: u64,
    /// How large it may grow, by this node's configuration.
    pub state_bytes_limit: u64,
    /// What an operator has to see to, in words.
    pub alarms: Vec<String>,
    /// Watches at this node.
    pub watches: usize,
    /// Requests that wait for a lock at this node.
    pub waiters: usize,
    /// Whether callers should be sent here.
    pub ready: bool,
    /// Why not.
    pub not_ready_because: Option<String>,
}

/// How long ago a replica may last have been seen to be up to date. Longer than an election takes, so that one is not an outage.
const MAX_AGE_MS: u64 = 5_000;

/// Why callers should be sent elsewhere.
pub(crate) fn not_ready_because(
    consensus: &ConsensusStatus,
    caught_up_ago_ms: Option<u64>,
    closing: bool,
) -> Option<String> {
    if closing {
        return Some("this node is shutting down".into());
    }
    if let Some(why) = &consensus.not_admitted_because {
        return Some(why.clone());
    }
    if consensus.leader.is_none() {
        return Some("no leader is known".into());
    }
    match caught_up_ago_ms {
        None => Some("this replica has not caught up with a leader since it started".into()),
        Some(ago_ms) if ago_ms > MAX_AGE_MS => {
            Some(format!("this replica was last up to date with a leader {ago_ms} ms ago"))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_with_a_leader_and_caught_up() {
        let mut status = ConsensusStatus::default();
        assert!(not_ready_because(&status, Some(1), false).is_some_and(|why| why.contains("leader")));
        status.not_admitted_because = Some("its data directory is not confirmed".into());
        assert!(not_ready_because(&status, Some(1), false).is_some_and(|why| why.contains("not confirmed")));
        status.not_admitted_because = None;
        status.leader = Some(2);
        assert_eq!(not_ready_because(&status, Some(1_200), false), None);
        assert!(not_ready_because(&status, Some(1), true).is_some());
        assert!(not_ready_because(&status, None, false).is_some_and(|why| why.contains("since it started")));
        assert!(not_ready_because(&status, Some(9_000), false).is_some_and(|why| why.contains("9000")));
    }
}
