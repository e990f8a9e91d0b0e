//! `lockkeeper dev`: a whole cluster on this machine, each node a process of its own.
//!
//! Nothing outlives this command: the nodes end with it even if it is killed, and temporary data are removed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use lockkeeper_client::{Client, Options};
use lockkeeper_server::Config;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use serde::Serialize;
use socket2::{Domain, Socket, Type};
use tokio::time::{Instant, sleep};

use crate::args::{Common, Dev};
use crate::failure::{EXIT_OK, Failure, print_error};
use crate::output::{count, print_json_line, print_line};
use crate::runtime::runtime;
use crate::signals::Stops;
use crate::supervise::itself;

const CLUSTER: &str = "dev";
/// Node N serves clients at this port plus N, where a command looks that nobody tells otherwise.
const USUAL_CLIENT_PORTS: u16 = 7000;
/// The same for ZooKeeper's clients.
const USUAL_ZOOKEEPER_PORTS: u16 = 2180;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A node's addresses and files.
#[derive(Clone, Debug, Serialize)]
struct NodeSpec {
    node_id: u64,
    endpoint: String,
    /// Address for ZooKeeper clients; none in a cluster that an earlier version created.
    #[serde(skip_serializing_if = "Option::is_none")]
    zookeeper: Option<String>,
    #[serde(skip)]
    config: PathBuf,
    log: PathBuf,
}

/// A node's process.
struct NodeProcess {
    spec: NodeSpec,
    process: Child,
    ended: Option<ExitStatus>,
}

/// The nodes. Dropping kills those that still run.
struct Cluster(Vec<NodeProcess>);

#[derive(Serialize)]
struct ClusterInfo<'a> {
    endpoints: Vec<&'a str>,
    zookeeper: Vec<&'a str>,
    nodes: Vec<NodeInfo<'a>>,
    data: &'a Path,
}

#[derive(Serialize)]
struct NodeInfo<'a> {
    #[serde(flatten)]
    spec: &'a NodeSpec,
    pid: u32,
}

/// Runs the cluster until a signal stops it.
pub(crate) fn run(common: &Common, args: &Dev) -> Result<u8, Failure> {
    let no_directory = |e: std::io::Error| Failure::failed(format!("cannot make the data directory: {e}"));
    let (directory, temporary) = match &args.data {
        Some(kept) => {
            fs::create_dir_all(kept).map_err(no_directory)?;
            (kept.canonicalize().map_err(no_directory)?, None)
        }
        None => {
            let made = tempfile::Builder::new().prefix("lockkeeper-dev-").tempdir().map_err(no_directory)?;
            (made.path().to_path_buf(), Some(made))
        }
    };
    // Reserved until the end, so that a restarted node finds its ports free too.
    let (dev_nodes, _reserved) = dev_nodes(&directory, args)?;
    let result = runtime()?.block_on(serve(common, dev_nodes, &directory, temporary.is_some()));
    if let Some(temporary) = temporary {
        temporary.close().map_err(|e| Failure::failed(format!("cannot remove {}: {e}", directory.display())))?;
    }
    result
}

async fn serve(common: &Common, dev_nodes: Vec<NodeSpec>, directory: &Path, temporary: bool) -> Result<u8, Failure> {
    let no_signals = |e: std::io::Error| Failure::failed(format!("cannot receive signals: {e}"));
    let mut stops = Stops::of(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]).map_err(no_signals)?;
    // Started from the main thread: the parent-death signal of the nodes follows this thread.
    let mut cluster = Cluster::start(dev_nodes)?;
    let mut worked = false;
    let failed = tokio::select! {
        () = stops.next() => None,
        failure = async {
            if let Err(failure) = cluster.until_ready().await {
                return failure;
            }
            worked = true;
            // The reader may have closed the pipe after the first lines.
            let _ = cluster.print(common, directory, temporary);
            cluster.all_ended().await
        } => Some(failure),
    };
    let stopped = cluster.stop().await;
    if worked && failed.is_none() && !common.json {
        let _ = print_line("stopped");
    }
    match failed {
        Some(failure) => Err(failure),
        None => stopped.map(|()| EXIT_OK),
    }
}

