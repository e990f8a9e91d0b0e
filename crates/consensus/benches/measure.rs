//! Measures consensus on this machine: three nodes in one process with real stores, over loopback. Proposals
//! per second, read barriers per second. `cargo bench -p lockkeeper-consensus --bench measure [SECONDS]`

#![allow(clippy::unwrap_used)] // it ends where something is not as it must be

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_consensus::{
    BlockingPool, Committed, Config, Consensus, FramedTransport, LogPosition, Parts, PeerAuth, Restored,
    SnapshotEncoder, StateMachine,
};

#[allow(dead_code)] // it uses a part
#[path = "../tests/it/common.rs"]
mod common;
#[path = "../tests/it/listener.rs"]
mod listener;
#[path = "../tests/it/memory_network.rs"]
mod memory_network;

use common::{Echo, WallTime};
use memory_network::{DataDirectory, until};

/// Counts only, so that the machine costs nothing.
struct Counter(AtomicU64);

impl StateMachine for Counter {
    fn apply(&self, entries: &[Committed]) {
        self.0.fetch_add(entries.len() as u64, Ordering::Relaxed);
    }

    fn snapshot(&self) -> SnapshotEncoder {
        let count = self.0.load(Ordering::Relaxed);
        Box::new(move |to: &mut dyn Write| to.write_all(&count.to_le_bytes()))
    }

    fn check(&self, _: Option<u64>, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn restore(self: Arc<Self>, _: LogPosition, from: &mut dyn Read) -> Result<Restored, String> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes).map_err(|error: io::Error| error.to_string())?;
        Ok(Box::new(move || self.0.store(u64::from_le_bytes(bytes), Ordering::Relaxed)))
    }
}

async fn node(
    dir: &std::path::Path,
    node: u64,
    peers: BTreeMap<u64, String>,
    listener: tokio::net::TcpListener,
) -> Consensus {
    let fatal: Arc<dyn Fn(String) + Send + Sync> = Arc::new(|line| panic!("{line}"));
    let directory = DataDirectory::open(&dir.join(node.to_string()), node, &peers, fatal.clone());
    let DataDirectory { store, opened, snapshots, book, start, .. } = directory;
    let consensus = Consensus::start(Parts {
        config: Config::new("test", node, peers),
        store: Arc::new(store),
        opened,
        snapshots: Arc::new(snapshots),
        blocking: Arc::new(BlockingPool),
        machine: Arc::new(Counter(AtomicU64::new(0))),
        service: Arc::new(Echo),
        transport: Arc::new(FramedTransport::new(book.clone()).expect("a transport")),
        memory: book.clone(),
        boot: start.boot,
        time: Arc::new(WallTime),
        fatal,
    })
    .await
    .expect("consensus");
    let serving = consensus.clone();
    tokio::spawn(listener::listen(listener, PeerAuth::new(book), move |caller, kind, body| {
        let consensus = serving.clone();
        async move { consensus.serve(caller, kind, body).await }
    }));
    consensus
}

async fn load<F, Fut>(name: &str, clients: usize, seconds: u64, work: F)
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let work = Arc::new(work);
    let started = Instant::now();
    let end = started + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let work = work.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                while Instant::now() < end {
                    let begin = Instant::now();
                    work().await;
                    took.push(begin.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("a client"));
    }
    took.sort();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1000.0;
    let rate = took.len() as f64 / started.elapsed().as_secs_f64();
    println!(
        "{name:<28} {clients:>4} in flight: {rate:>8.0}/s, p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    let dir = tempfile::tempdir().expect("a directory");
    let mut listeners = BTreeMap::new();
    let mut peers = BTreeMap::new();
    for id in 1..=3 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        peers.insert(id, listener.local_addr().expect("an address").to_string());
        listeners.insert(id, listener);
    }
    let mut nodes = BTreeMap::new();
    for (id, listener) in listeners {
        nodes.insert(id, node(dir.path(), id, peers.clone(), listener).await);
    }
    let leader = until("one leader", || {
        let leader = nodes[&1].leadership().borrow().leader;
        leader.filter(|_| nodes.values().all(|node| node.leadership().borrow().leader == leader))
    })
    .await;
    let follower = if leader == 1 { 2 } else { 1 };
    let payload = Bytes::from(vec![7; 100]);
    for (at, name) in [(leader, "leader"), (follower, "follower")] {
        for clients in [1, 16, 64, 256] {
            let (consensus, payload) = (nodes[&at].clone(), payload.clone());
            load(&format!("proposals at the {name}"), clients, seconds, move || {
                let (consensus, payload) = (consensus.clone(), payload.clone());
                async move {
                    consensus.propose(payload).await.expect("taken");
                }
            })
            .await;
        }
        for clients in [1, 64] {
            let consensus = nodes[&at].clone();
            load(&format!("read barriers at the {name}"), clients, seconds, move || {
                let consensus = consensus.clone();
                async move {
                    consensus.read_barrier().await.expect("confirmed");
                }
            })
            .await;
        }
    }
    println!("term at the end: {}", nodes[&leader].leadership().borrow().term);
    for node in nodes.values() {
        node.shutdown().await;
    }
}
