//! No faults at all: every node listens on loopback and is reached there. What proofs use that cut nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Endpoint, FaultNet, LinkFault, Listener, Passed};
use crate::ports;
use crate::verdict::{Failed, cannot_run};

/// Plain loopback.
#[derive(Debug, Default)]
pub struct Direct(Mutex<BTreeMap<(u64, Listener), SocketAddr>>);

impl Direct {
    /// Ports for the founding members `1..=nodes`.
    pub fn start(nodes: u64) -> Result<Self, Failed> {
        let net = Self::default();
        for node in 1..=nodes {
            net.settle(node, None)?;
        }
        Ok(net)
    }

    fn settle(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        let ports = ports::free(1 + Listener::FOR_CLIENTS.len())?;
        let mut listens = self.0.lock();
        listens.insert((node, Listener::Peer), SocketAddr::from(([127, 0, 0, 1], ports[0])));
        for (listener, port) in Listener::FOR_CLIENTS.into_iter().zip(&ports[1..]) {
            let inherited = in_place_of.and_then(|old| listens.get(&(old, listener)).copied());
            listens.insert((node, listener), inherited.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], *port))));
        }
        Ok(())
    }
}

fn no_faults<T>() -> Result<T, Failed> {
    cannot_run("this network takes no faults")
}

#[async_trait]
impl FaultNet for Direct {
    fn backend(&self) -> &'static str {
        "direct"
    }

    fn address(&self, _: Endpoint, to: u64, listener: Listener) -> SocketAddr {
        self.listens(to, listener)
    }

    fn listens(&self, node: u64, listener: Listener) -> SocketAddr {
        let listens = self.0.lock();
        listens.get(&(node, listener)).copied().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn wrap(&self, _: u64) -> Vec<String> {
        Vec::new()
    }

    async fn add_node(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        self.settle(node, in_place_of)
    }

    async fn set(&self, _: Endpoint, _: u64, _: LinkFault) -> Result<(), Failed> {
        no_faults()
    }

    async fn set_answers(&self, _: u64, _: LinkFault) -> Result<(), Failed> {
        no_faults()
    }

    async fn heal(&self) -> Result<(), Failed> {
        Ok(())
    }

    async fn passed(&self, _: Endpoint, _: u64) -> Passed {
        Passed::default()
    }

    async fn passed_answers(&self, _: u64) -> Passed {
        Passed::default()
    }
}
