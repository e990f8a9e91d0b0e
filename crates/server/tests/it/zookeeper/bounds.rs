//! Limits of the replicated state, reached by ZooKeeper clients.

use lockkeeper_zookeeper::ErrorCode;

use super::client::{Client, create};
use super::cluster_with;

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
async fn a_full_state_refuses_more_data() {
    let cluster = cluster_with(1, |config| config.limits.state_mib = 16).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let data = vec![b'x'; 1_000_000];
    let mut made = 0;
    let refused = loop {
        match client.ask(create(&format!("/large-{made}"), &data, 0)).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((made, refused), (16, ErrorCode::QuotaExceeded));
    client.create("/locks", 0).await.unwrap();
    client.delete("/large-0").await.unwrap();
    client.set("/large-1", &data).await.unwrap();
}
