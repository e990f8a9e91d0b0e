//! Counter and latch.

use std::time::Duration;

use lockkeeper_client::api::Data;
use lockkeeper_client::api::nodes::{Create, Kind};
use lockkeeper_client::recipes::RecipeError;
use lockkeeper_client::{Client, Options, Session, SessionOptions, Transport};
use tokio::time::sleep;

use super::support::{client, cluster, is_lost, plain_session, session, soon, until};
use crate::wire::Wire;

#[tokio::test]
async fn sixteen_tasks_count_and_no_addition_is_lost_or_doubled() {
    let cluster = cluster().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let session = session(&cluster).await;
        let shared = session.counter("/counting/sum").unwrap();
        for number in 0..4 {
            // Half of the tasks share a handle, the others collide in the cluster.
            let own = session.counter("/counting/sum").unwrap();
            let counter = if number < 2 { shared.clone() } else { own };
            tasks.push(tokio::spawn(async move {
                let mut values = Vec::new();
                for _ in 0..8 {
                    values.push(counter.add(3).await.unwrap());
                }
                values
            }));
        }
    }
    let mut values = Vec::new();
    for task in tasks {
        values.extend(soon("the additions", task).await.unwrap());
    }
    // Each was given a value of its own, as if they had come one after the other.
    values.sort_unstable();
    assert_eq!(values, (1..=16 * 8).map(|n| n * 3).collect::<Vec<i64>>());
    let session = session(&cluster).await;
    assert_eq!(session.counter("/counting/sum").unwrap().get().await.unwrap(), 16 * 8 * 3);
    // The directory above it is a container, which the cluster removes when nobody uses it any more.
    let above = session.client().node("/counting", &Default::default()).await.unwrap();
    assert_eq!(above.kind, Kind::Container);
}

#[tokio::test]
async fn a_counter_is_exact_at_its_edges() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let counter = session.counter("/edges/counter").unwrap();
    assert_eq!(counter.get().await.unwrap(), 0);
    assert_eq!(counter.increment().await.unwrap(), 1);
    assert!(counter.compare_and_set(1, i64::MAX).await.unwrap());
    assert!(!counter.compare_and_set(1, 7).await.unwrap());
    assert!(matches!(counter.add(1).await, Err(RecipeError::Overflow { value: i64::MAX, delta: 1, .. })));
    assert_eq!(counter.get().await.unwrap(), i64::MAX);
    assert_eq!(counter.set(i64::MIN).await.unwrap(), i64::MAX);
    assert!(matches!(counter.add(-1).await, Err(RecipeError::Overflow { .. })));
    assert!(session.counter("/edges/unset").unwrap().compare_and_set(0, 5).await.unwrap());

    let other = Create { data: Data::from_bytes(b"not a number"), ..Create::default() };
    session.client().create("/edges/other", &other).await.unwrap();
    let foreign = session.counter("/edges/other").unwrap().add(1).await;
    assert!(matches!(foreign, Err(RecipeError::Foreign { .. })), "{foreign:?}");
    for bad in ["", "edges", "/", "/a//b", "/locks/x", "/a/.."] {
        assert!(matches!(session.counter(bad), Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
    }
    session.close().await.unwrap();
    assert!(is_lost(&counter.add(1).await));
}

#[tokio::test]
async fn an_addition_that_is_given_up_takes_nobody_elses_with_it() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let counter = session.counter("/given-up/counter").unwrap();
    let tasks: Vec<_> = (0..60)
        .map(|number| {
            let counter = counter.clone();
            tokio::spawn(async move {
                let wait = Duration::from_micros(if number % 3 == 0 { 200 * number } else { 30_000_000 });
                tokio::time::timeout(wait, counter.increment()).await.ok().map(Result::unwrap)
            })
        })
        .collect();
    let (mut values, mut given_up) = (Vec::new(), 0);
    for task in tasks {
        match soon("the addition", task).await.unwrap() {
            Some(value) => values.push(value),
            None => given_up += 1,
        }
    }
    let told = values.len();
    values.sort_unstable();
    values.dedup();
    assert_eq!((values.len(), told + given_up), (told, 60));
    assert!(given_up <= 20);
    // Those that were given up may have counted or not.
    let sum = counter.increment().await.unwrap() - 1;
    assert!((told as i64..=60).contains(&sum), "{sum} of {told} to 60");
}

