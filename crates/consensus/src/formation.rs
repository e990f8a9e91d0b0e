//! Forming the cluster at its first start, and greeting the peers at every start.
//!
//! The node with the lowest id among the configured peers forms the cluster, once a majority of them says that there is none yet. A node
//! that has a log or a vote never does, and neither does one whose peers have been formed: it is told apart by the gate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::BasicNode;

use crate::inner::Inner;
use crate::transport::PeerKind;
use crate::wire::{self, Lifeline, LifelineReply};

const GREETING_DEADLINE: Duration = Duration::from_millis(500);
const GREETING_PAUSE: Duration = Duration::from_millis(100);
/// Greetings to peers that stay silent become rare.
const GREETING_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Greets each peer until it has answered once, so that every node remembers every other's directory early. Forms the cluster when that
/// is this node's part.
pub(crate) async fn greet_and_form(inner: Arc<Inner>, fresh: bool) {
    let peers = &inner.config.peers;
    let forms = fresh && peers.keys().next() == Some(&inner.config.node);
    let mut unformed = 1_usize; // this node
    let mut silent: Vec<u64> = peers.keys().copied().filter(|node| *node != inner.config.node).collect();
    let mut done = !forms;
    let mut pause = GREETING_PAUSE;
    loop {
        if !done && unformed > peers.len() / 2 {
            form(&inner).await;
            done = true;
        }
        if silent.is_empty() {
            return;
        }
        let answers = futures::future::join_all(silent.iter().map(|peer| greet(&inner, *peer))).await;
        let mut still_silent = Vec::new();
        for (peer, answer) in silent.iter().zip(answers) {
            match answer {
                Some(reply) if reply.formed => done = true,
                Some(_) => unformed += 1,
                None => still_silent.push(*peer),
            }
        }
        if still_silent.len() < silent.len() {
            pause = GREETING_PAUSE;
            silent = still_silent;
            continue;
        }
        tokio::time::sleep(pause).await;
        if done {
            pause = (pause * 2).min(GREETING_PAUSE_MAX);
        }
    }
}

async fn greet(inner: &Inner, peer: u64) -> Option<LifelineReply> {
    let body = wire::encode(&Lifeline::Probe).ok()?;
    let answer = inner.peers.call(peer, PeerKind::Lifeline, body, GREETING_DEADLINE).await.ok()?;
    wire::decode(&answer).ok()
}

async fn form(inner: &Inner) {
    let members: BTreeMap<u64, BasicNode> =
        inner.config.peers.iter().map(|(node, address)| (*node, BasicNode::new(address))).collect();
    tracing::info!(nodes = members.len(), cluster = %inner.config.cluster, "forming the cluster");
    match inner.raft.initialize(members).await {
        Ok(()) => {}
        // Somebody was faster: a vote or an entry has arrived since the start. The cluster exists.
        Err(error) => tracing::info!(%error, "not forming the cluster"),
    }
}
