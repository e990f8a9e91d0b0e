//! Clusters in one process: real nodes, consensus and stores, over a network in memory that can cut and kill.

pub(crate) mod counters;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{
    BlockingPool, Config, PeerAuth, PeerBook, PeerIdentity, PeerKind, PeerMemory, StartId, Transport, TransportError,
};
use lockkeeper_core::{
    AclEntry, FencingToken, LockMode, LockName, NodeKind, NodePath, Op, Reply, RequestId, RequestKey, SessionId, State,
};
use lockkeeper_node::{
    Acquire, Acquired, Caller, Consistency, Credential, Grant, Node, NodeConfig, NodeError, Parts, SystemClock,
};
use lockkeeper_store::{FreeSpace, Identity, Options, SnapshotStore, Store};
use rand::SeedableRng;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
struct Wires {
    running: BTreeMap<u64, (Node, Arc<PeerBook>, CancellationToken)>,
    /// Nodes whose messages, in and out, do not get through.
    cut: BTreeSet<u64>,
}

#[derive(Clone, Default)]
pub(crate) struct Net(Arc<Mutex<Wires>>);

struct Wire {
    net: Net,
    from: u64,
    book: Arc<PeerBook>,
}

impl Net {
    fn is_cut(&self, a: u64, b: u64) -> bool {
        let wires = self.0.lock().unwrap();
        wires.cut.contains(&a) || wires.cut.contains(&b)
    }

    /// Nothing passes between the two while they are cut. What was sent arrives when the cut has healed, if the caller still waits: as
    /// with TCP, which sends again.
    async fn passage(&self, a: u64, b: u64) {
        while self.is_cut(a, b) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn cut(&self, node: u64) {
        self.0.lock().unwrap().cut.insert(node);
    }

    pub(crate) fn heal(&self, node: u64) {
        self.0.lock().unwrap().cut.remove(&node);
    }
}

#[async_trait]
impl Transport for Wire {
    async fn call(&self, to: u64, kind: PeerKind, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        let Wire { net, from, book } = self;
        let exchange = async {
            net.passage(*from, to).await;
            let (target, target_book, life, own_life) = {
                let wires = net.0.lock().unwrap();
                let Some((_, _, own_life)) = wires.running.get(from) else { return Err(TransportError::Refused) };
                let Some((target, book, life)) = wires.running.get(&to) else { return Err(TransportError::Refused) };
                (target.clone(), book.clone(), life.clone(), own_life.clone())
            };
            let identity = book.identity();
            let (sender, directory) = (identity.node.to_string(), format!("{:x}", identity.directory));
            let known = book.peer(to);
            let expected = known.map(|known| format!("{:x}", known.directory));
            let start = |start: StartId| format!("{}.{:x}", start.number, start.boot);
            let (own_start, to_start) = (start(identity.start), known.and_then(|known| known.start).map(start));
            let admitted = PeerAuth::new(target_book).authenticate(|name| match name {
                "lockkeeper-cluster" => Some(identity.cluster.as_str()),
                "lockkeeper-from" => Some(sender.as_str()),
                "lockkeeper-directory" => Some(directory.as_str()),
                "lockkeeper-to-directory" => expected.as_deref(),
                "lockkeeper-start" => Some(own_start.as_str()),
                "lockkeeper-to-start" => to_start.as_deref(),
                _ => None,
            });
            let caller =
                admitted.map_err(|no| TransportError::Rejected { code: no.code.to_owned(), detail: no.detail })?;
            let serving = tokio::spawn(async move { target.serve_peer(caller, kind, body).await });
            let answer = tokio::select! {
                () = life.cancelled() => return Err(TransportError::Reset),
                () = own_life.cancelled() => return Err(TransportError::Reset),
                answer = serving => answer.map_err(|_| TransportError::Reset)?,
            };
            net.passage(*from, to).await;
            answer.map_err(|error| TransportError::Rejected { code: error.code, detail: error.detail })
        };
        tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(TransportError::TimedOut))
    }

    fn learn(&self, node: u64, address: &str) {
        self.book.learn(node, address);
    }

    fn forget(&self, node: u64) {
        self.book.forget(node);
    }
}