/// The nodes of an earlier run in this directory on their old ports, or else new nodes. Reserves the ports.
fn dev_nodes(directory: &Path, args: &Dev) -> Result<(Vec<NodeSpec>, ReservedPorts), Failure> {
    let nodes = u64::from(args.nodes);
    let node = |node_id: u64, client: &str, zookeeper: Option<&str>| NodeSpec {
        node_id,
        endpoint: format!("http://{client}"),
        zookeeper: zookeeper.map(str::to_owned),
        config: directory.join(format!("node{node_id}.toml")),
        log: directory.join(format!("node{node_id}.log")),
    };
    let first = directory.join("node1.toml");
    if first.exists() {
        let config = Config::read(&first).map_err(|e| Failure::usage(e.to_string()))?;
        if config.peers.len() as u64 != nodes {
            let has = config.peers.len();
            return Err(Failure::usage(format!(
                "{} has a cluster of {has} nodes, not {nodes}; use --nodes {has} or another --data",
                directory.display()
            )));
        }
        let foreign = || Failure::usage(format!("{} was not created by `lockkeeper dev`", first.display()));
        let mut reserved = ReservedPorts::default();
        let mut found = Vec::new();
        for id in 1..=nodes {
            let peer = config.peers.get(&id.to_string()).ok_or_else(foreign)?;
            let client = peer.client.as_ref().ok_or_else(foreign)?;
            for address in [client, &peer.peer].into_iter().chain(&peer.zookeeper) {
                reserved.take(address.parse().map_err(|_| foreign())?)?;
            }
            found.push(node(id, client, peer.zookeeper.as_deref()));
        }
        return Ok((found, reserved));
    }
    let mut reserved = ReservedPorts::default();
    let mut ports = |usual| match (args.free_ports, usual) {
        (false, Some(below)) => reserved.usual(below, args.nodes),
        _ => reserved.free(args.nodes),
    };
    let (client, peer, zookeeper) =
        (ports(Some(USUAL_CLIENT_PORTS))?, ports(None)?, ports(Some(USUAL_ZOOKEEPER_PORTS))?);
    let addresses = client.into_iter().zip(peer).zip(zookeeper);
    let addresses: Vec<Addresses> =
        addresses.map(|((client, peer), zookeeper)| Addresses { client, peer, zookeeper }).collect();
    let mut made = Vec::new();
    for (node_id, own) in (1..).zip(&addresses) {
        let node = node(node_id, &own.client, Some(&own.zookeeper));
        fs::write(&node.config, config_of(node_id, own, &addresses, directory))
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", node.config.display())))?;
        made.push(node);
    }
    Ok((made, reserved))
}

/// Ports that the system gives to no other process while this value lives.
///
/// Its sockets are bound but do not listen, so a node, which sets SO_REUSEADDR, can listen there. Without the
/// reservation another process might take a port before its node starts.
#[derive(Default)]
struct ReservedPorts {
    sockets: Vec<Socket>,
    /// Two `dev`s can reserve one port, until a node listens; but only one of them has its UDP port.
    signs: Vec<UdpSocket>,
}

impl ReservedPorts {
    /// Reserves an address and returns it with its port.
    fn take(&mut self, address: SocketAddr) -> Result<String, Failure> {
        let bind = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            let bound = socket.local_addr()?.as_socket().ok_or(std::io::ErrorKind::Unsupported)?;
            Ok::<_, std::io::Error>((socket, bound.to_string()))
        };
        let (socket, bound) = bind().map_err(|e| {
            Failure::failed(format!("cannot reserve {address} for a node: {e}; stop the program that listens there"))
        })?;
        self.sockets.push(socket);
        Ok(bound)
    }

    /// An address for each node on ports that the system chooses.
    fn free(&mut self, nodes: u8) -> Result<Vec<String>, Failure> {
        (0..nodes).map(|_| self.take(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).collect()
    }

    /// An address for each node on the ports after `below` if all are free, and otherwise on others. At least three
    /// ports must be free: commands that are not told otherwise ask at three, which must not be those of two clusters.
    fn usual(&mut self, below: u16, nodes: u8) -> Result<Vec<String>, Failure> {
        let mut reserved = Self::default();
        let usual = (below + 1..=below + u16::from(nodes.max(3))).map(|port| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            reserved.signs.push(UdpSocket::bind(address).ok()?);
            reserved.take(address).ok()
        });
        let Some(mut addresses) = usual.collect::<Option<Vec<String>>>() else { return self.free(nodes) };
        addresses.truncate(nodes.into());
        self.sockets.append(&mut reserved.sockets);
        self.signs.append(&mut reserved.signs);
        Ok(addresses)
    }
}

/// The addresses of a new node.
struct Addresses {
    client: String,
    peer: String,
    zookeeper: String,
}

