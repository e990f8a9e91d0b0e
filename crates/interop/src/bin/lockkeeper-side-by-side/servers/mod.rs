//! Starts the two systems for a comparison, on the loopback and in separate directories.

mod lockkeeper;
mod zookeeper;

pub(crate) use lockkeeper::LockkeeperCluster;
pub(crate) use zookeeper::ZooKeeperEnsemble;

/// Servers per system: enough for followers and for sessions that move.
pub(crate) const SERVERS: usize = 3;
