//! Rates of a cluster in one process. They depend on the machine, so they are printed and not judged. Only one thing is
//! judged: many clients together get more done than one alone, because batches form.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use lockkeeper_core::NodeKind;
use lockkeeper_node::Consistency;

use crate::common::*;

const RUN: Duration = Duration::from_millis(1_500);

/// Acquires and releases, own locks or one lock, with a third of the clients at each node.
async fn cycles_per_second(cluster: &Cluster, clients: u64, shared: bool) -> f64 {
    let (stop, cycles) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut sessions = Vec::new();
    for client in 0..clients {
        sessions.push(session(cluster.at(client % 3 + 1), 60_000).await);
    }
    let started = Instant::now();
    let tasks = sessions.into_iter().enumerate().map(|(client, mine)| {
        let node = cluster.at(client as u64 % 3 + 1).clone();
        let (stop, cycles) = (stop.clone(), cycles.clone());
        let name = if shared { "one".to_owned() } else { format!("own/{clients}-{client}") };
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let grant = granted(node.acquire(caller(mine), acquire(&name, 60_000)).await);
                release(&node, mine, &name, grant.token).await;
                cycles.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(RUN).await;
    stop.store(true, Ordering::SeqCst);
    join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
    cycles.load(Ordering::SeqCst) as f64 / started.elapsed().as_secs_f64()
}

/// Mean milliseconds of a write and of a linearizable read, one after another, at a node.
async fn alone_ms(cluster: &Cluster, id: u64) -> (f64, f64) {
    const TIMES: u32 = 100;
    let node = cluster.at(id);
    let mean = |started: Instant| started.elapsed().as_secs_f64() * 1_000.0 / f64::from(TIMES);
    let started = Instant::now();
    for _ in 0..TIMES {
        let op = create("/alone-", NodeKind::Persistent, true);
        node.execute(Default::default(), op).await.unwrap();
    }
    let write_ms = mean(started);
    let started = Instant::now();
    for _ in 0..TIMES {
        node.read(Consistency::Linearizable, |_| ()).await.unwrap();
    }
    (write_ms, mean(started))
}

#[tokio::test]
async fn batches_form_by_themselves() {
    let cluster = Cluster::of_three().await;
    let leader = cluster.leader().await;
    for id in [leader, leader % 3 + 1] {
        let (write_ms, read_ms) = alone_ms(&cluster, id).await;
        println!("node {id} (leader {leader}): write {write_ms:.2} ms, linearizable read {read_ms:.2} ms");
    }
    let one = cycles_per_second(&cluster, 1, false).await;
    let many = cycles_per_second(&cluster, 64, false).await;
    let handoffs = cycles_per_second(&cluster, 64, true).await;
    println!("cycles/s: {one:.0} with 1 client, {many:.0} with 64, own locks; {handoffs:.0} with 64 on one lock");
    assert!(many > 2.0 * one, "{one:.0} cycles/s alone, {many:.0} with 64 clients");
    cluster.finish().await;
}
