//! How much faster than real time a quiet world of three nodes goes, at different ticks and loads. `cargo bench -p
//! lockkeeper-sim --bench speed`

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper_core::{NodeOp, NodePath};
use lockkeeper_node::{Caller, Consistency, NodeConfig};
use lockkeeper_sim::{DiskPlan, LinkPlan, World, WorldPlan};

const SIMULATED: Duration = Duration::from_secs(120);

fn main() {
    for (tick_ms, clients) in [(1, 0), (2, 0), (3, 0), (1, 8), (2, 8), (3, 8)] {
        let consensus = lockkeeper_consensus::Config::new("sim", 1, BTreeMap::from([(1, "here".to_owned())]));
        let plan = WorldPlan {
            fronts: 0,
            nodes: 3,
            tick: Duration::from_millis(tick_ms),
            links: LinkPlan { jitter_ms: 1, loss: 0.0, duplicate: 0.0, spike: 0.0, spike_ms: 0 },
            disk: DiskPlan { sync_min_ms: 1, sync_max_ms: 3, stall: 0.0, stall_ms: 0, blocking_ms: 5 },
            node: NodeConfig::new(consensus),
            keep_trace: false,
        };
        let mut world = World::new(&plan, 1);
        for client in 0..clients {
            let net = world.client_net();
            world.spawn_client(async move {
                let node = client % 3 + 1;
                for number in 0_u64.. {
                    let deadline = Duration::from_secs(5);
                    if number % 2 == 0 {
                        let write = |node: lockkeeper_node::Node| async move {
                            let op = NodeOp::Check { path: NodePath::root(), version: None };
                            node.execute(Caller::default(), op).await.is_ok()
                        };
                        let _ = net.call(node, deadline, write).await;
                    } else {
                        let read = |node: lockkeeper_node::Node| async move {
                            node.read(Consistency::Linearizable, |state| state.node_count()).await.is_ok()
                        };
                        let _ = net.call(node, deadline, read).await;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
        let started = Instant::now();
        world.run_for(SIMULATED);
        let ratio = SIMULATED.as_secs_f64() / started.elapsed().as_secs_f64();
        let messages = world.counters().get("messages").copied().unwrap_or(0);
        println!("tick {tick_ms} ms, {clients} clients: {ratio:.0} x real time, {messages} messages");
    }
}
