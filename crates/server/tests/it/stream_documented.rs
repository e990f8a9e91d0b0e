//! `docs/stream.md` is true: its examples are messages of the protocol, and a client written from the page alone meets
//! every kind of message in the documented shape.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_api::stream::{FromClient, FromServer};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::stream_client::StreamClient;

const PAGE: &str = include_str!("../../../../docs/stream.md");

/// The examples of a side, by kind.
fn examples(side: &str) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for block in PAGE.split(&format!("```json {side}\n")).skip(1) {
        let text = block.split("\n```").next().unwrap();
        let message: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let kind = message.as_object().unwrap().keys().next().unwrap().clone();
        // The first example of a kind is the plain one.
        found.entry(kind).or_insert(message);
    }
    found
}

#[test]
fn the_examples_are_messages_of_the_protocol() {
    let (client, server) = (examples("client"), examples("server"));
    for message in client.values() {
        serde_json::from_value::<FromClient>(message.clone()).unwrap_or_else(|error| panic!("{error}: {message}"));
    }
    for message in server.values() {
        serde_json::from_str::<FromServer>(&message.to_string()).unwrap_or_else(|error| panic!("{error}: {message}"));
    }
    let kinds = |found: &BTreeMap<String, Value>| found.keys().cloned().collect::<BTreeSet<_>>();
    let wanted = |words: &[&str]| words.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(kinds(&client), wanted(&["request", "cancel", "keepalive", "watch", "unwatch"]));
    let all = [
        "hello",
        "answer",
        "alive",
        "not_confirmed",
        "watching",
        "changes",
        "bookmark",
        "watch_ended",
        "lock_lost",
        "goodbye",
    ];
    assert_eq!(kinds(&server), wanted(&all));
}

/// The names of the fields, without those inside bodies and problems.
fn shape(message: &Value) -> BTreeSet<String> {
    let (kind, inside) = message.as_object().unwrap().iter().next().unwrap();
    let mut names = BTreeSet::from([kind.clone()]);
    if kind == "goodbye" {
        return names;
    }
    for (name, value) in inside.as_object().unwrap() {
        names.insert(format!("{kind}.{name}"));
        for entry in value.as_array().into_iter().flatten() {
            names.extend(entry.as_object().unwrap().keys().map(|field| format!("{kind}.{name}[].{field}")));
        }
    }
    names
}

#[tokio::test]
async fn a_client_written_from_the_page_meets_every_kind_of_message() {
    let node = Cluster::start_with(3, |config| config.limits.watch_history_events = 64).await;
    let session = node.session(20_000).await;
    let held: Value = node.post("/v1/locks/mine/acquire", Some(&session.credential), json!({})).await.json();
    let mut wire = StreamClient::open(&node.nodes[0], session.session_id, Some(&session.credential)).await.unwrap();
    let mut met: Vec<Value> = Vec::new();
    let hello = wire.next().await;
    assert_eq!(hello["hello"]["held"], json!([{ "lock": "mine", "token": held["token"] }]));
    met.push(hello);

    wire.send(json!({ "keepalive": 1 })).await;
    met.push(json!({ "alive": wire.kind("alive").await }));

    wire.send(json!({ "watch": { "id": 1, "path": "/config", "recursive": true } })).await;
    met.push(json!({ "watching": wire.kind("watching").await }));
    wire.get(json!({ "create_node": { "path": "/config" } })).await;
    met.push(json!({ "changes": wire.kind("changes").await }));
    wire.get(json!({ "create_node": { "path": "/elsewhere" } })).await;
    met.push(json!({ "bookmark": wire.kind("bookmark").await }));
    wire.send(json!({ "unwatch": 1 })).await;

    let id = wire.ask(json!({ "acquire_lock": { "name": "orders/42", "body": { "label": "worker 3" } } })).await;
    let answer = wire.answer(id).await;
    let mine = answer["body"]["token"].clone();
    met.push(json!({ "answer": answer }));
    let waits = wire.ask(json!({ "acquire_lock": { "name": "orders/42", "body": { "wait_ms": 30_000 } } })).await;
    wire.send(json!({ "cancel": waits })).await;
    assert_eq!(wire.answer(waits).await["body"]["code"], "cancelled");

    let path = format!("/v1/locks/orders/42/holders/{mine}");
    node.nodes[1].call(Method::DELETE, &path, None, None).await;
    met.push(json!({ "lock_lost": wire.kind("lock_lost").await }));

    for number in 0..64 {
        wire.ask(json!({ "create_node": { "path": format!("/n{number}") } })).await;
    }
    wire.get(json!({ "create_node": { "path": "/last" } })).await;
    wire.send(json!({ "watch": { "id": 2, "path": "/", "from": 1 } })).await;
    met.push(json!({ "watch_ended": wire.kind("watch_ended").await }));

    // Without a majority nothing is confirmed, and the stream goes on.
    let Cluster { mut nodes, directory } = node;
    let survivor = nodes.remove(0);
    for other in nodes {
        other.stop().await.unwrap();
    }
    wire.send(json!({ "keepalive": 2 })).await;
    let not_confirmed = wire.kind("not_confirmed").await;
    assert_eq!((&not_confirmed["number"], &not_confirmed["problem"]["code"]), (&json!(2), &json!("no_leader")));
    met.push(json!({ "not_confirmed": not_confirmed }));

    let stopping = tokio::spawn(survivor.stop());
    let ended = wire.ended().await;
    assert_eq!(ended.code, Some(1001));
    met.push(json!({ "goodbye": ended.goodbye.unwrap() }));
    stopping.await.unwrap().unwrap();
    drop(directory);

    let examples = examples("server");
    for message in &met {
        let kind = message.as_object().unwrap().keys().next().unwrap();
        assert_eq!(shape(message), shape(&examples[kind]), "{message}");
    }
    assert_eq!(met.len(), examples.len());
}
