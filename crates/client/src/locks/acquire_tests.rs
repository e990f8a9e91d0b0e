//! A wait that takes several calls keeps its place, against a real cluster.

use lockkeeper_api::Problem;
use lockkeeper_api::locks::Mode;
use lockkeeper_server::local::Cluster;
use tokio::time::{Instant, timeout};

use super::*;
use crate::client::Client;
use crate::context::Options;
use crate::session::SessionOptions;

const SOON: Duration = Duration::from_secs(20);

/// As in earnest, some hundred times as fast.
const FAST: RenewalTiming = RenewalTiming {
    piece: Duration::from_millis(1_500),
    renew_after: Duration::from_millis(200),
    overlap: Duration::from_millis(300),
};

async fn queue(client: &Client) -> Vec<(String, u64)> {
    let view = client.lock("a").await.unwrap();
    view.queue.into_iter().map(|request| (request.label, request.token)).collect()
}

/// Waits until these wait, in this order.
async fn until(client: &Client, labels: &[&str]) -> Vec<(String, u64)> {
    let give_up_at = Instant::now() + SOON;
    loop {
        let queue = queue(client).await;
        if queue.iter().map(|(label, _)| label.as_str()).eq(labels.iter().copied()) {
            return queue;
        }
        assert!(Instant::now() < give_up_at, "{queue:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_wait_of_many_calls_keeps_its_place() {
    let cluster = Cluster::start(1).await.unwrap();
    let client = Client::new(cluster.endpoints(), Options::default()).unwrap();
    let session = Session::open(&client, &SessionOptions::default()).await.unwrap();
    let request = |label: &str| LockRequest { label: label.into(), ..LockRequest::new("a", Mode::Exclusive) };
    let holder = acquire(&session, &request("holder"), Wait::Try).await.unwrap().unwrap();
    let long = tokio::spawn({
        let (session, request) = (session.clone(), request("long"));
        async move { acquire_in_pieces(&session, &request, Wait::Endless, FAST).await }
    });
    until(&client, &["long"]).await;
    let behind = tokio::spawn({
        let (session, request) = (session.clone(), request("behind"));
        async move { acquire(&session, &request, Wait::Endless).await }
    });
    let before = until(&client, &["long", "behind"]).await;
    // More than the longest wait of one call: without the next call it would be out of the queue.
    let over = Instant::now() + FAST.piece * 2;
    while Instant::now() < over {
        assert_eq!(queue(&client).await, before);
        sleep(Duration::from_millis(20)).await;
    }
    holder.release().await.unwrap();
    let long = timeout(SOON, long).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(long.token(), before[0].1);
    until(&client, &["behind"]).await;
    assert!(client.verify("a", long.token()).await.unwrap().held, "the earlier calls took nothing back");
    drop(long);
    drop(timeout(SOON, behind).await.unwrap().unwrap().unwrap().unwrap());
    until(&client, &[]).await;
}

#[tokio::test]
async fn a_long_wait_ends_in_time_and_can_be_broken_off() {
    let cluster = Cluster::start(1).await.unwrap();
    let client = Client::new(cluster.endpoints(), Options::default()).unwrap();
    let session = Session::open(&client, &SessionOptions::default()).await.unwrap();
    let request = LockRequest::new("a", Mode::Exclusive);
    let _holder = acquire(&session, &request, Wait::Try).await.unwrap().unwrap();
    let wait = FAST.piece + FAST.renew_after * 2;
    let began = Instant::now();
    let ended = acquire_in_pieces(&session, &request, Wait::lasting(wait), FAST).await.unwrap();
    assert!(ended.is_none() && began.elapsed() >= wait);
    until(&client, &[]).await;
    // In the middle of a hand-over from one call to the next.
    let broken_off = FAST.renew_after + FAST.overlap / 2;
    assert!(timeout(broken_off, acquire_in_pieces(&session, &request, Wait::Endless, FAST)).await.is_err());
    until(&client, &[]).await;
    assert_eq!(client.lock("a").await.unwrap().holders.len(), 1);
}

/// The answer that the wait is over and the end of the session are found in the same moment, before any task could say
/// so.
#[tokio::test]
async fn a_waiter_that_was_frozen_is_told_of_its_session_not_of_its_patience() {
    let cluster = Cluster::start(1).await.unwrap();
    let client = Client::new(cluster.endpoints(), Options::default()).unwrap();
    let brief = SessionOptions { timeout: Duration::from_secs(1), ..SessionOptions::default() };
    let session = Session::open(&client, &brief).await.unwrap();
    let answered =
        || async { Err::<(), _>(Error::Refused(Box::new(Problem::new(Code::LockBusy, "the wait is over")))) };
    assert!(matches!(unless_lost(&session, answered()).await, Err(Error::Refused(_))));
    // Nothing of this runtime runs.
    std::thread::sleep(brief.timeout);
    assert!(matches!(unless_lost(&session, answered()).await, Err(Error::Lost(_))));
}
