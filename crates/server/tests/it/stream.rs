//! The session stream: its messages, their order, and what happens when something breaks.

use std::time::{Duration, Instant};

use futures::SinkExt;
use lockkeeper_api::cluster::Transferred;
use lockkeeper_api::locks::Lock;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use uuid::Uuid;

use crate::harness::{Cluster, Running, eventually};
use crate::stream_client::StreamClient;

/// Waits until `count` requests wait for the lock.
async fn waiting(node: &Running, lock: &str, count: u64) {
    eventually("so many wait", async || node.get(&format!("/v1/locks/{lock}")).await.json::<Lock>().waiting == count)
        .await;
}

async fn nobody(node: &Running, lock: &str) {
    eventually("nobody stands in the queue", async || {
        let shown: Lock = node.get(&format!("/v1/locks/{lock}")).await.json();
        shown.holders.is_empty() && shown.queue.is_empty()
    })
    .await;
}

async fn acquire(wire: &mut StreamClient, lock: &str) -> u64 {
    wire.get(json!({ "acquire_lock": { "name": lock } })).await["token"].as_u64().unwrap()
}

async fn release(wire: &mut StreamClient, lock: &str, token: u64) {
    wire.get(json!({ "release_lock": { "name": lock, "body": { "token": token } } })).await;
}

#[tokio::test]
async fn a_stream_carries_a_lock_from_acquire_to_release() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let (mut wire, hello) = StreamClient::greeted(&node, &session.credential).await;
    assert_eq!((&hello["timeout_ms"], &hello["held"]), (&json!(10_000), &json!([])));
    wire.send(json!({ "keepalive": 7 })).await;
    assert_eq!(wire.kind("alive").await, json!({ "number": 7, "timeout_ms": 10_000 }));
    let token = acquire(&mut wire, "orders/42").await;
    let shown = wire.get(json!({ "get_lock": { "name": "orders/42" } })).await;
    assert_eq!(shown["holders"][0]["token"], token);
    release(&mut wire, "orders/42", token).await;
    // Other calls as well.
    let created = wire.get(json!({ "create_node": { "path": "/a", "body": { "data": { "text": "ü" } } } })).await;
    assert_eq!(created["path"], "/a");
    assert_eq!(
        wire.get(json!({ "get_node": { "path": "/a", "query": { "children": true } } })).await["data"]["text"],
        "ü"
    );
    assert_eq!(wire.code(json!({ "get_node": { "path": "/b" } })).await, "no_node");
    assert_eq!(wire.code(json!({ "get_nothing": {} })).await, "bad_request");
    assert_eq!(wire.code(json!({ "acquire_lock": { "name": "a//b" } })).await, "bad_path");
    assert_eq!(
        wire.code(json!({ "acquire_lock": { "name": "a", "body": { "mode": "greedy" } } })).await,
        "bad_request"
    );
    assert_eq!(wire.code(json!({ "release_lock": { "name": "a", "body": { "token": 1 } } })).await, "not_held");
    let figures = node.get("/metrics").await.text;
    // All nodes of this process count together.
    for wanted in ["\nlockkeeper_streams ", "lockkeeper_stream_messages_received_total{kind=\"request\"}"] {
        assert!(figures.contains(wanted), "{wanted}");
    }
}

#[tokio::test]
async fn requests_are_begun_in_order_and_a_waiting_one_holds_up_nothing() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let first = wire.ask(json!({ "acquire_lock": { "name": "a" } })).await;
    let waits = wire.ask(json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    let mut ids = Vec::new();
    for number in 0..300 {
        ids.push(wire.ask(json!({ "create_node": { "path": format!("/n{number}") } })).await);
    }
    let mut last = 0;
    for id in ids {
        let answer = wire.answer(id).await;
        let zxid = answer["body"]["zxid"].as_u64().unwrap();
        assert!(zxid > last, "{answer}");
        last = zxid;
    }
    let token = wire.answer(first).await["body"]["token"].as_u64().unwrap();
    release(&mut wire, "a", token).await;
    assert!(wire.answer(waits).await["body"]["token"].as_u64().unwrap() > token);
}

