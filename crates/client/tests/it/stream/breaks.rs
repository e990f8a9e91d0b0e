//! Connections that break, freeze, or never come to be.

use std::time::{Duration, Instant};

use lockkeeper_client::api::nodes::Create;
use lockkeeper_client::api::{Code, locks::Acquire};
use lockkeeper_client::{Error, SessionState};
use serde_json::{Value, json};

use super::node::*;

fn requests(node: &Node) -> Vec<Value> {
    node.frames("request").into_iter().map(|(_, request)| request).collect()
}

/// As [`good`], but for what `other` has something to do about.
fn good_but(other: impl Fn(&Event) -> Option<Vec<Do>> + Send + Sync) -> impl Fn(&Event) -> Vec<Do> + Send + Sync {
    move |event| other(event).unwrap_or_else(|| good(event))
}

/// A node that does this with every request, and serves otherwise.
async fn node_that_meets_requests_with(done: impl Fn(&Value) -> Vec<Do> + Send + Sync + 'static) -> Node {
    let met = good_but(move |event| match event {
        Event::Frame(_, value) => value.get("request").map(&done),
        _ => None,
    });
    Node::start(met).await
}

#[tokio::test]
async fn after_a_break_the_same_requests_go_to_the_next_node_in_the_same_order() {
    // It takes three requests, as if it applied them, and is gone before it answers.
    let first = Node::start(good_but(|event| match event {
        Event::Frame(_, value) if value["request"]["call"]["create_node"]["path"] == "/c" => Some(vec![Do::Cut]),
        Event::Frame(_, value) if value.get("request").is_some() => Some(vec![]),
        _ => None,
    }))
    .await;
    let second = Node::start(good).await;
    let session = open(&[&first.address, &second.address]).await;
    let create = Create::default();
    let client = session.client();
    let (a, b, c) =
        tokio::join!(client.create("/a", &create), client.create("/b", &create), client.create("/c", &create));
    assert!(a.is_ok() && b.is_ok() && c.is_ok(), "{a:?} {b:?} {c:?}");
    let ids = |node: &Node| requests(node).into_iter().map(|r| r["request_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&first).len(), 3);
    assert!(ids(&first).iter().all(Value::is_string));
    assert_eq!(ids(&first), ids(&second), "the same ids, so that nothing is applied twice");
    client.create("/d", &create).await.unwrap();
    let acknowledged = |at: usize| requests(&second)[at]["acknowledge"].clone();
    assert!(
        acknowledged(3).is_null(),
        "the first node may still bring to the cluster what it took: {}",
        acknowledged(3)
    );
    client.create("/e", &create).await.unwrap();
    assert_eq!(acknowledged(4), json!(ids(&second)[3..4]), "the cluster may forget what was sent once and answered");
}

#[tokio::test]
async fn an_id_whose_outcome_was_unknown_at_first_is_not_acknowledged() {
    let node = Node::start(good_but(|event| match event {
        Event::Frame(_, value) if value["request"]["id"] == 1 => {
            Some(vec![refusal(&value["request"]["id"], Code::UnknownOutcome)])
        }
        _ => None,
    }))
    .await;
    let session = open(&[&node.address]).await;
    session.client().create("/a", &Create::default()).await.unwrap();
    session.client().create("/b", &Create::default()).await.unwrap();
    let [first, again, other] = &requests(&node)[..] else { panic!("{:?}", requests(&node)) };
    assert_eq!(first["request_id"], again["request_id"]);
    assert!(other["acknowledge"].is_null(), "what the node put forward may still be carried out: {other}");
    session.client().create("/c", &Create::default()).await.unwrap();
    session.client().create("/d", &Create::default()).await.unwrap();
    let acknowledged: Vec<Value> = requests(&node)[3..].iter().map(|request| request["acknowledge"].clone()).collect();
    assert_eq!(acknowledged[0], json!([other["request_id"]]));
    assert!(!acknowledged[1].to_string().contains(first["request_id"].as_str().unwrap()), "{acknowledged:?}");
}

fn acquire_of(request: &Value) -> Value {
    request["call"]["acquire_lock"]["body"].clone()
}

#[tokio::test]
async fn an_acquire_that_is_sent_again_asks_for_what_is_left_of_its_wait() {
    let first = node_that_meets_requests_with(|_| vec![]).await;
    let second = Node::start(good).await;
    let session = open(&[&first.address, &second.address]).await;
    let client = session.client().clone();
    let acquire = Acquire { wait_ms: 60_000, ..Acquire::default() };
    let waiting = tokio::spawn(async move { client.acquire("a", &acquire).await });
    first.until(|seen| !frames(seen, "request").is_empty()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    first.now(Do::Cut);
    assert_eq!(waiting.await.unwrap().unwrap().token, 50);
    let (before, after) = (acquire_of(&requests(&first)[0]), acquire_of(&requests(&second)[0]));
    assert_eq!(before["request_id"], after["request_id"]);
    assert!(after["wait_ms"].as_u64().unwrap() <= before["wait_ms"].as_u64().unwrap() - 50, "{before} {after}");
}

#[tokio::test]
async fn a_node_that_falls_silent_is_given_up_for_another() {
    let frozen = node_that_meets_requests_with(|_| vec![Do::Freeze]).await;
    let other = Node::start(good).await;
    let session = open(&[&frozen.address, &other.address]).await;
    let began = Instant::now();
    session.client().create("/a", &Create::default()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "after {:?}", began.elapsed());
    assert_eq!(requests(&frozen)[0]["request_id"], requests(&other)[0]["request_id"]);
    assert_eq!(*session.state().borrow(), SessionState::Connected);
}

#[tokio::test]
async fn an_idle_stream_to_a_frozen_node_does_not_cost_the_session() {
    let frozen = Node::start(good_but(|event| match event {
        Event::Frame(_, value) if value.get("keepalive").is_some() => Some(vec![Do::Freeze]),
        Event::Http(line) if line.ends_with("/keepalive") => Some(vec![Do::Freeze]),
        _ => None,
    }))
    .await;
    let other = Node::start(good).await;
    let session = open(&[&frozen.address, &other.address]).await;
    // Over HTTP at first, then over the new stream.
    other.until(|seen| !frames(seen, "keepalive").is_empty()).await;
    assert_eq!(*session.state().borrow(), SessionState::Connected);
}

#[tokio::test]
async fn what_takes_connections_and_says_nothing_costs_little() {
    for upgrade in [Do::Freeze, Do::Cut, Do::Raw("HTTP/1.1 101 Switching Protocols\r\nupgr")] {
        let dumb = Node::start(move |event| match event {
            Event::Upgrade(_) => vec![upgrade.clone()],
            _ => good(event),
        })
        .await;
        let other = Node::start(good).await;
        let session = open(&[&dumb.address, &other.address]).await;
        let began = Instant::now();
        session.client().create("/a", &Create::default()).await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(1_500), "after {:?}", began.elapsed());
        assert_eq!(requests(&other).len(), 1, "over its stream");
    }
}

#[tokio::test]
async fn where_nobody_has_streams_http_serves() {
    for upgrade in [problem(Code::NotFound), Do::Json(200, json!("welcome to nginx"))] {
        let plain = Node::start(move |event| match event {
            Event::Upgrade(_) => vec![upgrade.clone()],
            _ => good(event),
        })
        .await;
        let session = open(&[&plain.address]).await;
        session.client().create("/a", &Create::default()).await.unwrap();
        plain.until(|seen| seen.contains(&Event::Http("POST /v1/nodes/a".into()))).await;
        let guard = session.lock("a").lock().await.unwrap();
        drop(guard);
        plain.until(|seen| seen.contains(&Event::Http("POST /v1/locks/a/release".into()))).await;
    }
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_what_was_sent_is_unknown() {
    let node = Node::start(good_but(|event| match event {
        Event::Frame(..) => Some(vec![Do::Cut]),
        Event::Upgrade(number) if *number > 1 => Some(vec![Do::Cut]),
        _ => None,
    }))
    .await;
    let session = open(&[&node.address]).await;
    let error = session.client().create("/a", &Create::default()).await.unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome(_)), "it was sent once: {error}");
    let error = session.client().create("/a", &Create::default()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { tried } if tried.len() == 1), "this never was: {error}");
}

