//! A configuration kept in memory: a thousand changes to one node and to a subtree, and the caches end with the
//! cluster's state.
//!
//! `cargo run -p lockkeeper-client --example node_cache`

mod support;

use lockkeeper_client::api::Data;
use lockkeeper_client::api::nodes::{Create, SetData, Txn, TxnOp};
use support::{Outcome, check, own, session};

const CHANGES: u32 = 1_000;

#[tokio::main]
async fn main() -> Outcome {
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

    let is_last = |node: Option<&lockkeeper_client::recipes::CachedNode>| node.is_some_and(|node| node.data == b"last");
    let cached = cache.wait_for(is_last).await.ok_or("no node")?;
    let image = tree.wait_for(|image| is_last(image.get(&node))).await;
    let real = client.node(&node, &lockkeeper_client::Reading::default()).await?;
    check(cached.stat == real.stat && cached.stat.mzxid == zxid, "the node's cache has what the cluster has")?;
    let names = client.children(&root).await?;
    check(image.len() == names.len() + 1, "the tree's cache has every node")?;
    check(names.iter().all(|name| image.get(&format!("{root}/{name}")).is_some()), "under its own path")?;
    println!("node cache at version {} after {CHANGES} changes: ok", cached.stat.version);
    Ok(())
}
