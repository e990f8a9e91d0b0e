//! One node of Lockkeeper that is a cluster of its own, with its door for ZooKeeper's clients open.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::error::Trouble;

/// A node serves within this, or does not.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// `super` with the password `superpw`, as ZooKeeper's script has it.
const SUPER: &str = "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=";

/// See the module's text. Stopped when it goes out of scope.
#[derive(Debug)]
pub(crate) struct LockkeeperCluster {
    process: Child,
    addresses: Vec<SocketAddr>,
}

impl LockkeeperCluster {
    pub(crate) fn start(program: Option<&Path>, directory: &Path) -> Result<Self, Trouble> {
        let program = program.map_or_else(beside_this, |program| Ok(program.to_owned()))?;
        fs::create_dir_all(directory).map_err(Trouble::io("make a directory for Lockkeeper"))?;
        let [client, peer, zookeeper] = free_addresses()?;
        let configuration = format!(
            "[cluster]\nid = \"side-by-side\"\nnode = 1\n\
             [listen]\nclient = \"{client}\"\npeer = \"{peer}\"\n\
             [peers.1]\npeer = \"{peer}\"\nclient = \"{client}\"\nzookeeper = \"{zookeeper}\"\n\
             [storage]\ndirectory = \"data\"\n\
             [timing]\nreap_interval_ms = 300\n\
             [admin]\nsuper_digest = \"{SUPER}\"\n\
             [zookeeper]\nlisten = \"{zookeeper}\"\ntick_ms = 1000\nconnections_per_address = 0\nwords = [\"*\"]\n"
        );
        let file = directory.join("node.toml");
        fs::write(&file, configuration).map_err(Trouble::io("write Lockkeeper's configuration"))?;
        let log = File::create(directory.join("log")).map_err(Trouble::io("open Lockkeeper's log"))?;
        let process = Command::new(&program)
            .args(["serve", "--config", "node.toml"])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(Trouble::io("start Lockkeeper: name the program by --lockkeeper-bin"))?;
        let mut cluster = Self { process, addresses: vec![zookeeper] };
        cluster.wait_until_serving(directory)?;
        Ok(cluster)
    }

    /// It answers the word that ZooKeeper's tools ask with, once it knows who leads.
    fn wait_until_serving(&mut self, directory: &Path) -> Result<(), Trouble> {
        let until = Instant::now() + SERVES_WITHIN;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            if TcpStream::connect(self.addresses[0]).is_ok() {
                let mut connection = Connection::open(self.addresses[0])?;
                connection.send(b"srvr");
                if connection.hear_out().contains("Mode: leader") {
                    return Ok(());
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
        Err(Trouble::Server(format!("Lockkeeper has ended, or does not serve after {SERVES_WITHIN:?}. Its log:\n{log}")))
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for LockkeeperCluster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn beside_this() -> Result<PathBuf, Trouble> {
    let own = std::env::current_exe().map_err(Trouble::io("find out where this program is"))?;
    Ok(own.with_file_name("lockkeeper"))
}

fn free_addresses() -> Result<[SocketAddr; 3], Trouble> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let find = || Ok([bind()?, bind()?, bind()?]);
    // Held until all three are found, so that they differ.
    let found = find().map_err(Trouble::io("find free ports"))?;
    Ok(found.map(|(address, _listener)| address))
}
