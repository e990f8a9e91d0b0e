//! The world. (Being built.)

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use lockkeeper_node::Node;
use lockkeeper_store::{Bounds, Record};

use crate::net::ClientNet;
use crate::settings::{Crash, DiskPlan, HostId, LinkPlan, WorldPlan};

/// A node could not go on, or something panicked. Never part of a fault that is simulated, so always a defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// When.
    pub at: Duration,
    /// On which host.
    pub host: HostId,
    /// What it said.
    pub why: String,
}

/// A cluster, its clients, and everything between them.
pub struct World {}

#[allow(unused_variables, missing_docs)] // until it is built
impl World {
    /// Builds the world and boots its nodes. No time has passed yet.
    pub fn new(plan: &WorldPlan, seed: u64) -> World {
        unimplemented!()
    }
    /// True time since the beginning.
    pub fn now(&self) -> Duration {
        unimplemented!()
    }
    /// Moves by one tick: what is due arrives, then each living host runs for as long.
    pub fn step(&mut self) {
        unimplemented!()
    }
    /// Moves until the time has come.
    pub fn run_until(&mut self, time: Duration) {
        unimplemented!()
    }
    /// Moves on by this.
    pub fn run_for(&mut self, time: Duration) {
        unimplemented!()
    }

    /// Every node that there ever was and that has not been removed, up or down, members or joining.
    pub fn nodes(&self) -> Vec<HostId> {
        unimplemented!()
    }
    /// Up, booted and serving (it may be paused).
    pub fn node(&self, node: HostId) -> Option<&Node> {
        unimplemented!()
    }
    /// Looks at a node inside its own runtime and clock: what reads the time ([`Node::status`]) must be called so.
    pub fn observe<T>(&self, node: HostId, look: impl FnOnce(&Node) -> T) -> Option<T> {
        unimplemented!()
    }
    /// Not crashed (it may be booting, or paused).
    pub fn is_up(&self, host: HostId) -> bool {
        unimplemented!()
    }
    pub fn is_paused(&self, host: HostId) -> bool {
        unimplemented!()
    }
    /// Increases with each start of the node.
    pub fn incarnation(&self, node: HostId) -> u64 {
        unimplemented!()
    }
    /// The log as the node sees it (unsynced records included), or what is on its disk when it is down.
    pub fn log_bounds(&self, node: HostId) -> Bounds {
        unimplemented!()
    }
    /// See [`log_bounds`](Self::log_bounds).
    pub fn log(&self, node: HostId, range: Range<u64>) -> Vec<Record> {
        unimplemented!()
    }

    pub fn crash(&mut self, node: HostId, how: Crash) {
        unimplemented!()
    }
    /// Starts a crashed node again, over what its disk has kept.
    pub fn restart(&mut self, node: HostId) {
        unimplemented!()
    }
    /// Freezes a host ([`crate::CLIENTS`] too) as SIGSTOP does.
    pub fn pause(&mut self, host: HostId) {
        unimplemented!()
    }
    /// Lets it go on: its clocks jump by what it has missed.
    pub fn resume(&mut self, host: HostId) {
        unimplemented!()
    }
    /// How fast a host's clocks go: 1.0 is true.
    pub fn set_rate(&mut self, host: HostId, rate: f64) {
        unimplemented!()
    }
    /// Sets a node's wall clock forward or back. Its monotonic clock goes on.
    pub fn jump_wall(&mut self, node: HostId, by_ms: i64) {
        unimplemented!()
    }
    /// Nothing passes from one host to the other any more; the other direction is not touched.
    pub fn cut(&mut self, from: HostId, to: HostId) {
        unimplemented!()
    }
    /// Undoes one cut.
    pub fn mend(&mut self, from: HostId, to: HostId) {
        unimplemented!()
    }
    /// Mends every cut and sets every link to its plan of the beginning, without its faults.
    pub fn heal_network(&mut self) {
        unimplemented!()
    }
    /// Everything: [`heal_network`](Self::heal_network), pauses end, clocks go right, disks do not stall, crashed nodes start.
    pub fn heal(&mut self) {
        unimplemented!()
    }
    pub fn set_link(&mut self, from: HostId, to: HostId, plan: LinkPlan) {
        unimplemented!()
    }
    pub fn set_disk(&mut self, node: HostId, plan: DiskPlan) {
        unimplemented!()
    }
    /// Has a node take a snapshot.
    pub fn snapshot_now(&mut self, node: HostId) {
        unimplemented!()
    }
    /// Boots a new node with an empty disk and has it added as a learner, then promoted, in the background and for as long as it takes.
    pub fn add_node(&mut self) -> HostId {
        unimplemented!()
    }
    /// Has a node removed from the membership in the background, for as long as it takes; then it is switched off for ever.
    pub fn remove_node(&mut self, node: HostId) {
        unimplemented!()
    }
    /// Changes of the membership under way.
    pub fn changes_under_way(&self) -> usize {
        unimplemented!()
    }

    /// Starts a task on the host of the clients.
    pub fn spawn_client(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        unimplemented!()
    }
    /// For client tasks.
    pub fn client_net(&self) -> ClientNet {
        unimplemented!()
    }

    /// A line in the trace.
    pub fn note(&mut self, line: &str) {
        unimplemented!()
    }
    /// Of every line so far.
    pub fn trace_hash(&self) -> u64 {
        unimplemented!()
    }
    /// The text, if it is kept.
    pub fn trace_lines(&self) -> Vec<String> {
        unimplemented!()
    }
    /// What has happened, by kind: messages, losses, duplicates, syncs, torn tails, …
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        unimplemented!()
    }
    /// See [`Fatal`].
    pub fn fatals(&self) -> Vec<Fatal> {
        unimplemented!()
    }
}
