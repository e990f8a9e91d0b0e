//! Joining a cluster of which only addresses are known.
//!
//! A node that joins has no list of peers. It asks at the addresses that its configuration names who the members are,
//! until it has the membership itself: in its log or its snapshot, from which it takes the addresses from then on. A
//! node that was stopped before that asks again when it starts. A member answers only if the joining node is a member
//! already, so the question is repeated until an operator has added it. The answer gives addresses, and the voters of
//! whom a majority must admit a directory that is not fresh. Each peer proves its identity as always.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::auth::CODE_UNKNOWN_NODE;
use crate::calls::peers::Peers;
use crate::calls::wire::KnownMembers;
use crate::raft::node::RaftNode;
use crate::transport::TransportError;

const ASK_EVERY: Duration = Duration::from_millis(250);
/// Once members are known, the leader sends the log. Who they are may change meanwhile.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(2);
/// Rounds between two log lines that say why this node has not joined.
const LOG_EVERY: u32 = 120;

/// Asks for the members until this node has the membership.
pub(crate) async fn find_members(node: Arc<RaftNode>, peers: Peers) {
    let mut members = node.members.clone();
    for round in 0_u32.. {
        let asked = async {
            let found = ask_all(&node, &peers, round % LOG_EVERY == 0).await;
            tokio::time::sleep(if found { ASK_AGAIN_EVERY } else { ASK_EVERY }).await;
        };
        tokio::select! {
            biased;
            joined = members.wait_for(|members| members.version > 0) => {
                node.not_formed.set(None);
                if joined.is_ok() {
                    tracing::info!("this node has the membership; cluster.join is not needed any more");
                }
                return;
            }
            () = asked => {}
        }
    }
}

/// Whether one of the addresses names the members.
async fn ask_all(node: &RaftNode, peers: &Peers, says_why: bool) -> bool {
    let mut reasons = BTreeSet::new();
    for address in &node.config.join {
        match peers.members_at(address).await {
            Ok(known) if !known.voters.is_empty() => {
                learn(peers, known);
                return true;
            }
            Ok(known) => drop(reasons.insert(format!("node {} at {address} has not joined itself", known.node))),
            Err(TransportError::Rejected { code, .. }) if code == CODE_UNKNOWN_NODE => {
                let own = node.config.node;
                reasons.insert(format!(
                    "node {own} is not a member of the cluster yet: add it with `lockkeeper member add {own}`"
                ));
            }
            Err(error) => drop(reasons.insert(format!("{address}: {error}"))),
        }
    }
    let reasons: Vec<String> = reasons.into_iter().collect();
    let why = format!("waiting to join the cluster (cluster.join): {}", reasons.join("; "));
    if says_why {
        tracing::warn!("{why}");
    }
    node.not_formed.set(Some(why));
    false
}

fn learn(peers: &Peers, known: KnownMembers) {
    for (node, address) in &known.peers {
        peers.learn(*node, address);
    }
    peers.guard.learn_voters(Some((known.version, known.voters)));
}
