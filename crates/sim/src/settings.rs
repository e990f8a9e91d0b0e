//! The parameters of a world and its misbehaviour: plain numbers, drawn by the swarm or given by a test.

use std::time::Duration;

use lockkeeper_core::FeatureLevel;
use lockkeeper_node::NodeConfig;

/// A machine of the world: nodes count from 1, and all clients live on [`CLIENTS`].
pub type HostId = u64;

/// The one host of all clients.
pub const CLIENTS: HostId = 0;

/// The feature level that the nodes of a drawn world support: one that no program has yet, so that the level rises.
pub(crate) const LATER_LEVEL: FeatureLevel = FeatureLevel(FeatureLevel::LATEST.0 + 1);

/// How one direction between two hosts behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkPlan {
    /// Added to the world's shortest delay, evenly drawn from 0 to this: more than a few ms reorders.
    pub jitter_ms: u64,
    /// Share of messages that are lost: the call breaks or runs into its deadline, before or after the other side has
    /// acted.
    pub loss: f64,
    /// Share of peer requests that arrive twice.
    pub duplicate: f64,
    /// Share of messages that are held up.
    pub spike: f64,
    /// For how long at most.
    pub spike_ms: u64,
}

/// How a node's disk behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskPlan {
    /// Shortest barrier.
    pub sync_min_ms: u64,
    /// Longest barrier, stalls aside.
    pub sync_max_ms: u64,
    /// Share of barriers that stall.
    pub stall: f64,
    /// For how long at most.
    pub stall_ms: u64,
    /// How long work on snapshots takes at most, before and again after it is done.
    pub blocking_ms: u64,
}

/// A world.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// Nodes that form the cluster.
    pub nodes: u64,
    /// Front nodes that join it at once.
    pub fronts: u64,
    /// Shortest delay of any link, and the step in which the world moves.
    pub tick: Duration,
    /// Every link, at first.
    pub links: LinkPlan,
    /// Every disk, at first.
    pub disk: DiskPlan,
    /// Settings of each node. The world fills in cluster, node and peers.
    pub node: NodeConfig,
    /// Keep the text of the trace, not only its hash.
    pub keep_trace: bool,
}

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed: what it has written stays, synced or not, and its connections are reset.
    Kill,
    /// The machine loses power: any prefix of the unsynced writes stays, the last one perhaps torn, and its peers get
    /// no reset.
    PowerLoss,
}
