//! A cluster of real `lockkeeper serve` processes on loopback, one directory each, reached through link proxies where asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper_api::cluster::Status;
use nix::sys::signal::Signal;

use crate::http::{Api, metric_sum, new_client};
use crate::ports;
use crate::process::Process;
use crate::proxy::{Link, LinkState};
use crate::verdict::{Failed, broken};

/// How long a node, or the cluster, may take to become ready.
pub const READY_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// How the cluster is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many nodes.
    pub nodes: u64,
    /// Peers reach each other through proxies that can be cut.
    pub proxied: bool,
    /// Words before the program, for a tracer; `{node}` stands for the node's directory.
    pub wrap: Vec<String>,
    /// Added to the environment of the processes.
    pub environment: Vec<(String, String)>,
    /// Lines added to the configuration files.
    pub extra_config: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 3, proxied: false, wrap: Vec::new(), environment: Vec::new(), extra_config: String::new() }
    }
}

struct Node {
    directory: PathBuf,
    client_port: u16,
    api: Api,
    process: Option<Process>,
}

/// The cluster. Dropping it kills what still runs.
pub struct Cluster {
    binary: PathBuf,
    options: Options,
    nodes: BTreeMap<u64, Node>,
    links: BTreeMap<(u64, u64), Link>,
}

impl Cluster {
    /// Writes the configurations below `dir`, starts the processes and waits until all are ready.
    ///
    /// # Errors
    /// Files or ports cannot be had, or the processes do not become ready.
    pub async fn start(binary: &Path, dir: &Path, options: Options) -> Result<Self, Failed> {
        let mut cluster = Self::lay_out(binary, dir, options).await?;
        for id in cluster.ids() {
            cluster.spawn(id)?;
        }
        cluster.all_ready().await?;
        Ok(cluster)
    }

    async fn lay_out(binary: &Path, dir: &Path, options: Options) -> Result<Self, Failed> {
        let ids: Vec<u64> = (1..=options.nodes).collect();
        let take = |count: usize| ports::free(count);
        let count = ids.len();
        let all = take(count * 2 + count * count)?;
        let (client_ports, rest) = all.split_at(count);
        let (peer_ports, mut proxy_ports) = rest.split_at(count);
        let mut links = BTreeMap::new();
        if options.proxied {
            for from in &ids {
                for (to, peer_port) in ids.iter().zip(peer_ports) {
                    if from != to {
                        let (port, others) = proxy_ports.split_first().ok_or_else(|| std::io::Error::other("ports"))?;
                        proxy_ports = others;
                        let target = SocketAddr::from(([127, 0, 0, 1], *peer_port));
                        links.insert((*from, *to), Link::open(*port, target).await?);
                    }
                }
            }
        }
        let mut nodes = BTreeMap::new();
        for (at, id) in ids.iter().enumerate() {
            let directory = dir.join(format!("node{id}"));
            std::fs::create_dir_all(&directory)?;
            let reach = |to: u64, port: u16| links.get(&(*id, to)).map_or(port, |link: &Link| link.address().port());
            let config = configuration(*id, &ids, client_ports, peer_ports, &reach, &directory, &options.extra_config);
            std::fs::write(directory.join("config.toml"), config)?;
            let api = Api::new(new_client()?, client_ports[at]);
            nodes.insert(*id, Node { directory, client_port: client_ports[at], api, process: None });
        }
        Ok(Self { binary: binary.to_path_buf(), options, nodes, links })
    }

    /// The node ids.
    pub fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// A node's API. Unknown ids are a defect of the proof.
    pub fn api(&self, id: u64) -> Api {
        self.nodes[&id].api.clone()
    }

    /// The APIs of all nodes.
    pub fn apis(&self) -> Vec<(u64, Api)> {
        self.nodes.iter().map(|(id, node)| (*id, node.api.clone())).collect()
    }

    /// A node's API over connections that nobody else uses.
    ///
    /// # Errors
    /// The HTTP client cannot be built.
    pub fn own_api(&self, id: u64) -> Result<Api, Failed> {
        Ok(Api::new(new_client()?, self.nodes[&id].client_port))
    }