#[tokio::test]
async fn what_was_sent_is_unknown_though_the_next_node_only_says_that_it_cannot_serve() {
    let first = node_that_meets_requests_with(|_| vec![Do::Cut]).await;
    let second = node_that_meets_requests_with(|request| vec![refusal(&request["id"], Code::NoLeader)]).await;
    let session = open_impatient(&[&first.address, &second.address]).await;
    let error = session.client().create("/a", &Create::default()).await.unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome(_)), "the first node took it: {error}");
}

#[tokio::test]
async fn garbage_is_said_to_be_not_lockkeepers() {
    const BAD_ANSWER: &str = r#"{"answer":{"id":1,"status":500,"body":"<html>"}}"#;
    for garbage in [Do::SayText("<html>"), Do::SayText("{}"), Do::SayText(BAD_ANSWER), Do::Close(1008)] {
        let web = node_that_meets_requests_with(move |_| vec![garbage.clone()]).await;
        let session = open(&[&web.address]).await;
        let error = session.client().create("/a", &Create::default()).await.unwrap_err();
        assert!(matches!(error, Error::NotLockkeeper { .. }), "{error}");
    }
}

#[tokio::test]
async fn where_nodes_speak_another_version_of_the_stream_http_serves() {
    let old = Node::start(|event| match event {
        Event::Upgrade(_) => {
            vec![Do::Say(json!({"hello": {"version": 2, "timeout_ms": TIMEOUT_MS, "zxid": 1, "held": []}}))]
        }
        Event::Frame(..) => vec![],
        Event::Http(_) => good(event),
    })
    .await;
    let session = open(&[&old.address]).await;
    session.client().create("/a", &Create::default()).await.unwrap();
    let guard = session.lock("a").lock().await.unwrap();
    drop(guard);
    old.until(|seen| seen.contains(&Event::Http("POST /v1/locks/a/release".into()))).await;
}

