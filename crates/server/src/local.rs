//! A real cluster inside this process, for tests, examples and documentation: nodes on free ports of 127.0.0.1 with
//! their data in a temporary directory.
//!
//! The nodes are those that `lockkeeper serve` runs, with a small cache and short elections; nothing is simulated. They
//! run on a thread of their own, so that a test's runtime may block or end. Do not use it for anything else: the data
//! are deleted with the cluster.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_config::Config;
use lockkeeper_core::FeatureLevel;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::error::ServeError;
use crate::server::Server;

const UNTIL_READY: Duration = Duration::from_secs(30);
/// Time for the nodes to stop when the cluster is dropped; an orderly stop would take longer, to find a new leader.
const LEAVE: Duration = Duration::from_millis(200);
const UNTIL_REMOVED: Duration = Duration::from_secs(1);
const ONE_QUESTION: Duration = Duration::from_secs(2);
const UNTIL_LEVEL: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A running cluster. Dropping it stops every node, which takes some milliseconds, and removes the data.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut cluster = lockkeeper_server::local::Cluster::start(3).await?;
/// println!("clients connect to {}", cluster.endpoints().join(","));
/// cluster.stop(2).await?; // the other two go on
/// cluster.restart(2).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<LocalNode>,
    /// `None` once dropped.
    parts: Option<(Runtime, TempDir)>,
}

#[derive(Debug)]
struct LocalNode {
    config: Config,
    address: SocketAddr,
    running: Option<RunningNode>,
}

#[derive(Debug)]
struct RunningNode {
    stop: oneshot::Sender<()>,
    done: JoinHandle<Result<(), ServeError>>,
}

impl Cluster {
    /// Starts one, three or five nodes and waits until each can serve.
    ///
    /// # Errors
    /// One of them did not start, or was not ready within half a minute.
    pub async fn start(nodes: u64) -> Result<Self, ServeError> {
        Self::start_with(nodes, |_| {}).await
    }

    /// The same, with each node's configuration adjusted before it starts.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(nodes: u64, adjust: impl Fn(&mut Config)) -> Result<Self, ServeError> {
        let directory = tempfile::Builder::new().prefix("lockkeeper-local-").tempdir().map_err(|error| {
            ServeError::Start(format!(
                "cannot make a temporary directory: {error}; set TMPDIR to a place that can be written"
            ))
        })?;
        let servers = Server::bind_cluster("local", nodes, directory.path(), |config| {
            make_light(config);
            adjust(config);
        })?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockkeeper-local")
            .enable_all()
            .build()
            .map_err(|error| ServeError::Start(format!("cannot start a thread for the nodes: {error}")))?;
        let start = |server: Server| {
            let (config, address) = (server.config().clone(), server.client_address());
            LocalNode { config, address, running: Some(RunningNode::start(server, &runtime)) }
        };
        let nodes = servers.into_iter().map(start).collect();
        let mut cluster = Self { nodes, parts: Some((runtime, directory)) };
        for node in &mut cluster.nodes {
            node.ready().await?;
        }
        cluster.latest_level().await;
        Ok(cluster)
    }

    /// The client addresses of all nodes from node 1 on, stopped ones included.
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.address)).collect()
    }

    /// Stops a node gracefully, as SIGTERM does; does nothing if it is stopped already.
    ///
    /// # Errors
    /// There is no such node, or it did not stop gracefully.
    pub async fn stop(&mut self, node_id: u64) -> Result<(), ServeError> {
        match self.node(node_id)?.running.take() {
            Some(running) => running.stop().await,
            None => Ok(()),
        }
    }

    /// Starts a stopped node again, at its old address with its old data, and waits until it can serve: of three nodes
    /// another one must be running.
    ///
    /// # Errors
    /// There is no such node, it is running, or it does not start.
    pub async fn restart(&mut self, node_id: u64) -> Result<(), ServeError> {
        let node = self.node(node_id)?;
        if node.running.is_some() {
            return Err(ServeError::Start(format!("node {node_id} is running; stop it first")));
        }
        let server = Server::bind(node.config.clone())?;
        let Some((runtime, _)) = &self.parts else { return Err(ServeError::Start("the cluster is gone".into())) };
        let running = RunningNode::start(server, runtime);
        let node = self.node(node_id)?;
        node.running = Some(running);
        node.ready().await
    }

    /// Waits until every node knows that the new cluster has the latest feature level, which takes some milliseconds.
    /// A cluster whose configuration holds the level back, or hides it, goes on without it.
    async fn latest_level(&self) {
        let levels = async {
            for node in &self.nodes {
                while !has_latest_level(node.address).await {
                    sleep(LOOK_EVERY).await;
                }
            }
        };
        let _ = timeout(UNTIL_LEVEL, levels).await;
    }

    fn node(&mut self, node_id: u64) -> Result<&mut LocalNode, ServeError> {
        let count = self.nodes.len();
        let place = usize::try_from(node_id).ok().and_then(|id| id.checked_sub(1));
        place
            .and_then(|place| self.nodes.get_mut(place))
            .ok_or_else(|| ServeError::Start(format!("there is no node {node_id}; the nodes are 1 to {count}")))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some((runtime, directory)) = self.parts.take() else { return };
        let running: Vec<RunningNode> = self.nodes.iter_mut().filter_map(|node| node.running.take()).collect();
        // A thread that belongs to no runtime may block; the one that drops this may not.
        let end = thread::Builder::new().name("lockkeeper-local-end".into()).spawn(move || {
            runtime.block_on(async {
                let stopped = running.into_iter().map(RunningNode::stop);
                // The data are deleted: how the stores were closed does not matter.
                let _ = timeout(LEAVE, futures::future::join_all(stopped)).await;
            });
            runtime.shutdown_timeout(UNTIL_REMOVED);
            remove(directory);
        });
        if let Ok(end) = end {
            let _ = end.join();
        }
    }
}

