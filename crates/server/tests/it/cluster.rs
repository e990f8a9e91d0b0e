//! Three nodes in one process, over real sockets: any node serves any client, and they agree.

use std::time::{Duration, Instant};

use lockkeeper_api::cluster::Status;
use lockkeeper_api::locks::{Acquired, Lock, Verified};
use lockkeeper_api::{CLUSTER_HEADER, Code, Problem};
use lockkeeper_server::Server;
use reqwest::Method;
use serde_json::json;

use crate::harness::{Cluster, Got, Running, adjust_for_tests, eventually, spawn};

async fn status(node: &Running) -> Status {
    node.get("/v1/cluster?checksum=true").await.json()
}

async fn leader_of(cluster: &Cluster) -> u64 {
    let mut found = None;
    eventually("one leader that all know", async || {
        let mut leaders = Vec::new();
        for node in &cluster.nodes {
            leaders.push(status(node).await.leader);
        }
        found = leaders[0];
        found.is_some() && leaders.iter().all(|leader| *leader == found)
    })
    .await;
    found.unwrap()
}

#[tokio::test]
async fn any_node_serves_any_client_and_all_agree() {
    let cluster = Cluster::start(3).await;
    let [a, b, c] = &cluster.nodes[..] else { panic!("three nodes") };
    let session = a.session(10_000).await;
    let mine = Some(session.credential.as_str());
    let held: Acquired = b.post("/v1/locks/job/acquire", mine, json!({})).await.json();
    let shown: Lock = c.get("/v1/locks/job").await.json();
    assert_eq!((shown.holders.len(), shown.holders[0].token), (1, held.token));
    let verified: Verified = a.post("/v1/locks/job/verify", None, json!({ "token": held.token })).await.json();
    assert!(verified.held);

    let next = b.post("/v1/locks/job/acquire", None, json!({ "ttl_ms": 10_000, "wait_ms": 20_000 }));
    let release = async {
        eventually("it waits", async || a.get("/v1/locks/job").await.json::<Lock>().waiting == 1).await;
        let released = c.post("/v1/locks/job/release", mine, json!({ "token": held.token })).await;
        assert!(released.status.is_success(), "{}", released.text);
    };
    let (next, ()) = tokio::join!(next, release);
    assert!(next.json::<Acquired>().token > held.token);

    leader_of(&cluster).await;
    eventually("equal zxids", async || {
        let (a, b, c) = (status(a).await, status(b).await, status(c).await);
        a.zxid == b.zxid && b.zxid == c.zxid && {
            let checksum = |status: &Status| status.state.clone().unwrap();
            assert!(checksum(&a).zxid != checksum(&b).zxid || checksum(&a) == checksum(&b));
            assert!(checksum(&a).zxid != checksum(&c).zxid || checksum(&a) == checksum(&c));
            true
        }
    })
    .await;
    let figures = a.get("/metrics").await.text;
    for name in [
        "lockkeeper_lock_releases_total",
        "lockkeeper_lock_notifications_total",
        "lockkeeper_batches_in_flight_bucket",
        "lockkeeper_batch_commands_bucket",
        "lockkeeper_store_sync_seconds_bucket",
    ] {
        assert!(figures.contains(name), "{name} is missing");
    }
}

#[tokio::test]
async fn membership_can_be_switched_off() {
    let node = Cluster::start_with(1, |config| config.admin.allow_membership = false).await;
    let body = json!({ "node_id": 9, "peer_address": "127.0.0.1:9" });
    node.post("/v1/cluster/members", None, body).await.problem(Code::Forbidden);
    node.post("/v1/cluster/transfer", None, json!({})).await.problem(Code::Forbidden);
    node.call(Method::DELETE, "/v1/cluster/members/1", None, None).await.problem(Code::Forbidden);
    node.call(Method::POST, "/v1/cluster/members/1/promote", None, None).await.problem(Code::Forbidden);
}

