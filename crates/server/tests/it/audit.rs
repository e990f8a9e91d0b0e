//! The audit file: who took locks from others, changed members, or failed to prove who it is.

use std::path::PathBuf;

use lockkeeper_api::Code;
use lockkeeper_api::locks::Acquired;
use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_server::{Config, Server};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::access::{enable, hash};
use crate::harness::{Cluster, Got, config_of, eventually};
use crate::stream_client::StreamClient;

/// Gives a node a file beside its data directory.
pub(crate) fn with_file(config: &mut Config) {
    config.audit.file = config.storage.directory.with_extension("jsonl");
}

fn file_of(cluster: &Cluster) -> PathBuf {
    cluster.directory.path().join("node1.jsonl")
}

/// The records of node 1, once there are so many.
pub(crate) async fn records(cluster: &Cluster, count: usize) -> Vec<Value> {
    let mut text = String::new();
    eventually("the records", async || {
        text = std::fs::read_to_string(file_of(cluster)).unwrap();
        text.lines().count() >= count
    })
    .await;
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), count, "{text}");
    records
}

async fn hold(node: &Cluster, session: &SessionOpened, lock: &str) -> Acquired {
    node.post(&format!("/v1/locks/{lock}/acquire"), Some(&session.credential), json!({})).await.json()
}

#[tokio::test]
async fn each_forced_release_names_who_did_it() {
    let node = Cluster::start_with(1, with_file).await;
    let (owner, other) = (node.session(60_000).await, node.session(60_000).await);
    let held = hold(&node, &owner, "orders/42").await;
    let path = format!("/v1/locks/orders/42/holders/{}", held.token);
    let forged = format!("{}.{:032x}", owner.session_id, 7);
    node.call(Method::DELETE, &path, Some(&forged), None).await.problem(Code::WrongSecret);
    let id = Uuid::new_v4().to_string();
    let request = node.request(Method::DELETE, &path).header("lockkeeper-session", &other.credential);
    let request = request.header("lockkeeper-request-id", &id).basic_auth("bob", Some("hunter2"));
    let released = Got::of(request.send().await.unwrap()).await;
    assert_eq!(released.status, StatusCode::OK, "{}", released.text);
    node.call(Method::DELETE, &path, None, None).await.problem(Code::NotHeld);
    let held_again = hold(&node, &owner, "orders/42").await;
    let deleted = node.call(Method::DELETE, &format!("/v1/nodes{}", held_again.path), None, None).await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.text);

    let mut records = records(&node, 4).await;
    for record in &mut records {
        let time = record["time"].take();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        // Explained in words, which may change.
        if record["outcome"] == "not_done" && record["event"] == "forced_release" {
            assert!(record["error"].take().is_string());
        }
    }
    let expected = [
        json!({ "event": "authentication_failed", "method": "session_secret", "left_out": 0, "principals": [],
                "request_id": null, "outcome": "not_done" }),
        json!({ "event": "forced_release", "lock": "orders/42", "token": held.token, "principals": ["digest:bob"],
                "request_id": id, "outcome": "done", "zxid": released.zxid, "session": other.session_id }),
        json!({ "event": "forced_release", "lock": "orders/42", "token": held.token, "principals": [],
                "request_id": null, "outcome": "not_done", "error": null }),
        json!({ "event": "forced_release", "lock": "orders/42", "path": held_again.path, "token": held_again.token,
                "principals": [], "request_id": null, "outcome": "done", "zxid": deleted.zxid }),
    ];
    for (record, fields) in records.iter().zip(expected) {
        let mut whole = json!({ "time": null, "node": 1, "address": "127.0.0.1", "session": null });
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(*record, whole);
    }
    let text = std::fs::read_to_string(file_of(&node)).unwrap();
    let secrets = [&owner, &other].map(|session| session.credential.split_once('.').unwrap().1);
    for secret in secrets.into_iter().chain(["hunter2", forged.as_str()]) {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

#[tokio::test]
async fn each_change_of_the_membership_is_recorded_and_the_file_can_be_rotated() {
    let node = Cluster::start_with(1, with_file).await;
    let body = json!({ "node_id": 9, "peer_address": "127.0.0.1:9" });
    let added = node.post("/v1/cluster/members", None, body).await;
    assert_eq!(added.status, StatusCode::OK, "{}", added.text);
    node.post("/v1/cluster/transfer", None, json!({ "to": 9 })).await.problem(Code::MembershipConflict);
    let before = records(&node, 2).await;
    let rotated = node.directory.path().join("rotated");
    std::fs::rename(file_of(&node), &rotated).unwrap();
    let removed = node.call(Method::DELETE, "/v1/cluster/members/9", None, None).await;
    assert_eq!(removed.status, StatusCode::OK, "{}", removed.text);
    eventually("a new file", async || file_of(&node).exists()).await;
    let after = records(&node, 1).await;
    let shown: Vec<(&Value, &Value, &Value)> =
        before.iter().chain(&after).map(|record| (&record["event"], &record["member"], &record["outcome"])).collect();
    assert_eq!(
        shown,
        [
            (&json!("member_added"), &json!(9), &json!("done")),
            (&json!("leadership_transferred"), &Value::Null, &json!("not_done")),
            (&json!("member_removed"), &json!(9), &json!("done")),
        ]
    );
    assert_eq!((&before[0]["peer_address"], &before[1]["to"]), (&json!("127.0.0.1:9"), &json!(9)));
    assert_eq!(std::fs::read_to_string(&rotated).unwrap().lines().count(), 2);
}

/// By deleting its node, which the node reports when it applies it, and by the call.
#[tokio::test]
async fn forced_releases_name_the_principal_of_a_token() {
    let node = Cluster::start_with(1, with_file).await;
    let admin = enable(&node).await;
    let admin = node.with(&admin);
    let session = admin.session(30_000).await;
    for by_call in [true, false] {
        let held = admin.post("/v1/locks/l/acquire", Some(&session.credential), json!({})).await;
        let Acquired { token, path, .. } = held.json();
        let path = if by_call { format!("/v1/locks/l/holders/{token}") } else { format!("/v1/nodes{path}") };
        let deleted = admin.call(Method::DELETE, &path, None, None).await;
        assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.text);
    }
    let records = records(&node, 3).await;
    let forced: Vec<&Value> = records.iter().filter(|record| record["event"] == "forced_release").collect();
    assert_eq!(forced.len(), 2, "{records:?}");
    for record in forced {
        assert_eq!(record["principals"], json!(["admin"]), "{record}");
    }
}

