//! Three real processes over real sockets: what a kill -9 and a SIGSTOP of the leader look like to the others. The
//! processes are this very test binary, started again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{
    BlockingPool, Config, Consensus, FramedTransport, Parts, PeerAuth, PeerBook, PeerIdentity, PeerKind, PeerService,
    ServeError, ServiceError, StartId, Transport,
};
use lockkeeper_store::{Identity, Options, SnapshotStore, Store};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::common::{Recorder, WallTime};
use crate::listener::listen;

/// The test itself speaks as this node; it is known to the gates and no member.
const TESTER: u64 = 9;

#[derive(Clone, Default)]
struct Commands(Arc<OnceLock<Consensus>>);

#[async_trait]
impl PeerService for Commands {
    async fn serve(&self, _: u64, body: Bytes) -> Result<Bytes, ServiceError> {
        let not_yet = || ServiceError { code: "not_yet".into(), detail: "starting".into() };
        let consensus = self.0.get().ok_or_else(not_yet)?;
        if &body[..] == b"view" {
            let view = *consensus.leadership().borrow();
            return Ok(Bytes::from(format!("{} {}", view.term, view.leader.unwrap_or(0))));
        }
        let refused = |error: String| ServiceError { code: "not_taken".into(), detail: error };
        consensus.propose(body).await.map_err(|error| refused(error.to_string()))?;
        Ok(Bytes::new())
    }
}

fn peers_of(ports: &str) -> BTreeMap<u64, String> {
    (1..).zip(ports.split(',').map(|port| format!("127.0.0.1:{port}"))).collect()
}

fn known(mut peers: BTreeMap<u64, String>) -> BTreeMap<u64, String> {
    peers.insert(TESTER, "127.0.0.1:9".into());
    peers
}

/// Not a test of its own: what the started processes run. Started without its environment it does nothing.
#[test]
fn process() {
    let Ok(node) = std::env::var("CONSENSUS_TEST_NODE") else { return };
    let node: u64 = node.parse().unwrap();
    let peers = peers_of(&std::env::var("CONSENSUS_TEST_PORTS").unwrap());
    let dir = std::env::var("CONSENSUS_TEST_DIR").unwrap();
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(async move {
        let mut options = Options::new(Arc::new(|error| panic!("{error}")));
        options.free_floor_bytes = 0;
        let dir = Path::new(&dir).join(node.to_string());
        let identity = Identity { cluster: "processes".into(), node, directory: u128::from(node) };
        let (store, opened) = Store::open(&dir, &identity, options.clone()).unwrap();
        let snapshots = SnapshotStore::open(&dir, store.bounds(), &options).unwrap();
        let boot = u64::from(std::process::id());
        let identity = PeerIdentity {
            cluster: "processes".into(),
            node,
            directory: opened.directory,
            start: StartId { number: opened.incarnation, boot },
        };
        let book = PeerBook::open(&dir, identity, &known(peers.clone())).unwrap();
        let listener = tokio::net::TcpListener::bind(&peers[&node]).await.unwrap();
        let commands = Commands::default();
        let consensus = Consensus::start(Parts {
            config: Config::new("processes", node, peers),
            store: Arc::new(store),
            opened,
            snapshots: Arc::new(snapshots),
            blocking: Arc::new(BlockingPool),
            machine: Arc::new(Recorder::default()),
            service: Arc::new(commands.clone()),
            transport: Arc::new(FramedTransport::new(book.clone()).unwrap()),
            memory: book.clone(),
            boot,
            time: Arc::new(WallTime),
            fatal: Arc::new(|line| panic!("{line}")),
        })
        .await
        .unwrap();
        assert!(commands.0.set(consensus.clone()).is_ok());
        listen(listener, PeerAuth::new(book), move |caller, kind, body| {
            let (consensus, commands) = (consensus.clone(), commands.clone());
            async move {
                // No member, and with nothing to admit.
                if caller.node != TESTER {
                    return consensus.serve(caller, kind, body).await;
                }
                let answer = commands.serve(caller.node, body).await;
                answer.map_err(|no| ServeError { code: no.code, detail: no.detail })
            }
        })
        .await;
    });
}

