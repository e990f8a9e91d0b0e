//! Replies keep the order of the requests, and no change is visible before the event that announces it.

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::request::{AddWatchRequest, PathVersion, PathWatch, SetDataRequest, WatchesRequest};
use lockkeeper_zookeeper::{ErrorCode, EventType, MultiOp, MultiResult, OpCode, Reply, Request};

use super::client::{Client, Received, create, get, set};
use super::{cluster, cluster_with};
use crate::harness::eventually;

const EPHEMERAL_SEQUENTIAL: i32 = 3;
const CONTAINER: i32 = 4;

#[tokio::test]
async fn reads_and_writes_of_one_connection_are_answered_in_order() {
    let cluster = cluster(3).await;
    for node in 0..3 {
        let mut client = Client::open(cluster.zookeeper(node)).await;
        let _ = client.create("/n", 0).await;
        let mut out = BytesMut::new();
        let mut asked = Vec::new();
        for round in 0..200 {
            let data = format!("{node}-{round}");
            asked.push((client.encode(&set("/n", data.as_bytes()), &mut out), None));
            asked.push((client.encode(&get("/n", false), &mut out), Some(data)));
        }
        client.write(&out).await;
        let mut zxid = 0;
        for (xid, data) in asked {
            let Some(Received::Answer { xid: of, zxid: at, answer }) = client.receive().await else {
                panic!("an answer")
            };
            assert_eq!(of, xid);
            assert!(at >= zxid, "zxids do not go back");
            zxid = at;
            if let Some(data) = data {
                let Reply::Data { data: read, .. } = Reply::decode(OpCode::GetData, answer.unwrap()).unwrap() else {
                    panic!("data")
                };
                assert_eq!(read.unwrap(), data.as_bytes(), "a read sees the write before it, and none after it");
            }
        }
    }
}

#[tokio::test]
async fn an_event_comes_before_any_reply_that_reveals_the_change() {
    let cluster = cluster(3).await;
    let mut writer = Client::open(cluster.zookeeper(0)).await;
    let mut reader = Client::open(cluster.zookeeper(1)).await;
    writer.create("/w", 0).await.unwrap();
    let reply = reader.ask(Request::Sync("/w".into())).await.unwrap();
    assert_eq!(reply, Reply::Path("/w".into()));
    for round in 0..100 {
        let data = round.to_string();
        reader.ask(get("/w", true)).await.unwrap();
        writer.set("/w", data.as_bytes()).await.unwrap();
        // Reads without a pause until the change shows: the event must have come by then.
        loop {
            let seen = reader.data("/w").await.unwrap();
            if seen == data.as_bytes() {
                assert_eq!(reader.events.pop_front(), Some((EventType::NodeDataChanged, "/w".into())));
                break;
            }
            assert!(reader.events.is_empty(), "an event of a change that is not there yet");
        }
        assert!(reader.events.is_empty(), "one event for one watch");
    }
}

#[tokio::test]
async fn a_client_gets_events_of_its_own_changes_before_the_replies() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.exists("/own", true).await.unwrap_err();
    client.create("/own", 0).await.unwrap();
    assert_eq!(client.events.pop_front(), Some((EventType::NodeCreated, "/own".into())));
    client.ask(Request::GetChildren(PathWatch { path: "/own".into(), watch: true })).await.unwrap();
    client.create("/own/child", 0).await.unwrap();
    assert_eq!(client.events.pop_front(), Some((EventType::NodeChildrenChanged, "/own".into())));
    client.create("/own/other", 0).await.unwrap();
    assert!(client.events.is_empty(), "it has fired");
}

#[tokio::test]
async fn persistent_watches_fire_until_they_are_removed() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/p", 0).await.unwrap();
    let recursive = Request::AddWatch(AddWatchRequest { path: "/p".into(), mode: 1 });
    assert_eq!(client.ask(recursive).await, Ok(Reply::Error(0)));
    client.create("/p/a", 0).await.unwrap();
    client.set("/p/a", b"1").await.unwrap();
    client.delete("/p/a").await.unwrap();
    let received: Vec<_> = client.events.drain(..).collect();
    let expected = [EventType::NodeCreated, EventType::NodeDataChanged, EventType::NodeDeleted];
    assert_eq!(received, expected.map(|kind| (kind, "/p/a".to_owned())), "never a list");
    let watch = |watcher_type| WatchesRequest { path: "/p".into(), watcher_type };
    assert_eq!(client.ask(Request::CheckWatches(watch(5))).await, Ok(Reply::Empty));
    assert_eq!(client.ask(Request::CheckWatches(watch(4))).await, Err(ErrorCode::NoWatcher));
    assert_eq!(client.ask(Request::RemoveWatches(watch(5))).await, Ok(Reply::Empty));
    assert_eq!(client.ask(Request::RemoveWatches(watch(5))).await, Err(ErrorCode::NoWatcher));
    client.create("/p/b", 0).await.unwrap();
    assert!(client.events.is_empty());
}