    /// The endpoints as the client library takes them.
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes.values().map(|node| node.api.base().to_owned()).collect()
    }

    /// Where a node keeps its files: configuration, log, data.
    pub fn directory(&self, id: u64) -> &Path {
        &self.nodes[&id].directory
    }

    /// Starts a node's process; does not wait.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&mut self, id: u64) -> Result<(), Failed> {
        let Some(node) = self.nodes.get_mut(&id) else { return broken(format!("no node {id}")) };
        let directory = node.directory.display().to_string();
        let mut argv: Vec<String> = self.options.wrap.iter().map(|word| word.replace("{node}", &directory)).collect();
        argv.push(self.binary.display().to_string());
        argv.extend(["serve".into(), "--config".into(), format!("{directory}/config.toml")]);
        let log = node.directory.join("server.log");
        node.process = Some(Process::start(&argv, &self.options.environment, &log)?);
        Ok(())
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
    ///
    /// # Errors
    /// It does not end.
    pub async fn ended(&mut self, id: u64, within: Duration) -> Result<Option<i32>, Failed> {
        let Some(mut process) = self.nodes.get_mut(&id).and_then(|node| node.process.take()) else { return Ok(None) };
        match process.wait_end(within).await {
            Some(status) => Ok(status.code()),
            None => broken(format!("node {id} did not end within {within:?}")),
        }
    }

    /// `kill -9`, and reaps.
    ///
    /// # Errors
    /// The process does not end.
    pub async fn kill(&mut self, id: u64) -> Result<(), Failed> {
        self.signal(id, Signal::SIGKILL);
        self.ended(id, Duration::from_secs(10)).await.map(drop)
    }

    /// Waits until a node says that it is ready.
    ///
    /// # Errors
    /// Its process ended, or it is not ready in time.
    pub async fn ready(&mut self, id: u64) -> Result<(), Failed> {
        let begun = Instant::now();
        let api = self.api(id);
        while !api.ready().await {
            if let Some(status) = self.process(id).and_then(Process::ended) {
                return broken(format!("node {id} ended ({status}) instead of serving: {}", self.last_line(id)));
            }
            if begun.elapsed() > READY_WITHIN {
                return broken(format!("node {id} is not ready after {READY_WITHIN:?}: {}", self.last_line(id)));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until all nodes are ready.
    ///
    /// # Errors
    /// As [`Self::ready`].
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

    /// The node that leads, of those `among`, as it says itself (in the highest term).
    ///
    /// # Errors
    /// None leads in time.
    pub async fn leader_among(&self, among: &[u64], within: Duration) -> Result<(u64, u64), Failed> {
        let begun = Instant::now();
        loop {
            let asked = among.iter().map(|id| async move { self.nodes[id].api.status(false).await });
            let answers = futures::future::join_all(asked).await.into_iter().flatten().map(|answer| answer.value);
            if let Some(status) = answers.filter(|status| status.leading).max_by_key(|status| status.term) {
                return Ok((status.node_id, status.term));
            }
            if begun.elapsed() > within {
                return broken(format!("no leader among {among:?} within {within:?}"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The leader and its term.
    ///
    /// # Errors
    /// None in time.
    pub async fn leader(&self) -> Result<(u64, u64), Failed> {
        self.leader_among(&self.ids(), READY_WITHIN).await
    }

    /// Waits, with nobody writing, until all nodes stand at the same zxid, and compares their states.
    ///
    /// # Errors
    /// They differ, or do not come together in time.
    pub async fn agree(&self, within: Duration) -> Result<(u64, String), Failed> {
        let begun = Instant::now();
        loop {
            let statuses = self.statuses(true).await;
            let states: Vec<_> = statuses.iter().filter_map(|s| Some((s.node_id, s.state.clone()?))).collect();
            for (at, (id, state)) in states.iter().enumerate() {
                let other = states[..at].iter().find(|(_, o)| o.zxid == state.zxid && o.checksum != state.checksum);
                if let Some((other_id, other)) = other {
                    return broken(format!(
                        "at zxid {} node {id} has checksum {} and node {other_id} {}",
                        state.zxid, state.checksum, other.checksum
                    ));
                }
            }
            let zxids: std::collections::BTreeSet<u64> = states.iter().map(|(_, state)| state.zxid).collect();
            if let (true, Some((_, state))) = (states.len() == self.nodes.len() && zxids.len() == 1, states.first()) {
                return Ok((state.zxid, state.checksum.clone()));
            }
            if begun.elapsed() > within {
                let seen: Vec<_> = states.iter().map(|(id, state)| (id, state.zxid)).collect();
                return broken(format!("nodes did not reach the same zxid within {within:?}: (node, zxid) {seen:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The sum of a counter over all nodes; one that nobody has counted yet is 0. A node that does not answer is an error: a figure
    /// must not be low because somebody was not asked.
    ///
    /// # Errors
    /// A node does not answer.
    pub async fn counter(&self, name: &str) -> Result<f64, Failed> {
        let mut sum = 0.0;
        for (id, node) in &self.nodes {
            match node.api.metrics().await {
                Ok(text) => sum += metric_sum(&text, name).unwrap_or(0.0),
                Err(failure) => return broken(format!("node {id} does not give its metrics: {failure}")),
            }
        }
        Ok(sum)
    }

    /// Cuts or heals every link between `id` and the others, in both directions.
    pub fn set_links_of(&self, id: u64, state: LinkState) {
        for ((from, to), link) in &self.links {
            if *from == id || *to == id {
                link.set(state);
            }
        }
    }
}

fn configuration(
    id: u64,
    ids: &[u64],
    client_ports: &[u16],
    peer_ports: &[u16],
    reach: &dyn Fn(u64, u16) -> u16,
    directory: &Path,
    extra: &str,
) -> String {
    let mut text = format!("[cluster]\nid = \"prove\"\nnode = {id}\n");
    for (at, peer) in ids.iter().enumerate() {
        let (peer_port, client_port) = (reach(*peer, peer_ports[at]), client_ports[at]);
        // Writing to a String does not fail.
        let _ =
            write!(text, "[peers.{peer}]\npeer = \"127.0.0.1:{peer_port}\"\nclient = \"127.0.0.1:{client_port}\"\n");
        if *peer == id {
            let own = peer_ports[at];
            let _ = write!(text, "[listen]\nclient = \"127.0.0.1:{client_port}\"\npeer = \"127.0.0.1:{own}\"\n");
        }
    }
    let data = directory.join("data");
    let _ = write!(text, "[storage]\ndirectory = {:?}\n{extra}\n", data.display().to_string());
    text
}
