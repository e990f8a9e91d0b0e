//! A service stays discoverable: its node waits until the node of an earlier run is gone, is created again after a
//! deletion, and has the data that were set last.
//!
//! `cargo run -p lockkeeper-client --example persistent_node`

mod support;

use lockkeeper_client::SessionOptions;
use lockkeeper_client::recipes::{PersistentNode, PersistentState};
use support::{Outcome, check, connect, own, session};

#[tokio::main]
async fn main() -> Outcome {
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
