//! A cluster of real `lockkeeper serve` processes, one directory each, on a network that takes faults where asked for.
//!
//! The harness itself ([`Cluster::api`]) asks the nodes past every fault; the clients ([`Cluster::endpoints`]) go
//! through the network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::cluster::Status;
use lockkeeper_api::nodes::Create;
use nix::sys::signal::Signal;

use crate::history::WakeUps;
use crate::http::{Api, metric_sum, new_client};
use crate::net::direct::Direct;
use crate::net::proxy_net::ProxyNet;
use crate::net::{Endpoint, FaultNet, LinkFault, Listener};
use crate::polling::Polling;
use crate::process::Process;
use crate::small_disk::SmallDisk;
use crate::verdict::{Failed, OrFailed as _, broken, without_fault};

/// How long a node, or the cluster, may take to become ready.
pub const READY_WITHIN: Duration = Duration::from_secs(30);
/// The nodes' count of waiters for locks that they woke.
pub const LOCK_NOTIFICATIONS: &str = "lockkeeper_lock_notifications_total";

/// How the cluster is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many nodes.
    pub nodes: u64,
    /// The network; plain loopback where there is none. It must have been made for so many founding members.
    pub net: Option<Arc<dyn FaultNet>>,
    /// Words before the program, for a tracer; `{node}` stands for the node's directory.
    pub wrap: Vec<String>,
    /// Added to the environment of the processes; `{node}` in a value stands for the node's directory.
    pub environment: Vec<(String, String)>,
    /// Lines added to the configuration files, the first of them to `[storage]`.
    pub extra_config: String,
    /// Whether the nodes' clocks can be set from outside. The caller must give a binary with an injected clock.
    pub injected_clock: bool,
    /// Each node's data lie on a disk of its own of so many MiB, which can be filled.
    pub small_disk_mib: Option<u64>,
    /// The harness's client, where the nodes' listeners for clients speak TLS.
    pub tls_client: Option<reqwest::Client>,
}

impl Options {
    /// So many nodes, on a network whose connections can be hindered.
    pub async fn behind_proxies(nodes: u64) -> Result<Self, Failed> {
        Ok(Self { nodes, net: Some(Arc::new(ProxyNet::start(nodes).await?)), ..Self::default() })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 3,
            net: None,
            wrap: Vec::new(),
            environment: Vec::new(),
            extra_config: String::new(),
            injected_clock: false,
            small_disk_mib: None,
            tls_client: None,
        }
    }
}

struct ClusterNode {
    directory: PathBuf,
    api: Api,
    process: Option<Process>,
    disk: Option<SmallDisk>,
}

/// The cluster. Dropping it kills what still runs.
pub struct Cluster {
    binary: PathBuf,
    dir: PathBuf,
    options: Options,
    net: Arc<dyn FaultNet>,
    nodes: BTreeMap<u64, ClusterNode>,
    /// Ids are never used again.
    next_id: u64,
}

impl Cluster {
    /// Writes the configurations below `dir`, starts the processes and waits until all are ready.
    pub async fn start(binary: &Path, dir: &Path, options: Options) -> Result<Self, Failed> {
        let mut cluster = Self::laid_out(binary, dir, options).await?;
        cluster.start_all().await?;
        Ok(cluster)
    }

    /// The same without starting the processes.
    pub async fn laid_out(binary: &Path, dir: &Path, options: Options) -> Result<Self, Failed> {
        let founders = options.nodes;
        let net = match &options.net {
            Some(net) => Arc::clone(net),
            None => Arc::new(Direct::start(founders)?),
        };
        let (nodes, next_id) = (BTreeMap::new(), founders + 1);
        let mut cluster = Self { binary: binary.to_path_buf(), dir: dir.to_path_buf(), options, net, nodes, next_id };
        let ids: Vec<u64> = (1..=founders).collect();
        for id in &ids {
            cluster.furnish(*id, &ids).await?;
        }
        Ok(cluster)
    }

