//! Group, caches, and the node that comes back.

use std::time::Duration;

use lockkeeper_client::api::Data;
use lockkeeper_client::api::nodes::{Create, Kind, SetData};
use lockkeeper_client::recipes::{CacheChange, MemberChange, PersistentNode, PersistentState, RecipeError};
use lockkeeper_client::{Client, Options, SessionOptions};
use lockkeeper_server::local::Cluster;

use super::support::{Process, client, cluster, is_lost, names, plain_session, session, soon, until};
use crate::wire::Wire;

fn with(data: &str) -> Create {
    Create { data: Data::from_bytes(data.as_bytes()), ..Create::default() }
}

#[tokio::test]
async fn members_come_change_and_go() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let (group, other) = (one.group("/groups/a").unwrap(), two.group("/groups/a").unwrap());
    assert!(group.members().await.unwrap().is_empty());
    let mut members = other.watch().await.unwrap();
    let ada = group.join("ada", b"10.0.0.1").await.unwrap();
    assert_eq!(soon("ada", members.changes()).await, [MemberChange::Joined("ada".into())]);
    let taken = other.join("ada", b"").await;
    assert!(
        matches!(&taken, Err(RecipeError::Taken { owner, .. }) if owner.contains(&one.id().to_string())),
        "{taken:?}"
    );
    ada.set_data(b"10.0.0.2").await.unwrap();
    assert_eq!(soon("the change", members.changes()).await, [MemberChange::Updated("ada".into())]);
    assert_eq!(group.members().await.unwrap().get("ada").unwrap(), b"10.0.0.2");

    let process = Process::start(&cluster, Duration::from_secs(1)).await;
    let dying = process.session.group("/groups/a").unwrap();
    let bob = process.run(async move { dying.join("bob", b"").await.unwrap() }).await;
    let all = soon("both", members.wait_for(|all| all.len() == 2)).await;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["ada", "bob"]);
    assert_eq!(soon("bob", members.changes()).await, [MemberChange::Joined("bob".into())]);
    process.die(bob);
    assert_eq!(soon("bob's end", members.changes()).await, [MemberChange::Left("bob".into())]);
    let bob = other.join("bob", b"again").await.unwrap();
    ada.leave().await.unwrap();
    soon("ada's leaving", members.wait_for(|all| all.keys().eq(["bob"]))).await;
    // Watching goes on when the session through which it was begun has ended; membership does not.
    two.close().await.unwrap();
    soon("bob's end", members.wait_for(|all| all.is_empty())).await;
    assert!(is_lost(&other.join("bob", b"").await));
    let eve = group.join("eve", b"").await.unwrap();
    soon("eve", members.wait_for(|all| all.keys().eq(["eve"]))).await;
    drop((bob, eve));
    soon("eve's leaving", members.wait_for(|all| all.is_empty())).await;
    for bad in ["", "a/b", "..", "a\n"] {
        assert!(matches!(group.join(bad, b"").await, Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
    }
}

#[tokio::test]
async fn who_gives_up_joining_leaves_nothing_behind() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let group = session.group("/groups/b").unwrap();
    for micros in (0..4_000).step_by(250) {
        let name = format!("m{micros}");
        drop(tokio::time::timeout(Duration::from_micros(micros), group.join(&name, b"")).await);
    }
    until("nobody is there", async || names(session.client(), "/groups/b").await.is_empty()).await;
}

#[tokio::test]
async fn a_node_cache_follows_its_node() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let mut cache = client.node_cache("/caches-a/x").await.unwrap();
    assert_eq!(cache.current(), None);
    client.create("/caches-a", &with("")).await.unwrap();
    let made = client.create("/caches-a/x", &with("one")).await.unwrap();
    let now = soon("the node", cache.changed()).await.unwrap();
    assert_eq!((now.data.as_slice(), now.stat.czxid), (&b"one"[..], made.zxid));
    assert!(cache.image().zxid() >= made.zxid);
    for number in 0..20 {
        let set = SetData { data: Data::from_bytes(number.to_string().as_bytes()) };
        client.set("/caches-a/x", &set, None).await.unwrap();
    }
    soon("the last value", cache.wait_for(|node| node.is_some_and(|node| node.data == b"19"))).await.unwrap();
    assert_eq!(cache.current().unwrap().stat.version, 20);
    client.delete("/caches-a/x", None).await.unwrap();
    assert_eq!(soon("its end", cache.wait_for(|node| node.is_none())).await, None);
    assert!(client.node_cache("caches").await.is_err());
}