#[tokio::test]
async fn an_event_comes_before_every_answer_that_could_reveal_it() {
    let node = Cluster::start(3).await;
    let session = node.session(10_000).await;
    node.post("/v1/nodes/w", None, json!({})).await;
    let (mut wire, _) = StreamClient::greeted(&node.nodes[1], &session.credential).await;
    wire.send(json!({ "watch": { "id": 5, "path": "/w" } })).await;
    wire.kind("watching").await;
    let writing = async {
        for value in 0..200 {
            let body = json!({ "data": { "text": value.to_string() } });
            node.nodes[0].call(Method::PUT, "/v1/nodes/w", None, Some(body)).await;
        }
    };
    let reading = async {
        let (mut told, mut answers) = (0, 0);
        while told < 200 {
            let id = wire.ask(json!({ "get_node": { "path": "/w" } })).await;
            loop {
                let message = wire.next().await;
                if let Some(changes) = message.get("changes") {
                    assert_eq!(changes["id"], 5);
                    told += changes["changes"].as_array().unwrap().len();
                } else if message["answer"]["id"] == id {
                    let version = message["answer"]["body"]["stat"]["version"].as_u64().unwrap();
                    assert!(told as u64 >= version, "read version {version} before its event, {told}");
                    answers += 1;
                    break;
                }
            }
        }
        answers
    };
    let ((), answers) = tokio::join!(writing, reading);
    assert!(answers > 10, "too few readings to tell: {answers}");
    wire.send(json!({ "unwatch": 5 })).await;
    wire.get(json!({ "set_node": { "path": "/w", "body": { "data": { "text": "unheard" } } } })).await;
    wire.get(json!({ "get_node": { "path": "/w" } })).await;
    assert!(!wire.seen.iter().any(|message| message.get("changes").is_some()), "{:?}", wire.seen);
}

#[tokio::test]
async fn a_watch_is_resumed_by_zxid_at_another_node() {
    let node = Cluster::start(3).await;
    let session = node.session(10_000).await;
    let (mut wire, _) = StreamClient::greeted(&node.nodes[0], &session.credential).await;
    wire.send(json!({ "watch": { "id": 1, "path": "/", "recursive": true } })).await;
    wire.kind("watching").await;
    wire.get(json!({ "create_node": { "path": "/heard" } })).await;
    let heard = wire.kind("changes").await;
    assert_eq!(heard["changes"], json!([{ "kind": "created", "path": "/heard" }]));
    drop(wire);
    for number in 0..20 {
        node.post(&format!("/v1/nodes/missed{number}"), None, json!({})).await;
    }
    let (mut wire, _) = StreamClient::greeted(&node.nodes[1], &session.credential).await;
    wire.send(json!({ "watch": { "id": 1, "path": "/", "recursive": true, "from": heard["zxid"] } })).await;
    assert_eq!(wire.kind("watching").await, json!({ "id": 1, "zxid": heard["zxid"] }));
    for number in 0..20 {
        let changes = wire.kind("changes").await;
        assert_eq!(changes["changes"][0]["path"], format!("/missed{number}"));
    }
}

