//! Clusters in one process: real stores in temporary directories, real consensus, and a network in memory that can cut,
//! freeze and kill.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{
    BlockingPool, ClockReport, Committed, Config, Consensus, LogPosition, Parts, PeerCaller, PeerService, Restored,
    ServiceError, SnapshotEncoder, StartId, StateMachine, Timekeeper,
};
use lockkeeper_store::Store;

use crate::memory_network::{DataDirectory, MemoryNetwork, until};

/// What the machine below cannot read: applying it ends the test.
pub(crate) const UNREADABLE: &[u8] = b"unreadable";

/// Raises the feature level to the second one.
pub(crate) const RAISE: &[u8] = b"raise";

/// A machine that remembers what it applied.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) entries: Mutex<Vec<(u64, Vec<u8>)>>,
    pub(crate) restored: AtomicU64,
    pub(crate) blanks: AtomicU64,
}

impl Recorder {
    pub(crate) fn payloads(&self) -> Vec<Vec<u8>> {
        self.entries.lock().unwrap().iter().map(|(_, payload)| payload.clone()).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    pub(crate) fn has(&self, payload: &[u8]) -> bool {
        self.entries.lock().unwrap().iter().any(|(_, had)| had == payload)
    }
}

impl StateMachine for Recorder {
    fn apply(&self, entries: &[Committed]) {
        let mut all = self.entries.lock().unwrap();
        for entry in entries {
            assert!(entry.clock_ms > 0, "stamped by the leader");
            assert!(!entry.payload.starts_with(UNREADABLE), "an entry that cannot be read is in the log");
            assert!(all.last().is_none_or(|(index, _)| *index < entry.position.index), "in order, once each");
            all.push((entry.position.index, entry.payload.to_vec()));
        }
    }

    fn apply_empty(&self, _: LogPosition) {
        self.blanks.fetch_add(1, Ordering::SeqCst);
    }

    fn snapshot(&self) -> SnapshotEncoder {
        let copy = self.entries.lock().unwrap().clone();
        Box::new(move |to: &mut dyn Write| {
            to.write_all(&(copy.len() as u64).to_le_bytes())?;
            for (index, payload) in copy {
                to.write_all(&index.to_le_bytes())?;
                to.write_all(&(payload.len() as u64).to_le_bytes())?;
                to.write_all(&payload)?;
            }
            Ok(())
        })
    }

    fn check(&self, proposer: Option<u64>, payload: &[u8]) -> Result<(), String> {
        if payload.starts_with(UNREADABLE) {
            return Err(format!("not an entry of this machine (proposer {proposer:?})"));
        }
        Ok(())
    }

    fn raises_level_to(&self, payload: &[u8]) -> Option<u32> {
        payload.starts_with(RAISE).then_some(2)
    }

    fn restore(self: Arc<Self>, _: LogPosition, from: &mut dyn Read) -> Result<Restored, String> {
        fn number(from: &mut dyn Read) -> io::Result<u64> {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        }
        let mut read = || -> io::Result<Vec<(u64, Vec<u8>)>> {
            let mut entries = Vec::new();
            for _ in 0..number(from)? {
                let index = number(from)?;
                let mut payload = vec![0; number(from)? as usize];
                from.read_exact(&mut payload)?;
                entries.push((index, payload));
            }
            Ok(entries)
        };
        let entries = read().map_err(|error| error.to_string())?;
        Ok(Box::new(move || {
            *self.entries.lock().unwrap() = entries;
            self.restored.fetch_add(1, Ordering::SeqCst);
        }))
    }
}

pub(crate) struct Echo;

#[async_trait]
impl PeerService for Echo {
    async fn serve(&self, from: u64, body: Bytes) -> Result<Bytes, ServiceError> {
        Ok(Bytes::from(format!("{from}:{}", String::from_utf8_lossy(&body))))
    }
}

pub(crate) struct Member {
    pub(crate) consensus: Consensus,
    pub(crate) machine: Arc<Recorder>,
    pub(crate) store: Store,
    pub(crate) start: StartId,
    pub(crate) fatal: Arc<Mutex<Vec<String>>>,
    /// What the store takes for the free space of the disk.
    pub(crate) free_bytes: Arc<AtomicU64>,
}

pub(crate) struct Cluster {
    pub(crate) net: MemoryNetwork,
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) peers: BTreeMap<u64, String>,
    pub(crate) change: fn(&mut Config),
    dir: tempfile::TempDir,
}

/// Stamps entries with the machine's clock: what a clock shows is the layer above's concern.
pub(crate) struct WallTime;

impl Timekeeper for WallTime {
    fn lead(&self) -> u64 {
        clock_ms()
    }

    fn reading_to_send(&self) -> u64 {
        0
    }

