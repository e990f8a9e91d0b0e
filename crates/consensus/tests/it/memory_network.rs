//! The parts that the clusters of two crates' tests share: a network in memory that can cut, hold back answers and
//! kill; a node's data directory; and waiting for a condition. The tests of `node` include this file.
#![allow(dead_code, reason = "each of the test programs uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{
    Consensus, PeerAuth, PeerBook, PeerIdentity, PeerKind, PeerMemory, StartId, Transport, TransportError,
};
use lockkeeper_store::{FreeSpace, Identity, Opened, Options, SnapshotStore, Store};
use tokio_util::sync::CancellationToken;

#[derive(Default)]
struct Wires {
    running: BTreeMap<u64, (Consensus, Arc<PeerBook>, CancellationToken)>,
    /// Nodes whose messages, in and out, do not get through.
    cut: BTreeSet<u64>,
    /// A message over a cut is lost. Otherwise it arrives once the cut has healed, if the caller still waits: as with
    /// TCP, which sends again.
    loses: bool,
    /// Calls answered by the receiver whose answers are held back: the receiver dies before they are out.
    swallow: BTreeSet<(u64, &'static str)>,
    /// Answers that a node gives to calls of a kind instead of its own.
    instead: BTreeMap<(u64, &'static str), Bytes>,
}

#[derive(Clone, Default)]
pub(crate) struct MemoryNetwork(Arc<Mutex<Wires>>);

struct MemoryTransport {
    net: MemoryNetwork,
    from: u64,
    book: Arc<PeerBook>,
}

impl MemoryNetwork {
    pub(crate) fn losing_messages() -> Self {
        Self(Arc::new(Mutex::new(Wires { loses: true, ..Wires::default() })))
    }

    pub(crate) fn transport(&self, from: u64, book: &Arc<PeerBook>) -> Arc<dyn Transport> {
        Arc::new(MemoryTransport { net: self.clone(), from, book: book.clone() })
    }

    /// From now on the node answers calls.
    pub(crate) fn connect(&self, node: u64, consensus: Consensus, book: Arc<PeerBook>) {
        self.0.lock().unwrap().running.insert(node, (consensus, book, CancellationToken::new()));
    }

    /// As kill -9 looks to the others: connections break at once, nothing listens any more.
    pub(crate) fn disconnect(&self, node: u64) {
        if let Some((_, _, life)) = self.0.lock().unwrap().running.remove(&node) {
            life.cancel();
        }
    }

    pub(crate) fn cut(&self, node: u64) {
        self.0.lock().unwrap().cut.insert(node);
    }

    pub(crate) fn heal(&self, node: u64) {
        self.0.lock().unwrap().cut.remove(&node);
    }

    pub(crate) fn cut_nodes(&self) -> BTreeSet<u64> {
        self.0.lock().unwrap().cut.clone()
    }

    /// From now on `node` answers calls of this kind with these bytes; without any, with its own again.
    pub(crate) fn answer_with(&self, node: u64, kind: PeerKind, answer: Option<Bytes>) {
        let instead = &mut self.0.lock().unwrap().instead;
        match answer {
            Some(answer) => drop(instead.insert((node, kind.as_str()), answer)),
            None => drop(instead.remove(&(node, kind.as_str()))),
        }
    }

    /// From now on `node` acts on calls of this kind but its answers never leave.
    pub(crate) fn swallow_answers(&self, node: u64, kind: PeerKind) {
        self.0.lock().unwrap().swallow.insert((node, kind.as_str()));
    }

    /// Returns when a message passes between the two.
    async fn passage(&self, a: u64, b: u64) {
        loop {
            let loses = {
                let wires = self.0.lock().unwrap();
                if !wires.cut.contains(&a) && !wires.cut.contains(&b) {
                    return;
                }
                wires.loses
            };
            if loses {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    async fn call(&self, to: u64, kind: PeerKind, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        let MemoryTransport { net, from, book } = self;
        let exchange = async {
            net.passage(*from, to).await;
            let (target, target_book, life, own_life) = {
                let wires = net.0.lock().unwrap();
                let Some((_, _, own_life)) = wires.running.get(from) else { return Err(TransportError::Refused) };
                let Some((target, target_book, life)) = wires.running.get(&to) else {
                    return Err(TransportError::Refused);
                };
                (target.clone(), target_book.clone(), life.clone(), own_life.clone())
            };
            // Between processes these are headers.
            let identity = book.identity();
            let (sender, directory) = (identity.node.to_string(), format!("{:x}", identity.directory));
            let known = book.peer(to);
            let expected = known.map(|known| format!("{:x}", known.directory));
            let start = |start: StartId| format!("{}.{:x}", start.number, start.boot);
            let (own_start, to_start) = (start(identity.start), known.and_then(|known| known.start).map(start));
            let auth = PeerAuth::new(target_book);
            let admitted = auth.authenticate(|name| match name {
                "lockkeeper-cluster" => Some(identity.cluster.as_str()),
                "lockkeeper-from" => Some(sender.as_str()),
                "lockkeeper-directory" => Some(directory.as_str()),
                "lockkeeper-to-directory" => expected.as_deref(),
                "lockkeeper-start" => Some(own_start.as_str()),
                "lockkeeper-to-start" => to_start.as_deref(),
                _ => None,
            });
            let caller = admitted
                .await
                .map_err(|no| TransportError::Rejected { code: no.code.to_owned(), detail: no.detail })?;
            let serving = tokio::spawn(async move { target.serve(caller, kind, body).await });
            let answer = tokio::select! {
                () = life.cancelled() => return Err(TransportError::Reset),
                () = own_life.cancelled() => return Err(TransportError::Reset),
                answer = serving => answer.map_err(|_| TransportError::Reset)?,
            };
            let swallowed = net.0.lock().unwrap().swallow.contains(&(to, kind.as_str()));
            net.passage(*from, to).await;
            if swallowed {
                life.cancelled().await;
                return Err(TransportError::Reset);
            }
            let instead = net.0.lock().unwrap().instead.get(&(to, kind.as_str())).cloned();
            if let Some(instead) = instead {
                return Ok(instead);
            }
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

/// What a node keeps in its directory, opened for one start.
pub(crate) struct DataDirectory {
    pub(crate) store: Store,
    pub(crate) opened: Opened,
    pub(crate) snapshots: SnapshotStore,
    pub(crate) book: Arc<PeerBook>,
    pub(crate) start: StartId,
    /// What the store takes for the free space of the disk.
    pub(crate) free_bytes: Arc<AtomicU64>,
}

impl DataDirectory {
    pub(crate) fn open(
        directory: &Path,
        node: u64,
        peers: &BTreeMap<u64, String>,
        fatal: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Self {
        let mut options = Options::new(Arc::new(move |error| fatal(format!("store: {error}"))));
        let free_bytes = Arc::new(AtomicU64::new(1 << 40));
        options.free_space = FreeSpace::Given(free_bytes.clone());
        let identity = Identity { cluster: "test".into(), node, directory: next_number().into() };
        let (store, opened) = Store::open(directory, &identity, options.clone()).unwrap();
        let snapshots = SnapshotStore::open(directory, store.bounds(), &options).unwrap();
        let start = StartId { number: opened.incarnation, boot: next_number() };
        let identity = PeerIdentity { cluster: "test".into(), node, directory: opened.directory, start };
        let book = PeerBook::open(directory, identity, peers).unwrap();
        Self { store, opened, snapshots, book, start, free_bytes }
    }
}

/// A number that this process has not given out before.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::SeqCst)
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
