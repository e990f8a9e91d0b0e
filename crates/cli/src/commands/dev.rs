//! `lockkeeper dev`: a whole cluster on this machine, each node a process of its own.
//!
//! Nothing of it survives this command: the nodes end with it even if it is killed, and data that nobody asked to keep are
//! removed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use lockkeeper_client::{Client, Options};
use lockkeeper_server::Config;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use serde::Serialize;
use socket2::{Domain, Socket, Type};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::args::{Common, Dev};
use crate::failure::{EXIT_OK, Failure, say};
use crate::output::{print_json_line, print_line};

const CLUSTER: &str = "dev";
const UNTIL_READY: Duration = Duration::from_secs(30);
const UNTIL_STOPPED: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where a node is reached, and what it leaves behind.
#[derive(Clone, Debug, Serialize)]
struct Place {
    node_id: u64,
    endpoint: String,
    /// For ZooKeeper's clients; a cluster that an earlier version made has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    zookeeper: Option<String>,
    #[serde(skip)]
    config: PathBuf,
    log: PathBuf,
}

/// A node at work.
struct Running {
    place: Place,
    process: Child,
    ended: Option<ExitStatus>,
}

/// The nodes; killed if they are dropped while at work.
struct Cluster(Vec<Running>);

#[derive(Serialize)]
struct Told<'a> {
    endpoints: Vec<&'a str>,
    zookeeper: Vec<&'a str>,
    nodes: Vec<ToldNode<'a>>,
    data: &'a Path,
}

#[derive(Serialize)]
struct ToldNode<'a> {
    #[serde(flatten)]
    place: &'a Place,
    pid: u32,
}

/// Runs the cluster until it is told to stop.
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
    // Kept up to the end: a node that is started again finds its port free, too.
    let (places, _reserved) = places(&directory, u64::from(args.nodes))?;
    let result = super::runtime()?.block_on(serve(common, places, &directory, temporary.is_some()));
    if let Some(temporary) = temporary {
        temporary.close().map_err(|e| Failure::failed(format!("cannot remove {}: {e}", directory.display())))?;
    }
    result
}