fn config_of(node_id: u64, own: &Addresses, all: &[Addresses], directory: &Path) -> String {
    let Addresses { client, peer, zookeeper } = own;
    let data = directory.join(format!("node{node_id}"));
    // A JSON string is a TOML string.
    let data = serde_json::Value::from(data.to_string_lossy()).to_string();
    let mut text = format!(
        "# Made by `lockkeeper dev`.\n[cluster]\nid = \"{CLUSTER}\"\nnode = {node_id}\n\
         [listen]\nclient = \"{client}\"\npeer = \"{peer}\"\n[zookeeper]\nlisten = \"{zookeeper}\"\n\
         [storage]\ndirectory = {data}\n"
    );
    for (id, Addresses { client, peer, zookeeper }) in (1..).zip(all) {
        text.push_str(&format!(
            "[peers.{id}]\nclient = \"{client}\"\npeer = \"{peer}\"\nzookeeper = \"{zookeeper}\"\n"
        ));
    }
    text
}

impl Cluster {
    fn start(dev_nodes: Vec<NodeSpec>) -> Result<Self, Failure> {
        let mut cluster = Self(Vec::new());
        for spec in dev_nodes {
            let failed = |e: std::io::Error| Failure::failed(format!("cannot start node {}: {e}", spec.node_id));
            let log = File::options().create(true).append(true).open(&spec.log).map_err(failed)?;
            let mut command = itself();
            command.args(["serve", "--end-with", &getpid().to_string(), "--config"]).arg(&spec.config);
            // Settings for another node in this environment do not apply to these.
            for (key, _) in std::env::vars_os() {
                if key.to_string_lossy().starts_with("LOCKKEEPER_")
                    && key.to_string_lossy().contains("__")
                    && !is_shared(&key.to_string_lossy())
                {
                    command.env_remove(key);
                }
            }
            // Ctrl-C goes to this process only, which then stops the nodes.
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let process = command.spawn().map_err(failed)?;
            cluster.0.push(NodeProcess { spec, process, ended: None });
        }
        Ok(cluster)
    }

    /// Polls the processes and returns those that have ended since the last call.
    fn poll_exits(&mut self) -> Vec<&NodeProcess> {
        let mut news = Vec::new();
        for node in &mut self.0 {
            if node.ended.is_none()
                && let Ok(Some(status)) = node.process.try_wait()
            {
                node.ended = Some(status);
                news.push(&*node);
            }
        }
        news
    }

