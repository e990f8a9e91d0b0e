//! The tree over HTTP: created, read, set, deleted and paged.

use lockkeeper_api::nodes::{Changed, Kind, Node};
use lockkeeper_api::{Code, Data};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::Cluster;

#[tokio::test]
async fn a_node_from_creation_to_deletion() {
    let node = Cluster::start(1).await;
    let got = node.post("/v1/nodes/config", None, json!({ "data": { "text": "one" } })).await;
    assert_eq!(got.status, StatusCode::CREATED);
    let created: Changed = got.json();
    assert_eq!((created.path.as_str(), created.stat.version, created.stat.czxid), ("/config", 0, created.zxid));

    let set =
        node.call(Method::PUT, "/v1/nodes/config?version=0", None, Some(json!({ "data": { "hex": "ff00" } }))).await;
    assert_eq!(set.json::<Changed>().stat.version, 1);
    let read: Node = node.get("/v1/nodes/config").await.json();
    assert_eq!((&read.data, read.kind, read.children), (&Data::Hex("ff00".into()), Kind::Persistent, None));
    assert_eq!(read.acl.len(), 1);
    let read: Node = node.get("/v1/nodes/config?consistency=stale&children=true").await.json();
    assert_eq!(read.children, Some(vec![]));

    let wrong = json!({ "data": {} });
    node.call(Method::PUT, "/v1/nodes/config?version=0", None, Some(wrong)).await.problem(Code::BadVersion);
    node.call(Method::DELETE, "/v1/nodes/config?version=7", None, None).await.problem(Code::BadVersion);
    node.post("/v1/nodes/config", None, json!({})).await.problem(Code::NodeExists);
    node.post("/v1/nodes/config/a/b", None, json!({})).await.problem(Code::NoNode);
    assert_eq!(node.post("/v1/nodes/config/a", None, json!({})).await.status, StatusCode::CREATED);
    node.call(Method::DELETE, "/v1/nodes/config", None, None).await.problem(Code::NotEmpty);
    assert_eq!(node.call(Method::DELETE, "/v1/nodes/config/a", None, None).await.status, StatusCode::OK);
    assert_eq!(node.call(Method::DELETE, "/v1/nodes/config?version=1", None, None).await.status, StatusCode::OK);
    node.get("/v1/nodes/config").await.problem(Code::NoNode);
}

#[tokio::test]
async fn an_answer_given_again_names_the_zxid_of_the_change() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    let (made, set) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
    let ask = |method: Method, id: String, body: serde_json::Value| {
        let request = node.request(method, "/v1/nodes/n").header("lockkeeper-session", &session.credential);
        request.header("lockkeeper-request-id", id).json(&body)
    };
    let mut answers: Vec<Changed> = Vec::new();
    for round in 0..2 {
        for (method, id) in [(Method::POST, &made), (Method::PUT, &set)] {
            let got = ask(method, id.clone(), json!({ "data": { "text": "one" } })).send().await.unwrap();
            answers.push(got.json().await.unwrap());
        }
        node.post(&format!("/v1/nodes/between-{round}"), None, json!({})).await;
    }
    assert_eq!(answers[..2], answers[2..]);
}

/// Null, empty and missing data: only null is null.
#[tokio::test]
async fn null_is_not_empty() {
    let node = Cluster::start(1).await;
    let data = async |path: &str| node.get(path).await.json::<Value>()["data"].clone();
    for (name, body, read) in [
        ("null", json!({ "data": null }), json!(null)),
        ("empty", json!({ "data": { "text": "" } }), json!({ "text": "" })),
        ("neither", json!({ "data": {} }), json!({ "text": "" })),
        ("left-out", json!({}), json!({ "text": "" })),
    ] {
        let path = format!("/v1/nodes/{name}");
        node.post(&path, None, body).await.json::<Changed>();
        assert_eq!(data(&path).await, read, "{name}");
    }
    let set = json!({ "operations": [{ "op": "set", "path": "/empty", "data": null }] });
    assert_eq!(node.post("/v1/txn", None, set).await.status, StatusCode::OK);
    assert_eq!(data("/v1/nodes/empty").await, json!(null));
    let set = node.call(Method::PUT, "/v1/nodes/null", None, Some(json!({ "data": {} }))).await;
    assert_eq!((set.json::<Changed>().stat.data_length, data("/v1/nodes/null").await), (0, json!({ "text": "" })));
    node.call(Method::PUT, "/v1/nodes/null", None, Some(json!({}))).await.problem(Code::BadRequest);
}

#[tokio::test]
async fn kinds_and_sequences() {
    let node = Cluster::start(1).await;
    let session = node.session(10_000).await;
    for (body, credential, code) in [
        (json!({ "kind": "ephemeral" }), None, Code::SessionRequired),
        (json!({ "kind": "ttl" }), None, Code::BadRequest),
        (json!({ "ttl_ms": 5 }), None, Code::BadRequest),
        (json!({ "kind": "ttl", "ttl_ms": 0 }), None, Code::BadRequest),
        (json!({ "acl": [] }), None, Code::InvalidAcl),
        (json!({ "acl": [{ "permissions": 99, "scheme": "world", "id": "anyone" }] }), None, Code::InvalidAcl),
        (json!({ "data": { "text": "a", "hex": "00" } }), None, Code::BadRequest),
        (json!({ "data": { "hex": "0" } }), None, Code::BadRequest),
        (json!({ "data": { "text": "x".repeat(1024 * 1024 + 1) } }), None, Code::TooLarge),
    ] {
        node.post("/v1/nodes/n", credential, body).await.problem(code);
    }
    let ephemeral = json!({ "kind": "ephemeral" });
    let made: Changed = node.post("/v1/nodes/e", Some(&session.credential), ephemeral).await.json();
    assert_eq!(made.stat.ephemeral_owner, Some(session.session_id));
    node.post("/v1/nodes/e/child", None, json!({})).await.problem(Code::NoChildrenForEphemerals);
    node.post("/v1/nodes/dir", None, json!({ "kind": "container" })).await.json::<Changed>();
    for wanted in ["/dir/n-0000000000", "/dir/n-0000000001"] {
        let made: Changed = node.post("/v1/nodes/dir/n-", None, json!({ "sequential": true })).await.json();
        assert_eq!(made.path, wanted);
    }
    let largest = json!({ "data": { "hex": "ab".repeat(1024 * 1024) } });
    assert_eq!(node.post("/v1/nodes/large", None, largest).await.status, StatusCode::CREATED);
    let read: Node = node.get("/v1/nodes/large").await.json();
    assert_eq!(read.stat.data_length, 1024 * 1024);
}

#[tokio::test]
async fn children_come_in_pages() {
    let node = Cluster::start(1).await;
    for name in ["a", "b", "c", "d", "e"] {
        node.post(&format!("/v1/nodes/{name}"), None, json!({})).await.json::<Changed>();
    }
    let first: Node = node.get("/v1/nodes/?children=true&children_limit=3").await.json();
    let names = |node: &Node| node.children.clone().unwrap();
    assert_eq!((names(&first), first.next_children.as_deref()), (vec!["a".into(), "b".into(), "c".into()], Some("c")));
    let second: Node = node.get("/v1/nodes?children=true&children_limit=3&children_after=c").await.json();
    assert_eq!((names(&second)[0].as_str(), second.next_children), ("d", None));
    node.get("/v1/nodes/?children_limit=3").await.problem(Code::BadRequest);
    node.get("/v1/nodes/?children=true&children_limit=0").await.problem(Code::BadRequest);
}
