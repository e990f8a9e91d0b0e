//! Sessions over ZooKeeper's protocol: opened, moved, ended.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_zookeeper::{ConnectRequest, ErrorCode, OpCode, Request};

use super::client::{Client, get};
use super::cluster;
use crate::harness::eventually;

const EPHEMERAL: i32 = 1;

#[tokio::test]
async fn a_session_moves_to_another_node_and_the_old_connection_ends() {
    let cluster = cluster(3).await;
    let mut here = Client::open(cluster.zookeeper(0)).await;
    here.create("/e", EPHEMERAL).await.unwrap();
    let mut there = Client::resume(cluster.zookeeper(1), &here.session, here.zxid).await.unwrap();
    assert_eq!(there.session, here.session, "id, password and timeout stay");
    assert!(here.is_closed().await);
    there.exists("/e", false).await.unwrap();
    there.create("/e2", EPHEMERAL).await.unwrap();
    // And back, over a second connection to the first node.
    let mut back = Client::resume(cluster.zookeeper(0), &there.session, there.zxid).await.unwrap();
    assert!(there.is_closed().await);
    back.exists("/e2", false).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_does_not_disturb_the_owner() {
    let cluster = cluster(1).await;
    let mut owner = Client::open(cluster.zookeeper(0)).await;
    let wrong = ConnectRequest {
        session_id: owner.session.session_id,
        password: Bytes::from_static(&[7; 16]),
        ..ConnectRequest::new_session(10_000)
    };
    let short = ConnectRequest { password: Bytes::from_static(b"short"), ..wrong.clone() };
    let unknown = ConnectRequest { session_id: 0x7777, ..wrong.clone() };
    for request in [wrong, short, unknown] {
        let mut refused = Client::connect(cluster.zookeeper(0), &request).await.unwrap();
        assert_eq!((refused.session.timeout_ms, refused.session.session_id), (0, 0));
        assert_eq!(refused.session.password, [0; 16][..]);
        assert!(refused.is_closed().await);
    }
    owner.create("/mine", EPHEMERAL).await.unwrap();
}

#[tokio::test]
async fn closing_a_session_deletes_its_ephemerals() {
    let cluster = cluster(1).await;
    let mut owner = Client::open(cluster.zookeeper(0)).await;
    let mut other = Client::open(cluster.zookeeper(0)).await;
    owner.create("/e", EPHEMERAL).await.unwrap();
    other.exists("/e", true).await.unwrap();
    owner.ask(Request::CloseSession).await.unwrap();
    assert!(owner.is_closed().await);
    assert_eq!(other.exists("/e", false).await, Err(ErrorCode::NoNode));
    assert_eq!(other.events.len(), 1);
    let gone = Client::resume(cluster.zookeeper(0), &owner.session, 0).await.unwrap();
    assert_eq!(gone.session.session_id, 0);
}

#[tokio::test]
async fn silence_ends_a_session_but_a_lost_connection_does_not() {
    let cluster = cluster(1).await;
    let mut other = Client::open(cluster.zookeeper(0)).await;
    // The shortest timeout: two ticks.
    let silent = Client::connect(cluster.zookeeper(0), &ConnectRequest::new_session(1)).await.unwrap();
    assert_eq!(silent.session.timeout_ms, 1_000);
    let mut alive = Client::connect(cluster.zookeeper(0), &ConnectRequest::new_session(1)).await.unwrap();
    alive.create("/alive", EPHEMERAL).await.unwrap();
    let (session, seen) = (silent.session.clone(), silent.zxid);
    drop(silent);
    let mut silent = Client::resume(cluster.zookeeper(0), &session, seen).await.unwrap();
    silent.create("/silent", EPHEMERAL).await.unwrap();
    eventually("the silent one to expire", async || {
        alive.ask(Request::Ping).await.unwrap();
        other.exists("/silent", false).await == Err(ErrorCode::NoNode)
    })
    .await;
    assert!(silent.is_closed().await);
    other.exists("/alive", false).await.unwrap();
    let gone = Client::resume(cluster.zookeeper(0), &session, 0).await.unwrap();
    assert_eq!(gone.session.session_id, 0, "the session has expired and its ephemerals are gone");
}

#[tokio::test]
async fn a_client_ahead_of_the_node_is_disconnected() {
    let cluster = cluster(1).await;
    let request = ConnectRequest { last_zxid_seen: i64::MAX, ..ConnectRequest::new_session(10_000) };
    let began = Instant::now();
    assert!(Client::connect(cluster.zookeeper(0), &request).await.is_none(), "closed without a reply");
    // It must not wait for as long as a request may take (five seconds and more): it should try the next node.
    assert!(began.elapsed() < Duration::from_secs(2), "disconnected after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_request_behind_a_ping_does_not_wait_for_other_keepalives() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    // The first ping waits for none.
    client.ask(Request::Ping).await.unwrap();
    let (mut alone, mut followed) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let began = Instant::now();
        client.ask(Request::Ping).await.unwrap();
        alone.push(began.elapsed());

        let began = Instant::now();
        let ping = client.send(&Request::Ping).await;
        let read = client.send(&get("/", false)).await;
        client.answer(ping, OpCode::Ping).await.unwrap();
        client.answer(read, OpCode::GetData).await.unwrap();
        followed.push(began.elapsed());
    }
    alone.sort_unstable();
    followed.sort_unstable();
    assert!(
        followed[7] + Duration::from_millis(10) < alone[7],
        "medians: {:?} with a request behind it, {:?} alone",
        followed[7],
        alone[7]
    );
}
