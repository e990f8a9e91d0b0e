//! After a member is replaced, every node and ZooKeeper's clients know the new member's addresses and role.

use lockkeeper_api::Code;
use lockkeeper_api::cluster::{Member, Role, Status};
use lockkeeper_server::{Config, Server};
use reqwest::Method;
use serde_json::{Value, json};

use super::admin_commands::word;
use super::client::Client;
use super::cluster_with;
use crate::fronts::front_node;
use crate::harness::{Cluster, Running, adjust_for_tests, eventually, spawn};

const MEMBERS: &str = "/v1/cluster/members";

/// Three nodes with the addresses of their ZooKeeper frontends in the configuration.
async fn three() -> Cluster {
    cluster_with(3, |config| {
        for id in 1..=3_u16 {
            if let Some(peer) = config.peers.get_mut(&id.to_string()) {
                peer.zookeeper = Some(format!("127.0.0.1:{}", 20_000 + id));
            }
        }
    })
    .await
}

/// A node that will join. Its addresses come with the membership change, not from its configuration.
fn joining(cluster: &Cluster, id: u64) -> Running {
    let mut config = Config::new("test", id).with_peer(id, "127.0.0.1:1", "127.0.0.1:1");
    for (node, number) in cluster.nodes.iter().zip(1..) {
        config = config.with_peer(number, node.peer.to_string(), node.client.to_string());
    }
    config.listen.client = "127.0.0.1:0".into();
    config.listen.peer = "127.0.0.1:0".into();
    config.zookeeper.listen = "127.0.0.1:0".into();
    config.storage.directory = cluster.directory.path().join(format!("node{id}"));
    adjust_for_tests(&mut config);
    spawn(Server::bind(config).unwrap())
}

async fn status(node: &Running) -> Status {
    node.get("/v1/cluster").await.json()
}

async fn member(node: &Running, id: u64) -> Option<Member> {
    status(node).await.members.into_iter().find(|member| member.node_id == id)
}

/// The client addresses in `/zookeeper/config`.
async fn configured_addresses(node: &Running) -> Vec<String> {
    let mut client = Client::open(node.zookeeper.unwrap()).await;
    let data = client.data("/zookeeper/config").await.unwrap_or_default();
    let lines = String::from_utf8(data.to_vec()).unwrap();
    lines.lines().filter_map(|line| line.split_once(';')).map(|(_, address)| address.to_owned()).collect()
}

async fn change(node: &Running, method: Method, path: &str, body: Option<Value>) {
    let got = node.call(method, path, None, body).await;
    assert!(got.status.is_success(), "{path}: {}", got.text);
}

#[tokio::test]
async fn every_node_knows_a_new_members_addresses_and_role() {
    let mut cluster = three().await;
    let gone = cluster.nodes.pop().unwrap();
    change(&cluster, Method::DELETE, "/v1/cluster/members/3", None).await;
    gone.stop().await.unwrap();
    let new = joining(&cluster, 4);
    let (client, zookeeper) = ("d.example:7001", "d.example:2181");
    let body = json!({
        "node_id": 4, "peer_address": new.peer.to_string(), "client_address": client, "zookeeper_address": zookeeper,
    });
    change(&cluster, Method::POST, MEMBERS, Some(body.clone())).await;
    new.ready().await;
    assert_eq!(status(&new).await.role, Some(Role::Learner), "it serves but does not vote");
    assert_eq!(status(&cluster).await.role, Some(Role::Voter));
    assert_eq!(configured_addresses(&cluster).await.len(), 2, "ZooKeeper's clients see only voters");

    // At once: promoting waits until the learner has caught up.
    change(&cluster, Method::POST, "/v1/cluster/members/4/promote", None).await;
    for node in cluster.nodes.iter().chain([&new]) {
        eventually("every node to know the new member's addresses", async || {
            let known = member(node, 4).await;
            known.is_some_and(|known| {
                let reached = (known.client_address.as_deref(), known.zookeeper_address.as_deref());
                known.role == Role::Voter && reached == (Some(client), Some(zookeeper))
            }) && configured_addresses(node).await == ["127.0.0.1:20001", "127.0.0.1:20002", zookeeper]
        })
        .await;
    }
    assert_eq!(status(&new).await.role, Some(Role::Voter));
    let first = member(&new, 1).await.unwrap();
    assert_eq!(first.client_address, Some(cluster.nodes[0].client.to_string()), "the new one knows the old ones");

    // Adding it again keeps the fields that are left out.
    let moved = json!({ "node_id": 4, "peer_address": new.peer.to_string(), "client_address": "e.example:7001" });
    change(&cluster, Method::POST, MEMBERS, Some(moved)).await;
    let known = member(&cluster, 4).await.unwrap();
    assert_eq!(known.client_address.as_deref(), Some("e.example:7001"));
    assert_eq!((known.zookeeper_address.as_deref(), known.role), (Some(zookeeper), Role::Voter));
    for field in ["client_address", "zookeeper_address"] {
        let mut wrong = body.clone();
        wrong[field] = json!("nowhere");
        let problem = cluster.post(MEMBERS, None, wrong).await.problem(Code::BadRequest);
        assert!(problem.detail.contains(field), "{problem}");
    }
}

#[tokio::test]
async fn a_front_node_is_an_observer_to_zookeepers_clients() {
    let cluster = three().await;
    let front = front_node(&cluster, 4);
    let own = front.zookeeper.unwrap();
    let body = json!({
        "node_id": 4, "role": "front", "peer_address": front.peer.to_string(), "zookeeper_address": own.to_string(),
    });
    change(&cluster, Method::POST, MEMBERS, Some(body)).await;
    front.ready().await;
    let mut client = Client::open(own).await;
    client.create("/a", 0).await.unwrap();
    let config = client.data("/zookeeper/config").await.unwrap();
    let config = String::from_utf8(config.to_vec()).unwrap();
    assert!(config.contains(&format!(":observer;{own}\n")), "{config}");
    assert_eq!(config.matches(":participant;").count(), 3, "{config}");

    let (srvr, mntr) = (word(own, "srvr").await, word(own, "mntr").await);
    assert!(srvr.contains("Mode: observer\n"), "{srvr}");
    for line in ["zk_server_state\tobserver\n", "zk_peer_state\tobserving - broadcast\n", "zk_quorum_size\t3\n"] {
        assert!(mntr.contains(line), "{line}\n{mntr}");
    }
    let leader = usize::try_from(status(&front).await.leader.unwrap()).unwrap() - 1;
    eventually("the leader to count the front node as an observer", async || {
        let mntr = word(cluster.zookeeper(leader), "mntr").await;
        let counted = ["zk_synced_followers\t2\n", "zk_synced_observers\t1\n", "zk_learners\t3\n"];
        counted.iter().all(|line| mntr.contains(line)) && mntr.contains("zk_synced_non_voting_followers\t0\n")
    })
    .await;
}

#[tokio::test]
async fn a_member_promoted_too_early_stays_a_learner_and_the_error_says_why() {
    let cluster = three().await;
    // No node runs at this address.
    let body = json!({ "node_id": 9, "peer_address": "127.0.0.1:1" });
    change(&cluster, Method::POST, MEMBERS, Some(body)).await;
    let problem =
        cluster.post("/v1/cluster/members/9/promote", None, json!(null)).await.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("still a learner") && problem.detail.contains("try again"), "{problem}");
    for node in &cluster.nodes {
        eventually("the member to be a learner that is not synced", async || {
            let known = member(node, 9).await;
            known.is_some_and(|known| known.role == Role::Learner && known.synced != Some(true))
        })
        .await;
    }
}
