//! Sets up a run: the network, the cluster on it, and the processes of clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::{Cluster, Options};
use crate::nemesis::{Moments, Nemesis, TestBed};
use crate::net::FaultNet;
use crate::net::netns::NetnsNet;
use crate::net::proxy_net::ProxyNet;
use crate::verdict::Failed;
use crate::workers::Worker;

use super::programs::Programs;
use super::settings::{Backend, Settings};

/// At most so many processes of clients: each can be killed and stopped by itself.
const PROCESSES: u32 = 4;

/// Where the parts of a run lie below its directory.
#[derive(Clone, Debug)]
pub struct Places {
    /// The nodes' directories.
    pub nodes: PathBuf,
    /// The clients' histories.
    pub clients: PathBuf,
    /// What the clients share.
    pub shared: PathBuf,
    /// For nemeses.
    pub nemesis: PathBuf,
}

impl Places {
    /// Makes them.
    pub fn make(dir: &Path) -> std::io::Result<Self> {
        let made = |name: &str| {
            let path = dir.join(name);
            std::fs::create_dir_all(&path).map(|()| path)
        };
        Ok(Self {
            nodes: made("nodes")?,
            clients: made("clients")?,
            shared: made("shared")?,
            nemesis: made("nemesis")?,
        })
    }
}

/// Numbers clients, so that none comes back under another's.
#[derive(Clone, Debug)]
pub struct Recruits {
    settings: Settings,
    endpoints: Vec<String>,
    zookeepers: Vec<String>,
    places: Places,
    next: Arc<AtomicU32>,
}

impl Recruits {
    fn arguments(&self, first: u32, here: u32) -> Vec<String> {
        let Settings { workload, clients, seed, .. } = &self.settings;
        let (ttl_ms, zookeepers) = (self.settings.ttl.as_millis(), self.zookeepers.join(","));
        let words = format!(
            "--ttl-ms {ttl_ms} clients --workload {workload} --first {first} --here {here} --clients {clients} --seed \
             {seed} --zookeepers {zookeepers} --shared"
        );
        words.split(' ').map(str::to_owned).chain([self.places.shared.display().to_string()]).collect()
    }

    /// A process of so many clients.
    pub fn worker(&self, here: u32) -> Result<Worker, Failed> {
        let first = self.next.fetch_add(here, Ordering::Relaxed);
        Worker::start(&self.places.clients, &format!("clients-{first}"), &self.endpoints, self.arguments(first, here))
    }

    /// The process that reads what is there at the end.
    pub fn reader(&self) -> Result<Worker, Failed> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut arguments = self.arguments(first, 1);
        arguments.push("--conclude".into());
        Worker::start(&self.places.clients, "conclude", &self.endpoints, &arguments)
    }

    /// How many clients each process has.
    fn shares(&self) -> Vec<u32> {
        let clients = self.settings.clients;
        let processes = PROCESSES.min(clients).max(1);
        (0..processes).map(|at| clients / processes + u32::from(at < clients % processes)).collect()
    }
}

/// The server for these options, built if it must be, and whether it has an injected clock.
pub fn server(options: &Options, programs: &Programs) -> Result<(PathBuf, bool), Failed> {
    // Another server than ours is tested as it is.
    let clocks_obey = options.injected_clock && !programs.has_foreign_server();
    let server = if clocks_obey { programs.server_with_injected_clock()? } else { programs.server.clone() };
    Ok((server, clocks_obey))
}

/// Starts the network and the cluster; no clients yet.
pub async fn set(
    settings: &Settings,
    nemeses: &[Box<dyn Nemesis>],
    programs: &Programs,
    places: &Places,
) -> Result<(TestBed, Recruits), Failed> {
    let net = network(settings).await?;
    let mut options = Options { nodes: settings.nodes, net: Some(Arc::clone(&net)), ..Options::default() };
    for nemesis in nemeses {
        nemesis.prepares(&mut options);
    }
    let (server, clocks_obey) = server(&options, programs)?;
    let cluster = Cluster::start(&server, &places.nodes, options).await?;
    let recruits = Recruits {
        settings: settings.clone(),
        endpoints: cluster.endpoints(),
        zookeepers: cluster.zookeepers(),
        places: places.clone(),
        next: Arc::new(AtomicU32::new(1)),
    };
    let shares = recruits.shares();
    let (again, mut turn) = (recruits.clone(), 0);
    let test_bed = TestBed {
        cluster,
        net,
        workers: Vec::new(),
        new_worker: Box::new(move || {
            turn += 1;
            again.worker(shares[turn % shares.len()])
        }),
        ttl: settings.ttl,
        dir: places.nemesis.clone(),
        moments: Moments::default(),
        server,
        clocks_obey,
    };
    Ok((test_bed, recruits))
}

/// Starts the clients.
pub fn people(test_bed: &mut TestBed, recruits: &Recruits) -> Result<(), Failed> {
    for here in recruits.shares() {
        test_bed.workers.push(recruits.worker(here)?);
    }
    Ok(())
}

async fn network(settings: &Settings) -> Result<Arc<dyn FaultNet>, Failed> {
    match settings.net {
        Backend::Proxy => Ok(Arc::new(ProxyNet::start(settings.nodes).await?)),
        Backend::Netns => Ok(Arc::new(NetnsNet::start(settings.nodes)?)),
    }
}
