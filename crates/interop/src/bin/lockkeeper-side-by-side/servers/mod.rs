//! Starts the two systems for the time of a comparison, on the loopback and in directories of their own.

mod lockkeeper;
mod zookeeper;

pub(crate) use lockkeeper::LockkeeperCluster;
pub(crate) use zookeeper::ZooKeeperEnsemble;

/// How many of each: enough for followers, and for sessions that move.
pub(crate) const SERVERS: usize = 3;
