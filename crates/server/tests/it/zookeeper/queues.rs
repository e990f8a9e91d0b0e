//! One queue for clients of both protocols.

use lockkeeper_api::Code;
use lockkeeper_api::locks::Acquired;
use lockkeeper_zookeeper::EventType;
use serde_json::json;

use super::client::Client;
use super::{cluster, until};

const CONTAINER: i32 = 4;
const EPHEMERAL_SEQUENTIAL: i32 = 3;

#[tokio::test]
async fn clients_of_both_protocols_share_one_queue() {
    let cluster = cluster(3).await;
    let mut curator = Client::open(cluster.zookeeper(1)).await;
    let mut kazoo = Client::open(cluster.zookeeper(2)).await;
    for path in ["/locks", "/locks/shared"] {
        let _ = curator.create(path, CONTAINER).await;
    }
    // In order: Curator, a native client, kazoo with Curator's naming.
    let first = curator.create("/locks/shared/_c_8f14e45f-ceea-467f-a0b1-c8e5d3f90ab1-lock-", EPHEMERAL_SEQUENTIAL);
    let first = first.await.unwrap();
    let session = cluster.session(10_000).await;
    let credential = session.credential.to_string();
    let ask = json!({"wait_ms": 20_000, "label": "native"});
    let native = cluster.post("/v1/locks/shared/acquire", Some(&credential), ask);
    tokio::pin!(native);
    let queued = async |count: usize| {
        until(async || {
            let lock: serde_json::Value = cluster.get("/v1/locks/shared").await.json();
            lock["queue"].as_array().unwrap().len() == count
        })
        .await;
    };
    tokio::select! {
        _ = &mut native => panic!("somebody holds it"),
        () = queued(1) => {}
    }
    let third = kazoo.create("/locks/shared/8f14e45fceea467fa0b1c8e5d3f90ab2-lock-", EPHEMERAL_SEQUENTIAL);
    let third = third.await.unwrap();
    queued(2).await;
    let names = kazoo.children("/locks/shared").await.unwrap();
    assert_eq!(names.len(), 3);
    let predecessor = names.iter().find(|name| name.ends_with("lock-0000000001")).unwrap();
    kazoo.exists(&format!("/locks/shared/{predecessor}"), true).await.unwrap();
    curator.delete(&first).await.unwrap();
    let held: Acquired = native.await.json();
    assert!(kazoo.events.is_empty(), "its predecessor holds");
    cluster.post("/v1/locks/shared/release", Some(&credential), json!({"token": held.token})).await;
    assert_eq!(kazoo.event().await.0, EventType::NodeDeleted);
    let busy = cluster.post("/v1/locks/shared/acquire", Some(&credential), json!({"wait_ms": 0})).await;
    busy.problem(Code::LockBusy);
    kazoo.delete(&third).await.unwrap();
}