#[tokio::test]
async fn a_latch_opens_when_all_have_counted() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let (latch, other) = (one.latch("/latches/a", 3).unwrap(), two.latch("/latches/a", 3).unwrap());
    // Waiting begins before anybody has made the latch.
    let mut waiting = Vec::new();
    for latch in [latch.clone(), other.clone()] {
        waiting.push(tokio::spawn(async move { latch.wait().await }));
    }
    assert_eq!(latch.remaining().await.unwrap(), 3);
    assert_eq!(latch.count_down().await.unwrap(), 2);
    let kept = one.client().node("/latches/a", &Default::default()).await.unwrap();
    assert_eq!(kept.kind, Kind::Persistent, "what a process has counted outlives it");
    assert_eq!(other.count_down().await.unwrap(), 1);
    assert!(waiting.iter().all(|task| !task.is_finished()));
    let wrong = one.latch("/latches/a", 4).unwrap().count_down().await;
    assert!(matches!(wrong, Err(RecipeError::Mismatch { .. })), "{wrong:?}");
    assert_eq!(other.count_down().await.unwrap(), 0);
    for task in waiting {
        soon("the latch to open", task).await.unwrap().unwrap();
    }
    assert_eq!(latch.count_down().await.unwrap(), 0);
    soon("an open latch", latch.wait()).await.unwrap();
    latch.remove().await.unwrap();
    latch.remove().await.unwrap();
    assert!(matches!(one.latch("/latches/a", 0), Err(RecipeError::BadArgument(_))));
}

#[tokio::test]
async fn waiting_for_a_latch_ends_with_the_latch_or_the_session() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let latch = one.latch("/latches/b", 2).unwrap();
    latch.count_down().await.unwrap();
    let wait = |latch: lockkeeper_client::recipes::Latch| tokio::spawn(async move { latch.wait().await });
    let (removed, lost) = (wait(latch.clone()), wait(two.latch("/latches/b", 2).unwrap()));
    // Both follow it by the time that the node has two watches more; the wait itself has no other trace.
    let status = client(&cluster);
    let watches = async || status.status_of(status.preferred(), false, Duration::from_secs(5)).await.unwrap().watches;
    until("both watch", async || watches().await >= 2).await;
    two.close().await.unwrap();
    assert!(is_lost(&soon("the end of the session", lost).await.unwrap()));
    latch.remove().await.unwrap();
    let removed = soon("the end of the latch", removed).await.unwrap();
    assert!(matches!(removed, Err(RecipeError::Removed { .. })), "{removed:?}");
}

#[tokio::test]
async fn additions_count_once_over_a_wire_that_breaks_again_and_again() {
    const ADDITIONS: i64 = 40;
    let cluster = cluster().await;
    let direct = session(&cluster).await;
    let wire = Wire::to(&cluster.endpoints()[0]).await;
    for (transport, path) in [(Transport::Stream, "/broken/stream"), (Transport::Http, "/broken/http")] {
        let client = Client::new([&wire.address], Options::default()).unwrap();
        let options = SessionOptions { timeout: Duration::from_secs(30), transport, ..SessionOptions::default() };
        let session = Session::open(&client, &options).await.unwrap();
        let counter = session.counter(path).unwrap();
        let adding = tokio::spawn(async move {
            for _ in 0..ADDITIONS {
                counter.increment().await.unwrap();
            }
        });
        // Most breaks take an answer with them, some of them the answer of a write.
        while !adding.is_finished() {
            sleep(Duration::from_millis(15)).await;
            wire.cut();
            sleep(Duration::from_millis(2)).await;
            wire.mend();
        }
        adding.await.unwrap();
        assert_eq!(direct.counter(path).unwrap().get().await.unwrap(), ADDITIONS, "{path}");
    }
}
