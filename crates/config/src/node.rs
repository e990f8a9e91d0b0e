//! The settings of the node that a configuration stands for.

use lockkeeper_consensus::MemberRole;
use lockkeeper_node::NodeConfig;

use super::{Checked, Config, ForeignNames, NodeRole};

/// The node that a configuration describes.
pub fn node_config(config: &Config, checked: &Checked) -> NodeConfig {
    let mut consensus =
        lockkeeper_consensus::Config::new(&config.cluster.id, config.cluster.node, checked.peers.clone());
    consensus.role = match config.cluster.role {
        NodeRole::Member => MemberRole::Member,
        NodeRole::Front => MemberRole::Front,
    };
    consensus.join = config.cluster.join.clone();
    consensus.clients = checked.clients.clone();
    consensus.zookeeper = checked.zookeeper_clients.clone();
    consensus.heartbeat_ms = config.timing.heartbeat_ms;
    consensus.election_timeout_min_ms = config.timing.election_timeout_min_ms;
    consensus.election_timeout_max_ms = config.timing.election_timeout_max_ms;
    consensus.snapshot_every_entries = config.storage.snapshot_every_entries;
    consensus.keep_entries = config.storage.keep_entries;
    consensus.snapshot_every_bytes = config.storage.snapshot_every_mib << 20;
    consensus.keep_bytes = config.storage.keep_mib << 20;
    let mut node = NodeConfig::new(consensus);
    if let Some(most) = config.cluster.max_feature_level {
        node.consensus.feature_level = most;
    }
    node.reap_every_ms = config.timing.reap_interval_ms;
    node.max_sessions = config.limits.sessions;
    node.rules.max_ephemerals_per_session = config.limits.ephemerals_per_session;
    node.rules.max_state_bytes = config.limits.state_mib << 20;
    node.rules.foreign_names = match config.locks.foreign_names {
        ForeignNames::Refuse => lockkeeper_core::ForeignNames::Refuse,
        ForeignNames::Allow => lockkeeper_core::ForeignNames::Allow,
    };
    node.max_queued_commands = config.limits.queued_changes;
    node.max_watches = config.limits.watches;
    // Requests that wait, requests at work, and cancelled requests that are leaving their queues.
    node.max_lock_requests = config.limits.waiting_requests + 2 * config.limits.in_flight_requests;
    node.watch_queue_events = config.limits.watch_queue_events;
    node.history_events = config.limits.watch_history_events;
    node.shutdown_timeout_ms = config.limits.shutdown_timeout_ms.max(1);
    node
}
