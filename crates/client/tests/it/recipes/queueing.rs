//! The queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_client::api::Data;
use lockkeeper_client::api::nodes::{Kind, TxnOp};
use lockkeeper_client::recipes::{Queue, RecipeError};
use lockkeeper_client::{Error, Transport};
use tokio::sync::mpsc;

use super::support::{Process, client, cluster, is_lost, names, plain_session, session, soon, until};
use crate::wire::Wire;

fn text(data: &[u8]) -> String {
    String::from_utf8(data.to_vec()).unwrap()
}

#[tokio::test]
async fn first_in_first_out_and_what_is_given_back_goes_next() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let queue = session.queue("/queues/a").unwrap();
    assert!(queue.try_take().await.unwrap().is_none());
    assert!(queue.is_empty().await.unwrap());
    for item in ["one", "two", "three"] {
        queue.put(item.as_bytes()).await.unwrap();
    }
    assert_eq!(queue.len().await.unwrap(), 3);
    let one = queue.take().await.unwrap();
    let two = queue.take().await.unwrap();
    assert_eq!((text(one.data()), one.attempt(), text(two.data())), ("one".into(), 1, "two".into()));
    one.give_back().await.unwrap();
    let again = queue.take().await.unwrap();
    assert_eq!((text(again.data()), again.attempt()), ("one".into(), 2));
    again.ack().await.unwrap();
    // Dropping gives back too, in the background.
    drop(two);
    until("two is back", async || {
        matches!(queue.try_take().await.unwrap(), Some(taken) if text(taken.data()) == "two" && taken.attempt() >= 2)
    })
    .await;
    assert!(queue.put(&vec![0; 256 * 1024 + 1]).await.is_err());
    // The largest item, and of bytes that are no text.
    let large = vec![0xff; 256 * 1024];
    let name = queue.put(&large).await.unwrap();
    until("the large item", async || {
        let taken = queue.take().await.unwrap();
        let is_it = taken.name() == name && taken.data() == large;
        taken.ack().await.unwrap();
        is_it
    })
    .await;
}

#[tokio::test]
async fn a_stale_taker_cannot_acknowledge() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let queue = session.queue("/queues/b").unwrap();
    let name = queue.put(b"item").await.unwrap();
    let first = queue.take().await.unwrap();
    // Somebody removes the claim by hand, and another takes the item.
    session.client().delete(&format!("/queues/b/claims/{name}"), None).await.unwrap();
    let second = queue.take().await.unwrap();
    assert_eq!(second.name(), name);
    let stale = first.ack().await;
    assert!(matches!(stale, Err(RecipeError::Stale { .. })), "{stale:?}");

    // What is written together with the acknowledgement is written once, or not at all.
    let create = |path: &str| TxnOp::Create {
        path: path.into(),
        data: Data::from_bytes(b"result"),
        kind: Kind::Persistent,
        ttl_ms: None,
        sequential: false,
        acl: None,
    };
    let refused = second.ack_with(vec![create("/queues/nowhere/result")]).await;
    assert!(refused.is_err());
    let third = soon("it is given back", queue.take()).await.unwrap();
    assert_eq!(third.attempt(), 3);
    third.ack_with(vec![create("/queues/b-result")]).await.unwrap();
    assert!(queue.is_empty().await.unwrap());
    assert!(names(session.client(), "/queues").await.contains(&"b-result".to_owned()));
    assert!(names(session.client(), "/queues/b/claims").await.is_empty());
}

#[tokio::test]
async fn takers_wait_in_line_and_leave_it_when_dropped() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let (queue, other) = (one.queue("/queues/c").unwrap(), two.queue("/queues/c").unwrap());
    let looking = client(&cluster);
    let in_line = async || {
        let lock = looking.lock(&queue.line()).await.unwrap();
        lock.holders.len() + lock.queue.len()
    };
    let taking = queue.clone();
    let first = tokio::spawn(async move { taking.take().await });
    until("the first stands in line", async || in_line().await == 1).await;
    let taking = other.clone();
    let second = tokio::spawn(async move { taking.take().await });
    until("the second stands in line", async || in_line().await == 2).await;
    other.put(b"one").await.unwrap();
    let got = soon("the first in line", first).await.unwrap().unwrap();
    assert_eq!(got.data(), b"one");
    assert!(!second.is_finished());
    // Who gives up leaves the line, and what it would have been given is for others.
    second.abort();
    until("nobody stands in line", async || in_line().await == 0).await;
    other.put(b"two").await.unwrap();
    let next = soon("what the dropped one did not take", queue.take()).await.unwrap();
    assert_eq!(next.data(), b"two");
    assert!(queue.take_timeout(Duration::from_millis(50)).await.unwrap().is_none());
    // A wait ends with the session.
    let taking = queue.clone();
    let waiting = tokio::spawn(async move { taking.take().await });
    until("it stands in line", async || in_line().await == 1).await;
    one.close().await.unwrap();
    assert!(is_lost(&soon("the end", waiting).await.unwrap()));
}