#[tokio::test]
async fn a_record_of_a_new_token_has_its_id_and_no_hash() {
    let node = Cluster::start_with(1, with_file).await;
    let (admin, worker) = (format!("lk_{}", "A".repeat(43)), hash(&format!("lk_{}A", "w".repeat(42))));
    node.change(json!({ "enable": { "token_hash": hash(&admin) } })).await;
    let create = json!({ "create_token": { "principal": "worker", "token_hash": worker } });
    let refused = json!({ "create_token": { "principal": "other", "token_hash": worker } });
    node.with(&admin).change(create).await;
    node.with(&admin).post("/v1/access", None, refused).await.problem(Code::BadRequest);
    let records = records(&node, 2).await;
    assert_eq!(records[1]["token_id"], worker[..16]);
    assert_eq!(records[1]["change"], json!({ "create_token": { "principal": "worker" } }));
    assert_eq!(records[0]["change"], json!({ "enable": {} }));
}

/// As one over HTTP is. The session lives, because it owns nothing.
#[tokio::test]
async fn a_failed_authentication_within_a_stream_is_recorded() {
    let node = Cluster::start_with(1, with_file).await;
    let unknown = format!("Bearer lk_{}", "A".repeat(43));
    let open = async |authorization: Option<&str>| {
        let session = node.session(60_000).await;
        StreamClient::open_as(&node, session.session_id, Some(&session.credential), authorization).await.unwrap()
    };
    let (mut with_token, mut without) = (open(Some(&unknown)).await, open(None).await);
    enable(&node).await;
    let refused = async |client: &mut StreamClient| {
        assert_eq!(client.code(json!({ "get_node": { "path": "/" } })).await, "unauthenticated");
    };
    refused(&mut without).await;
    refused(&mut with_token).await;
    with_token.send(json!({ "watch": { "id": 7, "path": "/" } })).await;
    assert_eq!(with_token.kind("watch_ended").await["problem"]["code"], "unauthenticated");
    let records = records(&node, 3).await;
    assert_eq!(records[0]["event"], "access_changed");
    for record in &records[1..] {
        assert_eq!(
            (&record["event"], &record["method"]),
            (&json!("authentication_failed"), &json!("authorization_header"))
        );
        assert!(record["session"].is_u64() && record["address"] == "127.0.0.1", "{record}");
    }
    let text = std::fs::read_to_string(file_of(&node)).unwrap();
    assert!(!text.contains("AAAAAA"), "{text}");
}

#[tokio::test]
async fn what_is_switched_off_is_not_recorded() {
    let node = Cluster::start_with(1, |config| {
        with_file(config);
        config.admin.allow_membership = false;
        config.admin.allow_force_release = false;
    })
    .await;
    let session = node.session(60_000).await;
    let held = hold(&node, &session, "x").await;
    let path = format!("/v1/locks/x/holders/{}", held.token);
    node.call(Method::DELETE, &path, None, None).await.problem(Code::Forbidden);
    node.call(Method::DELETE, &format!("/v1/nodes{}", held.path), None, None).await.problem(Code::Forbidden);
    node.call(Method::DELETE, "/v1/cluster/members/1", None, None).await.problem(Code::Forbidden);
    let forged = format!("{}.{:032x}", session.session_id, 7);
    let keepalive = format!("/v1/sessions/{}/keepalive", session.session_id);
    node.call(Method::POST, &keepalive, Some(&forged), None).await.problem(Code::WrongSecret);
    assert_eq!(records(&node, 1).await[0]["event"], "authentication_failed");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config_of(1, directory.path().join("node1"));
    with_file(&mut config);
    std::os::unix::fs::symlink(directory.path().join("missing/audit.jsonl"), &config.audit.file).unwrap();
    let error = Server::bind(config).unwrap_err();
    let line = error.to_string();
    assert!(line.starts_with("cannot append to audit.file = ") && !line.contains('\n'), "{line}");
    assert_eq!(error.exit_code(), 2);
}
