//! A real node on a simulated host: the `Node` that the server runs, over the simulated network, disk and clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_consensus::{MemberRole, StartId};
use lockkeeper_node::{Node, NodeConfig, Parts};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::calls::PeerLink;
use crate::clock::HostClock;
use crate::disk::Disk;
use crate::net::Net;
use crate::settings::HostId;

/// Where nodes say that they cannot go on.
pub(crate) type Failures = Arc<Mutex<Vec<(HostId, String)>>>;

/// What a node is booted with.
pub(crate) struct Boot {
    pub(crate) host: HostId,
    pub(crate) config: NodeConfig,
    pub(crate) peers: BTreeMap<u64, String>,
    pub(crate) role: MemberRole,
    pub(crate) net: Net,
    pub(crate) disk: Disk,
    pub(crate) clock: HostClock,
    pub(crate) seed: u64,
    pub(crate) failures: Failures,
}

/// The address of a node, as the membership carries it.
pub(crate) fn address(node: HostId) -> String {
    format!("node-{node}:1")
}

impl Boot {
    /// Starts the node, inside its host's runtime. It is in the slot once it serves.
    pub(crate) fn start(mut self, slot: Arc<Mutex<Option<Node>>>) {
        let fail = {
            let (host, failures) = (self.host, self.failures.clone());
            Arc::new(move |why: String| failures.lock().push((host, why)))
        };
        let opened = match self.disk.open() {
            Ok(opened) => opened,
            Err(why) => return fail(why),
        };
        self.disk.start();
        let start = StartId { number: opened.incarnation, boot: self.seed };
        let mut config = self.config;
        config.consensus.cluster = "sim".into();
        config.consensus.node = self.host;
        config.consensus.peers = self.peers;
        config.consensus.role = self.role;
        let parts = Parts {
            traces: None,
            config,
            store: Arc::new(self.disk.clone()),
            opened,
            snapshots: Arc::new(self.disk.clone()),
            blocking: Arc::new(self.disk.clone()),
            memory: Arc::new(self.disk.clone()),
            boot: start.boot,
            transport: Arc::new(PeerLink { net: self.net, from: self.host, start, disk: self.disk }),
            clock: Arc::new(self.clock),
            random: Box::new(StdRng::seed_from_u64(self.seed)),
            fatal: fail.clone(),
        };
        tokio::spawn(async move {
            match Node::start(parts).await {
                Ok(node) => *slot.lock() = Some(node),
                Err(error) => fail(format!("does not start: {error}")),
            }
        });
    }
}