#[tokio::test]
async fn a_long_queue_is_read_page_by_page() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let queue = session.queue("/queues/d").unwrap();
    let puts = (0..40).map(|_| async {
        for _ in 0..5 {
            queue.put(b"x").await.unwrap();
        }
    });
    futures::future::join_all(puts).await;
    // More are in work than a page holds, so the free ones begin on the next page.
    let mut held = Vec::new();
    for _ in 0..70 {
        held.push(queue.take().await.unwrap());
    }
    let names: Vec<&str> = held.iter().map(|delivery| delivery.name()).collect();
    assert!(names.is_sorted(), "out of order");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 70);
    let next = queue.take().await.unwrap();
    assert!(next.name() > *names.last().unwrap());
}

#[tokio::test]
async fn four_takers_of_whom_some_die_acknowledge_each_item_once() {
    const ITEMS: usize = 40;
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let queue = session.queue("/queues/e").unwrap();
    let acknowledged: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let (holds, mut held) = mpsc::unbounded_channel();
    let begin = async |timeout_s, holds_after| {
        let process = Process::start(&cluster, Duration::from_secs(timeout_s)).await;
        let queue = process.session.queue("/queues/e").unwrap();
        process.begin(work(queue, acknowledged.clone(), holds_after, holds.clone()));
        process
    };
    // They die with an item in their hands, after some items; the others work on.
    let dying = [begin(5, Some(3)).await, begin(5, Some(3)).await];
    for item in 0..ITEMS {
        queue.put(format!("item {item}").as_bytes()).await.unwrap();
    }
    for _ in &dying {
        soon("an item in the hands of one that dies", held.recv()).await.unwrap();
    }
    let _living = [begin(10, None).await, begin(10, None).await];
    for process in dying {
        process.die(());
    }
    let done = async || acknowledged.lock().unwrap().len();
    until("all items are done", async || done().await == ITEMS).await;
    until("nothing is left", async || queue.is_empty().await.unwrap()).await;
    let acknowledged = acknowledged.lock().unwrap().clone();
    assert!(acknowledged.values().all(|times| *times == 1), "{acknowledged:?}");
    until("no claim is left", async || names(session.client(), "/queues/e/claims").await.is_empty()).await;
}

/// Takes and acknowledges; from some item on it only holds what it took.
async fn work(
    queue: Queue,
    acknowledged: Arc<Mutex<BTreeMap<String, u32>>>,
    holds_after: Option<usize>,
    holds: mpsc::UnboundedSender<()>,
) {
    let mut done = 0;
    while let Ok(delivery) = queue.take().await {
        if holds_after == Some(done) {
            holds.send(()).unwrap();
            std::future::pending::<()>().await;
        }
        let item = text(delivery.data());
        delivery.ack().await.unwrap();
        *acknowledged.lock().unwrap().entry(item).or_default() += 1;
        done += 1;
    }
}

#[tokio::test]
async fn dropping_a_take_anywhere_loses_nothing() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let queue = session.queue("/queues/f").unwrap();
    queue.put(b"precious").await.unwrap();
    for micros in (0..8_000).step_by(250) {
        drop(tokio::time::timeout(Duration::from_micros(micros), queue.take()).await);
    }
    let taken = soon("the item", queue.take()).await.unwrap();
    assert_eq!(taken.data(), b"precious");
    taken.ack().await.unwrap();
    until("no claim is left", async || names(session.client(), "/queues/f/claims").await.is_empty()).await;
}

/// Its taker has given up, and a look would not have seen it yet.
#[tokio::test]
async fn a_claim_that_comes_late_does_not_keep_the_item() {
    let cluster = cluster().await;
    let (session, wire) = (session(&cluster).await, Wire::to(&cluster.endpoints()[0]).await);
    let late = wire.session(Transport::Http).await;
    let (queue, taking) = (session.queue("/queues/g").unwrap(), late.queue("/queues/g").unwrap());
    let name = queue.put(b"item").await.unwrap();
    wire.hold("POST /v1/txn");
    let answer = taking.try_take().await;
    assert!(matches!(answer, Err(RecipeError::Client(Error::UnknownOutcome(_)))), "{answer:?}");
    wire.mend();
    let item = format!("/queues/g/items/{name}");
    let version = async || session.client().node(&item, &Default::default()).await.unwrap().stat.version;
    let claims = async || names(session.client(), "/queues/g/claims").await;
    until("it is decided and given back", async || version().await == 1 && claims().await.is_empty()).await;
    soon("the late claim", wire.let_go()).await;
    assert!(claims().await.is_empty() && !late.left().is_zero());
    let taken = soon("the item", queue.take()).await.unwrap();
    assert_eq!((taken.data(), taken.attempt()), (&b"item"[..], 2));
    taken.ack().await.unwrap();
}
