//! Changes of the membership as an operator makes them: a node that joins by an address, changes that are refused, and
//! two operators.

use std::net::SocketAddr;

use lockkeeper_api::Code;
use lockkeeper_api::cluster::{Membership, Role};
use lockkeeper_server::Server;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Cluster, Running, adjust_for_tests, config_of, eventually, spawn};
use crate::zookeeper::{configured_addresses, with_addresses};

/// A node that knows nothing but its own addresses and these of the cluster.
fn joiner(cluster: &Cluster, id: u64, join: &str, own: Option<(SocketAddr, SocketAddr)>) -> Running {
    let mut config = config_of(id, cluster.directory.path().join(format!("node{id}")));
    config.cluster.join = vec![join.to_owned()];
    config.zookeeper.listen = "127.0.0.1:0".into();
    if let Some((client, peer)) = own {
        config.listen.client = client.to_string();
        config.listen.peer = peer.to_string();
    }
    spawn(Server::bind(config).unwrap())
}

fn addition(id: u64, peer: impl ToString) -> Value {
    json!({ "node_id": id, "peer_address": peer.to_string() })
}

fn addition_of(id: u64, node: &Running) -> Value {
    json!({ "node_id": id, "peer_address": node.peer.to_string(), "client_address": node.client.to_string() })
}

async fn add(cluster: &Cluster, body: Value) -> Membership {
    let added = cluster.post("/v1/cluster/members", None, body).await;
    assert!(added.status.is_success(), "{}", added.text);
    added.json()
}

async fn change(cluster: &Cluster, method: Method, path: &str) -> Membership {
    let changed = cluster.call(method, path, None, None).await;
    assert!(changed.status.is_success(), "{}", changed.text);
    changed.json()
}

#[tokio::test]
async fn a_node_joins_by_one_address_and_takes_the_others_from_the_membership() {
    let cluster = with_addresses().await;
    let seed = cluster.nodes[1].peer.to_string();
    let node = joiner(&cluster, 4, &seed, None);
    node.listens().await;
    assert_eq!(node.status().await.members, [], "it has formed no cluster of its own");
    let zookeeper = "d.example:2181";
    let mut body = addition_of(4, &node);
    body["zookeeper_address"] = zookeeper.into();
    add(&cluster, body).await;
    node.ready().await;
    assert_eq!(configured_addresses(&cluster).await.len(), 3, "ZooKeeper's clients see only voters");
    change(&cluster, Method::POST, "/v1/cluster/members/4/promote").await;
    for at in cluster.nodes.iter().chain([&node]) {
        eventually("all to know where clients reach the new voter", async || {
            let members = at.status().await.members;
            let new = members.into_iter().find(|member| member.node_id == 4);
            new.is_some_and(|new| {
                let reached = (new.client_address, new.zookeeper_address.as_deref());
                new.role == Role::Voter && reached == (Some(node.client.to_string()), Some(zookeeper))
            }) && configured_addresses(at).await == ["127.0.0.1:20001", "127.0.0.1:20002", "127.0.0.1:20003", zookeeper]
        })
        .await;
    }

    let own = (node.client, node.peer);
    node.stop().await.unwrap();
    let node = joiner(&cluster, 4, "127.0.0.1:1", Some(own));
    node.ready().await;
    assert_eq!(node.status().await.role, Some(Role::Voter), "nobody is at its address of cluster.join");
}

#[tokio::test]
async fn a_change_is_made_to_the_membership_that_the_operator_has_seen() {
    let cluster = Cluster::start(1).await;
    let seen = cluster.status().await.membership_version;
    let with_version = |id: u64, version: u64| {
        let mut body = addition(id, format!("127.0.0.1:{id}"));
        body["if_version"] = version.into();
        body
    };
    let changed = add(&cluster, with_version(8, seen)).await;
    assert!(changed.membership_version > seen);
    assert_eq!(cluster.status().await.membership_version, changed.membership_version);

    let path = |id: u64, rest: &str, version: u64| format!("/v1/cluster/members/{id}{rest}?if_version={version}");
    let late = [
        cluster.post("/v1/cluster/members", None, with_version(9, seen)).await,
        cluster.call(Method::DELETE, &path(8, "", seen), None, None).await,
        cluster.call(Method::POST, &path(8, "/promote", seen), None, None).await,
    ];
    for late in late {
        let problem = late.problem(Code::MembershipConflict);
        let says = format!("version {seen}; now it is {}", changed.membership_version);
        assert!(problem.detail.contains(&says) && problem.detail.contains("look at the members"), "{problem}");
    }
    assert_eq!(cluster.status().await.members.len(), 2);
    change(&cluster, Method::DELETE, &path(8, "", changed.membership_version)).await;
    let bad = cluster.call(Method::DELETE, "/v1/cluster/members/8?if_version=x", None, None).await;
    bad.problem(Code::BadRequest);
}

#[tokio::test]
async fn an_id_that_took_part_is_spent_and_one_that_did_not_is_free() {
    let cluster = Cluster::start(1).await;
    add(&cluster, addition(5, "127.0.0.1:1")).await;
    change(&cluster, Method::DELETE, "/v1/cluster/members/5").await;
    add(&cluster, addition(5, "127.0.0.1:2")).await;

    let node = joiner(&cluster, 4, &cluster.nodes[0].peer.to_string(), None);
    add(&cluster, addition_of(4, &node)).await;
    node.ready().await;
    change(&cluster, Method::POST, "/v1/cluster/members/4/promote").await;
    change(&cluster, Method::DELETE, "/v1/cluster/members/4").await;
    node.stop().await.unwrap();
    let again = cluster.post("/v1/cluster/members", None, addition(4, "127.0.0.1:3")).await;
    let problem = again.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("node id 4 is spent") && problem.detail.contains("never used"), "{problem}");
    let last = cluster.call(Method::DELETE, "/v1/cluster/members/1", None, None).await;
    let problem = last.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("last voter") && problem.detail.contains("promote another"), "{problem}");
}

#[tokio::test]
async fn an_address_of_another_cluster_or_another_node_is_refused() {
    let cluster = Cluster::start(1).await;
    let other = Server::bind_cluster("other", 1, &cluster.directory.path().join("other"), adjust_for_tests);
    let other = spawn(other.unwrap().remove(0));
    other.ready().await;
    let foreign = cluster.post("/v1/cluster/members", None, addition_of(4, &other)).await;
    let problem = foreign.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("another cluster") && problem.detail.contains("\"other\""), "{problem}");

    let config = config_of(5, cluster.directory.path().join("node5"))
        .with_peer(1, cluster.nodes[0].peer.to_string(), cluster.nodes[0].client.to_string())
        .with_peer(5, "127.0.0.1:1", "127.0.0.1:1");
    let fifth = spawn(Server::bind(config).unwrap());
    fifth.listens().await;
    let wrong = cluster.post("/v1/cluster/members", None, addition_of(4, &fifth)).await;
    let problem = wrong.problem(Code::MembershipConflict);
    assert!(problem.detail.contains("node 5 answers at"), "{problem}");
    assert_eq!(cluster.status().await.members.len(), 1);
    add(&cluster, addition_of(5, &fifth)).await;
}
