//! Watches over the stream.

use std::time::Duration;

use lockkeeper_client::api::{Code, Problem};
use lockkeeper_client::{WatchItem, WatchOptions};
use serde_json::{Value, json};

use super::node::*;

fn changes(id: &Value, zxid: u64, paths: &[&str]) -> Do {
    let changes: Vec<Value> = paths.iter().map(|path| json!({"kind": "created", "path": path})).collect();
    Do::Say(json!({"changes": {"id": id, "zxid": zxid, "changes": changes}}))
}

fn watching(id: &Value, zxid: u64) -> Do {
    Do::Say(json!({"watching": {"id": id, "zxid": zxid}}))
}

#[tokio::test]
async fn a_watch_goes_on_at_another_node_and_gives_each_change_once() {
    let first = Node::start(|event| match event {
        Event::Frame(_, value) if value.get("watch").is_some() => {
            let id = &value["watch"]["id"];
            vec![watching(id, 5), changes(id, 6, &["/a", "/b"]), Do::Cut]
        }
        _ => good(event),
    })
    .await;
    let second = Node::start(|event| match event {
        Event::Frame(_, value) if value.get("watch").is_some() => {
            let id = &value["watch"]["id"];
            vec![
                watching(id, 6),
                changes(id, 6, &["/a", "/b"]),
                changes(id, 8, &["/c"]),
                Do::Say(json!({"bookmark": {"id": id, "zxid": 9}})),
                Do::Say(json!({"watch_ended": {"id": id, "problem": Problem::new(Code::Compacted, "too old")}})),
            ]
        }
        _ => good(event),
    })
    .await;
    let session = open(&[&first.address, &second.address]).await;
    let mut watch = session.client().watch(WatchOptions { recursive: true, ..WatchOptions::new("/") });
    for (zxid, path) in [(6, "/a"), (6, "/b"), (8, "/c")] {
        let Some(Ok(WatchItem::Change(change))) = watch.next().await else { panic!("a change") };
        assert_eq!((change.zxid, change.path.as_str()), (zxid, path));
    }
    assert_eq!(watch.position(), Some(8));
    assert_eq!(watch.next().await.unwrap().unwrap(), WatchItem::Bookmark(9));
    assert_eq!(watch.next().await.unwrap().unwrap_err().code(), Some(Code::Compacted));
    assert!(watch.next().await.is_none());
    assert_eq!(second.frames("watch")[0].1["from"], 6);
    assert_eq!(second.frames("watch")[0].1["recursive"], true);
    assert!(first.seen.borrow().iter().all(|event| !matches!(event, Event::Http(line) if line.contains("watch"))));
}

#[tokio::test]
async fn a_watch_that_nobody_reads_is_ended_on_the_stream() {
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value.get("watch").is_some() => vec![watching(&value["watch"]["id"], 5)],
        _ => good(event),
    })
    .await;
    let session = open(&[&node.address]).await;
    let mut watch = session.client().watch(WatchOptions::new("/a"));
    tokio::select! {
        item = watch.next() => panic!("{item:?}"),
        _ = node.until(|seen| !frames(seen, "watch").is_empty()) => {}
    }
    drop(watch);
    let seen = node.until(|seen| !frames(seen, "unwatch").is_empty()).await;
    assert_eq!(frames(&seen, "unwatch")[0].1, frames(&seen, "watch")[0].1["id"]);
}

#[tokio::test]
async fn a_reader_that_falls_behind_misses_nothing() {
    const MANY: u64 = 3_000;
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value.get("watch").is_some() => {
            let (id, from) = (&value["watch"]["id"], value["watch"]["from"].as_u64().unwrap_or(0));
            let all = (from + 1..=MANY).map(|zxid| changes(id, zxid, &["/a"]));
            std::iter::once(watching(id, from)).chain(all).collect()
        }
        _ => good(event),
    })
    .await;
    let session = open(&[&node.address]).await;
    let mut watch = session.client().watch(WatchOptions::new("/a"));
    let mut last = 0;
    while last < MANY {
        let Some(Ok(WatchItem::Change(change))) = watch.next().await else { panic!("a change after {last}") };
        assert_eq!(change.zxid, last + 1);
        last = change.zxid;
        if last == 1 {
            // By now all of it is there, and more than fits into the queue.
            node.until(|seen| !frames(seen, "unwatch").is_empty()).await;
        }
    }
    assert!(node.frames("watch").len() > 1, "it was taken up again");
}

#[tokio::test]
async fn impatience_ends_a_watch_whose_nodes_are_gone() {
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value.get("watch").is_some() => vec![Do::Cut],
        Event::Upgrade(number) if *number > 1 => vec![Do::Cut],
        _ => good(event),
    })
    .await;
    let session = open(&[&node.address]).await;
    let options = WatchOptions { patience: Some(Duration::from_millis(300)), ..WatchOptions::new("/a") };
    let error = session.client().watch(options).next().await.unwrap().unwrap_err();
    assert!(matches!(error, lockkeeper_client::Error::Unreachable { .. }), "{error}");
}
