//! Clients, sessions, and the look at the queue that ends each test.

use std::time::{Duration, Instant};

use lockkeeper_client::{Client, Options, PreferredNode, Session, SessionOptions, Transport};

use crate::support::Dev;
use crate::support::proxy::eventually_async;

/// The ways in which a session may talk to the cluster.
pub(crate) const TRANSPORTS: [Transport; 2] = [Transport::Stream, Transport::Http];

/// How long the cluster may need to notice that a session's time is over, on a crowded machine.
const UNTIL_NOTICED: Duration = Duration::from_secs(3);

/// Patient enough for an election, and quick to leave a node that does not answer.
pub(crate) fn options() -> Options {
    Options {
        // The faults are at the first.
        prefer: PreferredNode::First,
        connect_timeout: Duration::from_millis(500),
        attempt_timeout: Duration::from_secs(1),
        patience: Duration::from_secs(10),
        liveness_interval: Duration::from_millis(300),
        ..Options::default()
    }
}

pub(crate) fn client(endpoints: impl IntoIterator<Item = impl AsRef<str>>) -> Client {
    Client::new(endpoints, options()).unwrap()
}

pub(crate) async fn session(client: &Client, ttl: Duration, transport: Transport) -> Session {
    let options = SessionOptions { timeout: ttl, label: "trouble".into(), transport };
    Session::open(client, &options).await.unwrap()
}

/// Another's session: over plain calls to all nodes, and long enough for the whole test.
pub(crate) async fn bystander(dev: &Dev) -> Session {
    session(&client(&dev.endpoints), Duration::from_secs(60), Transport::Http).await
}

/// A name for each case and transport.
pub(crate) fn lock_name(case: &str, transport: Transport) -> String {
    format!("{case}/{transport:?}")
}

/// How many hold a lock, and how many wait for it.
pub(crate) async fn crowd(asking: &Client, lock: &str) -> (usize, u64) {
    let view = asking.lock(lock).await.unwrap();
    (view.holders.len(), view.waiting)
}

pub(crate) async fn until_crowd_is(asking: &Client, lock: &str, wanted: (usize, u64)) {
    eventually_async(&format!("{lock} has {wanted:?} holders and waiters"), || async {
        crowd(asking, lock).await == wanted
    })
    .await;
}

/// The request of that session in the queue, waiting or holding: its token.
pub(crate) async fn queued_token(asking: &Client, lock: &str, session_id: u64) -> Option<u64> {
    let view = asking.lock(lock).await.unwrap();
    let mut all = view.holders.into_iter().chain(view.queue);
    all.find(|request| request.session_id == Some(session_id)).map(|request| request.token)
}

/// Nobody of that session is left in the queue by the time that its timeout has passed since it was last heard of.
pub(crate) async fn leaves_no_orphan(asking: &Client, lock: &str, session_id: u64, heard: Instant, ttl: Duration) {
    eventually_async(&format!("session {session_id} is gone from the queue of {lock}"), || async {
        queued_token(asking, lock, session_id).await.is_none()
    })
    .await;
    let took = heard.elapsed();
    assert!(
        took < ttl + UNTIL_NOTICED,
        "an orphan stood in the queue of {lock} for {took:?}, with a timeout of {ttl:?}"
    );
}
