//! The same workloads over ZooKeeper's protocol, by a client that nobody here wrote: the public crate
//! `zookeeper-client`. `zk-lock` is here; `zk-ephemerals` and `zk-watches` stand beside the workloads whose checks they
//! share.
//!
//! Only what this library reports counts: it reconnects, re-attaches and sets watches again by its own rules. Its
//! errors are never taken for more than they say.

mod absent;
mod lock;
mod recipe;
pub(super) mod visit;

pub(super) use lock::ZooKeeperLockWorkload;