/// Tries again while a store that was cut off still writes into it.
fn remove(directory: TempDir) {
    let path = directory.keep();
    let began = Instant::now();
    while std::fs::remove_dir_all(&path).is_err() && path.exists() && began.elapsed() < UNTIL_REMOVED {
        thread::sleep(LOOK_EVERY);
    }
}

impl RunningNode {
    fn start(server: Server, runtime: &Runtime) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let done = runtime.spawn(server.run(async {
            // Dropping the sender stops the node too.
            let _ = stopped.await;
        }));
        Self { stop, done }
    }

    async fn stop(self) -> Result<(), ServeError> {
        drop(self.stop);
        self.done.await.unwrap_or_else(|error| Err(ServeError::Fatal(format!("the node broke off: {error}"))))
    }
}

impl LocalNode {
    async fn ready(&mut self) -> Result<(), ServeError> {
        let began = Instant::now();
        while !is_ready(self.address).await {
            if self.running.as_ref().is_some_and(|running| running.done.is_finished())
                && let Some(ended) = self.running.take()
            {
                ended.stop().await?;
            }
            if self.running.is_none() {
                return Err(ServeError::Start("it ended before it was ready".into()));
            }
            if began.elapsed() > UNTIL_READY {
                let waited_s = UNTIL_READY.as_secs();
                return Err(ServeError::Start(format!("{} was not ready within {waited_s} s", self.address)));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

async fn is_ready(address: SocketAddr) -> bool {
    ask(address, "/readyz").await.is_some_and(|reply| reply.starts_with("HTTP/1.1 200"))
}

async fn has_latest_level(address: SocketAddr) -> bool {
    // The last field of the reply.
    let latest = format!("\"feature_level\":{}}}", FeatureLevel::LATEST);
    let has_all = |reply: String| reply.trim_end().ends_with(&latest) && reply.contains("\"cluster_uid\":");
    ask(address, "/v1/cluster").await.is_some_and(has_all)
}

/// Asks by hand: an HTTP client would be a large dependency for a line of a reply.
async fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let question = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await.ok()?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.ok()?;
        Some(String::from_utf8_lossy(&reply).into_owned())
    };
    timeout(ONE_QUESTION, ask).await.ok()?
}

/// Makes a node small and quick to start.
fn make_light(config: &mut Config) {
    config.storage.cache_mib = 8;
    config.storage.free_floor_mib = 1;
    // On one machine a silence of 150 ms says as much as one of 300 ms between machines.
    config.timing.heartbeat_ms = 50;
    config.timing.election_timeout_min_ms = 150;
    config.timing.election_timeout_max_ms = 300;
    config.timing.reap_interval_ms = 100;
    config.limits.shutdown_timeout_ms = 500;
}
