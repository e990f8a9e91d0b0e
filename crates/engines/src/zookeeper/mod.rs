//! ZooKeeper as an engine, with Apache Curator's names, so that Curator's clients stand in the same queues.
//!
//! A request is an ephemeral sequential node below the lock's directory. The lowest holds, and each waiter watches only
//! its predecessor. The fencing token is the node's czxid. The length of a lease is the timeout of a session.

mod engine;
mod queue;
mod request;

pub use engine::{ZookeeperEngine, ZookeeperOptions};
