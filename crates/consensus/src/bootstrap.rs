//! Forming the cluster at its first start.
//!
//! The node with the lowest id among the configured peers forms the cluster, once *every one* of them has answered that
//! it belongs to none. A majority is not enough: if a majority of the directories was wiped, it would form a second,
//! empty cluster beside the one that the others remember. A node that has a log or a vote never forms one. Founders
//! vote, so a cluster is not formed while one of the configured peers says that it is a front node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::peer::rollback_guard::RollbackGuard;
use crate::raft_node::RaftNode;
use crate::status::{MemberAddresses, MemberEntry};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Looks between two log lines that say what it waits for.
const SAY_EVERY: u32 = 500;

/// Forms the cluster, if that is this node's part, when all peers have answered.
pub(crate) async fn bootstrap_when_ready(node: Arc<RaftNode>, guard: Arc<RollbackGuard>) {
    if node.config.peers.keys().next() != Some(&node.config.node) {
        return;
    }
    for look in 1_u32.. {
        match guard.is_formed() {
            Some(true) => return,
            Some(false) => return bootstrap(&node).await,
            None if look % SAY_EVERY == 1 => match guard.front_among_founders() {
                Some(front) => tracing::error!(
                    "[peers.{front}]: node {front} is a front node by its own configuration (cluster.role) and never \
                     votes; the cluster is not formed before it is removed from [peers] of every node"
                ),
                None if look > 1 => tracing::info!(
                    "waiting for every node of [peers]: at the first start of a cluster all of them are needed once"
                ),
                None => {}
            },
            None => {}
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The founding members, with their addresses in this node's configuration.
pub(crate) fn founders(config: &Config) -> BTreeMap<u64, MemberEntry> {
    let addresses = |(node, peer): (&u64, &String)| {
        let (client, zookeeper) = (config.clients.get(node).cloned(), config.zookeeper.get(node).cloned());
        (*node, MemberEntry::from(MemberAddresses { peer: peer.clone(), client, zookeeper }))
    };
    config.peers.iter().map(addresses).collect()
}

async fn bootstrap(node: &RaftNode) {
    let members = founders(&node.config);
    tracing::info!(nodes = members.len(), cluster = %node.config.cluster, "forming the cluster");
    match node.raft.initialize(members).await {
        Ok(()) => {}
        // A vote or an entry has arrived since the start: the cluster exists.
        Err(error) => tracing::info!(%error, "not forming the cluster"),
    }
}
