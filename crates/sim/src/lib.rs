//! Whole clusters in one thread under one seed: the real core, node and consensus over a simulated network, disk and
//! clock.

mod calls;
pub mod checkers;
pub mod checks;
pub mod clients;
mod clock;
pub mod command;
mod disk;
pub mod fault_kind;
pub mod faults;
mod host;
pub mod lock_counters;
mod membership;
#[cfg(mutants)]
pub mod mutants;
pub mod net;
mod node;
pub mod report;
pub mod run;
pub mod settings;
pub mod swarm;
mod trace;
pub mod world;

pub use calls::{ClientNet, Incoming};
pub use net::CallError;
pub use settings::{CLIENTS, Crash, DiskPlan, HostId, LinkPlan, WorldPlan};
pub use world::{Fatal, World};
