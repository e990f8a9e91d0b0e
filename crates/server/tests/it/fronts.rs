//! A front node beside three voters: what its clients have, and what it does not count for.

use lockkeeper_api::Code;
use lockkeeper_api::cluster::Role;
use lockkeeper_api::locks::Lock;
use lockkeeper_server::Server;
use lockkeeper_server::config::NodeRole;
use reqwest::Method;
use serde_json::json;

use crate::harness::{Cluster, Running, config_of, eventually, spawn};
use crate::stream_client::StreamClient;

/// A front node as an operator configures it; it joins when it is added.
pub(crate) fn front_node(cluster: &Cluster, id: u64) -> Running {
    let mut config = config_of(id, cluster.directory.path().join(format!("node{id}")));
    config.cluster.role = NodeRole::Front;
    for (node, number) in cluster.nodes.iter().zip(1..) {
        config = config.with_peer(number, node.peer.to_string(), node.client.to_string());
    }
    if cluster.zookeeper.is_some() {
        config.zookeeper.listen = "127.0.0.1:0".into();
    }
    spawn(Server::bind(config).unwrap())
}

/// Three voters, and a front node that has joined them.
async fn with_front() -> (Cluster, Running) {
    let cluster = Cluster::start(3).await;
    let front = front_node(&cluster, 4);
    let body = json!({
        "node_id": 4, "role": "front", "peer_address": front.peer.to_string(),
        "client_address": front.client.to_string(),
    });
    let added = cluster.post("/v1/cluster/members", None, body).await;
    assert!(added.status.is_success(), "{}", added.text);
    front.ready().await;
    (cluster, front)
}

#[tokio::test]
async fn a_session_at_a_front_node_has_everything_and_moves_when_it_goes() {
    let (cluster, front) = with_front().await;
    let session = front.session(10_000).await;
    let (mut wire, hello) = StreamClient::greeted(&front, &session.credential).await;
    assert_ne!(hello["leader"], front.client.to_string(), "clients that prefer the leader go to a voter");
    let token = wire.get(json!({ "acquire_lock": { "name": "job" } })).await["token"].as_u64().unwrap();
    wire.send(json!({ "keepalive": 7 })).await;
    assert_eq!(wire.kind("alive").await["number"], 7);
    wire.send(json!({ "watch": { "id": 5, "path": "/w", "recursive": true } })).await;
    wire.kind("watching").await;
    let created = cluster.post("/v1/nodes/w", None, json!({})).await;
    assert!(created.status.is_success(), "{}", created.text);
    let changes = wire.kind("changes").await;
    assert_eq!((&changes["id"], &changes["changes"][0]["path"]), (&json!(5), &json!("/w")), "{changes}");
    for read in ["/v1/nodes/w", "/v1/nodes/w?consistency=stale"] {
        assert!(front.get(read).await.status.is_success());
    }
    front.stop().await.unwrap();
    let node = &cluster.nodes[1];
    let (mut wire, hello) = StreamClient::greeted(node, &session.credential).await;
    let held: Vec<_> = hello["held"].as_array().unwrap().iter().map(|held| held["token"].clone()).collect();
    assert!(held.contains(&json!(token)), "{hello}");
    wire.get(json!({ "release_lock": { "name": "job", "body": { "token": token } } })).await;
    assert_eq!(node.get("/v1/locks/job").await.json::<Lock>().holders.len(), 0);
}

#[tokio::test]
async fn a_front_node_is_told_from_a_learner_and_never_becomes_a_voter() {
    let (cluster, front) = with_front().await;
    let learner = json!({ "node_id": 9, "peer_address": "127.0.0.1:1" });
    let added = cluster.post("/v1/cluster/members", None, learner).await;
    assert!(added.status.is_success(), "{}", added.text);
    assert_eq!(front.status().await.role, Some(Role::Front));
    for node in cluster.nodes.iter().chain([&front]) {
        eventually("every node to know the roles", async || {
            let members = node.status().await.members;
            let role = |id| members.iter().find(|member| member.node_id == id).map(|member| member.role);
            (role(1), role(4), role(9)) == (Some(Role::Voter), Some(Role::Front), Some(Role::Learner))
        })
        .await;
    }
    let figures = front.get("/metrics").await.text;
    for name in ["lockkeeper_fronts ", "lockkeeper_learners ", "lockkeeper_synced_fronts ", "lockkeeper_is_front "] {
        assert!(figures.contains(&format!("\n{name}")), "{name}");
    }

    let promoted = cluster.call(Method::POST, "/v1/cluster/members/4/promote", None, None).await;
    let problem = promoted.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("node 4 is a front node, which never votes: remove it"), "{problem}");
    let body = |id: u64, role: &str, peer: String| json!({ "node_id": id, "role": role, "peer_address": peer });
    let other = cluster.post("/v1/cluster/members", None, body(4, "learner", front.peer.to_string())).await;
    let problem = other.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("node 4 is a front node already, and a role cannot be changed"), "{problem}");
    let voter = cluster.post("/v1/cluster/members", None, body(5, "voter", "127.0.0.1:2".into())).await;
    let problem = voter.problem(Code::BadRequest);
    assert!(problem.detail.contains("'role'") && problem.detail.contains("promoted"), "{problem}");
    cluster
        .post("/v1/cluster/members", None, body(5, "observer", "127.0.0.1:2".into()))
        .await
        .problem(Code::BadRequest);
    cluster.post("/v1/cluster/transfer", None, json!({ "to": 4 })).await.problem(Code::MembershipConflict);
}

#[tokio::test]
async fn front_nodes_are_no_part_of_a_majority() {
    let (mut cluster, front) = with_front().await;
    let session = front.session(60_000).await;
    let mine = Some(session.credential.as_str());
    cluster.nodes.pop().unwrap().stop().await.unwrap();
    let held = front.post("/v1/locks/job/acquire", mine, json!({})).await;
    assert!(held.status.is_success(), "two voters of three go on: {}", held.text);

    cluster.nodes.pop().unwrap().stop().await.unwrap();
    for node in [&front, &cluster.nodes[0]] {
        eventually("not ready", async || node.get("/readyz").await.status.as_u16() == 503).await;
    }
    assert!(front.get("/v1/nodes/locks?consistency=stale").await.status.is_success());
    let path = format!("/v1/sessions/{}/keepalive", session.session_id);
    let (kept, read, written) = tokio::join!(
        front.call(Method::POST, &path, mine, None),
        front.get("/v1/nodes/"),
        front.post("/v1/nodes/new", None, json!({})),
    );
    kept.problem(Code::NoLeader);
    read.problem(Code::NoLeader);
    assert!(!written.status.is_success(), "{}", written.text);
    assert!(!front.status().await.leading);
}