pub(crate) struct Member {
    pub(crate) node: Node,
    store: Store,
}

pub(crate) struct Cluster {
    pub(crate) net: Net,
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) fatal: Arc<Mutex<Vec<String>>>,
    peers: BTreeMap<u64, String>,
    change: fn(&mut NodeConfig),
    dir: tempfile::TempDir,
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

impl Cluster {
    pub(crate) async fn of_three() -> Cluster {
        Self::start(3, |_| {}).await
    }

    pub(crate) async fn start(nodes: u64, change: fn(&mut NodeConfig)) -> Cluster {
        let peers = (1..=nodes).map(|node| (node, format!("memory:{node}"))).collect();
        let dir = tempfile::tempdir().unwrap();
        let (net, members, fatal) = (Net::default(), BTreeMap::new(), Arc::default());
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
        let store_hook = hook.clone();
        let mut options = Options::new(Arc::new(move |error| store_hook(format!("store: {error}"))));
        options.free_space = FreeSpace::Given(Arc::new(AtomicU64::new(1 << 40)));
        let identity = Identity { cluster: "test".into(), node: id, directory: next_number().into() };
        let directory = self.directory(id);
        let (store, opened) = Store::open(&directory, &identity, options.clone()).unwrap();
        let snapshots = SnapshotStore::open(&directory, store.bounds(), &options).unwrap();
        let boot = next_number();
        let identity = PeerIdentity {
            cluster: "test".into(),
            node: id,
            directory: opened.directory,
            start: StartId { number: opened.incarnation, boot },
        };
        let book = PeerBook::open(&directory, identity, &self.peers).unwrap();
        let node = Node::start(Parts {
            config,
            store: Arc::new(store.clone()),
            opened,
            snapshots: Arc::new(snapshots),
            blocking: Arc::new(BlockingPool),
            transport: Arc::new(Wire { net: self.net.clone(), from: id, book: book.clone() }),
            memory: book.clone(),
            boot,
            clock: Arc::new(SystemClock::new()),
            random: Box::new(rand::rngs::StdRng::seed_from_u64(next_number())),
            fatal: hook,
        })
        .await
        .unwrap();
        self.net.0.lock().unwrap().running.insert(id, (node.clone(), book, CancellationToken::new()));
        self.members.insert(id, Member { node, store });
    }

    /// As kill -9 looks to the others: connections break at once, nothing listens any more.
    pub(crate) fn kill(&mut self, node: u64) -> Member {
        if let Some((_, _, life)) = self.net.0.lock().unwrap().running.remove(&node) {
            life.cancel();
        }
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
            let cut = self.net.0.lock().unwrap().cut.clone();
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

/// Waits for a condition, not for a time; the bound only ends a test that has failed.
pub(crate) async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
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

pub(crate) fn ask(name: &str, wait_ms: u64) -> Acquire {
    ask_for(&[name], wait_ms)
}

pub(crate) fn ask_for(names: &[&str], wait_ms: u64) -> Acquire {
    let (locks, uuid, wait) = (locks(names), request_id(), Duration::from_millis(wait_ms));
    Acquire { locks, mode: LockMode::Exclusive, delay_ms: 0, uuid, label: "test".into(), wait }
}

pub(crate) fn granted(acquired: Result<lockkeeper_node::At<Acquired>, NodeError>) -> Grant {
    match acquired.unwrap().value {
        Acquired::Held(grant) => grant,
        other => panic!("not held: {other:?}"),
    }
}

pub(crate) async fn release(node: &Node, credential: Credential, name: &str, token: FencingToken) {
    release_all(node, credential, &[name], token).await;
}

pub(crate) async fn release_all(node: &Node, credential: Credential, names: &[&str], token: FencingToken) {
    let op = Op::Release { locks: locks(names), token };
    assert_eq!(node.execute(caller(credential), op).await.unwrap().value, Reply::Released);
}

pub(crate) fn create(at: &str, kind: NodeKind, sequential: bool) -> Op {
    Op::Create { path: path(at), data: [].into(), kind, sequential: sequential.into(), acl: vec![AclEntry::open()] }
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