struct Processes {
    dir: tempfile::TempDir,
    ports: String,
    children: BTreeMap<u64, Child>,
    transport: FramedTransport,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    fn start() -> Processes {
        let listeners: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().port().to_string()).collect();
        drop(listeners);
        let ports = ports.join(",");
        let dir = tempfile::tempdir().unwrap();
        let identity = PeerIdentity {
            cluster: "processes".into(),
            node: TESTER,
            directory: 9,
            start: StartId { number: 1, boot: 1 },
        };
        let book = PeerBook::open(dir.path(), identity, &peers_of(&ports)).unwrap();
        let transport = FramedTransport::new(book).unwrap();
        let mut processes = Processes { dir, ports, children: BTreeMap::new(), transport };
        for node in 1..=3 {
            processes.boot(node);
        }
        processes
    }

    fn boot(&mut self, node: u64) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::process", "--nocapture"])
            .env("CONSENSUS_TEST_NODE", node.to_string())
            .env("CONSENSUS_TEST_PORTS", &self.ports)
            .env("CONSENSUS_TEST_DIR", self.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.children.insert(node, child);
    }

    fn kill(&mut self, node: u64) {
        let mut child = self.children.remove(&node).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn pid(&self, node: u64) -> Pid {
        Pid::from_raw(self.children[&node].id() as i32)
    }

    /// Returns when every thread stands still: the signal alone lets them run on for a moment.
    fn freeze(&self, node: u64) {
        kill(self.pid(node), Signal::SIGSTOP).unwrap();
        let stopped = waitpid(self.pid(node), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
    }

    fn thaw(&self, node: u64) {
        kill(self.pid(node), Signal::SIGCONT).unwrap();
    }

    async fn view(&self, node: u64) -> Option<(u64, u64)> {
        let call =
            self.transport.call(node, PeerKind::Service, Bytes::from_static(b"view"), Duration::from_millis(300));
        let answer = String::from_utf8(call.await.ok()?.to_vec()).unwrap();
        let (term, leader) = answer.split_once(' ')?;
        Some((term.parse().unwrap(), leader.parse().unwrap()))
    }

    /// Waits until all agree; gives term and leader.
    async fn agreed(&self) -> (u64, u64) {
        let started = Instant::now();
        loop {
            let views = [self.view(1).await, self.view(2).await, self.view(3).await];
            if let [Some(one), Some(two), Some(three)] = views
                && one == two
                && two == three
                && one.1 != 0
            {
                return one;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "no agreement: {views:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_taken(&self, node: u64, since: Instant) -> Duration {
        loop {
            let call = self.transport.call(node, PeerKind::Service, Bytes::from_static(b"x"), Duration::from_secs(8));
            if call.await.is_ok() {
                return since.elapsed();
            }
            assert!(since.elapsed() < Duration::from_secs(30), "never taken");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_killed_leader_is_replaced_at_once_and_a_frozen_one_after_two_silent_probes() {
    let mut processes = Processes::start();
    let mut killed = Vec::new();
    for _ in 0..10 {
        let (_, leader) = processes.agreed().await;
        let other = leader % 3 + 1;
        processes.until_taken(other, Instant::now()).await;
        let since = Instant::now();
        processes.kill(leader);
        killed.push(processes.until_taken(other, since).await);
        processes.boot(leader);
    }
    killed.sort();
    println!("leader killed: next write after {killed:?}");
    assert!(killed[5] < Duration::from_millis(600), "the fast path did not work: {killed:?}");

    let mut frozen = Vec::new();
    while frozen.len() < 3 {
        let (term, leader) = processes.agreed().await;
        let other = leader % 3 + 1;
        processes.until_taken(other, Instant::now()).await;
        // It may have been deposed since, by one who did not know of its election.
        if processes.agreed().await != (term, leader) {
            continue;
        }
        processes.freeze(leader);
        let since = Instant::now();
        let took = processes.until_taken(other, since).await;
        processes.thaw(leader);
        frozen.push(took);
        // Its connections stand: two probes are waited for (225 ms each).
        let after = processes.agreed().await;
        let before = (term, leader);
        assert!(took > Duration::from_millis(400), "before two timeouts: {took:?}, {before:?}, then {after:?}");
        assert!(after.0 > term);
    }
    frozen.sort();
    println!("leader frozen: next write after {frozen:?}");
    // Without probes each takes at least a lease of 600 ms and an election timeout of 300 ms.
    assert!(frozen[1] < Duration::from_millis(850), "probes did not help: {frozen:?}");
}
