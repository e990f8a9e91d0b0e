//! ZooKeeper's front door, as its clients meet it: real sockets, frames written and read one by one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper_server::Config;

use crate::harness::{Cluster, PATIENCE};

mod access;
mod bounds;
mod client;
mod data;
mod input;
mod members;
mod order;
mod ownership;
mod queues;
mod sessions;
mod trouble;
mod words;

/// Nodes with this front door. Ticks are short, so that sessions can end within a test.
async fn cluster(nodes: u64) -> Cluster {
    cluster_with(nodes, |_| {}).await
}

async fn cluster_with(nodes: u64, adjust: impl Fn(&mut Config)) -> Cluster {
    Cluster::start_with(nodes, |config| {
        config.zookeeper.listen = "127.0.0.1:0".into();
        config.zookeeper.tick_ms = 500;
        adjust(config);
    })
    .await
}

impl Cluster {
    /// Where clients of this protocol connect.
    fn door(&self, node: usize) -> SocketAddr {
        self.nodes[node].zookeeper.expect("the door is open")
    }
}

/// Asks until it is so.
async fn until(mut so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !so().await {
        assert!(began.elapsed() < PATIENCE, "it was to be so by now");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
