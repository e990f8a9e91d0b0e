//! What a node shows of itself: metrics of its process, its build and its queues, and checksums at one zxid.

use std::time::Duration;

use futures::future::join_all;
use lockkeeper_api::Code;
use lockkeeper_api::cluster::Status;
use lockkeeper_api::locks::{Acquired, Lock, Locks};
use serde_json::json;

use crate::harness::{Cluster, eventually};

/// The value of a series.
fn value(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn the_process_and_the_build_are_exported() {
    let cluster = Cluster::start(1).await;
    let metrics = cluster.get("/metrics").await.text;
    let build = format!("lockkeeper_build_info{{version=\"{}\",", env!("CARGO_PKG_VERSION"));
    assert!(metrics.lines().any(|line| line.starts_with(&build) && line.ends_with("} 1")), "{metrics}");
    for (name, least) in [
        ("process_cpu_seconds_total", 0.001),
        ("process_resident_memory_bytes", 1e6),
        ("process_virtual_memory_bytes", 1e6),
        ("process_threads", 1.0),
        ("process_open_fds", 5.0),
        ("process_max_fds", 64.0),
        ("process_start_time_seconds", 1.5e9),
        ("lockkeeper_cluster_clock_seconds", 1.5e9),
    ] {
        assert!(value(&metrics, name).is_some_and(|value| value >= least), "{name} in {metrics}");
        assert_eq!(metrics.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
    }
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let clock = value(&metrics, "lockkeeper_cluster_clock_seconds").unwrap();
    assert!((now - clock).abs() < 30.0, "{now} {clock}");
}

#[tokio::test]
async fn the_age_of_a_queue_is_exported_by_namespace() {
    let cluster = Cluster::start(1).await;
    let session = cluster.session(30_000).await;
    let mine = Some(session.credential.as_str());
    let held: Acquired = cluster.post("/v1/locks/orders/1/acquire", mine, json!({})).await.json();
    let series = "lockkeeper_queue_age_seconds{namespace=\"orders\"}";
    assert_eq!(value(&cluster.get("/metrics").await.text, series), None, "nobody waits");

    let waits = cluster.post("/v1/locks/orders/1/acquire", None, json!({ "ttl_ms": 30_000, "wait_ms": 60_000 }));
    let watch = async {
        eventually("it waits", async || cluster.get("/v1/locks/orders/1").await.json::<Lock>().waiting == 1).await;
        let listed: Locks = cluster.get("/v1/locks").await.json();
        let lock = cluster.get("/v1/locks/orders/1").await.json::<Lock>();
        assert_eq!(listed.locks[0].waiting_since_ms, Some(lock.queue[0].since_ms), "{listed:?}");
        let mut ages = Vec::new();
        eventually("its wait is exported and grows", async || {
            ages.extend(value(&cluster.get("/metrics").await.text, series));
            ages.len() > 1 && ages.last() > ages.first()
        })
        .await;
        let released = cluster.post("/v1/locks/orders/1/release", mine, json!({ "token": held.token })).await;
        assert!(released.status.is_success(), "{}", released.text);
    };
    let (next, ()) = tokio::join!(waits, watch);
    assert!(next.json::<Acquired>().token > held.token);
    eventually("nobody waits any more", async || value(&cluster.get("/metrics").await.text, series).is_none()).await;
}

#[tokio::test]
async fn members_are_compared_at_one_zxid_while_changes_are_made() {
    let cluster = Cluster::start(3).await;
    let checksums = async |from: u64| {
        let path = format!("/v1/cluster?checksum=true&checksum_from={from}");
        let answers = join_all(cluster.nodes.iter().map(|node| node.get(&path))).await;
        answers.into_iter().map(|answer| answer.json::<Status>().state.unwrap()).collect::<Vec<_>>()
    };
    let changes = async {
        for number in 0.. {
            let path = format!("/v1/nodes/n{number}");
            let made = cluster.post(&path, None, json!({})).await;
            assert!(made.status.is_success(), "{}", made.text);
        }
    };
    let compare = async {
        let mut compared = 0;
        eventually("all have one state at one zxid, three times", async || {
            let present = cluster.status().await.zxid;
            let from = present + 20;
            let found = checksums(from).await;
            for other in &found[1..] {
                assert!(other.zxid != found[0].zxid || other.checksum == found[0].checksum, "{found:?}");
            }
            let is_one = found.iter().all(|state| state.zxid == found[0].zxid && state.zxid >= from);
            compared += u32::from(is_one);
            compared >= 3
        })
        .await;
    };
    tokio::select! {
        () = changes => unreachable!("it goes on for ever"),
        () = compare => {}
    }
}

#[tokio::test]
async fn a_checksum_does_not_wait_for_ever() {
    let cluster = Cluster::start(1).await;
    let far = format!("/v1/cluster?checksum=true&checksum_from={}", u64::MAX);
    let answer = tokio::time::timeout(Duration::from_secs(20), cluster.get(&far)).await.expect("it waits for 2 s");
    assert!(answer.json::<Status>().state.is_some());
    for bad in ["checksum_from=5", "checksum=false&checksum_from=5", "checksum=true&checksum_from=-1"] {
        cluster.get(&format!("/v1/cluster?{bad}")).await.problem(Code::BadRequest);
    }
}

#[tokio::test]
async fn at_most_some_calls_wait_for_a_checksum() {
    let cluster = Cluster::start(1).await;
    let path = format!("/v1/cluster?checksum=true&checksum_from={}", u64::MAX);
    let answers = join_all((0..40).map(|_| cluster.get(&path))).await;
    let refused: Vec<_> = answers.iter().filter(|answer| !answer.status.is_success()).collect();
    assert!(!refused.is_empty() && refused.len() < 40, "{}", refused.len());
    for answer in refused {
        answer.problem(Code::Overloaded);
    }
}
