//! A Lockkeeper cluster with ZooKeeper frontends.

use std::array;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::SERVERS;
use crate::connection::Connection;
use crate::error::CompareError;

/// Time limit for the cluster to serve.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// `super` with the password `superpw`, as in ZooKeeper's start script.
const SUPER: &str = "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=";

/// See the module's text. Dropping it stops the nodes.
#[derive(Debug)]
pub(crate) struct LockkeeperCluster {
    processes: Vec<Child>,
    addresses: Vec<SocketAddr>,
}

/// The addresses of a node.
#[derive(Debug)]
struct NodeAddresses {
    client: SocketAddr,
    peer: SocketAddr,
    zookeeper: SocketAddr,
}

impl LockkeeperCluster {
    pub(crate) fn start(program: Option<&Path>, directory: &Path) -> Result<Self, CompareError> {
        let program = program.map_or_else(beside_this, |program| Ok(program.to_owned()))?;
        let nodes = free_addresses()?;
        let addresses = nodes.iter().map(|node| node.zookeeper).collect();
        let mut cluster = Self { processes: Vec::new(), addresses };
        for node in 1..=nodes.len() {
            let home = directory.join(node.to_string());
            fs::create_dir_all(&home).map_err(CompareError::io("make a directory for Lockkeeper"))?;
            fs::write(home.join("node.toml"), configuration(node, &nodes))
                .map_err(CompareError::io("write Lockkeeper's configuration"))?;
            let log = File::create(home.join("log")).map_err(CompareError::io("open Lockkeeper's log"))?;
            let process = Command::new(&program)
                .args(["serve", "--config", "node.toml"])
                .current_dir(&home)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .map_err(CompareError::io("start Lockkeeper: name the program by --lockkeeper-bin"))?;
            cluster.processes.push(process);
        }
        cluster.wait_until_serving(directory)?;
        Ok(cluster)
    }

    /// Whether every node answers `srvr` and one of them leads.
    fn wait_until_serving(&mut self, directory: &Path) -> Result<(), CompareError> {
        let until = Instant::now() + SERVES_WITHIN;
        while Instant::now() < until && self.processes.iter_mut().all(|process| matches!(process.try_wait(), Ok(None)))
        {
            let modes: Vec<String> = self.addresses.iter().map(|address| srvr(*address)).collect();
            let all = modes.iter().all(|mode| mode.contains("Mode: "));
            if all && modes.iter().any(|mode| mode.contains("Mode: leader")) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let log = fs::read_to_string(directory.join("1/log")).unwrap_or_default();
        Err(CompareError::Server(format!(
            "a node of Lockkeeper has ended, or they do not serve after {SERVES_WITHIN:?}. The first one's log:\n{log}"
        )))
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for LockkeeperCluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn srvr(address: SocketAddr) -> String {
    if TcpStream::connect(address).is_err() {
        return String::new();
    }
    Connection::open(address, None).map_or_else(
        |_| String::new(),
        |mut connection| {
            connection.send(b"srvr");
            connection.hear_out()
        },
    )
}

fn configuration(node: usize, nodes: &[NodeAddresses]) -> String {
    let own = &nodes[node - 1];
    let mut text = format!(
        "[cluster]\nid = \"side-by-side\"\nnode = {node}\n\
         [listen]\nclient = \"{}\"\npeer = \"{}\"\n\
         [storage]\ndirectory = \"data\"\n\
         [timing]\nreap_interval_ms = 300\n\
         [admin]\nsuper_digest = \"{SUPER}\"\n\
         [zookeeper]\nlisten = \"{}\"\ntick_ms = 1000\nconnections_per_address = 0\nwords = [\"*\"]\n",
        own.client, own.peer, own.zookeeper
    );
    for (index, node) in nodes.iter().enumerate() {
        let NodeAddresses { client, peer, zookeeper } = node;
        let id = index + 1;
        text += &format!("[peers.{id}]\npeer = \"{peer}\"\nclient = \"{client}\"\nzookeeper = \"{zookeeper}\"\n");
    }
    text
}

fn beside_this() -> Result<PathBuf, CompareError> {
    let own = std::env::current_exe().map_err(CompareError::io("find out where this program is"))?;
    Ok(own.with_file_name("lockkeeper"))
}

/// Unused ports. All are bound until all are found, so that they differ.
fn free_addresses() -> Result<[NodeAddresses; SERVERS], CompareError> {
    let mut held = Vec::new();
    let mut bind = || -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        held.push(listener);
        Ok(address)
    };
    let mut bind_node = || Ok(NodeAddresses { client: bind()?, peer: bind()?, zookeeper: bind()? });
    let found: [std::io::Result<NodeAddresses>; SERVERS] = array::from_fn(|_| bind_node());
    let found: Result<Vec<NodeAddresses>, _> = found.into_iter().collect();
    let found = found.map_err(CompareError::io("find free ports"))?;
    <[NodeAddresses; SERVERS]>::try_from(found)
        .map_err(|_| CompareError::Server("there are as many addresses as servers".into()))
}
