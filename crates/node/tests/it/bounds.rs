//! What is large is refused before it is replicated, or done in pieces (promise P13).

use lockkeeper_core::limits::{MAX_BULK, MAX_MULTI_OPS};
use lockkeeper_core::{AccessOp, NamespaceLimits, NodeKind, NodeOp, Op, Refusal};
use lockkeeper_node::{Caller, Consistency, NodeError};

use crate::common::*;

fn with_data(at: &str, bytes: usize) -> NodeOp {
    match create(at, NodeKind::Persistent, false) {
        NodeOp::Create { path, kind, sequential, acl, .. } => {
            NodeOp::Create { path, data: vec![b'x'; bytes].into(), kind, sequential, acl }
        }
        other => other,
    }
}

#[tokio::test]
async fn what_finds_no_room_takes_none_in_the_log() {
    const ATTEMPTS: u64 = 50;
    let cluster = Cluster::start(1, |config| config.rules.max_state_bytes = 1_500_000).await;
    let node = cluster.at(1);
    let make = |at: &'static str| node.execute(Caller::default(), with_data(at, 1_000_000));
    make("/first").await.unwrap();
    let index = || *node.consensus().applied().borrow();
    let before = index();
    for _ in 0..ATTEMPTS {
        let refused = make("/second").await;
        assert!(matches!(refused, Err(NodeError::Refused(Refusal::StateFull { .. }))), "{refused:?}");
        let multi = node.execute(Caller::default(), Op::Multi(vec![with_data("/third", 1_000_000)])).await;
        assert!(matches!(multi, Err(NodeError::Refused(Refusal::MultiFailed { .. }))), "{multi:?}");
    }
    assert!(index() < before + ATTEMPTS, "{ATTEMPTS} refusals were replicated");
    node.execute(Caller::default(), NodeOp::Delete { path: path("/first"), version: None }).await.unwrap();
    make("/second").await.unwrap();
    cluster.finish().await;
}

#[tokio::test]
async fn a_large_namespace_is_counted_by_several_entries_before_its_first_limits() {
    const NODES: usize = 25_000;
    let cluster = Cluster::start(1, |_| {}).await;
    let node = cluster.at(1);
    let all: Vec<_> = (0..NODES).map(|number| create(&format!("/n/{number}"), NodeKind::Persistent, false)).collect();
    node.execute(Caller::default(), create("/n", NodeKind::Persistent, false)).await.unwrap();
    for ops in all.chunks(MAX_MULTI_OPS) {
        node.execute(Caller::default(), Op::Multi(ops.to_vec())).await.unwrap();
    }
    let zxid = stale(node, |state| state.zxid().0).await;
    let limits = NamespaceLimits { nodes: Some(NODES as u64 + 1), ..NamespaceLimits::default() };
    let put = |version| AccessOp::PutNamespace { name: "n".into(), owner: None, limits, version };
    let done = node.execute(Caller::default(), put(Some(lockkeeper_core::Zxid(0)))).await.unwrap();
    assert_eq!(done.zxid.0, zxid + 3, "ten thousand nodes at most for each entry");
    let version = stale(node, |state| state.namespace("n").unwrap().version).await;
    assert_eq!(version, done.zxid);
    let full = node.execute(Caller::default(), create("/n/more", NodeKind::Persistent, false)).await;
    assert!(matches!(full, Err(NodeError::Refused(Refusal::NamespaceFull { .. }))), "{full:?}");
    let again = node.execute(Caller::default(), put(Some(version))).await.unwrap();
    assert_eq!(again.zxid.0, done.zxid.0 + 1, "all is counted");
    cluster.finish().await;
}

#[tokio::test]
async fn all_that_is_due_is_reaped_in_one_round() {
    const COMMANDS: usize = 8;
    let cluster = Cluster::start(1, |config| config.reap_every_ms = 4_500).await;
    let node = cluster.at(1);
    let count = async || node.read(Consistency::Linearizable, |state| state.node_count()).await.unwrap().value;
    let before = count().await;
    for part in 0..COMMANDS {
        let name = |number| format!("/due-{part}-{number}");
        let ops = (0..MAX_BULK).map(|number| create(&name(number), NodeKind::Ttl { ttl_ms: 1 }, false));
        node.execute(Caller::default(), Op::Multi(ops.collect())).await.unwrap();
    }
    until("everything to be reaped", || (node.status().nodes == before).then_some(())).await;
    cluster.finish().await;
}
