//! A real ZooKeeper ensemble, run by the script `crates/interop/zookeeper-server`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::SERVERS;
use crate::error::CompareError;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/zookeeper-server");

/// See the module's text. Dropping it stops the servers.
#[derive(Debug)]
pub(crate) struct ZooKeeperEnsemble {
    directory: PathBuf,
    addresses: Vec<SocketAddr>,
}

impl ZooKeeperEnsemble {
    pub(crate) fn start(directory: &Path) -> Result<Self, CompareError> {
        let mut ensemble = Self { directory: directory.to_owned(), addresses: Vec::new() };
        let started = Command::new(PROGRAM)
            .arg("start")
            .arg(directory)
            .args(["--servers", &SERVERS.to_string()])
            .stderr(Stdio::inherit())
            .output();
        let started = started.map_err(CompareError::io("run the script that starts ZooKeeper"))?;
        if !started.status.success() {
            return Err(CompareError::Server("ZooKeeper does not start; what its script says stands above".into()));
        }
        let line = String::from_utf8_lossy(&started.stdout);
        let addresses: Result<Vec<SocketAddr>, _> = line.trim().split(',').map(str::parse).collect();
        ensemble.addresses =
            addresses.map_err(|_| CompareError::Server(format!("no addresses of ZooKeeper: {line}")))?;
        Ok(ensemble)
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for ZooKeeperEnsemble {
    fn drop(&mut self) {
        let stopped = Command::new(PROGRAM).arg("stop").arg(&self.directory).stdout(Stdio::null()).status();
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("ZooKeeper may still run: see {}", self.directory.join("pids").display());
        }
    }
}
