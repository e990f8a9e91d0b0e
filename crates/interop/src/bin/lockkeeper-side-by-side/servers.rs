//! The two systems of a comparison, on the loopback, as their scripts start them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::CompareError;
use crate::run::System;

/// Servers per system: enough for followers and for sessions that move.
pub(crate) const SERVERS: u16 = 3;

/// Ports for clients, peers and ZooKeeper's clients follow a first one at these distances.
const PEERS: u16 = 100;
const ZOOKEEPER_CLIENTS: u16 = 200;

/// The settings that the ZooKeeper of the comparison has, too. The digest is that of the password `superpw`.
const SETTINGS: &[(&str, &str)] = &[
    ("LOCKKEEPER_TIMING__REAP_INTERVAL_MS", "300"),
    ("LOCKKEEPER_ADMIN__SUPER_DIGEST", "super:g9oN2HttPfn8MMWJZ2r45Np/LIA="),
    ("LOCKKEEPER_ZOOKEEPER__TICK_MS", "1000"),
    ("LOCKKEEPER_ZOOKEEPER__CONNECTIONS_PER_ADDRESS", "0"),
    ("LOCKKEEPER_ZOOKEEPER__WORDS", "[\"*\"]"),
];

/// The servers of one system. Dropping it stops them.
#[derive(Debug)]
pub(crate) struct Servers {
    system: System,
    directory: PathBuf,
    /// Where ZooKeeper's clients reach them.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Servers {
    pub(crate) fn start(system: System, program: Option<&Path>, directory: &Path) -> Result<Self, CompareError> {
        let mut servers = Self { system, directory: directory.to_owned(), addresses: Vec::new() };
        let mut start = servers.script("start");
        let first = free_port()?;
        match system {
            System::ZooKeeper => start.args(["--servers", &SERVERS.to_string()]),
            System::Lockkeeper => start
                .args(["--base-port", &first.to_string()])
                .args(["--zookeeper-port", &(first + ZOOKEEPER_CLIENTS).to_string()])
                .env("LOCKKEEPER_BIN", program.map_or_else(beside_this, |program| Ok(program.to_owned()))?)
                .envs(SETTINGS.iter().copied()),
        };
        let started = start.stderr(Stdio::inherit()).output().map_err(CompareError::io("run a script"))?;
        if !started.status.success() {
            return Err(CompareError::Server("the servers do not start; what their script says stands above".into()));
        }
        servers.addresses = match system {
            System::ZooKeeper => {
                let line = String::from_utf8_lossy(&started.stdout);
                let addresses: Result<Vec<SocketAddr>, _> = line.trim().split(',').map(str::parse).collect();
                addresses.map_err(|_| CompareError::Server(format!("no addresses of ZooKeeper: {line}")))?
            }
            System::Lockkeeper => {
                let port = |server| first + ZOOKEEPER_CLIENTS + server;
                (1..=SERVERS).map(|server| SocketAddr::from((Ipv4Addr::LOCALHOST, port(server)))).collect()
            }
        };
        Ok(servers)
    }

    /// The log of a server, from 1.
    pub(crate) fn log(&self, server: u16) -> PathBuf {
        self.directory.join(match self.system {
            System::ZooKeeper => format!("{server}/log"),
            System::Lockkeeper => format!("node{server}.log"),
        })
    }

    fn script(&self, action: &str) -> Command {
        let (script, directory) = match self.system {
            System::ZooKeeper => (concat!(env!("CARGO_MANIFEST_DIR"), "/zookeeper-server"), None),
            System::Lockkeeper => (concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cluster"), Some("--dir")),
        };
        let mut command = Command::new(script);
        command.arg(action).args(directory).arg(&self.directory).stdin(Stdio::null());
        command
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let stopped = self.script("stop").stdout(Stdio::null()).status();
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("servers may still run: see {}", self.directory.display());
        }
    }
}

fn beside_this() -> Result<PathBuf, CompareError> {
    let own = std::env::current_exe().map_err(CompareError::io("find out where this program is"))?;
    Ok(own.with_file_name("lockkeeper"))
}

/// A port after which all that a cluster needs are unused.
fn free_port() -> Result<u16, CompareError> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let needed = || [0, PEERS, ZOOKEEPER_CLIENTS].into_iter().flat_map(|from| (1..=SERVERS).map(move |at| from + at));
    for _ in 0..100 {
        let any = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let first = any.map_err(CompareError::io("find a free port"))?.port();
        if needed().all(|port| first.checked_add(port).is_some_and(is_free)) {
            return Ok(first);
        }
    }
    Err(CompareError::Server("no free ports on 127.0.0.1".into()))
}
