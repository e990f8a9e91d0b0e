//! How long others wait when a large session ends: `cargo bench -p lockkeeper-node --bench session_endings`. One node
//! with its store; a client writes all the time, and the longest of its writes while the session goes is shown beside
//! the longest before. Prints; asserts nothing.
#![allow(clippy::unwrap_used)] // it ends where something is not as it must be

#[allow(dead_code)] // it uses a part
#[path = "../tests/it/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Cluster, caller, create, locks, request_id, session};
use lockkeeper_core::{LockMode, LockOp, NodeKind, NodeOp, Op};
use lockkeeper_node::{Credential, Node};

/// Writes until it is told to stop; gives the longest that one write took.
async fn write_on(node: Node, stop: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let set = NodeOp::SetData { path: common::path("/written"), data: [b'x'].into(), version: None };
        node.execute(caller_of_nobody(), set).await.unwrap();
        longest = longest.max(began.elapsed());
    }
    longest
}

fn caller_of_nobody() -> lockkeeper_node::Caller {
    lockkeeper_node::Caller::default()
}

async fn own_nodes(node: &Node, owner: Credential, count: usize) {
    for at in (0..count).step_by(1_000) {
        let one = create("/own/n-", NodeKind::Ephemeral, true);
        node.execute(caller(owner), Op::Multi(vec![one; 1_000.min(count - at)])).await.unwrap();
    }
}

async fn own_locks(node: &Node, owner: Credential, count: usize) {
    for at in (0..count).step_by(32) {
        let names: Vec<String> = (at..(at + 32).min(count)).map(|n| format!("own/{n:08}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (locks, uuid) = (locks(&names), request_id());
        let acquire = LockOp::Acquire { locks, mode: LockMode::Exclusive, delay_ms: 0, uuid, label: "l".into() };
        node.execute(caller(owner), acquire).await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    let cluster = Cluster::start(1, |config| config.rules.max_ephemerals_per_session = 100_000).await;
    let node = cluster.at(1);
    for directory in ["/own", "/written"] {
        node.execute(caller_of_nobody(), create(directory, NodeKind::Persistent, false)).await.unwrap();
    }
    for (count, of_locks) in
        [(1_000, false), (1_000, true), (10_000, false), (10_000, true), (100_000, false), (100_000, true)]
    {
        let owner = session(node, 600_000).await;
        match of_locks {
            true => own_locks(node, owner, count).await,
            false => own_nodes(node, owner, count).await,
        }
        let mut longest = Vec::new();
        for ends in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let writing = tokio::spawn(write_on(node.clone(), stop.clone()));
            tokio::time::sleep(Duration::from_millis(500)).await;
            if ends {
                node.close_session(&owner).await.unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            longest.push(writing.await.unwrap());
        }
        let what = if of_locks { "locks" } else { "nodes of one directory" };
        println!("{count} {what}: longest write {:.1?} before, {:.1?} while the session goes", longest[0], longest[1]);
    }
}
