//! Clusters in one process: real nodes, consensus and stores, over a network in memory that can cut and kill.

pub(crate) mod counters;
#[path = "../../../../consensus/tests/it/memory_network.rs"]
pub(crate) mod memory_network;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper_consensus::{BlockingPool, Config};
use lockkeeper_core::{
    AclEntry, FencingToken, LockMode, LockName, LockOp, NodeKind, NodeOp, NodePath, Reply, RequestId, RequestKey,
    SessionId, State,
};
use lockkeeper_node::{
    Acquire, Acquired, At, Caller, Consistency, Credential, Grant, Node, NodeConfig, NodeError, Parts, SystemClock,
};
use lockkeeper_store::Store;
use memory_network::{DataDirectory, MemoryNetwork, next_number};
use rand::SeedableRng;
use tokio::task::JoinHandle;

pub(crate) use self::memory_network::until;

pub(crate) struct Member {
    pub(crate) node: Node,
    store: Store,
}

pub(crate) struct Cluster {
    pub(crate) net: MemoryNetwork,
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) fatal: Arc<Mutex<Vec<String>>>,
    peers: BTreeMap<u64, String>,
    pub(crate) change: fn(&mut NodeConfig),
    dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn of_three() -> Cluster {
        Self::start(3, |_| {}).await
    }

    pub(crate) async fn start(nodes: u64, change: fn(&mut NodeConfig)) -> Cluster {
        let peers = (1..=nodes).map(|node| (node, format!("memory:{node}"))).collect();
        let dir = tempfile::tempdir().unwrap();
        let (net, members, fatal) = (MemoryNetwork::default(), BTreeMap::new(), Arc::default());
        let mut cluster = Cluster { net, members, fatal, peers, change, dir };
        for node in 1..=nodes {
            cluster.boot(node).await;
        }
        cluster.leader().await;
        cluster
    }

    pub(crate) fn directory(&self, node: u64) -> PathBuf {
        self.dir.path().join(format!("node-{node}"))
    }

    pub(crate) async fn boot(&mut self, id: u64) {
        let mut config = NodeConfig::new(Config::new("test", id, self.peers.clone()));
        (self.change)(&mut config);
        let fatal = self.fatal.clone();
        let hook = Arc::new(move |line: String| fatal.lock().unwrap().push(line));
        let directory = DataDirectory::open(&self.directory(id), id, &self.peers, hook.clone());
        let DataDirectory { store, opened, snapshots, book, start, .. } = directory;
        let node = Node::start(Parts {
            traces: None,
            config,
            store: Arc::new(store.clone()),
            opened,
            snapshots: Arc::new(snapshots),
            blocking: Arc::new(BlockingPool),
            transport: self.net.transport(id, &book),
            memory: book.clone(),
            boot: start.boot,
            clock: Arc::new(SystemClock::new()),
            random: Box::new(rand::rngs::StdRng::seed_from_u64(next_number())),
            fatal: hook,
        })
        .await
        .unwrap();
        self.net.connect(id, node.consensus().clone(), book);
        self.members.insert(id, Member { node, store });
    }

    /// As kill -9 looks to the others: connections break at once, nothing listens any more.
    pub(crate) fn kill(&mut self, node: u64) -> Member {
        self.net.disconnect(node);
        self.members.remove(&node).unwrap()
    }

    /// What is left of a killed process goes away, and its directory is free.
    pub(crate) async fn bury(member: Member) {
        let Member { node, store } = member;
        node.shutdown().await;
        drop(node);
        store.close().unwrap();
    }

    pub(crate) fn at(&self, node: u64) -> &Node {
        &self.members[&node].node
    }

    /// The leader that every living and connected node knows.
    pub(crate) async fn leader(&self) -> u64 {
        until("one view of the leader", || {
            let cut = self.net.cut_nodes();
            let members = self.members.iter().filter(|(id, _)| !cut.contains(id));
            let mut views = members.map(|(_, member)| *member.node.consensus().leadership().borrow());
            let first = views.next()?;
            let leader = first.leader.filter(|leader| !cut.contains(leader) && self.members.contains_key(leader))?;
            views.all(|view| view.leader == Some(leader) && view.term == first.term).then_some(leader)
        })
        .await
    }

    pub(crate) fn but(&self, node: u64) -> Vec<u64> {
        self.members.keys().copied().filter(|other| *other != node).collect()
    }

    /// Ends the test: every node has the same state, valid, and none has failed.
    pub(crate) async fn finish(self) {
        let started = Instant::now();
        // Changes that nobody waits for any more may still be on their way.
        loop {
            let mut checksums = BTreeMap::<_, BTreeSet<_>>::new();
            for member in self.members.values() {
                member.node.read(Consistency::Linearizable, State::validate).await.unwrap().value.unwrap();
                let (zxid, checksum) = member.node.checksum().await;
                checksums.entry(zxid).or_default().insert(checksum);
            }
            assert!(checksums.values().all(|at_one_zxid| at_one_zxid.len() == 1), "replicas differ: {checksums:?}");
            if checksums.len() == 1 {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "replicas stay apart: {checksums:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(*self.fatal.lock().unwrap(), Vec::<String>::new());
        for (_, member) in self.members {
            member.node.shutdown().await;
        }
    }
}

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap()
}