    /// The directory of a node: its configuration, and its disk where that is one of its own.
    async fn furnish(&mut self, id: u64, peers: &[u64]) -> Result<(), Failed> {
        let directory = self.dir.join(format!("node{id}"));
        std::fs::create_dir_all(&directory)?;
        let config = self.configuration(id, peers, &directory);
        std::fs::write(directory.join("config.toml"), config)?;
        let disk = match self.options.small_disk_mib {
            Some(mib) => Some(SmallDisk::mount(&directory, mib).await?),
            None => None,
        };
        let address = self.net.unhindered(id);
        let api = match &self.options.tls_client {
            Some(client) => Api::at(client.clone(), &format!("https://{address}")),
            None => Api::at_address(new_client()?, address),
        };
        self.nodes.insert(id, ClusterNode { directory, api, process: None, disk });
        Ok(())
    }

    fn configuration(&self, id: u64, peers: &[u64], directory: &Path) -> String {
        let mut text = format!("[cluster]\nid = \"prove\"\nnode = {id}\n");
        for peer in peers {
            let client = self.net.address(Endpoint::Clients, *peer, Listener::Client);
            let zookeeper = self.net.address(Endpoint::Clients, *peer, Listener::ZooKeeper);
            let address = if *peer == id {
                self.net.listens(id, Listener::Peer)
            } else {
                self.net.address(Endpoint::Node(id), *peer, Listener::Peer)
            };
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "[peers.{peer}]\npeer = \"{address}\"\nclient = \"{client}\"\nzookeeper = \"{zookeeper}\"\n"
            );
        }
        let (client, peer) = (self.net.listens(id, Listener::Client), self.net.listens(id, Listener::Peer));
        // Network namespaces have addresses of their own, which other machines cannot reach.
        let _ = write!(
            text,
            "[listen]\nclient = \"{client}\"\npeer = \"{peer}\"\ninsecure = [\"client\", \"peer\", \"zookeeper\"]\n"
        );
        let zookeeper = self.net.listens(id, Listener::ZooKeeper);
        // Sessions from 1 s; and all clients come from one address here.
        let _ = write!(text, "[zookeeper]\nlisten = \"{zookeeper}\"\ntick_ms = 500\nconnections_per_address = 0\n");
        let data = directory.join("data");
        let extra = &self.options.extra_config;
        let _ = write!(text, "[storage]\ndirectory = {:?}\n{extra}\n", data.display().to_string());
        text
    }

    /// A directory, an address and an id for a node that is to join, in a place of its own or in that of a node which
    /// is gone for good. It is not started and not yet a member.
    pub async fn prepare_node(&mut self, in_place_of: Option<u64>) -> Result<u64, Failed> {
        let id = self.next_id;
        self.next_id += 1;
        self.net.add_node(id, in_place_of).await?;
        if let Some(old) = in_place_of {
            self.forget_node(old);
        }
        let mut peers = self.ids();
        peers.push(id);
        self.furnish(id, &peers).await?;
        Ok(id)
    }

    /// Gives a node up: kills its process if it still runs, and asks it no more. Its files stay.
    pub fn forget_node(&mut self, id: u64) {
        self.nodes.remove(&id);
    }

    /// The network.
    pub fn net(&self) -> &Arc<dyn FaultNet> {
        &self.net
    }

    /// The node ids.
    pub fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// The other nodes.
    pub fn others(&self, id: u64) -> Vec<u64> {
        self.ids().into_iter().filter(|other| *other != id).collect()
    }

    /// A node's API. Unknown ids are a defect of the proof.
    pub fn api(&self, id: u64) -> Api {
        self.nodes[&id].api.clone()
    }

    /// The APIs of all nodes.
    pub fn apis(&self) -> Vec<(u64, Api)> {
        self.nodes.iter().map(|(id, node)| (*id, node.api.clone())).collect()
    }

    /// Lets the harness ask with this client from now on, such as one that shows a token.
    pub fn ask_with(&mut self, client: &reqwest::Client) {
        for node in self.nodes.values_mut() {
            node.api = Api::at(client.clone(), node.api.base());
        }
    }

    /// A node's API over connections that nobody else uses.
    pub fn own_api(&self, id: u64) -> Result<Api, Failed> {
        Ok(Api::at_address(new_client()?, self.net.unhindered(id)))
    }

    /// Creates a node of the tree, while nothing hinders it; gives its zxid.
    pub async fn make_node(&self, path: &str) -> Result<u64, Failed> {
        let made = self.apis().remove(0).1.create(path, &Create::default(), None).await;
        made.map(|made| made.value.zxid).map_err(without_fault)
    }

    /// The endpoints as the client library takes them: through the network.
    pub fn endpoints(&self) -> Vec<String> {
        let address = |id| self.net.address(Endpoint::Clients, id, Listener::Client);
        self.nodes.keys().map(|id| format!("http://{}", address(*id))).collect()
    }

    /// The addresses for clients that speak ZooKeeper's protocol: through the network.
    pub fn zookeepers(&self) -> Vec<String> {
        let address = |id: &u64| self.net.address(Endpoint::Clients, *id, Listener::ZooKeeper).to_string();
        self.nodes.keys().map(address).collect()
    }

    /// Where a node keeps its files: configuration, log, data.
    pub fn directory(&self, id: u64) -> &Path {
        &self.nodes[&id].directory
    }

    /// Starts a node's process; does not wait.
    pub fn spawn(&mut self, id: u64) -> Result<(), Failed> {
        let Some(node) = self.nodes.get_mut(&id) else { return broken(format!("no node {id}")) };
        let directory = node.directory.display().to_string();
        let mut argv = node.disk.as_ref().map(SmallDisk::wrap).unwrap_or_default();
        argv.extend(self.net.wrap(id));
        argv.extend(self.options.wrap.iter().map(|word| word.replace("{node}", &directory)));
        argv.push(self.binary.display().to_string());
        argv.extend(["serve".into(), "--config".into(), format!("{directory}/config.toml")]);
        let log = node.directory.join("server.log");
        let environment = self.options.environment.iter();
        let environment: Vec<_> =
            environment.map(|(name, value)| (name.clone(), value.replace("{node}", &directory))).collect();
        node.process = Some(Process::start(&argv, &environment, &log)?);
        Ok(())
    }

    /// Starts nodes with these words before the program from now on.
    pub fn wrap(&mut self, words: &[&str]) {
        self.options.wrap = words.iter().map(|word| (*word).to_owned()).collect();
    }

    /// Starts nodes with this program from now on.
    pub fn use_binary(&mut self, binary: &Path) {
        self.binary = binary.to_path_buf();
    }

    /// The process of a node, if it was not killed.
    pub fn process(&mut self, id: u64) -> Option<&mut Process> {
        self.nodes.get_mut(&id)?.process.as_mut()
    }

    /// Sends a signal and does not wait.
    pub fn signal(&self, id: u64, signal: Signal) {
        if let Some(process) = self.nodes.get(&id).and_then(|node| node.process.as_ref()) {
            process.signal(signal);
        }
    }

    /// Waits until a node's process, told to end, has ended; gives its exit code (none when a signal ended it).
    pub async fn ended(&mut self, id: u64, within: Duration) -> Result<Option<i32>, Failed> {
        let Some(mut process) = self.nodes.get_mut(&id).and_then(|node| node.process.take()) else { return Ok(None) };
        match process.wait_end(within).await {
            Some(status) => Ok(status.code()),
            None => broken(format!("node {id} did not end within {within:?}")),
        }
    }

    /// Stops a node as a service manager does; it must end well.
    pub async fn stop(&mut self, id: u64, within: Duration) -> Result<(), Failed> {
        self.signal(id, Signal::SIGTERM);
        match self.ended(id, within).await? {
            Some(0) => Ok(()),
            other => broken(format!("node {id} ended with {other:?} on SIGTERM")),
        }
    }

    /// Kills a node's process (`kill -9`) and reaps it.
    pub async fn kill(&mut self, id: u64) -> Result<(), Failed> {
        self.signal(id, Signal::SIGKILL);
        self.ended(id, Duration::from_secs(10)).await.map(drop)
    }

    /// Kills all nodes, one after the other.
    pub async fn kill_all(&mut self) -> Result<(), Failed> {
        for id in self.ids() {
            self.kill(id).await?;
        }
        Ok(())
    }

    /// Waits until a node says that it is ready.
    pub async fn ready(&mut self, id: u64) -> Result<(), Failed> {
        let wait = Polling::within(READY_WITHIN);
        let api = self.api(id);
        while !api.ready().await {
            if let Some(status) = self.process(id).and_then(Process::ended) {
                return broken(format!("node {id} ended ({status}) instead of serving: {}", self.last_line(id)));
            }
            wait.or_broken(|| format!("node {id} is not ready after {READY_WITHIN:?}: {}", self.last_line(id))).await?;
        }
        Ok(())
    }

    /// Starts a node's process, and waits until it is ready.
    pub async fn start_node(&mut self, id: u64) -> Result<(), Failed> {
        self.spawn(id)?;
        self.ready(id).await
    }

    /// Starts all nodes at once, and waits until they are ready.
    pub async fn start_all(&mut self) -> Result<(), Failed> {
        for id in self.ids() {
            self.spawn(id)?;
        }
        self.all_ready().await
    }

    /// Waits until all nodes are ready.
    pub async fn all_ready(&mut self) -> Result<(), Failed> {
        for id in self.ids() {
            self.ready(id).await?;
        }
        Ok(())
    }

    fn last_line(&self, id: u64) -> String {
        let log = std::fs::read_to_string(self.nodes[&id].directory.join("server.log")).unwrap_or_default();
        log.lines().last().unwrap_or("its log is empty").to_owned()
    }

    /// The states of the nodes that answer.
    pub async fn statuses(&self, checksum: bool) -> Vec<Status> {
        let asked = self.nodes.values().map(|node| node.api.status(checksum));
        futures::future::join_all(asked).await.into_iter().flatten().map(|answer| answer.value).collect()
    }

    /// The leader among these nodes, by the nodes' own word: the one in the highest term.
    pub async fn leader_among(&self, among: &[u64], within: Duration) -> Result<(u64, u64), Failed> {
        let nodes: Vec<(u64, Api)> = self.apis().into_iter().filter(|(id, _)| among.contains(id)).collect();
        leading(&nodes, within).await.map(|status| (status.node_id, status.term))
    }

    /// The leader and its term.
    pub async fn leader(&self) -> Result<(u64, u64), Failed> {
        self.leader_among(&self.ids(), READY_WITHIN).await
    }

    /// Waits, with nobody writing, until all nodes stand at the same zxid, and compares their states.
    pub async fn agree(&self, within: Duration) -> Result<(u64, String), Failed> {
        agree(&self.apis(), within).await
    }

    /// The sum of a counter over all nodes; a counter that no node has yet is 0. A node that does not answer is an
    /// error: the sum must not be low because a node is missing from it.
    pub async fn counter(&self, name: &str) -> Result<f64, Failed> {
        let mut sum = 0.0;
        for (id, node) in &self.nodes {
            let text = node.api.metrics().await.or_broken(format!("node {id} does not give its metrics"))?;
            sum += metric_sum(&text, name).unwrap_or(0.0);
        }
        Ok(sum)
    }

    /// How many waiters for locks the nodes woke since they were started.
    pub async fn wake_ups(&self) -> WakeUps {
        let counted = match self.counter(LOCK_NOTIFICATIONS).await {
            Ok(counted) => counted as u64,
            Err(failed) => return WakeUps::NotCounted(failed.to_string()),
        };
        // Read afterwards: a node has woken nobody for a transaction that it had not applied.
        let states = self.statuses(true).await;
        let zxids: Vec<u64> = states.iter().filter_map(|status| Some(status.state.as_ref()?.zxid)).collect();
        match zxids.iter().max() {
            Some(until) if zxids.len() == self.nodes.len() => WakeUps::Counted { counted, until: *until },
            _ => WakeUps::NotCounted("a node does not give its status".into()),
        }
    }

    /// Puts a fault on every link between `id` and the others, in both directions, or takes it off.
    pub async fn set_links_of(&self, id: u64, fault: LinkFault) -> Result<(), Failed> {
        for other in self.others(id) {
            self.net.set(Endpoint::Node(id), other, fault).await?;
            self.net.set(Endpoint::Node(other), id, fault).await?;
        }
        Ok(())
    }

    /// A node's directory as the node itself sees it: with its data, wherever they lie.
    pub fn seen_directory(&self, id: u64) -> Result<PathBuf, Failed> {
        let directory = std::path::absolute(self.directory(id))?;
        Ok(self.disk(id).map_or_else(|| directory.clone(), |disk| disk.seen_from_outside(&directory)))
    }

    /// Where the harness finds a node's data.
    pub fn data(&self, id: u64) -> Result<PathBuf, Failed> {
        Ok(self.seen_directory(id)?.join("data"))
    }

    /// The small disk of a node, where it has one.
    pub fn disk(&self, id: u64) -> Option<&SmallDisk> {
        self.nodes.get(&id)?.disk.as_ref()
    }
}

