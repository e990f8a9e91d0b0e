//! A real ZooKeeper from Debian's jars: one server, or an ensemble.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_checkers::skip::has_programs;
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::polling::Polling;
use crate::ports;
use crate::process::Process;
use crate::verdict::{Failed, broken, ended_early};

const READY_WITHIN: Duration = Duration::from_secs(60);
/// The manifest of Debian's jar lists the jars that it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const CLASS_PATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";

/// The packages of Debian.
pub const PACKAGES: &str = "libzookeeper-java and default-jre-headless";

/// Whether there are the jars and a Java.
pub fn installed() -> bool {
    Path::new(JAR).exists() && has_programs(&["java"])
}

struct Server {
    dir: PathBuf,
    port: u16,
    process: Option<Process>,
}

/// The servers; dropping them kills them.
pub struct ZooKeeper {
    servers: Vec<Server>,
}

impl ZooKeeper {
    /// Starts so many servers with that `tickTime` and waits until all serve. Sessions have from 2 ticks to 40 s.
    /// Writes are synced before they are acknowledged, as by default.
    pub async fn start(dir: &Path, servers: usize, tick: Duration) -> Result<Self, Failed> {
        let ports = ports::free(servers * 3)?;
        let (clients, peers) = ports.split_at(servers);
        let mut members = String::new();
        for (id, two) in peers.chunks(2).enumerate() {
            if let ([peer, election], true) = (two, servers > 1) {
                let number = id + 1;
                let _ = writeln!(members, "server.{number}=127.0.0.1:{peer}:{election};127.0.0.1:{}", clients[id]);
            }
        }
        let mut ensemble = Self { servers: Vec::new() };
        for (place, port) in clients.iter().enumerate() {
            let dir = dir.join(format!("zookeeper{}", place + 1));
            std::fs::create_dir_all(dir.join("data"))?;
            std::fs::write(dir.join("data/myid"), format!("{}\n", place + 1))?;
            let mut config = format!(
                "tickTime={}\ndataDir={}/data\nmaxClientCnxns=0\nmaxSessionTimeout=40000\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\n\
                 initLimit=40\nsyncLimit=20\n{members}",
                tick.as_millis(),
                dir.display()
            );
            if members.is_empty() {
                let _ = writeln!(config, "clientPort={port}\nclientPortAddress=127.0.0.1");
            }
            std::fs::write(dir.join("zoo.cfg"), config)?;
            ensemble.servers.push(Server { dir, port: *port, process: None });
        }
        for id in 1..=servers {
            ensemble.spawn(id)?;
        }
        for id in 1..=servers {
            ensemble.ready(id).await?;
        }
        Ok(ensemble)
    }

    fn spawn(&mut self, id: usize) -> Result<(), Failed> {
        let server = &mut self.servers[id - 1];
        let log = server.dir.join("zookeeper.log");
        let mut argv: Vec<String> = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-Dznode.container.checkIntervalMs=300"]
            .map(str::to_owned)
            .to_vec();
        argv.extend(["-cp", CLASS_PATH, "org.apache.zookeeper.server.quorum.QuorumPeerMain"].map(str::to_owned));
        argv.push(server.dir.join("zoo.cfg").display().to_string());
        server.process = Some(Process::start(&argv, &[], &log)?);
        Ok(())
    }

    async fn ready(&mut self, id: usize) -> Result<(), Failed> {
        let wait = Polling::within(READY_WITHIN).every(Duration::from_millis(50));
        while !self.word(id, "srvr").await.contains("Mode:") {
            let server = &mut self.servers[id - 1];
            if server.process.as_mut().is_none_or(|process| process.ended().is_some()) {
                return Err(ended_early("ZooKeeper ended", &server.dir.join("zookeeper.log")));
            }
            wait.or_broken(|| format!("ZooKeeper does not serve after {READY_WITHIN:?}: {}", server.dir.display()))
                .await?;
        }
        Ok(())
    }

    /// The answer of a server to a four-letter word; empty if there is none.
    pub async fn word(&self, id: usize, word: &str) -> String {
        let ask = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.servers[id - 1].port)).await?;
            stream.write_all(word.as_bytes()).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            Ok::<_, std::io::Error>(text)
        };
        match tokio::time::timeout(Duration::from_secs(2), ask).await {
            Ok(Ok(text)) => text,
            _ => String::new(),
        }
    }

    /// The servers, as clients name them.
    pub fn address(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        addresses.join(",")
    }

    /// The pids of the processes that run.
    pub fn pids(&self) -> Vec<u32> {
        let running = self.servers.iter().filter_map(|server| server.process.as_ref());
        running.filter_map(|process| u32::try_from(process.pid()).ok()).collect()
    }

    /// The server that leads, or the only one.
    pub async fn leader(&self) -> Option<usize> {
        for id in 1..=self.servers.len() {
            let state = self.word(id, "srvr").await;
            if state.contains("Mode: leader") || state.contains("Mode: standalone") {
                return Some(id);
            }
        }
        None
    }

    /// Ends a server by SIGKILL.
    pub fn kill(&mut self, id: usize) {
        self.servers[id - 1].process = None;
    }

    /// Stops a server as its operator would.
    pub async fn stop(&mut self, id: usize) -> Result<(), Failed> {
        self.signal(id, Signal::SIGTERM);
        let Some(mut process) = self.servers[id - 1].process.take() else { return Ok(()) };
        match process.wait_end(READY_WITHIN).await {
            Some(_) => Ok(()),
            None => broken(format!("ZooKeeper {id} did not stop within {READY_WITHIN:?}")),
        }
    }

    /// Starts a server again with its data.
    pub async fn restart(&mut self, id: usize) -> Result<(), Failed> {
        self.spawn(id)?;
        self.ready(id).await
    }

    /// Stops a server by SIGSTOP.
    pub fn pause(&self, id: usize) {
        self.signal(id, Signal::SIGSTOP);
    }

    /// Lets a stopped server go on.
    pub fn resume(&self, id: usize) {
        self.signal(id, Signal::SIGCONT);
    }

    fn signal(&self, id: usize, signal: Signal) {
        if let Some(process) = &self.servers[id - 1].process {
            process.signal(signal);
        }
    }
}
