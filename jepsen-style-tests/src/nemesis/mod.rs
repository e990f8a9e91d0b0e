//! Faults. Each is put on, lasts longer than the sessions' timeout, is taken off, and must show evidence that it took
//! effect.

mod clients;
mod clocks;
mod damage;
mod disk_full;
mod lost_writes;
mod members;
mod membership;
mod node_processes;
mod observe;
mod partitions;
mod prelude;
mod rolling;
mod slow_links;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;

use crate::cluster::Cluster;
use crate::net::FaultNet;
use crate::record::boot_us;
use crate::verdict::Failed;
use crate::workers::Worker;

/// Nemeses that a cluster of three nodes cannot have.
pub const NEED_FIVE_NODES: [&str; 2] = ["kill-minority", "pause-minority"];

/// Why a nemesis cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The run's settings leave it out: the size of the cluster, or the network's backend.
    Settings(&'static str),
    /// This machine, or the server that was given, lacks something.
    Machine(&'static str),
}

/// Everything that a nemesis may act on.
pub struct TestBed {
    /// The nodes.
    pub cluster: Cluster,
    /// The network that all of them and the clients use.
    pub net: Arc<dyn FaultNet>,
    /// The client processes. One that was killed is to be replaced by [`TestBed::replace_worker`].
    pub workers: Vec<Worker>,
    /// Makes a fresh worker with client numbers of its own.
    pub new_worker: Box<dyn FnMut() -> Result<Worker, Failed> + Send + Sync>,
    /// The timeout of the clients' sessions.
    pub ttl: Duration,
    /// A directory for the nemesis.
    pub dir: PathBuf,
    /// The server that the nodes run.
    pub server: PathBuf,
    /// Whether its clocks can be set from outside.
    pub clocks_obey: bool,
    /// When the present fault began, and when it was lifted.
    pub moments: Moments,
}

/// When a fault began and when it was lifted, by the nemesis' own word: before the fault it looks up the leader, and
/// after it has lifted the fault it waits until the nodes are back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    struck_us: Option<u64>,
    lifted_us: Option<u64>,
}

impl Moments {
    /// The fault is about to begin.
    pub fn strike(&mut self) {
        self.struck_us.get_or_insert_with(boot_us);
    }

    /// The last part of the fault has just been lifted.
    pub fn lift(&mut self) {
        self.lifted_us = Some(boot_us());
    }

    /// When it began; `otherwise` where the nemesis has not said.
    pub fn struck_us(&self, otherwise: u64) -> u64 {
        self.struck_us.unwrap_or(otherwise)
    }

    /// When it was lifted; now, where the nemesis has not said.
    pub fn lifted_us(&self) -> u64 {
        self.lifted_us.unwrap_or_else(boot_us)
    }
}

impl fmt::Debug for TestBed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestBed").field("workers", &self.workers.len()).field("net", &self.net).finish_non_exhaustive()
    }
}

impl TestBed {
    /// Ends the process of clients at this place and puts a fresh one there, with client numbers of its own.
    pub fn replace_worker(&mut self, at: usize) -> Result<(), Failed> {
        let fresh = (self.new_worker)()?;
        match self.workers.get_mut(at) {
            Some(place) => *place = fresh,
            None => self.workers.push(fresh),
        }
        Ok(())
    }
}

/// One kind of fault.
#[async_trait]
pub trait Nemesis: Send + Sync {
    /// Its name on the command line, and one line for `--list`.
    fn names(&self) -> (&'static str, &'static str);

    /// Its name on the command line.
    fn name(&self) -> &'static str {
        self.names().0
    }

    /// Why it cannot be had: then it is reported as skipped, never as passed.
    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        let _ = test_bed;
        None
    }

    /// Settings it needs of the cluster before it starts (an injected clock, a tracer, a small disk).
    fn prepares(&self, options: &mut crate::cluster::Options) {
        let _ = options;
    }

    /// Puts the fault on; says what was done.
    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed>;

    /// Takes all of it off: after this the cluster is able to heal. Gives the evidence; empty if it had no effect.
    ///
    /// # Errors
    /// The harness failed, or the cluster did what it must not (a damaged node that serves).
    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed>;

    /// Whether it stops clients that hold something for longer than their session lives.
    fn stops_holders(&self) -> bool {
        false
    }
}

/// Every nemesis. The runner adds `none`, and makes `all` of them.
pub fn all() -> Vec<Box<dyn Nemesis>> {
    let mut all = partitions::all();
    all.extend(node_processes::all());
    all.push(Box::<clients::KillClients>::default());
    all.push(Box::<clients::PauseClients>::default());
    all.push(Box::<slow_links::SlowLinks>::default());
    all.push(Box::<disk_full::DiskFull>::default());
    all.push(Box::<lost_writes::LostWrites>::default());
    all.push(Box::<damage::Damage>::default());
    all.extend(clocks::all());
    all.push(Box::<membership::Membership>::default());
    all.push(Box::<rolling::RollingRestart>::default());
    all
}