/// What the leader among these nodes says of itself, once one does.
pub async fn leading(nodes: &[(u64, Api)], within: Duration) -> Result<Status, Failed> {
    let wait = Polling::within(within);
    loop {
        let asked = nodes.iter().map(|(_, api)| api.status(false));
        let answers = futures::future::join_all(asked).await.into_iter().flatten().map(|answer| answer.value);
        if let Some(status) = answers.filter(|status| status.leading).max_by_key(|status| status.term) {
            return Ok(status);
        }
        wait.or_broken(|| {
            let ids: Vec<u64> = nodes.iter().map(|(id, _)| *id).collect();
            format!("no leader among {ids:?} within {within:?}")
        })
        .await?;
    }
}

/// As [`Cluster::agree`], of these nodes.
pub async fn agree(nodes: &[(u64, Api)], within: Duration) -> Result<(u64, String), Failed> {
    let wait = Polling::within(within).every(Duration::from_millis(50));
    loop {
        let asked = nodes.iter().map(|(_, api)| api.status(true));
        let statuses = futures::future::join_all(asked).await.into_iter().flatten().map(|answer| answer.value);
        let states: Vec<_> = statuses.filter_map(|status| Some((status.node_id, status.state?))).collect();
        for (at, (id, state)) in states.iter().enumerate() {
            let other = states[..at].iter().find(|(_, o)| o.zxid == state.zxid && o.checksum != state.checksum);
            if let Some((other_id, other)) = other {
                return broken(format!(
                    "at zxid {} node {id} has checksum {} and node {other_id} {}",
                    state.zxid, state.checksum, other.checksum
                ));
            }
        }
        let zxids: BTreeSet<u64> = states.iter().map(|(_, state)| state.zxid).collect();
        if let (true, Some((_, state))) = (states.len() == nodes.len() && zxids.len() == 1, states.first()) {
            return Ok((state.zxid, state.checksum.clone()));
        }
        wait.or_broken(|| {
            let seen: Vec<_> = states.iter().map(|(id, state)| (id, state.zxid)).collect();
            format!("nodes did not reach the same zxid within {within:?}: (node, zxid) {seen:?}")
        })
        .await?;
    }
}