async fn serve(common: &Common, places: Vec<Place>, directory: &Path, temporary: bool) -> Result<u8, Failure> {
    let no_signals = |e: std::io::Error| Failure::failed(format!("cannot receive signals: {e}"));
    let mut stops = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .into_iter()
        .map(signal)
        .collect::<Result<Vec<Listener>, _>>()
        .map_err(no_signals)?;
    // Started from the main thread: with its end, the nodes are told to end.
    let mut cluster = Cluster::start(places)?;
    let mut worked = false;
    let failed = tokio::select! {
        () = any(&mut stops) => None,
        failure = async {
            if let Err(failure) = cluster.until_ready().await {
                return failure;
            }
            worked = true;
            // Whoever reads this may have gone again after the first lines.
            let _ = cluster.tell(common.json, directory, temporary);
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

async fn any(stops: &mut [Listener]) {
    futures::future::select_all(stops.iter_mut().map(|stop| Box::pin(stop.recv()))).await;
}

/// The nodes of an earlier run in that directory, on their old ports; else new ones on free ones. The ports are reserved for them.
fn places(directory: &Path, nodes: u64) -> Result<(Vec<Place>, Reserved), Failure> {
    let place = |node_id: u64, client: &str, zookeeper: Option<&str>| Place {
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
        let foreign = || Failure::usage(format!("{} is not of `lockkeeper dev`", first.display()));
        let mut reserved = Reserved::default();
        let mut found = Vec::new();
        for id in 1..=nodes {
            let peer = config.peers.get(&id.to_string()).ok_or_else(foreign)?;
            let client = peer.client.as_ref().ok_or_else(foreign)?;
            for address in [client, &peer.peer].into_iter().chain(&peer.zookeeper) {
                reserved.take(address.parse().map_err(|_| foreign())?)?;
            }
            found.push(place(id, client, peer.zookeeper.as_deref()));
        }
        return Ok((found, reserved));
    }
    let mut reserved = Reserved::default();
    let addresses = (0..nodes).map(|_| Addresses::reserve(&mut reserved)).collect::<Result<Vec<_>, _>>()?;
    let mut made = Vec::new();
    for (node_id, own) in (1..).zip(&addresses) {
        let place = place(node_id, &own.client, Some(&own.zookeeper));
        fs::write(&place.config, config_of(node_id, own, &addresses, directory))
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", place.config.display())))?;
        made.push(place);
    }
    Ok((made, reserved))
}

/// Ports of this machine that nobody who asks for any is given while this lives.
///
/// Its sockets do not listen, so a node, which may use its address again, can. Without it another process may have a port by the time that
/// the node comes for it.
#[derive(Default)]
struct Reserved(Vec<Socket>);

impl Reserved {
    /// Gives the address, with its port.
    fn take(&mut self, address: SocketAddr) -> Result<String, Failure> {
        let bind = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            let bound = socket.local_addr()?.as_socket().ok_or(std::io::ErrorKind::Unsupported)?;
            Ok::<_, std::io::Error>((socket, bound.to_string()))
        };
        let (socket, bound) = bind().map_err(|e| Failure::failed(format!("cannot have {address} for a node: {e}")))?;
        self.0.push(socket);
        Ok(bound)
    }
}

/// Where a new node listens.
struct Addresses {
    client: String,
    peer: String,
    zookeeper: String,
}

impl Addresses {
    fn reserve(reserved: &mut Reserved) -> Result<Self, Failure> {
        let mut take = || reserved.take(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Ok(Self { client: take()?, peer: take()?, zookeeper: take()? })
    }
}

fn config_of(node_id: u64, own: &Addresses, all: &[Addresses], directory: &Path) -> String {
    let Addresses { client, peer, zookeeper } = own;
    let data = directory.join(format!("node{node_id}"));
    // A JSON string is a TOML string.
    let data = serde_json::Value::from(data.to_string_lossy()).to_string();
    let mut text = format!(
        "# Made by `lockkeeper dev`.\n[cluster]\nid = \"{CLUSTER}\"\nnode = {node_id}\n[listen]\nclient = \"{client}\"\npeer = \"{peer}\"\n[zookeeper]\nlisten = \"{zookeeper}\"\n[storage]\ndirectory = {data}\n"
    );
    for (id, Addresses { client, peer, zookeeper }) in (1..).zip(all) {
        text.push_str(&format!(
            "[peers.{id}]\nclient = \"{client}\"\npeer = \"{peer}\"\nzookeeper = \"{zookeeper}\"\n"
        ));
    }
    text
}

impl Cluster {
    fn start(places: Vec<Place>) -> Result<Self, Failure> {
        let itself =
            std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find the lockkeeper binary: {e}")))?;
        let mut cluster = Self(Vec::new());
        for place in places {
            let failed = |e: std::io::Error| Failure::failed(format!("cannot start node {}: {e}", place.node_id));
            let log = File::options().create(true).append(true).open(&place.log).map_err(failed)?;
            let mut command = Command::new(&itself);
            command.args(["serve", "--end-with", &getpid().to_string(), "--config"]).arg(&place.config);
            // Settings of another node in this environment are not for these.
            for (key, _) in std::env::vars_os() {
                if key.to_string_lossy().starts_with("LOCKKEEPER_")
                    && key.to_string_lossy().contains("__")
                    && !is_shared(&key.to_string_lossy())
                {
                    command.env_remove(key);
                }
            }
            // Ctrl-C is for this process, which then stops the nodes in order.
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let process = command.spawn().map_err(failed)?;
            cluster.0.push(Running { place, process, ended: None });
        }
        Ok(cluster)
    }

    /// Notes which nodes have ended, and gives those that have since it was asked last.
    fn look(&mut self) -> Vec<&Running> {
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
        let endpoints: Vec<&str> = self.0.iter().map(|node| node.place.endpoint.as_str()).collect();
        let client = Client::new(endpoints, Options::default())?;
        let give_up_at = Instant::now() + UNTIL_READY;
        loop {
            if let Some(node) = self.look().first() {
                return Err(Failure::failed(format!(
                    "node {} did not start: {}",
                    node.place.node_id,
                    last_words(node)
                )));
            }
            let all = client.status_of_all(false, Duration::from_secs(1)).await;
            if all.iter().all(|(_, status)| status.as_ref().is_ok_and(|status| status.ready)) {
                return Ok(());
            }
            if Instant::now() >= give_up_at {
                let logs: Vec<String> = self.0.iter().map(last_words).collect();
                return Err(Failure::failed(format!(
                    "the nodes are not ready after {} s: {}",
                    UNTIL_READY.as_secs(),
                    logs.join("; ")
                )));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Says which nodes end, and returns when none is left.
    async fn all_ended(&mut self) -> Failure {
        while self.0.iter().any(|node| node.ended.is_none()) {
            for node in self.look() {
                say(&format!("lockkeeper dev: node {} has ended: {}", node.place.node_id, last_words(node)));
            }
            sleep(LOOK_EVERY * 5).await;
        }
        Failure::failed("every node has ended")
    }

    fn tell(&self, json: bool, directory: &Path, temporary: bool) -> Result<(), Failure> {
        let endpoints: Vec<&str> = self.0.iter().map(|node| node.place.endpoint.as_str()).collect();
        let zookeeper: Vec<&str> = self.0.iter().filter_map(|node| node.place.zookeeper.as_deref()).collect();
        if json {
            let nodes = self.0.iter().map(|node| ToldNode { place: &node.place, pid: node.process.id() }).collect();
            return print_json_line(&Told { endpoints, zookeeper, nodes, data: directory });
        }
        let kept = if temporary { "removed at the end" } else { "kept" };
        print_line(&format!(
            "{} nodes are running; their data and logs are in {} ({kept})",
            self.0.len(),
            directory.display()
        ))?;
        for node in &self.0 {
            print_line(&format!("  node {}  {}  pid {}", node.place.node_id, node.place.endpoint, node.process.id()))?;
        }
        print_line("\nTo use them, in another terminal:")?;
        print_line("  lockkeeper status                                    # after the export below")?;
        print_line("  lockkeeper lock demo -- sh -c 'echo token $LOCKKEEPER_TOKEN; sleep 10' &")?;
        print_line("  lockkeeper locks demo")?;
        print_line("Ctrl-C stops them all.\n")?;
        if !zookeeper.is_empty() {
            print_line(&format!("  export ZOOKEEPER={}    # for ZooKeeper's clients", zookeeper.join(",")))?;
        }
        print_line(&format!("  export LOCKKEEPER_ENDPOINTS={}", endpoints.join(",")))
    }

    /// Asks all to end, and kills what has not within a bounded time.
    async fn stop(&mut self) -> Result<(), Failure> {
        self.look();
        self.signal(Signal::SIGTERM);
        // A node that somebody froze cannot end.
        self.signal(Signal::SIGCONT);
        let give_up_at = Instant::now() + UNTIL_STOPPED;
        while self.0.iter().any(|node| node.ended.is_none()) {
            if Instant::now() >= give_up_at {
                self.signal(Signal::SIGKILL);
                return Err(Failure::failed(format!(
                    "some nodes did not end within {} s and were killed",
                    UNTIL_STOPPED.as_secs()
                )));
            }
            sleep(LOOK_EVERY).await;
            self.look();
        }
        Ok(())
    }

    fn signal(&self, which: Signal) {
        for node in self.0.iter().filter(|node| node.ended.is_none()) {
            // It may have ended in between, and is not yet waited for: its pid is still its own.
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

/// The log's level and format, and bounds, are the same for all nodes.
fn is_shared(key: &str) -> bool {
    ["LOCKKEEPER_LOG__", "LOCKKEEPER_TIMING__", "LOCKKEEPER_LIMITS__", "LOCKKEEPER_ADMIN__"]
        .iter()
        .any(|p| key.starts_with(p))
}

/// How a node ended, and the last line of its log.
fn last_words(node: &Running) -> String {
    let how = match node.ended {
        None => "is running".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => status.to_string(),
        },
    };
    let log = fs::read(&node.place.log).unwrap_or_default();
    let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(2_000)..]).into_owned();
    match tail.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{how}, its log ends in: {line}"),
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reserved_port_is_its_nodes_and_nobody_elses() {
        let mut reserved = Reserved::default();
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
        assert!(reserved.take(listening.local_addr().unwrap()).is_err(), "somebody listens there");
    }
}