    async fn until_ready(&mut self) -> Result<(), Failure> {
        let endpoints: Vec<&str> = self.0.iter().map(|node| node.spec.endpoint.as_str()).collect();
        let client = Client::new(endpoints, Options::default())?;
        let give_up_at = Instant::now() + READY_TIMEOUT;
        loop {
            if let Some(node) = self.poll_exits().first() {
                return Err(Failure::failed(format!(
                    "node {} did not start: {}",
                    node.spec.node_id,
                    exit_summary(node)
                )));
            }
            // Needs no token, if the kept data enforce access control.
            if client.all_ready(Duration::from_secs(1)).await {
                return Ok(());
            }
            if Instant::now() >= give_up_at {
                let logs: Vec<String> = self.0.iter().map(exit_summary).collect();
                return Err(Failure::failed(format!(
                    "the nodes are not ready after {} s: {}",
                    READY_TIMEOUT.as_secs(),
                    logs.join("; ")
                )));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Reports each node that ends. Returns when all have ended.
    async fn all_ended(&mut self) -> Failure {
        while self.0.iter().any(|node| node.ended.is_none()) {
            for node in self.poll_exits() {
                print_error(&format!("lockkeeper dev: node {} has ended: {}", node.spec.node_id, exit_summary(node)));
            }
            sleep(POLL_INTERVAL * 5).await;
        }
        Failure::failed("every node has ended")
    }

    fn print(&self, common: &Common, directory: &Path, temporary: bool) -> Result<(), Failure> {
        let endpoints: Vec<&str> = self.0.iter().map(|node| node.spec.endpoint.as_str()).collect();
        let zookeeper: Vec<&str> = self.0.iter().filter_map(|node| node.spec.zookeeper.as_deref()).collect();
        if common.json {
            let nodes = self.0.iter().map(|node| NodeInfo { spec: &node.spec, pid: node.process.id() }).collect();
            return print_json_line(&ClusterInfo { endpoints, zookeeper, nodes, data: directory });
        }
        let kept = if temporary { "removed at the end" } else { "kept" };
        print_line(&format!(
            "started {}; data and logs are in {} ({kept})",
            count(self.0.len(), "node"),
            directory.display()
        ))?;
        for node in &self.0 {
            print_line(&format!("  node {}  {}  pid {}", node.spec.node_id, node.spec.endpoint, node.process.id()))?;
        }
        if !zookeeper.is_empty() {
            print_line(&format!("ZooKeeper's clients find them at {}", zookeeper.join(",")))?;
        }
        print_line("\nTo use them, in another terminal:")?;
        if !common.asks_at(&endpoints) {
            print_line(&format!("  export LOCKKEEPER_ENDPOINTS={}", endpoints.join(",")))?;
            if !zookeeper.is_empty() {
                print_line(&format!("  export ZOOKEEPER={}", zookeeper.join(",")))?;
            }
        }
        print_line("  lockkeeper status")?;
        print_line("  lockkeeper lock demo -- sh -c 'echo token $LOCKKEEPER_TOKEN; sleep 10' &")?;
        print_line("  lockkeeper locks demo")?;
        print_line("Ctrl-C stops them all.")
    }

    /// Asks all nodes to end, and kills those that still run after [`STOP_TIMEOUT`].
    async fn stop(&mut self) -> Result<(), Failure> {
        self.poll_exits();
        self.signal(Signal::SIGTERM);
        // A stopped process cannot handle SIGTERM.
        self.signal(Signal::SIGCONT);
        let give_up_at = Instant::now() + STOP_TIMEOUT;
        while self.0.iter().any(|node| node.ended.is_none()) {
            if Instant::now() >= give_up_at {
                self.signal(Signal::SIGKILL);
                return Err(Failure::failed(format!(
                    "some nodes did not end within {} s and were killed",
                    STOP_TIMEOUT.as_secs()
                )));
            }
            sleep(POLL_INTERVAL).await;
            self.poll_exits();
        }
        Ok(())
    }

    fn signal(&self, which: Signal) {
        for node in self.0.iter().filter(|node| node.ended.is_none()) {
            // Its pid cannot belong to another process before it has been waited for.
            let _ = kill(Pid::from_raw(i32::try_from(node.process.id()).unwrap_or(i32::MAX)), which);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.0.iter_mut().filter(|node| node.ended.is_none()) {
            let _ = node.process.kill();
            let _ = node.process.wait();
        }
    }
}

/// Settings that apply to all nodes: logging, timing, limits, administration.
fn is_shared(key: &str) -> bool {
    ["LOCKKEEPER_LOG__", "LOCKKEEPER_TIMING__", "LOCKKEEPER_LIMITS__", "LOCKKEEPER_ADMIN__"]
        .iter()
        .any(|p| key.starts_with(p))
}

/// A node's exit status and the last line of its log.
fn exit_summary(node: &NodeProcess) -> String {
    let how = match node.ended {
        None => "is running".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => status.to_string(),
        },
    };
    let log = fs::read(&node.spec.log).unwrap_or_default();
    let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(2_000)..]).into_owned();
    match tail.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{how}; last line of its log: {line}"),
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_the_node_can_listen_on_a_reserved_port() {
        let mut reserved = ReservedPorts::default();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let addresses: Vec<SocketAddr> = (0..20).map(|_| reserved.take(any).unwrap().parse().unwrap()).collect();
        for address in &addresses {
            let stranger = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            assert!(stranger.bind(&(*address).into()).is_err());
            // As a node binds.
            TcpListener::bind(address).unwrap();
        }
        let listening = TcpListener::bind(any).unwrap();
        assert!(!addresses.contains(&listening.local_addr().unwrap()));
        assert!(reserved.take(listening.local_addr().unwrap()).is_err(), "another socket listens there");
    }

    #[test]
    fn the_usual_ports_are_taken_by_one_cluster_and_only_if_all_are_free() {
        // Outside of the ports that the system gives away, and of those of other tests.
        let somewhere = (std::process::id()..).map(|at| 10_000 + u16::try_from(at % 450).unwrap() * 10);
        let usual = |below: u16, nodes: u8| {
            let mut reserved = ReservedPorts::default();
            let addresses = reserved.usual(below, nodes).unwrap();
            (addresses[0] == format!("127.0.0.1:{}", below + 1)).then_some((reserved, addresses))
        };
        let (below, (reserved, addresses)) =
            somewhere.take(450).find_map(|below| Some((below, usual(below, 1)?))).unwrap();
        assert_eq!(addresses.len(), 1);
        assert!(usual(below, 1).is_none(), "another cluster has reserved them");
        drop(reserved);
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, below + 3)).unwrap();
        assert!(usual(below, 1).is_none(), "a program listens at the third");
        drop(listening);
        let (_reserved, three) = usual(below, 3).unwrap();
        assert_eq!(three, [1, 2, 3].map(|node| format!("127.0.0.1:{}", below + node)));
    }
}
