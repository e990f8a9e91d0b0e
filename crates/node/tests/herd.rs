//! Promise P3, counted: one notification for each release, and one for a waiter that dies in the middle.
#![allow(clippy::unwrap_used)] // also in the helpers of tests: what fails there has failed the test

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::*;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Sums counters by name over all nodes of this process.
#[derive(Clone, Default)]
struct Counters(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Counters {
    fn get(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |count| count.load(Ordering::SeqCst))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.0.lock().unwrap().entry(key.name().to_owned()).or_default().clone())
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

const NOTIFIED: &str = "lockkeeper_lock_notifications_total";
const RELEASED: &str = "lockkeeper_lock_releases_total";

#[tokio::test]
async fn each_release_wakes_one_and_each_death_at_most_one() {
    let counters = Counters::default();
    metrics::set_global_recorder(counters.clone()).unwrap();
    let cluster = Cluster::of_three().await;
    let holder = session(cluster.at(1), 60_000).await;
    let mut grant = granted(cluster.at(1).acquire(caller(holder), ask("herd", 0)).await);
    let mut waiters = Vec::new();
    for place in 0..200_u64 {
        let node = cluster.at(place % 3 + 1).clone();
        let mine = session(&node, 60_000).await;
        let task = tokio::spawn({
            let node = node.clone();
            async move { node.acquire(caller(mine), ask("herd", 60_000)).await }
        });
        until("the waiter to wait", || (waiting(&cluster) == place as usize + 1).then_some(())).await;
        waiters.push((node, mine, Some(task)));
    }
    assert_eq!(counters.get(NOTIFIED), 0, "waiting wakes nobody");

    // Every fourth dies in the middle: its successor alone is looked at, and goes on waiting.
    let mut dead = 0;
    for (node, mine, task) in waiters.iter_mut().skip(1).step_by(4) {
        node.close_session(mine).await.unwrap();
        assert!(task.take().unwrap().await.unwrap().is_err());
        dead += 1;
    }
    until("the deaths to be seen everywhere", || (waiting(&cluster) == 200 - dead).then_some(())).await;
    assert_eq!(counters.get(NOTIFIED), dead as u64);
    assert_eq!(counters.get(RELEASED), 0);

    // Each release wakes the next in the queue and nobody else.
    let mut owner = (cluster.at(1).clone(), holder);
    let mut released = 0;
    for (node, mine, task) in waiters {
        let Some(task) = task else { continue };
        release(&owner.0, owner.1, "herd", grant.token).await;
        released += 1;
        let next = granted(task.await.unwrap());
        assert!(next.token > grant.token);
        assert_eq!(counters.get(NOTIFIED) - dead as u64, released, "one notification for each release");
        (owner, grant) = ((node, mine), next);
    }
    until("releases to be counted", || (counters.get(RELEASED) == released).then_some(())).await;
    // And a holder that dies releases as well.
    let node = cluster.at(2).clone();
    let last = session(&node, 60_000).await;
    let task = tokio::spawn(async move { node.acquire(caller(last), ask("herd", 60_000)).await });
    until("the last to wait", || (waiting(&cluster) == 1).then_some(())).await;
    owner.0.close_session(&owner.1).await.unwrap();
    granted(task.await.unwrap());
    assert_eq!((counters.get(RELEASED), counters.get(NOTIFIED) - dead as u64), (released + 1, released + 1));
    cluster.finish().await;
}
