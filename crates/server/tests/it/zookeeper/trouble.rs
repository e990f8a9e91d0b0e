//! Sessions, watches and the order of replies survive stopped nodes and changes of leader.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::BytesMut;
use lockkeeper_zookeeper::request::SetWatchesRequest;
use lockkeeper_zookeeper::{ConnectRequest, EventType, OpCode, Reply, Request};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;

use super::client::{Client, get, set};
use super::{cluster, cluster_with, with_addresses};
use crate::harness::eventually;
use crate::peer_link::PeerLink;

#[tokio::test]
async fn watches_are_set_again_elsewhere_without_a_gap() {
    let mut cluster = cluster(3).await;
    let mut watcher = Client::open(cluster.zookeeper(2)).await;
    let mut writer = Client::open(cluster.zookeeper(0)).await;
    for path in ["/set", "/gone", "/still", "/parent"] {
        writer.create(path, 0).await.unwrap();
    }
    watcher.ask(Request::Sync("/".into())).await.unwrap();
    for path in ["/set", "/gone", "/still"] {
        watcher.ask(get(path, true)).await.unwrap();
    }
    watcher.exists("/new", true).await.unwrap_err();
    watcher.exists("/never", true).await.unwrap_err();
    let seen = watcher.zxid;
    cluster.nodes.remove(2).stop().await.unwrap();
    assert!(watcher.is_closed().await);
    // Changes that the watcher misses.
    writer.set("/set", b"2").await.unwrap();
    writer.delete("/gone").await.unwrap();
    writer.create("/new", 0).await.unwrap();
    writer.create("/parent/child", 0).await.unwrap();
    let mut watcher = Client::resume(cluster.zookeeper(1), &watcher.session, seen).await.unwrap();
    watcher.ask(Request::Sync("/".into())).await.unwrap();
    let again = SetWatchesRequest {
        relative_zxid: seen,
        data_watches: ["/set", "/gone", "/still"].map(Into::into).to_vec(),
        exist_watches: ["/new", "/never"].map(Into::into).to_vec(),
        child_watches: vec!["/parent".into()],
    };
    assert_eq!(watcher.ask(Request::SetWatches(again)).await, Ok(Reply::Empty));
    let mut missed: Vec<(EventType, String)> = watcher.events.drain(..).collect();
    missed.sort_by(|a, b| a.1.cmp(&b.1));
    let expected = [
        (EventType::NodeDeleted, "/gone"),
        (EventType::NodeCreated, "/new"),
        (EventType::NodeChildrenChanged, "/parent"),
        (EventType::NodeDataChanged, "/set"),
    ];
    assert_eq!(missed, expected.map(|(kind, path)| (kind, path.to_owned())));
    writer.set("/still", b"2").await.unwrap();
    assert_eq!(watcher.event().await, (EventType::NodeDataChanged, "/still".into()));
    writer.create("/never", 0).await.unwrap();
    assert_eq!(watcher.event().await, (EventType::NodeCreated, "/never".into()));
}