pub(crate) fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap()
}

pub(crate) fn locks(names: &[&str]) -> Vec<LockName> {
    names.iter().map(|name| lock(name)).collect()
}

pub(crate) fn request_id() -> RequestId {
    RequestId(next_number().into())
}

pub(crate) async fn stale<T: Send>(node: &Node, read: impl FnOnce(&State) -> T + Send) -> T {
    node.read(Consistency::Stale, read).await.unwrap().value
}

pub(crate) async fn session(node: &Node, timeout_ms: u32) -> Credential {
    node.open_session(timeout_ms, "test").await.unwrap().value.credential
}

/// A session at each of three nodes.
pub(crate) async fn sessions(cluster: &Cluster, timeout_ms: u32) -> [Credential; 3] {
    let mut opened = Vec::new();
    for node in 1..=3 {
        opened.push(session(cluster.at(node), timeout_ms).await);
    }
    opened.try_into().expect("three")
}

pub(crate) fn caller(credential: Credential) -> Caller {
    Caller { credential: Some(credential), ..Caller::default() }
}

pub(crate) fn keyed(credential: Credential, id: RequestId) -> Caller {
    Caller {
        credential: Some(credential),
        request: Some(RequestKey { id, acknowledged: Vec::new() }),
        ..Caller::default()
    }
}

pub(crate) fn acquire(name: &str, wait_ms: u64) -> Acquire {
    acquire_all(&[name], wait_ms)
}

pub(crate) fn acquire_all(names: &[&str], wait_ms: u64) -> Acquire {
    let (locks, uuid, wait) = (locks(names), request_id(), Duration::from_millis(wait_ms));
    Acquire { locks, mode: LockMode::Exclusive, reentrant: false, delay_ms: 0, uuid, label: "test".into(), wait }
}

pub(crate) type Acquiring = JoinHandle<Result<At<Acquired>, NodeError>>;

/// Acquires in a task of its own.
pub(crate) fn spawn_acquire(node: &Node, mine: Credential, wanted: Acquire) -> Acquiring {
    let node = node.clone();
    tokio::spawn(async move { node.acquire(caller(mine), wanted).await })
}

/// The same for a request that is granted.
pub(crate) fn spawn_granted(node: &Node, mine: Credential, wanted: Acquire) -> JoinHandle<Grant> {
    let node = node.clone();
    tokio::spawn(async move { granted(node.acquire(caller(mine), wanted).await) })
}

pub(crate) fn granted(acquired: Result<At<Acquired>, NodeError>) -> Grant {
    match acquired.unwrap().value {
        Acquired::Held(grant) => grant,
        other => panic!("not held: {other:?}"),
    }
}

pub(crate) async fn release(node: &Node, credential: Credential, name: &str, token: FencingToken) {
    release_all(node, credential, &[name], token).await;
}

pub(crate) async fn release_all(node: &Node, credential: Credential, names: &[&str], token: FencingToken) {
    let op = LockOp::Release { locks: locks(names), token };
    assert_eq!(node.execute(caller(credential), op).await.unwrap().value, Reply::Released);
}

pub(crate) fn create(at: &str, kind: NodeKind, sequential: bool) -> NodeOp {
    NodeOp::Create { path: path(at), data: [].into(), kind, sequential: sequential.into(), acl: vec![AclEntry::open()] }
}

/// How many requests wait for a lock at these nodes.
pub(crate) fn waiting(cluster: &Cluster) -> usize {
    cluster.members.values().map(|member| member.node.status().waiters).sum()
}

pub(crate) async fn requests(node: &Node, name: &str) -> Vec<(SessionId, FencingToken)> {
    let name = lock(name);
    stale(node, move |state| {
        let view = state.lock(&name);
        view.map(|view| view.requests().map(|r| (r.session.unwrap(), r.token)).collect()).unwrap_or_default()
    })
    .await
}
