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
    /// Watches at this node.
    pub watches: usize,
    /// Requests that wait for a lock at this node.
    pub waiters: usize,
    /// Whether callers should be sent here.
    pub ready: bool,
    /// Why not.
    pub not_ready_because: Option<String>,
}

/// Entries that a node may be behind and still be called ready.
const MAX_LAG: u64 = 1_000;

/// Why callers should be sent elsewhere.
pub(crate) fn not_ready_because(consensus: &ConsensusStatus, closing: bool) -> Option<String> {
    if closing {
        return Some("this node is shutting down".into());
    }
    if consensus.leader.is_none() {
        return Some("no leader is known".into());
    }
    let committed = consensus.committed.map_or(0, |position| position.index);
    let applied = consensus.applied.map_or(0, |position| position.index);
    let lag = committed.saturating_sub(applied);
    (lag > MAX_LAG).then(|| format!("{lag} committed entries are still to be applied here"))
}

#[cfg(test)]
mod tests {
    use lockkeeper_consensus::LogPosition;

    use super::*;

    #[test]
    fn ready_with_a_leader_and_caught_up() {
        let at = |index| Some(LogPosition { term: 1, index });
        let mut status = ConsensusStatus { committed: at(5_000), applied: at(4_500), ..Default::default() };
        assert!(not_ready_because(&status, false).is_some_and(|why| why.contains("leader")));
        status.leader = Some(2);
        assert_eq!(not_ready_because(&status, false), None);
        assert!(not_ready_because(&status, true).is_some());
        status.applied = at(10);
        assert!(not_ready_because(&status, false).is_some_and(|why| why.contains("4990")));
    }
}
