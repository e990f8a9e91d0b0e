//! Shared by the tests of the world.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{AclEntry, NodeKind, NodeOp, NodePath, Sequential};
use lockkeeper_node::{Caller, Node, NodeConfig};
use lockkeeper_sim::{ClientNet, DiskPlan, HostId, LinkPlan, World, WorldPlan};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Three nodes, a good network, good disks.
pub(crate) fn plan() -> WorldPlan {
    let consensus = lockkeeper_consensus::Config::new("sim", 1, BTreeMap::from([(1, "here".to_owned())]));
    WorldPlan {
        nodes: 3,
        fronts: 0,
        tick: Duration::from_millis(2),
        links: LinkPlan { jitter_ms: 1, loss: 0.0, duplicate: 0.0, spike: 0.0, spike_ms: 0 },
        disk: DiskPlan { sync_min_ms: 1, sync_max_ms: 3, stall: 0.0, stall_ms: 0, blocking_ms: 5 },
        node: NodeConfig::new(consensus),
        keep_trace: true,
    }
}

/// Moves on until it is so, within a bound of simulated time.
#[track_caller]
pub(crate) fn until(world: &mut World, what: &str, mut is_so: impl FnMut(&World) -> bool) {
    let end = world.now() + 60 * SECOND;
    while !is_so(world) {
        assert!(world.now() < end, "{what} has not come true within a minute: {:#?}", last_lines(world));
        assert_eq!(world.fatals(), [], "{:#?}", last_lines(world));
        world.step();
    }
}

fn last_lines(world: &World) -> Vec<String> {
    let lines = world.trace_lines();
    lines[lines.len().saturating_sub(60)..].to_vec()
}

pub(crate) fn leader(world: &World) -> Option<HostId> {
    world.nodes().into_iter().find(|node| world.node(*node).is_some_and(leads))
}

fn leads(node: &Node) -> bool {
    node.consensus().leadership().borrow().leading
}

/// A client that makes nodes, one after the other, asking one node of the cluster after the other.
pub(crate) fn writer(world: &mut World, every: Duration) -> Arc<AtomicU64> {
    let (written, net, nodes) = (Arc::new(AtomicU64::new(0)), world.client_net(), world.nodes());
    let counter = written.clone();
    world.spawn_client(async move {
        for number in 0.. {
            let node = nodes[number % nodes.len()];
            if create(&net, node, &format!("/n{number}")).await {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            tokio::time::sleep(every).await;
        }
    });
    written
}

pub(crate) async fn create(net: &ClientNet, node: HostId, path: &str) -> bool {
    let op = NodeOp::Create {
        path: NodePath::parse(path).expect("a path"),
        data: Vec::new().into(),
        kind: NodeKind::Persistent,
        sequential: Sequential::No,
        acl: vec![AclEntry::open()],
    };
    let outcome =
        net.call(node, 5 * SECOND, move |node| async move { node.execute(Caller::default(), op).await }).await;
    net.note(&format!("{path} at {node}: {outcome:?}"));
    matches!(outcome, Ok(Ok(_)))
}