    fn follow(&self, _: u64, _: Duration) {}

    fn report(&self) -> ClockReport {
        ClockReport { wall_ms: clock_ms(), clock_ms: None }
    }

    fn reported(&self, _: u64, _: ClockReport) {}

    fn set_voters(&self, _: BTreeSet<u64>) {}
}

pub(crate) fn clock_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

impl Cluster {
    pub(crate) async fn start(nodes: u64, change: fn(&mut Config)) -> Cluster {
        let mut cluster = Cluster::unformed(change);
        cluster.peers = (1..=nodes).map(|node| (node, format!("memory:{node}"))).collect();
        for node in 1..=nodes {
            cluster.boot(node).await;
        }
        cluster.agreed().await;
        cluster
    }

    /// Without any node yet.
    pub(crate) fn unformed(change: fn(&mut Config)) -> Cluster {
        let (net, dir) = (MemoryNetwork::losing_messages(), tempfile::tempdir().unwrap());
        Cluster { net, members: BTreeMap::new(), peers: BTreeMap::new(), change, dir }
    }

    /// Waits until every running node knows the same leader; gives it.
    pub(crate) async fn agreed(&self) -> u64 {
        until("one view of the leader", || {
            let mut views = self.members.values().map(|member| *member.consensus.leadership().borrow());
            let first = views.next()?;
            let leader = first.leader?;
            views.all(|view| view.leader == Some(leader) && view.term == first.term).then_some(leader)
        })
        .await
    }

    pub(crate) fn directory(&self, node: u64) -> PathBuf {
        self.dir.path().join(format!("node-{node}"))
    }

    pub(crate) async fn boot(&mut self, node: u64) {
        let mut config = Config::new("test", node, self.peers.clone());
        (self.change)(&mut config);
        let fatal: Arc<Mutex<Vec<String>>> = Arc::default();
        let hook = {
            let fatal = fatal.clone();
            Arc::new(move |line: String| fatal.lock().unwrap().push(line))
        };
        let directory = DataDirectory::open(&self.directory(node), node, &self.peers, hook.clone());
        let DataDirectory { store, opened, snapshots, book, start, free_bytes } = directory;
        let machine = Arc::new(Recorder::default());
        let consensus = Consensus::start(Parts {
            config,
            store: Arc::new(store.clone()),
            opened,
            snapshots: Arc::new(snapshots),
            blocking: Arc::new(BlockingPool),
            machine: machine.clone(),
            service: Arc::new(Echo),
            transport: self.net.transport(node, &book),
            memory: book.clone(),
            boot: start.boot,
            time: Arc::new(WallTime),
            fatal: hook,
        })
        .await
        .unwrap();
        self.net.connect(node, consensus.clone(), book);
        self.members.insert(node, Member { consensus, machine, store, start, fatal, free_bytes });
    }

    /// As kill -9 looks to the others: connections break at once, nothing listens any more.
    pub(crate) fn kill(&mut self, node: u64) -> Member {
        self.net.disconnect(node);
        self.members.remove(&node).unwrap()
    }

    /// What is left of a killed process goes away, and its directory is free.
    pub(crate) async fn bury(member: Member) {
        let Member { consensus, store, .. } = member;
        consensus.shutdown().await;
        drop(consensus);
        store.close().unwrap();
    }

    /// The one node that leads and that a majority of the living follow.
    pub(crate) async fn leader(&self) -> u64 {
        self.leader_but(0).await
    }

    pub(crate) async fn leader_but(&self, not: u64) -> u64 {
        until("a leader", || {
            self.members
                .iter()
                .find(|(node, member)| **node != not && member.consensus.leadership().borrow().leading)
                .map(|(node, _)| *node)
        })
        .await
    }

    pub(crate) fn at(&self, node: u64) -> &Member {
        &self.members[&node]
    }

    /// A node as another one authenticates it.
    pub(crate) fn caller(&self, node: u64) -> PeerCaller {
        PeerCaller { node, start: self.at(node).start, expects: None }
    }

    pub(crate) fn followers(&self, leader: u64) -> Vec<u64> {
        self.members.keys().copied().filter(|node| *node != leader).collect()
    }

    pub(crate) async fn stop(self) {
        for (_, member) in self.members {
            member.consensus.shutdown().await;
        }
    }
}

/// Proposes at a node until it is taken; gives how long that took.
pub(crate) async fn propose_until_taken(consensus: &Consensus, payload: &[u8]) -> Duration {
    let started = Instant::now();
    loop {
        if consensus.propose(Bytes::copy_from_slice(payload)).await.is_ok() {
            return started.elapsed();
        }
        assert!(started.elapsed() < Duration::from_secs(20), "never taken");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
