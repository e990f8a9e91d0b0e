//! Who leads, who is there, where a service can be found, and a configuration in memory.
//!
//! `cargo run -p lockkeeper-client --example presence`

mod support;

use lockkeeper_client::api::Data;
use lockkeeper_client::api::nodes::{Create, SetData, Txn, TxnOp};
use lockkeeper_client::recipes::{CachedNode, MemberChange, PersistentNode, PersistentState};
use lockkeeper_client::{Reading, SessionOptions};
use support::{Outcome, check, connect, own, session};

const CHANGES: u32 = 1_000;

#[tokio::main]
async fn main() -> Outcome {
    election().await?;
    membership().await?;
    persistent_node().await?;
    caches().await
}

/// Three candidates lead in turn. Each is observed with its data, has a larger token than the one before, and hands
/// over by resigning or when its session ends.
async fn election() -> Outcome {
    let name = own("election");
    let mut observer = connect().await?.observe_election(&name)?;
    check(observer.next().await?.is_none(), "nobody leads at first")?;
    let mut last_token = 0;
    for number in 1..=3 {
        let session = session(&format!("candidate {number}")).await?;
        let election = session.election(&name)?;
        let leadership = election.campaign(format!("candidate {number}").as_bytes()).await?;
        let seen = observer.next().await?.ok_or("nobody leads")?;
        println!("{} leads with token {}", String::from_utf8_lossy(&seen.data), seen.token);
        check(seen.token == leadership.token(), "the observer sees the leader's token")?;
        check(leadership.token() > last_token, "it is larger than the one before")?;
        last_token = leadership.token();

        // What the leader does ends when the leadership is lost; what it writes is refused then.
        let guarded = Txn { operations: vec![leadership.guard()] };
        leadership.run(session.client().txn(&guarded)).await??;
        if number == 2 {
            session.close().await?;
            leadership.lost().await;
            check(leadership.proclaim(b"still here").await.is_err(), "a leader whose session has ended cannot speak")?;
        } else {
            leadership.resign().await?;
        }
        check(observer.next().await?.is_none(), "the end is observed")?;
    }
    println!("election 3 leaders in turn: ok");
    Ok(())
}

/// Four processes see each other join, change and leave; one leaves when its session ends.
async fn membership() -> Outcome {
    let path = format!("/{}", own("members"));
    let observer = session("observer").await?;
    let mut members = observer.group(&path)?.watch().await?;
    let mut joined = Vec::new();
    for name in ["ada", "bob", "eve", "joe"] {
        let session = session(name).await?;
        let member = session.group(&path)?.join(name, b"idle").await?;
        check(members.changes().await == [MemberChange::Joined(name.into())], &format!("{name} comes"))?;
        joined.push((session, member));
    }
    let taken = observer.group(&path)?.join("ada", b"").await;
    check(taken.is_err(), "a name belongs to one at a time")?;
    joined[1].1.set_data(b"busy").await?;
    check(members.changes().await == [MemberChange::Updated("bob".into())], "bob's data change")?;
    check(members.current().get("bob").is_some_and(|data| data == b"busy"), "and can be seen")?;
    joined[2].0.close().await?;
    check(members.changes().await == [MemberChange::Left("eve".into())], "eve goes with her session")?;
    let (_, ada) = joined.swap_remove(0);
    ada.leave().await?;
    check(members.changes().await == [MemberChange::Left("ada".into())], "ada leaves")?;
    let left: Vec<String> = observer.group(&path)?.members().await?.into_keys().collect();
    check(left == ["bob", "joe"], "the others are still there")?;
    println!("membership 4 came, 2 went: ok");
    Ok(())
}

/// A service stays discoverable: its node waits until the node of an earlier run is gone, is created again after a
/// deletion, and has the data that were set last.
async fn persistent_node() -> Outcome {
    let client = connect().await?;
    let directory = format!("/{}", own("services"));
    let path = format!("{directory}/web");
    let former = session("former life").await?;
    let old = former.group(&directory)?.join("web", b"old").await?;

    let node = PersistentNode::start(&client, SessionOptions::default(), &path, b"10.0.0.1:80")?;
    let mut cache = client.node_cache(&path).await?;
    check(cache.current().is_some_and(|node| node.data == b"old"), "another's node is left alone")?;
    former.close().await?;
    drop(old);
    node.present().await;
    let made = cache.wait_for(|node| node.is_some_and(|node| node.data == b"10.0.0.1:80")).await.ok_or("no node")?;

    client.delete(&path, None).await?;
    let again = cache.wait_for(|node| node.is_some_and(|node| node.stat.czxid > made.stat.czxid)).await;
    check(again.is_some(), "it is created again after a deletion")?;
    node.set_data(b"10.0.0.2:80")?;
    check(matches!(node.present().await, PersistentState::Present { .. }), "other data are written")?;
    let seen = cache.wait_for(|node| node.is_some_and(|node| node.data == b"10.0.0.2:80")).await;
    check(seen.is_some_and(|node| node.stat.ephemeral_owner.is_some()), "and it still ends with its session")?;
    node.close().await;
    check(cache.wait_for(|node| node.is_none()).await.is_none(), "it goes when it is closed")?;
    println!("persistent node made, made again, changed and closed: ok");
    Ok(())
}

/// A configuration kept in memory: a thousand changes to one node and to a subtree, and the caches end with the
/// cluster's state.
async fn caches() -> Outcome {
    let session = session("cache").await?;
    let client = session.client();
    let root = format!("/{}", own("cache"));
    for path in [root.rsplit_once('/').map_or("/", |(above, _)| above), root.as_str()] {
        client.create(path, &Create::default()).await?;
    }
    let node = format!("{root}/setting");
    let (mut cache, mut tree) = (client.node_cache(&node).await?, client.tree_cache(&root).await?);
    check(cache.current().is_none(), "a node that does not exist can be cached")?;
    client.create(&node, &Create::default()).await?;
    for number in 1..=CHANGES / 100 {
        let data = |n: u32| Data::from_bytes(format!("{number}.{n}").as_bytes());
        let operations = (0..99).map(|n| TxnOp::Set { path: node.clone(), data: data(n), version: None }).collect();
        client.txn(&Txn { operations }).await?;
        client.create(&format!("{root}/part-{number}"), &Create { data: data(0), ..Create::default() }).await?;
    }
    let last = SetData { data: Data::from_bytes(b"last") };
    let zxid = client.set(&node, &last, None).await?.zxid;

    let is_last = |node: Option<&CachedNode>| node.is_some_and(|node| node.data == b"last");
    let cached = cache.wait_for(is_last).await.ok_or("no node")?;
    let image = tree.wait_for(|image| is_last(image.get(&node))).await;
    let real = client.node(&node, &Reading::default()).await?;
    check(cached.stat == real.stat && cached.stat.mzxid == zxid, "the node's cache has what the cluster has")?;
    let names = client.children(&root).await?;
    check(image.len() == names.len() + 1, "the tree's cache has every node")?;
    check(names.iter().all(|name| image.get(&format!("{root}/{name}")).is_some()), "under its own path")?;
    println!("node cache at version {} after {CHANGES} changes: ok", cached.stat.version);
    Ok(())
}
