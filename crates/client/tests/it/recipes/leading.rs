//! Leader election.

use std::time::Duration;

use lockkeeper_client::Session;
use lockkeeper_client::recipes::{Leader, LeaderWatch, Leadership, RecipeError};
use tokio::task::JoinHandle;

use super::support::{Process, client, cluster, is_lost, names, plain_session, session, soon, until};

fn campaign(session: &Session, election: &str, data: &str) -> JoinHandle<Result<Leadership, RecipeError>> {
    let (election, data) = (session.election(election).unwrap(), data.to_owned());
    tokio::spawn(async move { election.campaign(data.as_bytes()).await })
}

/// The next news that says what is wanted.
async fn observed(watch: &mut LeaderWatch, data: Option<&str>) -> Option<Leader> {
    loop {
        let leader = soon("news of the leader", watch.next()).await.unwrap();
        if leader.as_ref().map(|leader| leader.data.as_slice()) == data.map(str::as_bytes) {
            return leader;
        }
    }
}

#[tokio::test]
async fn candidates_lead_in_turn_and_observers_see_it() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let looking = client(&cluster);
    let election = one.election("primary/a").unwrap();
    let mut watch = looking.observe_election("primary/a").unwrap();
    assert_eq!(soon("nobody", watch.next()).await.unwrap(), None);

    let first = soon("the first", election.campaign(b"one")).await.unwrap();
    let seen = observed(&mut watch, Some("one")).await.unwrap();
    assert_eq!((seen.token, seen.session_id), (first.token(), one.id()));
    assert_eq!(election.leader().await.unwrap().unwrap().data, b"one");
    assert!(two.election("primary/a").unwrap().try_campaign(b"two").await.unwrap().is_none());
    assert!(!first.is_lost() && first.remaining() > Duration::ZERO);

    let second = campaign(&two, "primary/a", "two");
    until("the second stands", async || looking.lock(&election.lock_name()).await.unwrap().waiting == 1).await;
    first.proclaim(b"one at work").await.unwrap();
    observed(&mut watch, Some("one at work")).await.unwrap();
    assert!(!second.is_finished());
    assert_eq!(first.run(async { 7 }).await.unwrap(), 7);

    let token = first.token();
    first.resign().await.unwrap();
    let second = soon("the second", second).await.unwrap().unwrap();
    assert!(second.token() > token);
    assert_eq!(observed(&mut watch, Some("two")).await.unwrap().token, second.token());
    // Dropping resigns as well.
    drop(second);
    observed(&mut watch, None).await;
    until("the lock is free", async || looking.lock(&election.lock_name()).await.unwrap().holders.is_empty()).await;
    for bad in ["", "/a", "a/_leader", "a//b"] {
        assert!(matches!(one.election(bad), Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
    }
    assert!(matches!(election.campaign(&vec![0; 65 * 1024]).await, Err(RecipeError::BadArgument(_))));
}

#[tokio::test]
async fn when_the_leader_dies_the_next_one_leads() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let process = Process::start(&cluster, Duration::from_secs(1)).await;
    let election = process.session.election("primary/b").unwrap();
    let dying = process.run(async move { election.campaign(b"dying").await.unwrap() }).await;
    let mut watch = session.election("primary/b").unwrap().observe();
    observed(&mut watch, Some("dying")).await.unwrap();
    let next = campaign(&session, "primary/b", "next");
    let token = dying.token();
    process.die(dying);
    let next = soon("the next", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    observed(&mut watch, Some("next")).await.unwrap();
    // The end of its own session is told to a leader, and to its observers.
    let lost = next.lost();
    session.close().await.unwrap();
    soon("the loss", lost).await;
    assert!(next.is_lost());
    assert!(next.proclaim(b"still here").await.is_err());
    observed(&mut watch, None).await;
}

#[tokio::test]
async fn a_deposed_leader_cannot_speak() {
    let cluster = cluster().await;
    let (one, two) = (session(&cluster).await, plain_session(&cluster).await);
    let election = one.election("primary/c").unwrap();
    let first = election.campaign(b"one").await.unwrap();
    let second = campaign(&two, "primary/c", "two");
    let looking = client(&cluster);
    until("the second stands", async || looking.lock(&election.lock_name()).await.unwrap().waiting == 1).await;
    looking.force_release(&election.lock_name(), first.token()).await.unwrap();
    let second = soon("the second", second).await.unwrap().unwrap();
    let stale = first.proclaim(b"one").await;
    assert!(matches!(stale, Err(RecipeError::Stale { .. })), "{stale:?}");
    let guarded = lockkeeper_client::api::nodes::Txn { operations: vec![first.guard()] };
    assert!(one.client().txn(&guarded).await.is_err());
    // Nor does its resignation harm its successor.
    assert!(first.resign().await.is_err());
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((leader.data, leader.token), (b"two".to_vec(), second.token()));
    // Deposed with nobody to follow: observers are told, and so is the deposed, over its session's stream.
    let third = one.election("primary/c").unwrap();
    drop(second);
    let third = soon("the third", third.campaign(b"three")).await.unwrap();
    let mut watch = election.observe();
    observed(&mut watch, Some("three")).await.unwrap();
    let lost = third.lost();
    looking.force_release(&election.lock_name(), third.token()).await.unwrap();
    assert_eq!(election.leader().await.unwrap(), None);
    soon("the deposed to be told", lost).await;
    observed(&mut watch, None).await;
    assert!(third.is_lost());
}

#[tokio::test]
async fn who_gives_up_standing_leaves_nothing_behind() {
    let cluster = cluster().await;
    let session = session(&cluster).await;
    let election = session.election("primary/d").unwrap();
    for micros in (0..12_000).step_by(500) {
        drop(tokio::time::timeout(Duration::from_micros(micros), election.campaign(b"maybe")).await);
    }
    let looking = client(&cluster);
    until("nobody stands", async || {
        let lock = looking.lock(&election.lock_name()).await.unwrap();
        lock.holders.is_empty() && lock.queue.is_empty()
    })
    .await;
    until("nobody leads", async || names(&looking, "/elections/primary/d").await.is_empty()).await;
    let leads = soon("the lock is free", election.campaign(b"at last")).await.unwrap();
    let waiting = campaign(&session, "primary/d", "second");
    until("it stands", async || looking.lock(&election.lock_name()).await.unwrap().waiting == 1).await;
    session.close().await.unwrap();
    assert!(is_lost(&soon("the end", waiting).await.unwrap()));
    drop(leads);
}
