//! Limits of the replicated state, reached by ZooKeeper clients.

use lockkeeper_api::access::WhoAmI;
use lockkeeper_zookeeper::ErrorCode;
use reqwest::Method;
use serde_json::json;

use super::access::auth;
use super::client::Client;
use super::cluster_with;
use crate::harness::Got;

const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

#[tokio::test]
async fn a_session_owns_a_limited_number_of_ephemerals() {
    let cluster = cluster_with(1, |config| config.limits.ephemerals_per_session = 2).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    for directory in ["/locks", "/locks/l"] {
        client.create(directory, 0).await.unwrap();
    }
    client.create("/one", EPHEMERAL).await.unwrap();
    client.create("/locks/l/lock-", EPHEMERAL_SEQUENTIAL).await.unwrap();
    assert_eq!(client.create("/two", EPHEMERAL).await, Err(ErrorCode::QuotaExceeded));
    assert_eq!(client.create("/locks/l/lock-", EPHEMERAL_SEQUENTIAL).await, Err(ErrorCode::QuotaExceeded));
    client.create("/two", 0).await.unwrap();
    client.delete("/one").await.unwrap();
    client.create("/one", EPHEMERAL).await.unwrap();
}

#[tokio::test]
async fn requests_above_the_rate_of_a_namespace_are_throttled_and_deletions_are_not() {
    let cluster = cluster_with(1, |_| {}).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/orders", 0).await.unwrap();
    let change = json!({ "put_namespace": { "name": "orders", "limits": { "requests_per_s": 1 } } });
    cluster.change(change).await;
    let mut throttled = 0;
    for _ in 0..5 {
        throttled += usize::from(client.set("/orders", b"x").await == Err(ErrorCode::ThrottledOp));
    }
    assert!(throttled > 0, "five requests at once went through");
    client.create("/parts", 0).await.unwrap();
    client.delete("/orders").await.unwrap();
}

/// What gives back, and what is about the session alone, does not count as a request of the owner.
#[tokio::test]
async fn an_owner_above_its_rate_deletes_and_closes() {
    let cluster = cluster_with(1, |_| {}).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.ask(auth("billing:secret")).await.unwrap();
    for number in 0..6 {
        client.create(&format!("/orders-{number}"), 0).await.unwrap();
    }
    let me = cluster.request(Method::GET, "/v1/access/me").basic_auth("billing", Some("secret")).send();
    let owner = Got::of(me.await.unwrap()).await.json::<WhoAmI>().principals[0].clone();
    let limits = json!({ "requests_per_s": 1 });
    let change = json!({ "put_namespace": { "name": "orders", "owner": owner, "limits": limits } });
    cluster.change(change).await;
    for _ in 0..6 {
        let open = cluster.request(Method::POST, "/v1/sessions").basic_auth("billing", Some("secret"));
        open.json(&json!({})).send().await.unwrap();
    }
    for number in 0..6 {
        client.delete(&format!("/orders-{number}")).await.unwrap();
    }
}
