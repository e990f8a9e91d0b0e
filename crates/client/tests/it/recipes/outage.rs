//! The recipes while nodes of a cluster of three stop and come back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lockkeeper_client::recipes::RecipeError;
use lockkeeper_server::local::Cluster;

use super::support::{client, session, soon, until};

const ADDITIONS: i64 = 60;
const ITEMS: usize = 30;

#[tokio::test]
async fn recipes_go_on_while_nodes_stop_and_come_back() {
    let mut cluster = Cluster::start(3).await.unwrap();
    let (one, two) = (session(&cluster).await, session(&cluster).await);
    let leadership = one.election("outage").unwrap().campaign(b"one").await.unwrap();
    let mut observer = client(&cluster).observe_election("outage").unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap().data, b"one");
    let mut members = two.group("/outage/members").unwrap().watch().await.unwrap();
    let latch = two.latch("/outage/latch", 2).unwrap();
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });

    let counting = [&one, &two].map(|session| {
        let counter = session.counter("/outage/counter").unwrap();
        tokio::spawn(async move {
            for _ in 0..ADDITIONS / 2 {
                counter.increment().await?;
            }
            Ok::<_, RecipeError>(())
        })
    });
    let done: Arc<Mutex<BTreeMap<Vec<u8>, u32>>> = Arc::default();
    let taking = {
        let (queue, done) = (two.queue("/outage/queue").unwrap(), done.clone());
        tokio::spawn(async move {
            loop {
                let delivery = queue.take().await.unwrap();
                let item = delivery.data().to_vec();
                delivery.ack().await.unwrap();
                *done.lock().unwrap().entry(item).or_default() += 1;
            }
        })
    };
    let queue = one.queue("/outage/queue").unwrap();
    for item in 0..ITEMS {
        match item {
            5 => cluster.stop(1).await.unwrap(),
            12 => cluster.restart(1).await.unwrap(),
            18 => cluster.stop(2).await.unwrap(),
            25 => cluster.restart(2).await.unwrap(),
            _ => {}
        }
        soon("a put", queue.put(item.to_string().as_bytes())).await.unwrap();
    }
    for task in counting {
        soon("the additions", task).await.unwrap().unwrap();
    }
    assert_eq!(one.counter("/outage/counter").unwrap().get().await.unwrap(), ADDITIONS);
    until("all items are done", async || done.lock().unwrap().len() == ITEMS).await;
    assert!(done.lock().unwrap().values().all(|times| *times == 1));
    taking.abort();

    // What waited through all of it is still told.
    leadership.proclaim(b"still one").await.unwrap();
    assert_eq!(soon("the leader", observer.next()).await.unwrap().unwrap().data, b"still one");
    let ada = one.group("/outage/members").unwrap().join("ada", b"").await.unwrap();
    soon("ada", members.wait_for(|all| all.contains_key("ada"))).await;
    latch.count_down().await.unwrap();
    latch.count_down().await.unwrap();
    soon("the latch", waiting).await.unwrap().unwrap();
    drop((ada, leadership));
}