#[tokio::test]
async fn a_watch_that_cannot_be_resumed_is_told_so() {
    let node = Cluster::start_with(1, |config| config.limits.watch_history_events = 4).await;
    let session = node.session(10_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    for number in 0..20 {
        wire.get(json!({ "create_node": { "path": format!("/n{number}") } })).await;
    }
    wire.send(json!({ "watch": { "id": 1, "path": "/", "recursive": true, "from": 1 } })).await;
    let ended = wire.kind("watch_ended").await;
    assert_eq!((&ended["id"], &ended["problem"]["code"]), (&json!(1), &json!("compacted")));
    let oldest = ended["problem"]["oldest_zxid"].as_u64().unwrap();
    wire.send(json!({ "watch": { "id": 1, "path": "/", "recursive": true, "from": oldest } })).await;
    wire.kind("watching").await;
    wire.send(json!({ "watch": { "id": 2, "path": "nowhere" } })).await;
    assert_eq!(wire.kind("watch_ended").await["problem"]["code"], "bad_path");
}

#[tokio::test]
async fn what_is_cancelled_leaves_the_queue() {
    let node = Cluster::start(1).await;
    let (holder, waiter) = (node.session(10_000).await, node.session(10_000).await);
    let (mut holds, _) = StreamClient::greeted(&node, &holder.credential).await;
    let (mut waits, _) = StreamClient::greeted(&node, &waiter.credential).await;
    let token = acquire(&mut holds, "a").await;
    let id = waits.ask(json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    waiting(&node, "a", 1).await;
    waits.send(json!({ "cancel": id })).await;
    let answer = waits.answer(id).await;
    assert_eq!((&answer["status"], &answer["body"]["code"]), (&json!(499), &json!("cancelled")));
    // At once: the answer came after the decision.
    assert_eq!(node.get("/v1/locks/a").await.json::<Lock>().waiting, 0);
    release(&mut holds, "a", token).await;
    nobody(&node, "a").await;
    // An id that is not open, and a request of another kind.
    waits.send(json!({ "cancel": 999 })).await;
    let id = waits.ask(json!({ "create_node": { "path": "/a" } })).await;
    waits.send(json!({ "cancel": id })).await;
    assert_eq!(waits.answer(id).await["status"], 201);
}

/// With and without a request id, cancelled before and after the request has entered the queue or holds.
#[tokio::test]
async fn nothing_is_held_by_what_is_cancelled_at_once() {
    let node = Cluster::start(3).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node.nodes[1], &session.credential).await;
    let mut cancelled = 0;
    for turn in 0..40_u64 {
        let request_id = Uuid::new_v4().to_string();
        let name = (turn % 2 == 0).then_some(request_id.as_str());
        let id = wire.ask_as(name, json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
        for _ in 0..turn {
            tokio::task::yield_now().await;
        }
        wire.send(json!({ "cancel": id })).await;
        let answer = wire.answer(id).await;
        match answer["status"].as_u64() {
            Some(499) => cancelled += 1,
            _ => release(&mut wire, "a", answer["body"]["token"].as_u64().unwrap_or_else(|| panic!("{answer}"))).await,
        }
        let shown = wire.get(json!({ "get_lock": { "name": "a" } })).await;
        assert_eq!((&shown["holders"], &shown["queue"]), (&json!([]), &json!([])), "turn {turn}");
    }
    assert!(cancelled > 0, "all of them were answered before");
}

#[tokio::test]
async fn a_cancel_that_nobody_can_decide_is_not_confirmed() {
    let mut node = Cluster::start(3).await;
    let (holder, waiter) = (node.session(60_000).await, node.session(60_000).await);
    let (mut holds, _) = StreamClient::greeted(&node, &holder.credential).await;
    let (mut waits, _) = StreamClient::greeted(&node, &waiter.credential).await;
    acquire(&mut holds, "a").await;
    let id = waits.ask(json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    waiting(&node, "a", 1).await;
    while node.nodes.len() > 1 {
        node.nodes.pop().unwrap().stop().await.unwrap();
    }
    waits.send(json!({ "cancel": id })).await;
    let answer = waits.answer(id).await;
    assert_eq!((&answer["status"], &answer["body"]["code"]), (&json!(504), &json!("unknown_outcome")));
}

/// A holder, a waiter on a stream of its own, and a waiter behind that.
struct Queue {
    holder: StreamClient,
    token: u64,
    broken: StreamClient,
    credential: String,
    request_id: String,
    behind: StreamClient,
    behind_id: u64,
}

async fn queue(node: &Cluster, timeout_ms: u32) -> Queue {
    let credential = async || node.session(timeout_ms).await.credential;
    let (mut holder, _) = StreamClient::greeted(&node.nodes[0], &node.session(60_000).await.credential).await;
    let token = acquire(&mut holder, "a").await;
    let mine = credential().await;
    let (mut broken, _) = StreamClient::greeted(&node.nodes[0], &mine).await;
    let request_id = Uuid::new_v4().to_string();
    broken.ask_as(Some(&request_id), json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    waiting(node, "a", 1).await;
    let (mut behind, _) = StreamClient::greeted(&node.nodes[0], &node.session(60_000).await.credential).await;
    let behind_id = behind.ask(json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    waiting(node, "a", 2).await;
    Queue { holder, token, broken, credential: mine, request_id, behind, behind_id }
}

#[tokio::test]
async fn a_broken_connection_keeps_its_place_for_one_who_asks_again_elsewhere() {
    let node = Cluster::start(3).await;
    let mut queue = queue(&node, 10_000).await;
    drop(queue.broken);
    let (mut again, _) = StreamClient::greeted(&node.nodes[1], &queue.credential).await;
    let ask = json!({ "wait_ms": 50_000 });
    let id = again.ask_as(Some(&queue.request_id), json!({ "acquire_lock": { "name": "a", "body": ask } })).await;
    again.get(json!({ "get_lock": { "name": "a" } })).await;
    release(&mut queue.holder, "a", queue.token).await;
    let answer = again.answer(id).await;
    let token = answer["body"]["token"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    // It stays the holder although the first node was about to withdraw the request.
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    let shown: Lock = node.get("/v1/locks/a").await.json();
    assert_eq!((shown.holders[0].token, shown.waiting), (token, 1));
    release(&mut again, "a", token).await;
    let next = queue.behind.answer(queue.behind_id).await["body"]["token"].as_u64().unwrap();
    assert!(next > token);
    release(&mut queue.behind, "a", next).await;
    nobody(&node, "a").await;
}

#[tokio::test]
async fn a_broken_connection_that_nobody_comes_back_for_leaves_no_orphan() {
    let node = Cluster::start(1).await;
    // Waits in a session that outlives the test without keepalives.
    let mut first = queue(&node, 60_000).await;
    drop(first.broken);
    waiting(&node, "a", 1).await;
    release(&mut first.holder, "a", first.token).await;
    let token = first.behind.answer(first.behind_id).await["body"]["token"].as_u64().unwrap();
    release(&mut first.behind, "a", token).await;
    nobody(&node, "a").await;
    // Granted after the client left: released, although the session lives.
    let mut second = queue(&node, 1_000).await;
    drop(second.broken);
    release(&mut second.holder, "a", second.token).await;
    let alive = async {
        loop {
            let (id, _) = second.credential.split_once('.').unwrap();
            let path = format!("/v1/sessions/{id}/keepalive");
            assert!(node.post(&path, Some(&second.credential), json!({})).await.status.is_success());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let answer = tokio::select! {
        () = alive => Value::Null,
        answer = second.behind.answer(second.behind_id) => answer,
    };
    release(&mut second.behind, "a", answer["body"]["token"].as_u64().unwrap()).await;
    nobody(&node, "a").await;
}

#[tokio::test]
async fn a_stream_that_is_closed_by_its_client_takes_its_waiting_requests_with_it() {
    let node = Cluster::start(1).await;
    let mut queue = queue(&node, 60_000).await;
    queue.broken.socket.close(Some(normal())).await.unwrap();
    waiting(&node, "a", 1).await;
    release(&mut queue.holder, "a", queue.token).await;
    assert_eq!(queue.behind.answer(queue.behind_id).await["status"], 200);
}

fn normal() -> tokio_tungstenite::tungstenite::protocol::CloseFrame {
    tokio_tungstenite::tungstenite::protocol::CloseFrame { code: 1000.into(), reason: "".into() }
}

#[tokio::test]
async fn the_loss_of_a_lock_is_told_before_the_answer_that_reveals_it() {
    let node = Cluster::start(3).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node.nodes[0], &session.credential).await;
    let (one, two) = (acquire(&mut wire, "x/one").await, acquire(&mut wire, "two").await);
    let broken = node.nodes[2].call(Method::DELETE, &format!("/v1/locks/x/one/holders/{one}"), None, None).await;
    assert!(broken.status.is_success());
    wire.get(json!({ "get_lock": { "name": "x/one" } })).await;
    let lost = wire.seen.iter().find_map(|message| message.get("lock_lost")).expect("told before the answer").clone();
    assert_eq!((&lost["lock"], &lost["token"]), (&json!("x/one"), &json!(one)));
    // A release is no loss; after a failed release the stream still reports the loss.
    let three = acquire(&mut wire, "three").await;
    release(&mut wire, "three", three).await;
    let body = json!({ "token": two, "also": ["three"] });
    assert_eq!(wire.code(json!({ "release_lock": { "name": "two", "body": body } })).await, "not_held");
    drop(wire);

    let (mut wire, hello) = StreamClient::greeted(&node.nodes[1], &session.credential).await;
    assert_eq!(hello["held"], json!([{ "lock": "two", "token": two }]), "what is held is said at the head of a stream");
    let path =
        wire.get(json!({ "get_lock": { "name": "two" } })).await["holders"][0]["path"].as_str().unwrap().to_owned();
    let deleted = node.nodes[2].call(Method::DELETE, &format!("/v1/nodes{path}"), None, None).await;
    assert!(deleted.status.is_success(), "{}", deleted.text);
    assert_eq!(wire.kind("lock_lost").await["token"], two);
}

#[tokio::test]
async fn the_loss_of_a_lock_comes_after_the_changes_up_to_it() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    wire.send(json!({ "watch": { "id": 1, "path": "/locks", "recursive": true } })).await;
    wire.kind("watching").await;
    for _ in 0..20 {
        let token = acquire(&mut wire, "a").await;
        node.call(Method::DELETE, &format!("/v1/locks/a/holders/{token}"), None, None).await;
        let lost = wire.kind("lock_lost").await;
        // The lock's node was deleted in the same transaction.
        assert!(wire.seen.iter().any(|message| message["changes"]["zxid"] == lost["zxid"]), "{lost}: {:?}", wire.seen);
        wire.seen.clear();
    }
}

#[tokio::test]
async fn a_release_that_failed_leaves_the_lock_listened_for() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let token = acquire(&mut wire, "two").await;
    let body = json!({ "token": token, "also": ["three"] });
    assert_eq!(wire.code(json!({ "release_lock": { "name": "two", "body": body } })).await, "not_held");
    node.call(Method::DELETE, &format!("/v1/locks/two/holders/{token}"), None, None).await;
    assert_eq!(wire.kind("lock_lost").await["token"], token);
}

#[tokio::test]
async fn several_locks_and_a_downgrade_are_listened_for() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let all = wire.get(json!({ "acquire_lock": { "name": "b", "body": { "also": ["c", "a"] } } })).await;
    assert_eq!((&all["lock"], &all["also"]), (&json!("b"), &json!(["a", "c"])));
    let token = all["token"].as_u64().unwrap();
    let written = wire.get(json!({ "acquire_lock": { "name": "w", "body": { "mode": "write" } } })).await;
    let reader = wire.get(json!({ "downgrade_lock": { "name": "w", "body": { "token": written["token"] } } })).await;
    assert_eq!(reader["token"], written["token"]);
    assert_ne!(reader["path"], written["path"]);
    for (lock, token) in [("c", token), ("w", written["token"].as_u64().unwrap())] {
        let broken = node.call(Method::DELETE, &format!("/v1/locks/{lock}/holders/{token}"), None, None).await;
        assert!(broken.status.is_success(), "{}", broken.text);
        let lost = wire.kind("lock_lost").await;
        assert_eq!((&lost["lock"], &lost["token"]), (&json!(lock), &json!(token)));
    }
    assert!(!wire.seen.iter().any(|message| message.get("lock_lost").is_some()), "{:?}", wire.seen);
}

#[tokio::test]
async fn a_stream_names_the_leader_and_each_new_one_once() {
    let cluster = Cluster::start(3).await;
    let address = |leader: u64| json!(cluster.nodes[usize::try_from(leader).unwrap() - 1].client.to_string());
    let first = cluster.status().await.leader.unwrap();
    let session = cluster.session(20_000).await;
    assert_eq!(json!(session.leader), address(first));
    let (mut wire, hello) = StreamClient::greeted(&cluster, &session.credential).await;
    assert_eq!(hello["leader"], address(first));
    wire.send(json!({ "keepalive": 1 })).await;
    assert_eq!(wire.kind("alive").await, json!({ "number": 1, "timeout_ms": 20_000 }));

    let moved: Transferred = cluster.post("/v1/cluster/transfer", None, json!({})).await.json();
    assert_ne!(moved.leader, first);
    let mut number = 1;
    // Until its node hears of the new leader.
    let named = loop {
        number += 1;
        assert!(number < 1_000, "no keepalive has named the new leader");
        wire.send(json!({ "keepalive": number })).await;
        let message =
            wire.find(|message| message.get("alive").is_some() || message.get("not_confirmed").is_some()).await;
        if !message["alive"]["leader"].is_null() {
            break message["alive"]["leader"].clone();
        }
    };
    assert_eq!(named, address(moved.leader));
    wire.send(json!({ "keepalive": number + 1 })).await;
    assert_eq!(wire.kind("alive").await, json!({ "number": number + 1, "timeout_ms": 20_000 }));
}

#[tokio::test]
async fn a_request_that_was_cancelled_keeps_no_place_when_the_client_moves() {
    let node = Cluster::start(1).await;
    let (holder, waiter) = (node.session(20_000).await, node.session(20_000).await);
    let (mut held, _) = StreamClient::greeted(&node, &holder.credential).await;
    acquire(&mut held, "a").await;
    let (mut wire, _) = StreamClient::greeted(&node, &waiter.credential).await;
    let id = wire.ask(json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    waiting(&node, "a", 1).await;
    let away = CloseFrame { code: CloseCode::Away, reason: "elsewhere".into() };
    // The node reads both in one turn.
    wire.socket.feed(Message::text(json!({ "cancel": id }).to_string())).await.unwrap();
    wire.socket.feed(Message::Close(Some(away))).await.unwrap();
    wire.socket.flush().await.unwrap();
    let began = Instant::now();
    waiting(&node, "a", 0).await;
    assert!(began.elapsed() < Duration::from_secs(4), "its place was kept for {:?}", began.elapsed());
}
