//! The status of a node, as plain values.

use lockkeeper_consensus::ConsensusStatus;
use lockkeeper_core::{FeatureLevel, Zxid};

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The state of consensus.
    pub consensus: ConsensusStatus,
    /// The last transaction applied here.
    pub zxid: Zxid,
    /// The feature level of the cluster, as far as applied here.
    pub feature_level: FeatureLevel,
    /// Live sessions.
    pub sessions: usize,
    /// Nodes in the tree, with the root.
    pub nodes: usize,
    /// Ephemeral nodes.
    pub ephemerals: usize,
    /// The size of the replicated state in memory, in bytes, as every replica counts it.
    pub state_bytes: u64,
    /// How large it may grow, by this node's configuration.
    pub state_bytes_limit: u64,
    /// Conditions that need an operator, in words.
    pub alarms: Vec<String>,
    /// Watches at this node.
    pub watches: usize,
    /// Requests that wait for a lock at this node.
    pub waiters: usize,
    /// Whether callers should use this node.
    pub ready: bool,
    /// Why not.
    pub not_ready_because: Option<String>,
}

/// How long ago a ready replica was last known to be up to date, at most. Longer than an election, so that an election
/// is no outage.
const MAX_AGE_MS: u64 = 5_000;

/// Why callers should use another node.
pub(crate) fn not_ready_because(
    consensus: &ConsensusStatus,
    caught_up_ago_ms: Option<u64>,
    closing: bool,
) -> Option<String> {
    if closing {
        return Some("this node is shutting down".into());
    }
    let known = [&consensus.not_admitted_because, &consensus.not_formed_because, &consensus.no_majority_because];
    if let Some(why) = known.into_iter().flatten().next() {
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
        status.leading = true;
        status.no_majority_because = Some("no majority: nodes 1, 3 do not answer (timed out)".into());
        assert_eq!(not_ready_because(&status, Some(1), false), status.no_majority_because, "also while it leads");
        status.no_majority_because = None;
        assert_eq!(not_ready_because(&status, Some(1_200), false), None);
        assert!(not_ready_because(&status, Some(1), true).is_some());
        assert!(not_ready_because(&status, None, false).is_some_and(|why| why.contains("since it started")));
        assert!(not_ready_because(&status, Some(9_000), false).is_some_and(|why| why.contains("9000")));
    }
}
