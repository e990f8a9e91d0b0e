//! Forming the cluster at its first start.
//!
//! The node with the lowest id among the configured peers forms the cluster, once *every one* of them has answered that
//! it belongs to none. A majority is not enough: if a majority of the directories was wiped, it would form a second,
//! empty cluster beside the one that the others remember. A node that has a log or a vote never forms one. Founders
//! vote, so a cluster is not formed while one of the configured peers says that it is a front node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::guard::RollbackGuard;
use crate::config::Config;
use crate::raft::node::RaftNode;
use crate::status::{MemberAddresses, MemberEntry};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often a node finds out for whom it waits.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// In how many of these times, and from which on, it also says so in its log.
const LOG_EVERY: u32 = 50;
const LOG_FIRST: u32 = 5;

/// Forms the cluster when all peers have answered, if that is this node's part. Until the node is in a cluster, it says
/// for whom it waits.
pub(crate) async fn bootstrap_when_ready(node: Arc<RaftNode>, guard: Arc<RollbackGuard>) {
    if !node.config.join.is_empty() {
        // It forms no cluster, and `find_members` says for what it waits.
        return;
    }
    let mut members = node.members.clone();
    tokio::select! {
        _ = members.wait_for(|members| !members.voters.is_empty()) => {}
        _ = futures::future::join(form_when_ready(&node, &guard), report(&node, &guard)) => {}
    }
    node.not_formed.set(None);
}

async fn form_when_ready(node: &RaftNode, guard: &RollbackGuard) {
    if node.config.peers.keys().next() != Some(&node.config.node) {
        return;
    }
    loop {
        match guard.is_formed() {
            Some(true) => return,
            Some(false) => return bootstrap(node).await,
            None => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

async fn report(node: &RaftNode, guard: &RollbackGuard) {
    for look in 0_u32.. {
        let why = waits_for(&node.config, guard);
        if look % LOG_EVERY == LOG_FIRST {
            tracing::warn!("{why}");
        }
        node.not_formed.set(Some(why));
        tokio::time::sleep(REPORT_EVERY).await;
    }
}

/// For whom a node without a cluster waits, and why each does not answer.
pub(crate) fn waits_for(config: &Config, guard: &RollbackGuard) -> String {
    if let Some(front) = guard.front_among_founders() {
        return format!(
            "not formed yet: [peers.{front}]: node {front} is a front node by its own configuration (cluster.role) \
             and never votes; remove it from [peers] of every node"
        );
    }
    if guard.is_formed() == Some(true) {
        return "not a member yet: its peers are a cluster already; waiting for their leader".into();
    }
    let missing = guard.missing().into_iter().map(|(peer, why)| match config.peers.get(&peer) {
        Some(address) => format!("node {peer} at {address} ({why})"),
        None => format!("node {peer} ({why})"),
    });
    let missing = missing.collect::<Vec<_>>().join(", ");
    let is_founder = config.peers.contains_key(&config.node);
    match config.peers.keys().next() {
        _ if !is_founder && missing.is_empty() => {
            let own = config.node;
            format!("node {own} is not a member of the cluster yet: add it with `lockkeeper member add {own}`")
        }
        _ if !is_founder => format!("not a member yet: waiting for {missing}"),
        _ if !missing.is_empty() => format!(
            "not formed yet: waiting for {missing}; at the first start of a cluster every node of [peers] is needed once"
        ),
        Some(first) => format!("not formed yet: waiting for node {first}, which forms the cluster when it reaches all"),
        None => "not formed yet: [peers] is empty".into(),
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
