//! The default backend, which needs no root: a TCP proxy for each directed link between peers and for each link from the clients to a
//! door of a node. The directions are what faults lie on: one cut from A to B stops what A sends to B on the connections that A opened *and* on
//! those that B opened.
//!
//! Founding members are told an address of their own for each peer. For a node that joins later all peers are told the same one, from
//! the membership; there they are told apart by the name that each call between peers carries.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::link::{Callers, Link, Pair};
use super::way::Way;
use super::{Door, FaultNet, LinkFault, Passed, Place};
use crate::ports;
use crate::verdict::{Failed, broken};

type ByEnds = BTreeMap<(Place, Place), Arc<Way>>;

/// The directions, each made when first asked for.
#[derive(Clone, Default)]
struct Ways(Arc<Mutex<ByEnds>>);

impl Ways {
    fn locked(&self) -> MutexGuard<'_, ByEnds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn way(&self, from: Place, to: Place) -> Arc<Way> {
        Arc::clone(self.locked().entry((from, to)).or_default())
    }

    fn pair(&self, from: Place, to: Place) -> Pair {
        Pair { there: self.way(from, to), back: self.way(to, from) }
    }
}

#[derive(Default)]
struct Book {
    listens: BTreeMap<(u64, Door), SocketAddr>,
    links: BTreeMap<(Place, u64, Door), Arc<Link>>,
    /// For peers that were not told an address of their own.
    arrivals: BTreeMap<u64, Link>,
}

/// Proxies on loopback.
pub struct ProxyNet {
    ways: Ways,
    book: Mutex<Book>,
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
    ///
    /// # Errors
    /// Ports cannot be had.
    pub async fn start(nodes: u64) -> Result<Self, Failed> {
        let net = Self { ways: Ways::default(), book: Mutex::default() };
        for node in 1..=nodes {
            net.settle(node, None)?;
        }
        for to in 1..=nodes {
            net.open_for_clients(to).await?;
            for from in (1..=nodes).filter(|from| *from != to) {
                net.open(Place::Node(from), to, Door::Peer).await?;
            }
        }
        Ok(net)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes(&self) -> Vec<u64> {
        self.book().listens.keys().filter(|(_, door)| *door == Door::Peer).map(|(node, _)| *node).collect()
    }

    /// Where the node is to listen; for clients where the one listened whose place it takes.
    fn settle(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        let ports = ports::free(1 + Door::FOR_CLIENTS.len())?;
        let mut book = self.book();
        book.listens.insert((node, Door::Peer), loopback(ports[0]));
        for (door, port) in Door::FOR_CLIENTS.into_iter().zip(&ports[1..]) {
            let inherited = in_place_of.and_then(|old| book.listens.get(&(old, door)).copied());
            book.listens.insert((node, door), inherited.unwrap_or(loopback(*port)));
        }
        Ok(())
    }

    async fn open_for_clients(&self, to: u64) -> Result<(), Failed> {
        for door in Door::FOR_CLIENTS {
            self.open(Place::Clients, to, door).await?;
        }
        Ok(())
    }

    async fn open(&self, from: Place, to: u64, door: Door) -> Result<(), Failed> {
        let target = self.listens(to, door);
        let callers = Callers::One(self.ways.pair(from, Place::Node(to)));
        let link = Link::open(ports::free(1)?[0], target, callers).await?;
        self.book().links.insert((from, to, door), Arc::new(link));
        Ok(())
    }

    async fn open_for_all(&self, to: u64) -> Result<(), Failed> {
        let ways = self.ways.clone();
        let pair_of = move |from| ways.pair(Place::Node(from), Place::Node(to));
        let link =
            Link::open(ports::free(1)?[0], self.listens(to, Door::Peer), Callers::Named(Arc::new(pair_of))).await?;
        self.book().arrivals.insert(to, link);
        Ok(())
    }

    /// The clients reach it where they reached the one whose place it takes.
    fn inherit(&self, node: u64, old: u64) {
        let mut book = self.book();
        for door in Door::FOR_CLIENTS {
            if let Some(link) = book.links.get(&(Place::Clients, old, door)).cloned() {
                book.links.insert((Place::Clients, node, door), link);
            }
        }
        let mut ways = self.ways.locked();
        for (from, to) in [(Place::Clients, Place::Node(old)), (Place::Node(old), Place::Clients)] {
            let now = |place| if place == Place::Node(old) { Place::Node(node) } else { place };
            let way = Arc::clone(ways.entry((from, to)).or_default());
            ways.insert((now(from), now(to)), way);
        }
    }
}

#[async_trait]
impl FaultNet for ProxyNet {
    fn backend(&self) -> &'static str {
        "proxy"
    }

    fn address(&self, from: Place, to: u64, door: Door) -> SocketAddr {
        let book = self.book();
        // What a node is told of a door for clients is for their ears.
        let from = if door == Door::Peer { from } else { Place::Clients };
        let linked = book.links.get(&(from, to, door));
        let arrival = || (door == Door::Peer).then(|| book.arrivals.get(&to)).flatten();
        let address = linked.map(|link| link.address()).or_else(|| arrival().map(Link::address));
        address.or_else(|| book.listens.get(&(to, door)).copied()).unwrap_or(loopback(0))
    }

    fn listens(&self, node: u64, door: Door) -> SocketAddr {
        self.book().listens.get(&(node, door)).copied().unwrap_or(loopback(0))
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
            self.open(Place::Node(node), to, Door::Peer).await?;
        }
        match in_place_of {
            Some(old) => self.inherit(node, old),
            None => self.open_for_clients(node).await?,
        }
        Ok(())
    }

    async fn set(&self, from: Place, to: u64, fault: LinkFault) -> Result<(), Failed> {
        self.ways.way(from, Place::Node(to)).set(fault);
        Ok(())
    }

    async fn set_answers(&self, from: u64, fault: LinkFault) -> Result<(), Failed> {
        self.ways.way(Place::Node(from), Place::Clients).set(fault);
        Ok(())
    }

    async fn heal(&self) -> Result<(), Failed> {
        let ways: Vec<_> = self.ways.locked().values().cloned().collect();
        for way in ways {
            way.set(LinkFault::None);
        }
        Ok(())
    }

    async fn passed(&self, from: Place, to: u64) -> Passed {
        self.ways.way(from, Place::Node(to)).passed()
    }

    async fn passed_answers(&self, from: u64) -> Passed {
        self.ways.way(Place::Node(from), Place::Clients).passed()
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
