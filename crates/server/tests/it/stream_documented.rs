//! `docs/stream.md` is true: its examples are messages of the protocol, its calls are those of the API, and a client
//! written from the page alone meets every kind of message in the documented shape.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_api::Call;
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

/// Each call has the name and the parameters of an operation, and each operation with one answer in JSON is a call.
#[test]
fn the_calls_are_the_operations_of_the_api() {
    let api: Value = serde_json::from_str(&lockkeeper_server::openapi()).unwrap();
    let mut operations = BTreeMap::new();
    for operation in api["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values()) {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let place = |parameter: &Value| match parameter["in"].as_str().unwrap() {
            "path" => parameter["name"].as_str().map(str::to_owned),
            "query" => Some("query".into()),
            _ => None,
        };
        let mut wanted: BTreeSet<String> = parameters.filter_map(place).collect();
        wanted.extend(operation["requestBody"].is_object().then(|| "body".to_owned()));
        operations.insert(operation["operationId"].as_str().unwrap().to_owned(), wanted);
    }
    let elsewhere =
        ["streamSession", "watchNodes", "saveSnapshot", "getHealth", "getReadiness", "getMetrics", "getDescription"];
    for operation in elsewhere {
        operations.remove(operation).unwrap();
    }
    // An unknown call and an unknown parameter are refused with the names that serde expects instead.
    let expected = |call: Value| -> BTreeSet<String> {
        let error = serde_json::from_value::<Call>(call).unwrap_err().to_string();
        error.split('`').skip(1).step_by(2).filter(|word| *word != "surprise").map(str::to_owned).collect()
    };
    let mut calls = BTreeMap::new();
    for name in expected(json!({ "surprise": {} })) {
        let operation: String = name
            .split('_')
            .enumerate()
            .map(|(at, word)| match at {
                0 => word.to_owned(),
                _ => word[..1].to_uppercase() + &word[1..],
            })
            .collect();
        calls.insert(operation, expected(json!({ &name: { "surprise": 1 } })));
    }
    assert_eq!(calls, operations);
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
