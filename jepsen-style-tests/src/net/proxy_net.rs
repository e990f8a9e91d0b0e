//! The default backend, which needs no root: a TCP proxy for each directed link between peers and for each link from
//! the clients to a listener of a node. A fault is on a direction: a cut from A to B stops what A sends to B on the
//! connections that A opened *and* on those that B opened.
//!
//! Each founding member has an address of its own for each peer. A node that joins later has one address for all peers,
//! from the membership; the proxy tells its callers apart by the name with which each connection begins.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::direction::Direction;
use super::proxy::{Callers, Directions, Proxy};
use super::{Endpoint, FaultNet, LinkFault, Listener, Passed};
use crate::ports;
use crate::verdict::{Failed, broken};

type ByEnds = BTreeMap<(Endpoint, Endpoint), Arc<Direction>>;

/// The directions, each made when first asked for.
#[derive(Clone, Default)]
struct DirectionsByEnds(Arc<Mutex<ByEnds>>);

impl DirectionsByEnds {
    fn direction(&self, from: Endpoint, to: Endpoint) -> Arc<Direction> {
        Arc::clone(self.0.lock().entry((from, to)).or_default())
    }

    fn pair(&self, from: Endpoint, to: Endpoint) -> Directions {
        Directions { there: self.direction(from, to), back: self.direction(to, from) }
    }
}

#[derive(Default)]
struct Listeners {
    listens: BTreeMap<(u64, Listener), SocketAddr>,
    links: BTreeMap<(Endpoint, u64, Listener), Arc<Proxy>>,
    /// For peers without an address of their own.
    arrivals: BTreeMap<u64, Proxy>,
}

/// Proxies on loopback.
pub struct ProxyNet {
    directions: DirectionsByEnds,
    book: Mutex<Listeners>,
}

impl fmt::Debug for ProxyNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyNet").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl ProxyNet {
    /// Proxies for the founding members `1..=nodes`, and for their clients.
    pub async fn start(nodes: u64) -> Result<Self, Failed> {
        let net = Self { directions: DirectionsByEnds::default(), book: Mutex::default() };
        for node in 1..=nodes {
            net.settle(node, None)?;
        }
        for to in 1..=nodes {
            net.open_for_clients(to).await?;
            for from in (1..=nodes).filter(|from| *from != to) {
                net.open(Endpoint::Node(from), to, Listener::Peer).await?;
            }
        }
        Ok(net)
    }

    fn nodes(&self) -> Vec<u64> {
        self.book
            .lock()
            .listens
            .keys()
            .filter(|(_, listener)| *listener == Listener::Peer)
            .map(|(node, _)| *node)
            .collect()
    }

    /// The addresses on which the node is to listen; for clients those of the node that it replaces.
    fn settle(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        let ports = ports::free(1 + Listener::FOR_CLIENTS.len())?;
        let mut book = self.book.lock();
        book.listens.insert((node, Listener::Peer), loopback(ports[0]));
        for (listener, port) in Listener::FOR_CLIENTS.into_iter().zip(&ports[1..]) {
            let inherited = in_place_of.and_then(|old| book.listens.get(&(old, listener)).copied());
            book.listens.insert((node, listener), inherited.unwrap_or(loopback(*port)));
        }
        Ok(())
    }

    async fn open_for_clients(&self, to: u64) -> Result<(), Failed> {
        for listener in Listener::FOR_CLIENTS {
            self.open(Endpoint::Clients, to, listener).await?;
        }
        Ok(())
    }

    async fn open(&self, from: Endpoint, to: u64, listener: Listener) -> Result<(), Failed> {
        let target = self.listens(to, listener);
        let callers = Callers::One(self.directions.pair(from, Endpoint::Node(to)));
        let link = Proxy::open(ports::free(1)?[0], target, callers).await?;
        self.book.lock().links.insert((from, to, listener), Arc::new(link));
        Ok(())
    }

    async fn open_for_all(&self, to: u64) -> Result<(), Failed> {
        let directions = self.directions.clone();
        let pair_of = move |from| directions.pair(Endpoint::Node(from), Endpoint::Node(to));
        let link = Proxy::open(ports::free(1)?[0], self.listens(to, Listener::Peer), Callers::Named(Arc::new(pair_of)))
            .await?;
        self.book.lock().arrivals.insert(to, link);
        Ok(())
    }

    /// The clients reach it at the addresses of the node that it replaces.
    fn inherit(&self, node: u64, old: u64) {
        let mut book = self.book.lock();
        for listener in Listener::FOR_CLIENTS {
            if let Some(link) = book.links.get(&(Endpoint::Clients, old, listener)).cloned() {
                book.links.insert((Endpoint::Clients, node, listener), link);
            }
        }
        let mut directions = self.directions.0.lock();
        for (from, to) in [(Endpoint::Clients, Endpoint::Node(old)), (Endpoint::Node(old), Endpoint::Clients)] {
            let now = |place| if place == Endpoint::Node(old) { Endpoint::Node(node) } else { place };
            let direction = Arc::clone(directions.entry((from, to)).or_default());
            directions.insert((now(from), now(to)), direction);
        }
    }
}

#[async_trait]
impl FaultNet for ProxyNet {
    fn backend(&self) -> &'static str {
        "proxy"
    }

    fn address(&self, from: Endpoint, to: u64, listener: Listener) -> SocketAddr {
        let book = self.book.lock();
        // A node needs its own address for clients only to tell it to them.
        let from = if listener == Listener::Peer { from } else { Endpoint::Clients };
        let linked = book.links.get(&(from, to, listener));
        let arrival = || (listener == Listener::Peer).then(|| book.arrivals.get(&to)).flatten();
        let address = linked.map(|link| link.address()).or_else(|| arrival().map(Proxy::address));
        address.or_else(|| book.listens.get(&(to, listener)).copied()).unwrap_or(loopback(0))
    }

    fn listens(&self, node: u64, listener: Listener) -> SocketAddr {
        self.book.lock().listens.get(&(node, listener)).copied().unwrap_or(loopback(0))
    }

    fn wrap(&self, _: u64) -> Vec<String> {
        Vec::new()
    }

    async fn add_node(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        let others = self.nodes();
        if others.contains(&node) {
            return broken(format!("node {node} is there already"));
        }
        self.settle(node, in_place_of)?;
        self.open_for_all(node).await?;
        for to in others {
            self.open(Endpoint::Node(node), to, Listener::Peer).await?;
        }
        match in_place_of {
            Some(old) => self.inherit(node, old),
            None => self.open_for_clients(node).await?,
        }
        Ok(())
    }

    async fn set(&self, from: Endpoint, to: u64, fault: LinkFault) -> Result<(), Failed> {
        self.directions.direction(from, Endpoint::Node(to)).set(fault);
        Ok(())
    }

    async fn set_answers(&self, from: u64, fault: LinkFault) -> Result<(), Failed> {
        self.directions.direction(Endpoint::Node(from), Endpoint::Clients).set(fault);
        Ok(())
    }

    async fn heal(&self) -> Result<(), Failed> {
        let directions: Vec<_> = self.directions.0.lock().values().cloned().collect();
        for direction in directions {
            direction.set(LinkFault::None);
        }
        Ok(())
    }

    async fn passed(&self, from: Endpoint, to: u64) -> Passed {
        self.directions.direction(from, Endpoint::Node(to)).passed()
    }

    async fn passed_answers(&self, from: u64) -> Passed {
        self.directions.direction(Endpoint::Node(from), Endpoint::Clients).passed()
    }
}

#[cfg(test)]
#[path = "proxy_net_tests.rs"]
mod tests;
