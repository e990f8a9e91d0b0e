//! The cluster that tests, examples and documentation run against.

use std::time::Instant;

use lockkeeper_server::local::Cluster;
use reqwest::Client;

async fn zxid(http: &Client, endpoint: &str) -> u64 {
    let answer = http.get(format!("{endpoint}/v1/cluster")).send().await.unwrap();
    answer.json::<serde_json::Value>().await.unwrap()["zxid"].as_u64().unwrap()
}

#[tokio::test]
async fn a_local_cluster_serves_loses_a_node_takes_it_back_and_leaves_nothing_behind() {
    let began = Instant::now();
    let mut cluster = Cluster::start(3).await.unwrap();
    println!("three nodes ready after {} ms", began.elapsed().as_millis());
    let http = Client::builder().no_proxy().build().unwrap();
    let endpoints = cluster.endpoints();
    let before = zxid(&http, &endpoints[1]).await;

    cluster.stop(2).await.unwrap();
    assert!(http.get(format!("{}/healthz", endpoints[1])).send().await.is_err(), "node 2 is gone");
    let opened = http.post(format!("{}/v1/sessions", endpoints[0])).json(&serde_json::json!({})).send().await.unwrap();
    assert!(opened.status().is_success(), "two of three serve");
    assert!(cluster.restart(1).await.is_err(), "node 1 is at work");
    cluster.restart(2).await.unwrap();
    assert!(zxid(&http, &endpoints[1]).await > before, "it has what it missed");
    assert!(cluster.stop(4).await.is_err());

    let ends = Instant::now();
    drop(cluster);
    println!("stopped after {} ms", ends.elapsed().as_millis());
    for endpoint in &endpoints {
        assert!(http.get(format!("{endpoint}/healthz")).send().await.is_err());
    }
}

#[test]
fn it_may_be_dropped_where_no_runtime_is() {
    let began = Instant::now();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::start(1)).unwrap();
    drop(runtime);
    println!("one node ready after {} ms", began.elapsed().as_millis());
    let ends = Instant::now();
    drop(cluster);
    println!("stopped after {} ms", ends.elapsed().as_millis());
}