/// A replica that received a snapshot does not know the events it skipped, so it disconnects its clients.
#[tokio::test]
async fn no_watch_is_missed_when_a_node_skips_ahead() {
    let ways = [PeerLink::new().await, PeerLink::new().await, PeerLink::new().await];
    let cluster = cluster_with(3, |config| {
        (config.storage.snapshot_every_entries, config.storage.keep_entries) = (100, 0);
        // Without pings, the sessions must outlast the test.
        config.zookeeper.tick_ms = 10_000;
        ways.iter().zip(1..).for_each(|(way, node)| way.lead_to(node, config));
    })
    .await;
    let leader = usize::try_from(cluster.status().await.leader.unwrap()).unwrap() - 1;
    let behind = (leader + 1) % 3;
    let mut writer = Client::connect(cluster.zookeeper(leader), &ConnectRequest::new_session(200_000)).await.unwrap();
    for path in ["/set", "/gone", "/still", "/else"] {
        writer.create(path, 0).await.unwrap();
    }
    let mut watcher = Client::connect(cluster.zookeeper(behind), &ConnectRequest::new_session(200_000)).await.unwrap();
    watcher.ask(Request::Sync("/".into())).await.unwrap();
    let watched = ["/set", "/gone", "/still"];
    for path in watched {
        watcher.ask(get(path, true)).await.unwrap();
    }
    let seen = watcher.zxid;
    ways[behind].shut().await;
    let index = async |node: usize, which: &str| -> u64 {
        let view: serde_json::Value = cluster.nodes[node].get("/v1/cluster").await.json();
        view[which].as_u64().unwrap_or_default()
    };
    let last = index(behind, "last_log_index").await;
    // Replication under way to the node keeps the log for a while; these entries change no watched node.
    eventually("the log to be cut", async || {
        for _ in 0..20 {
            writer.set("/else", b"").await.unwrap();
        }
        index(leader, "purged_index").await > last
    })
    .await;
    writer.set("/set", b"2").await.unwrap();
    writer.delete("/gone").await.unwrap();
    ways[behind].open();
    assert_eq!(watcher.receive().await, None, "no event is sent, since the first one is unknown");
    // It may skip ahead more than once.
    eventually("the node to catch up", async || cluster.nodes[behind].get("/v1/nodes/set").await.status.is_success())
        .await;
    let mut watcher = Client::resume(cluster.zookeeper(behind), &watcher.session, seen).await.unwrap();
    watcher.ask(Request::Sync("/".into())).await.unwrap();
    let again = SetWatchesRequest {
        relative_zxid: seen,
        data_watches: watched.map(Into::into).to_vec(),
        exist_watches: Vec::new(),
        child_watches: Vec::new(),
    };
    assert_eq!(watcher.ask(Request::SetWatches(again)).await, Ok(Reply::Empty));
    let mut missed: Vec<(EventType, String)> = watcher.events.drain(..).collect();
    missed.sort_by(|a, b| a.1.cmp(&b.1));
    assert_eq!(missed, [(EventType::NodeDeleted, "/gone".into()), (EventType::NodeDataChanged, "/set".into())]);
    writer.set("/still", b"2").await.unwrap();
    assert_eq!(watcher.event().await, (EventType::NodeDataChanged, "/still".into()));
}

#[tokio::test]
async fn a_membership_change_fires_the_watch_on_the_configuration() {
    let cluster = with_addresses().await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let asked = client.ask(get("/zookeeper/config", true)).await.unwrap();
    let Reply::Data { data, .. } = asked else { panic!("data") };
    let shown = String::from_utf8(data.unwrap().to_vec()).unwrap();
    assert_eq!(shown.matches(":participant;127.0.0.1:2000").count(), 3, "{shown}");
    let removed = cluster.call(reqwest::Method::DELETE, "/v1/cluster/members/3", None, None).await;
    assert!(removed.status.is_success(), "{}", removed.text);
    assert_eq!(client.event().await, (EventType::NodeDataChanged, "/zookeeper/config".into()));
    let shown = client.data("/zookeeper/config").await.unwrap();
    assert_eq!(std::str::from_utf8(&shown).unwrap().matches(":participant;").count(), 2);
}

/// Counts of requests sent and answered in a pipeline.
#[derive(Default)]
struct Pipeline {
    sent: AtomicUsize,
    answered: AtomicUsize,
    enough: AtomicBool,
    /// `sent` is final. The last requests are written after this is set.
    ended: AtomicBool,
}

impl Pipeline {
    fn open(&self) -> usize {
        self.sent.load(Ordering::SeqCst).saturating_sub(self.answered.load(Ordering::SeqCst))
    }

    /// Sends sets without a pause until `enough`.
    async fn write(&self, mut writing: OwnedWriteHalf) -> OwnedWriteHalf {
        const PIECE: usize = 50;
        loop {
            let ended = self.enough.load(Ordering::SeqCst);
            let from = self.sent.load(Ordering::SeqCst);
            let mut out = BytesMut::new();
            for number in from..from + PIECE {
                set("/n", number.to_string().as_bytes()).encode(xid_of(number), &mut out);
            }
            self.sent.store(from + PIECE, Ordering::SeqCst);
            self.ended.store(ended, Ordering::SeqCst);
            writing.write_all(&out).await.unwrap();
            if ended {
                return writing;
            }
        }
    }