#[tokio::test]
async fn a_multi_is_one_change_and_a_failed_one_changes_nothing() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/m", 0).await.unwrap();
    let set = |data: &'static [u8], version| {
        MultiOp::SetData(SetDataRequest { path: "/m".into(), data: Some(Bytes::from_static(data)), version })
    };
    let check = |version| MultiOp::Check(PathVersion { path: "/m".into(), version });
    let Ok(Reply::Multi(done)) = client.ask(Request::Multi(vec![set(b"1", 0), check(1), set(b"2", 1)])).await else {
        panic!("the multi succeeds: each operation sees those before it")
    };
    let stats: Vec<_> = done
        .iter()
        .filter_map(|result| match result {
            MultiResult::SetData(stat) => Some((stat.version, stat.mzxid)),
            _ => None,
        })
        .collect();
    assert_eq!(stats.len(), 2);
    assert_eq!(stats[0].1, stats[1].1, "one zxid");
    let Ok(Reply::Multi(failed)) = client.ask(Request::Multi(vec![set(b"3", 2), check(9), set(b"4", 3)])).await else {
        panic!("the failure is among the results")
    };
    assert_eq!(failed, MultiResult::of_failure(3, 1, ErrorCode::BadVersion));
    assert_eq!(client.data("/m").await.unwrap(), "2");
}

#[tokio::test]
async fn sync_is_a_barrier() {
    let cluster = cluster(3).await;
    let mut writer = Client::open(cluster.zookeeper(0)).await;
    writer.create("/s", 0).await.unwrap();
    let mut readers = [Client::open(cluster.zookeeper(1)).await, Client::open(cluster.zookeeper(2)).await];
    for round in 0..100 {
        let data = round.to_string();
        writer.set("/s", data.as_bytes()).await.unwrap();
        for reader in &mut readers {
            reader.ask(Request::Sync("/s".into())).await.unwrap();
            assert_eq!(reader.data("/s").await.unwrap(), data.as_bytes());
        }
    }
}

#[tokio::test]
async fn linearizable_reads_need_no_barrier() {
    let cluster = cluster_with(3, |config| config.zookeeper.linearizable_reads = true).await;
    let mut writer = Client::open(cluster.zookeeper(0)).await;
    writer.create("/l", 0).await.unwrap();
    let mut readers = [Client::open(cluster.zookeeper(1)).await, Client::open(cluster.zookeeper(2)).await];
    for round in 0..200 {
        let data = round.to_string();
        writer.set("/l", data.as_bytes()).await.unwrap();
        for reader in &mut readers {
            assert_eq!(reader.data("/l").await.unwrap(), data.as_bytes());
        }
    }
}

#[tokio::test]
async fn what_lies_below_is_counted_and_listed() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    for path in ["/c", "/c/a", "/c/b", "/c/a/x"] {
        client.create(path, 0).await.unwrap();
    }
    let count = |path: &str| Request::GetAllChildrenNumber(path.into());
    assert_eq!(client.ask(count("/c")).await, Ok(Reply::ChildrenNumber(3)));
    assert_eq!(client.ask(count("/none")).await, Err(ErrorCode::NoNode));
    let Ok(Reply::ChildrenNumber(all)) = client.ask(count("/")).await else { panic!("a number") };
    assert!(all >= 6, "{all}: four, and ZooKeeper's own");
    assert_eq!(client.children("/c").await.unwrap(), ["a", "b"]);
    assert_eq!(client.children("/c/b").await.unwrap(), [""; 0]);
    assert!(client.children("/").await.unwrap().contains(&"zookeeper".to_owned()));
}

/// A request behind many others waits for another command of its node, but no client waits for it: the next request
/// may release a lock.
#[tokio::test]
async fn no_request_waits_behind_a_delayed_one() {
    const NEEDED: &str = "lockkeeper_delayed_requests_total{ended=\"when_needed\"} ";
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    for path in ["/locks", "/locks/crowd"] {
        let _ = client.create(path, CONTAINER).await;
    }
    for _ in 0..60 {
        client.create("/locks/crowd/_c_1-lock-", EPHEMERAL_SEQUENTIAL).await.unwrap();
    }
    assert!(!cluster.get("/metrics").await.text.contains(NEEDED));
    // On a machine that stalls between the two, the first may be due before the second is read.
    eventually("the second to be read in time", async || {
        let mut both = BytesMut::new();
        let last = client.encode(&create("/locks/crowd/_c_1-lock-", b"", EPHEMERAL_SEQUENTIAL), &mut both);
        let read = client.encode(&get("/locks/crowd", false), &mut both);
        client.write(&both).await;
        client.answer(last, OpCode::Create).await.unwrap();
        client.answer(read, OpCode::GetData).await.unwrap();
        cluster.get("/metrics").await.text.contains(NEEDED)
    })
    .await;
}
