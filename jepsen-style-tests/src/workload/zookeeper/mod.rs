//! The same workloads through the door that speaks ZooKeeper's protocol, by a client that nobody here wrote: the public crate
//! `zookeeper-client`. `zk-lock` is here; `zk-ephemerals` and `zk-watches` lie beside the workloads whose judges they share.
//!
//! What this library is told is all that counts: it reconnects, re-attaches and sets watches again as it sees fit. Its errors are never
//! taken for more than they say.

mod absent;
mod lock;
mod recipe;
pub(super) mod visit;

pub(super) use lock::ZooKeeperLockWorkload;
