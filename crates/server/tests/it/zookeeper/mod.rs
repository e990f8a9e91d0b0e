//! The ZooKeeper frontend over real sockets, with frames written and read one by one.

use std::net::SocketAddr;

use lockkeeper_server::Config;

use crate::harness::{Cluster, Running};

mod access;
mod admin_commands;
mod bounds;
mod client;
mod data;
mod input;
mod order;
mod ownership;
mod sessions;
mod trouble;

/// Nodes with a ZooKeeper frontend. Ticks are short, so that sessions can expire within a test.
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

/// Three nodes whose configuration has the addresses of their ZooKeeper frontends.
pub(crate) async fn with_addresses() -> Cluster {
    cluster_with(3, |config| {
        for id in 1..=3_u16 {
            if let Some(peer) = config.peers.get_mut(&id.to_string()) {
                peer.zookeeper = Some(format!("127.0.0.1:{}", 20_000 + id));
            }
        }
    })
    .await
}

/// Where ZooKeeper's clients reach the voters, by `/zookeeper/config` at this node.
pub(crate) async fn configured_addresses(node: &Running) -> Vec<String> {
    let mut client = client::Client::open(node.zookeeper.expect("zookeeper.listen is set")).await;
    let shown = client.data("/zookeeper/config").await.unwrap_or_default();
    let lines = std::str::from_utf8(&shown).unwrap().lines();
    lines.filter_map(|line| line.split_once(';')).map(|(_, address)| address.to_owned()).collect()
}

impl Cluster {
    /// Address of a node's ZooKeeper frontend.
    fn zookeeper(&self, node: usize) -> SocketAddr {
        self.nodes[node].zookeeper.expect("zookeeper.listen is set")
    }
}