#[tokio::test]
async fn a_node_that_cannot_serve_is_left_for_one_that_can() {
    for code in [Code::NoLeader, Code::ShuttingDown] {
        let unable = node_that_meets_requests_with(move |request| vec![refusal(&request["id"], code)]).await;
        let other = Node::start(good).await;
        let session = open(&[&unable.address, &other.address]).await;
        session.client().create("/a", &Create::default()).await.unwrap();
        assert_eq!(requests(&unable)[0]["request_id"], requests(&other)[0]["request_id"]);
    }
}

#[tokio::test]
async fn a_node_that_cannot_confirm_what_another_can_is_left_though_it_talks() {
    let cut_off = Node::start(|event| match event {
        Event::Frame(_, value) => match (value.get("keepalive"), value.get("request")) {
            (Some(number), _) => {
                let problem = lockkeeper_client::api::Problem::new(Code::NoLeader, "as the test wants it");
                vec![Do::Say(json!({"not_confirmed": {"number": number, "problem": problem}}))]
            }
            // A wait in its queue, which would last.
            (_, Some(_)) => vec![],
            _ => good(event),
        },
        Event::Http(line) if line.ends_with("/keepalive") => vec![problem(Code::NoLeader)],
        _ => good(event),
    })
    .await;
    let other = Node::start(good).await;
    let session = open(&[&cut_off.address, &other.address]).await;
    let acquire = Acquire { wait_ms: 60_000, ..Acquire::default() };
    assert_eq!(session.client().acquire("a", &acquire).await.unwrap().token, 50);
    let request_id = |node| acquire_of(&requests(node)[0])["request_id"].clone();
    assert_eq!(request_id(&cut_off), request_id(&other));
}

#[tokio::test]
async fn a_node_that_sends_its_clients_away_is_left_at_once() {
    for code in [1001, 4002, 4003] {
        let leaving = Node::start(good).await;
        let other = Node::start(good).await;
        let session = open(&[&leaving.address, &other.address]).await;
        session.client().create("/a", &Create::default()).await.unwrap();
        let began = Instant::now();
        leaving.now(Do::Close(code));
        other.until(|seen| seen.contains(&Event::Upgrade(1))).await;
        assert!(began.elapsed() < Duration::from_millis(500), "{code} after {:?}", began.elapsed());
        session.client().create("/b", &Create::default()).await.unwrap();
        assert_eq!(requests(&other).len(), 1);
        assert_eq!(*session.state().borrow(), SessionState::Connected);
    }
}