    /// Reads all replies, which must come in order, each change applied once.
    async fn read(&self, client: &mut Client) {
        loop {
            let number = self.answered.load(Ordering::SeqCst);
            if self.ended.load(Ordering::SeqCst) && number == self.sent.load(Ordering::SeqCst) {
                return;
            }
            let Reply::Stat(stat) = client.answer(xid_of(number), OpCode::SetData).await.unwrap() else {
                panic!("a stat")
            };
            assert_eq!(usize::try_from(stat.version).unwrap(), number + 1, "each once, in order");
            self.answered.store(number + 1, Ordering::SeqCst);
        }
    }
}

fn xid_of(number: usize) -> i32 {
    i32::try_from(number).unwrap() + 100
}

#[tokio::test]
async fn a_leader_change_in_mid_pipeline_is_a_pause() {
    let cluster = cluster(3).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/n", 0).await.unwrap();
    let session = client.session.clone();
    let (mut client, writing) = client.split();
    let pipeline = Pipeline::default();
    let change_leaders = async {
        for _ in 0..3 {
            let before = pipeline.answered.load(Ordering::SeqCst);
            eventually("the pipeline to flow", async || {
                pipeline.answered.load(Ordering::SeqCst) > before && pipeline.open() > 0
            })
            .await;
            hand_over(&cluster).await;
        }
        pipeline.enough.store(true, Ordering::SeqCst);
    };
    let (writing, (), ()) = tokio::join!(pipeline.write(writing), pipeline.read(&mut client), change_leaders);
    drop((client, writing));
    let mut client = Client::resume(cluster.zookeeper(1), &session, 0).await.unwrap();
    client.ask(Request::Sync("/n".into())).await.unwrap();
    let last = pipeline.sent.load(Ordering::SeqCst) - 1;
    assert_eq!(client.data("/n").await.unwrap(), last.to_string());
}

/// Hands leadership to the next node.
async fn hand_over(cluster: &crate::harness::Cluster) {
    let leader = cluster.status().await.leader.unwrap();
    let next = leader % 3 + 1;
    let at = usize::try_from(leader - 1).unwrap();
    cluster.nodes[at].post("/v1/cluster/transfer", None, json!({"to": next})).await;
    eventually("another leader", async || cluster.status().await.leader.is_some_and(|now| now != leader)).await;
}

/// A node whose queue holds one change refuses most of what four clients send at once. The clients never notice.
#[tokio::test]
async fn at_an_overloaded_node_changes_wait_in_order() {
    let cluster = cluster_with(1, |config| config.limits.queued_changes = 1).await;
    let mut crowd = Vec::new();
    for number in 0..4 {
        let mut client = Client::open(cluster.zookeeper(0)).await;
        let path = client.create(&format!("/crowded-{number}"), 0).await.unwrap();
        crowd.push((client, path));
    }
    let crowd: Vec<_> =
        crowd.into_iter().map(|(client, path)| tokio::spawn(write_read_and_close(client, path))).collect();
    for client in crowd {
        client.await.unwrap();
    }
    let figures = cluster.get("/metrics").await.text;
    let held_back = figures.lines().find_map(|line| line.strip_prefix("lockkeeper_zookeeper_held_back_total "));
    assert!(held_back.is_some_and(|count| count != "0"), "the node was never overloaded");
}

/// Sends bursts of changes with a read after each, then closes the session, all in one write. Each read must see
/// exactly the changes before it.
async fn write_read_and_close(mut client: Client, path: String) {
    const CHANGES: i32 = 8;
    let mut out = BytesMut::new();
    let mut asked = Vec::new();
    for version in 1..=4 * CHANGES {
        asked.push((client.encode(&set(&path, format!("{version}").as_bytes()), &mut out), None));
        if version % CHANGES == 0 {
            asked.push((client.encode(&get(&path, false), &mut out), Some(version)));
        }
    }
    let closed = client.encode(&Request::CloseSession, &mut out);
    client.write(&out).await;
    for (xid, read) in asked {
        let Some(version) = read else {
            client.answer(xid, OpCode::SetData).await.unwrap();
            continue;
        };
        let Reply::Data { data, stat } = client.answer(xid, OpCode::GetData).await.unwrap() else { panic!("data") };
        assert_eq!((data.unwrap(), stat.version), (version.to_string().into(), version));
    }
    client.answer(closed, OpCode::CloseSession).await.unwrap();
}
