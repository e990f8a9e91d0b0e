//! Whole clusters in one thread under one seed: the real core, node and consensus, over a simulated network, disk and clock.

pub mod checks;
pub mod clients;
pub mod net;
pub mod run;
pub mod settings;
pub mod swarm;
pub mod world;

pub use net::{CallError, ClientNet, Incoming};
pub use settings::{CLIENTS, Crash, DiskPlan, HostId, LinkPlan, WorldPlan};
pub use world::{Fatal, World};
