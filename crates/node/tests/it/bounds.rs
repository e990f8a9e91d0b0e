//! What is large is refused before it is replicated (promise P13).

use lockkeeper_core::{NodeKind, NodeOp, Op, Refusal};
use lockkeeper_node::{Caller, NodeError};

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
