//! The network between nodes, and between clients and nodes, on which faults can be put: one link for each direction.

pub mod direct;
mod direction;
mod ip;
pub mod netns;
mod proxy;
pub mod proxy_net;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;

use crate::verdict::{Failed, cannot_run};

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// A node.
    Node(u64),
    /// All clients.
    Clients,
}

/// The listener of a node that a link leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Listener {
    /// For peers.
    Peer,
    /// For clients.
    Client,
    /// For clients of ZooKeeper's protocol.
    ZooKeeper,
}

impl Listener {
    /// The listeners for clients. A fault on a clients' link is on all of them alike.
    pub const FOR_CLIENTS: [Self; 2] = [Self::Client, Self::ZooKeeper];
}

/// What a link does to its traffic, in its one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkFault {
    /// Nothing.
    None,
    /// Nothing passes; what was sent arrives once healed, as after a partition.
    Cut,
    /// Connections that carry anything in this direction are reset, and new ones refused or reset.
    Reset,
    /// The receiving end has forgotten its connections and the sending end does not know: its bytes vanish until a
    /// reset tells it, when this is healed. No new connections.
    HalfOpen,
    /// Bytes arrive later by `delay` and up to `jitter` more, and so many pass in a second (0: no bound).
    Slow {
        /// Added to each transfer.
        delay: Duration,
        /// Up to so much more, at random.
        jitter: Duration,
        /// Bytes a second; 0 for no bound.
        bytes_per_s: u64,
    },
}

/// What a link has done since it was made: the evidence that a fault took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes that passed.
    pub bytes: u64,
    /// Bytes, or packets, that were held back or dropped by a fault.
    pub held: u64,
    /// Connections that were reset or refused by a fault.
    pub reset: u64,
}

/// A network on which faults can be put.
#[async_trait]
pub trait FaultNet: Send + Sync + fmt::Debug {
    /// `proxy` or `netns`.
    fn backend(&self) -> &'static str;

    /// The address at which `from` is to reach a listener of node `to`: goes into the configuration of `from`.
    fn address(&self, from: Endpoint, to: u64, listener: Listener) -> SocketAddr;

    /// The address on which a node itself is to listen.
    fn listens(&self, node: u64, listener: Listener) -> SocketAddr;

    /// The address at which the harness reaches a node's listener for clients past every fault.
    fn unhindered(&self, node: u64) -> SocketAddr {
        self.listens(node, Listener::Client)
    }

    /// Words before a node's command line, where the node must be started in a namespace of its own.
    fn wrap(&self, node: u64) -> Vec<String>;

    /// Makes room for a node that joins later: its own, or that of a node which is gone for good (then its listeners
    /// for clients, and the faults of its clients' links, pass to the new node).
    async fn add_node(&self, node: u64, in_place_of: Option<u64>) -> Result<(), Failed> {
        let _ = (node, in_place_of);
        cannot_run(format!("{} takes no further nodes", self.backend()))
    }

    /// Puts a fault on the link from an endpoint to a node (all listeners), or takes it off. It affects what `from`
    /// sends, and is exact: it holds once this has returned.
    async fn set(&self, from: Endpoint, to: u64, fault: LinkFault) -> Result<(), Failed>;

    /// Puts a fault on what a node sends to the clients, or takes it off.
    async fn set_answers(&self, from: u64, fault: LinkFault) -> Result<(), Failed> {
        let _ = (from, fault);
        cannot_run(format!("{} cannot put faults on answers alone", self.backend()))
    }

    /// Takes every fault off.
    async fn heal(&self) -> Result<(), Failed>;

    /// What the link did.
    async fn passed(&self, from: Endpoint, to: u64) -> Passed;

    /// What the link from a node to the clients did.
    async fn passed_answers(&self, from: u64) -> Passed {
        let _ = from;
        Passed::default()
    }
}