#[tokio::test]
async fn a_cluster_that_is_forming_names_those_for_whom_it_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = Server::bind_cluster("test", 3, directory.path(), adjust_for_tests).unwrap();
    // Their ports are bound, and nobody listens there.
    let late = servers.split_off(1);
    let waits: Vec<String> = late
        .iter()
        .zip(2..)
        .map(|(server, node)| format!("node {node} at {} (connection refused)", server.peer_address()))
        .collect();
    let first = spawn(servers.remove(0));
    first.listens().await;
    let wanted = format!("not formed yet: waiting for {}", waits.join(", "));
    eventually("it says for whom", async || {
        let reply = first.get("/readyz").await;
        reply.status.as_u16() == 503 && reply.problem(Code::NoLeader).detail.contains(&wanted)
    })
    .await;
    let status = first.status().await;
    assert!(status.not_ready_because.is_some_and(|why| why.contains(&wanted)) && status.members.is_empty());
    let others: Vec<Running> = late.into_iter().map(spawn).collect();
    for node in [&first].into_iter().chain(&others) {
        node.ready().await;
    }
    let status = first.status().await;
    assert_eq!(status.not_ready_because, None);
}

/// Without a majority a node answers within the time that its caller gives it, long before its own limit.
#[tokio::test]
async fn a_node_answers_while_its_caller_is_still_there() {
    let mut cluster = Cluster::start(3).await;
    let session = cluster.session(60_000).await;
    for _ in 0..2 {
        cluster.nodes.pop().unwrap().stop().await.unwrap();
    }
    let node = &cluster.nodes[0];
    let own = Some(session.credential.as_str());
    let calls = [
        (Method::POST, "/v1/sessions", None),
        (Method::POST, "/v1/locks/a/acquire", own),
        (Method::POST, "/v1/locks/b/acquire", own),
        (Method::POST, "/v1/gates/g/begin", own),
        (Method::GET, "/v1/locks/a", None),
        (Method::GET, "/v1/access/me", None),
    ];
    for (method, path, credential) in calls {
        let body = if path.ends_with("begin") { json!({ "fingerprint": "f" }) } else { json!({}) };
        let mut request = node.request(method.clone(), path).header("lockkeeper-timeout-ms", "300");
        if method == Method::POST {
            request = request.json(&body);
        }
        if let Some(credential) = credential {
            request = request.header("lockkeeper-session", credential);
        }
        let began = Instant::now();
        let got = Got::of(request.send().await.unwrap()).await;
        assert!(began.elapsed() < Duration::from_secs(5), "{path}: {:?}", began.elapsed());
        // The node may have led, and have the first request in its log.
        let code = serde_json::from_str::<Problem>(&got.text).unwrap().code;
        assert!(matches!(code, Code::NoLeader | Code::UnknownOutcome), "{path}: {}", got.text);
    }
    let last = node.request(Method::POST, "/v1/sessions").header("lockkeeper-timeout-ms", "300").json(&json!({}));
    Got::of(last.send().await.unwrap()).await.problem(Code::NoLeader);
}

#[tokio::test]
async fn a_node_that_knows_no_uid_carries_out_nothing_for_a_request_that_names_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = Server::bind_cluster("test", 3, directory.path(), adjust_for_tests).unwrap();
    // The others, one of which would draw it, never run.
    let node = spawn(servers.remove(0));
    node.listens().await;
    let open = async |cluster: &str| {
        let request = node.request(Method::POST, "/v1/sessions").header(CLUSTER_HEADER, cluster).json(&json!({}));
        Got::of(request.header("lockkeeper-timeout-ms", "300").send().await.unwrap()).await
    };
    let refused = open("test/0123456789abcdef").await;
    assert_eq!(refused.headers[CLUSTER_HEADER], "test");
    let problem = refused.problem(Code::NoLeader);
    assert!(problem.detail.contains("test/0123456789abcdef") && problem.detail.contains("not executed"), "{problem}");
    open("other/0123456789abcdef").await.problem(Code::OtherCluster);
    let problem = open("test").await.problem(Code::NoLeader);
    assert!(!problem.detail.contains("the uid of its cluster"), "{problem}");
}