#[tokio::test]
async fn a_tree_cache_follows_everything_below() {
    let cluster = cluster().await;
    let client = client(&cluster);
    client.create("/caches-b", &with("root")).await.unwrap();
    client.create("/caches-b/a", &with("1")).await.unwrap();
    client.create("/caches-b/a/deep", &with("2")).await.unwrap();
    let mut cache = client.tree_cache("/caches-b").await.unwrap();
    assert_eq!(
        cache.current().iter().map(|(path, _)| path.to_owned()).collect::<Vec<_>>(),
        ["/caches-b", "/caches-b/a", "/caches-b/a/deep"]
    );
    client.set("/caches-b/a/deep", &SetData { data: Data::from_bytes(b"3") }, None).await.unwrap();
    assert_eq!(soon("a change", cache.changes()).await, [CacheChange::Changed("/caches-b/a/deep".into())]);
    client.delete("/caches-b/a/deep", None).await.unwrap();
    assert_eq!(soon("an end", cache.changes()).await, [CacheChange::Removed("/caches-b/a/deep".into())]);
    client.create("/caches-b/b", &with("4")).await.unwrap();
    assert_eq!(soon("a beginning", cache.changes()).await, [CacheChange::Added("/caches-b/b".into())]);
    assert_eq!(cache.current().get("/caches-b/b").unwrap().data, b"4");
    assert!(cache.current().trouble().is_none());
}

#[tokio::test]
async fn a_cache_survives_a_history_that_does_not_reach_back() {
    let cluster = Cluster::start_with(1, |config| config.limits.watch_history_events = 100).await.unwrap();
    let direct = client(&cluster);
    let wire = Wire::to(&cluster.endpoints()[0]).await;
    let options = Options { patience: Duration::from_millis(500), ..Options::default() };
    let through = Client::new([&wire.address], options).unwrap();
    direct.create("/old", &with("before")).await.unwrap();
    let mut cache = through.tree_cache("/").await.unwrap();
    wire.cut();
    direct.create("/new", &with("after")).await.unwrap();
    direct.delete("/old", None).await.unwrap();
    direct.create("/noise", &with("")).await.unwrap();
    // More than the node remembers, so that the watch cannot be taken up again.
    for _ in 0..40 {
        let set =
            lockkeeper_client::api::nodes::TxnOp::Set { path: "/noise".into(), data: Data::default(), version: None };
        let txn = lockkeeper_client::api::nodes::Txn { operations: vec![set; 10] };
        direct.txn(&txn).await.unwrap();
    }
    let before = cache.current();
    assert!(before.get("/old").is_some() && before.get("/new").is_none());
    wire.mend();
    let after = soon("the other side", cache.wait_for(|image| image.get("/new").is_some())).await;
    assert!(after.get("/old").is_none());
    assert_eq!(after.get("/noise").unwrap().stat.version, 400);
    direct.create("/later", &with("")).await.unwrap();
    soon("it goes on", cache.wait_for(|image| image.get("/later").is_some() && image.trouble().is_none())).await;
}

#[tokio::test]
async fn a_persistent_node_comes_back() {
    let cluster = cluster().await;
    let direct = client(&cluster);
    let wire = Wire::to(&cluster.endpoints()[0]).await;
    let options = Options {
        patience: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let through = Client::new([&wire.address], options).unwrap();
    // It begins while the cluster cannot be reached, and finds another's node in its place.
    wire.cut();
    let session_options = SessionOptions { timeout: Duration::from_secs(1), ..SessionOptions::default() };
    let node = PersistentNode::start(&through, session_options, "/services/web", b"v1").unwrap();
    let old = session(&cluster).await;
    let group = old.group("/services").unwrap();
    let former = group.join("web", b"former life").await.unwrap();
    wire.mend();
    until(
        "it waits for the other",
        async || matches!(node.state(), PersistentState::Absent { because } if because.contains(&old.id().to_string())),
    )
    .await;
    former.leave().await.unwrap();
    let PersistentState::Present { session_id, .. } = soon("the node", node.present()).await else { unreachable!() };

    // Other data; then somebody deletes it; then its session ends while the wire is cut and the data change.
    node.set_data(b"v2").unwrap();
    soon("the data", node.present()).await;
    assert_eq!(direct.node("/services/web", &Default::default()).await.unwrap().data, Data::from_bytes(b"v2"));
    direct.delete("/services/web", None).await.unwrap();
    until("it is made again", async || names(&direct, "/services").await == ["web"]).await;
    wire.cut();
    node.set_data(b"v3").unwrap();
    until("its session has ended", async || names(&direct, "/services").await.is_empty()).await;
    assert!(matches!(node.state(), PersistentState::Absent { .. }));
    wire.mend();
    let PersistentState::Present { session_id: next, data, .. } = soon("it comes back", node.present()).await else {
        unreachable!()
    };
    assert!(next != session_id && data == b"v3");
    let seen = direct.node("/services/web", &Default::default()).await.unwrap();
    assert_eq!((seen.kind, seen.stat.ephemeral_owner), (Kind::Ephemeral, Some(next)));
    assert_eq!(seen.data, Data::from_bytes(b"v3"));
    soon("to close", node.close()).await;
    assert!(names(&direct, "/services").await.is_empty());
}
