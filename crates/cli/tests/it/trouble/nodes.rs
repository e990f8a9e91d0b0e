//! Nodes that die and restart.

use std::time::{Duration, Instant};

use lockkeeper_client::{Error, Moment, Session, Transport};
use nix::sys::signal::{Signal, kill};
use tokio::time::timeout;

use super::parties::{TRANSPORTS, bystander, client, crowd, lock_name, queued_token, session, until_crowd_is};
use crate::support::{Dev, alive, eventually};

const LONG: Duration = Duration::from_secs(20);

/// Waits until a keepalive sent after `then` is acknowledged.
async fn renewed_after(session: &Session, then: Moment) {
    let mut renewals = session.renewals();
    let ttl = session.timeout();
    let renewed = timeout(LONG, async {
        while session.expires_at() <= then + ttl {
            renewals.changed().await.unwrap();
        }
    });
    assert!(renewed.await.is_ok(), "no keepalive was acknowledged any more: {:?}", *session.state().borrow());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_takes_no_session_and_no_place_along() {
    let dev = Dev::start(3, &[]);
    let elsewhere = bystander(&dev).await;
    elsewhere.client().lock("nothing").await.unwrap();
    let cases = TRANSPORTS.map(|transport| under_a_dying_node(&dev, transport));
    // All of them are connected to the first node when it dies.
    let cases = futures::future::join_all(cases).await;
    cases.iter().for_each(|case| case.stands_at(&dev.endpoints[0]));
    kill(dev.pids[0], Signal::SIGKILL).unwrap();
    let killed = Moment::now();
    futures::future::join_all(cases.into_iter().map(|case| case.after(killed))).await;
}

/// A holder and two waiters, all connected to the node that dies.
struct Standing {
    lock: String,
    holder: Session,
    guard: lockkeeper_client::locks::Guard,
    waiter: Session,
    waits: tokio::task::JoinHandle<Result<lockkeeper_client::locks::Guard, Error>>,
    last: Session,
    waits_last: tokio::task::JoinHandle<Result<lockkeeper_client::locks::Guard, Error>>,
}

async fn under_a_dying_node(dev: &Dev, transport: Transport) -> Standing {
    let lock = lock_name("dying node", transport);
    let ttl = Duration::from_secs(4);
    let holder = session(&client(&dev.endpoints), ttl, transport).await;
    let guard = holder.lock(&lock).lock().await.unwrap();
    let waiter = session(&client(&dev.endpoints), ttl, transport).await;
    let asking = waiter.client().clone();
    let waits = tokio::spawn({
        let lock = waiter.lock(&lock);
        async move { lock.lock().await }
    });
    until_crowd_is(&asking, &lock, (1, 1)).await;
    let last = bystander(dev).await;
    let waits_last = tokio::spawn({
        let lock = last.lock(&lock);
        async move { lock.lock().await }
    });
    until_crowd_is(&asking, &lock, (1, 2)).await;
    Standing { lock, holder, guard, waiter, waits, last, waits_last }
}

impl Standing {
    /// The test shows nothing if none of them is connected to the node that dies.
    fn stands_at(&self, endpoint: &str) {
        for session in [&self.holder, &self.waiter, &self.last] {
            assert_eq!(session.client().preferred().as_str(), endpoint, "of {}", self.lock);
        }
    }

    async fn after(self, killed: Moment) {
        renewed_after(&self.holder, killed).await;
        assert!(!self.guard.is_lost());
        let token = self.guard.token();
        self.guard.release().await.unwrap();
        let next = timeout(LONG, self.waits).await.expect("the waiter is told").unwrap().unwrap();
        assert!(next.token() > token && !next.is_lost());
        assert!(!self.waits_last.is_finished(), "who came last waits for who came first");
        next.release().await.unwrap();
        let last = timeout(LONG, self.waits_last).await.unwrap().unwrap().unwrap();
        last.release().await.unwrap();
        assert_eq!(crowd(self.last.client(), &self.lock).await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_die_and_return_and_sessions_and_guards_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    let mut dev = Dev::start(3, &["--data", &data]);
    let ttl = Duration::from_secs(20);
    let mut held = Vec::new();
    for transport in TRANSPORTS {
        let lock = lock_name("all die", transport);
        let holder = session(&client(&dev.endpoints), ttl, transport).await;
        let guard = holder.lock(&lock).lock().await.unwrap();
        let waiter = session(&client(&dev.endpoints), ttl, transport).await;
        let waits = tokio::spawn({
            let lock = waiter.lock(&lock);
            async move { lock.lock().await }
        });
        until_crowd_is(holder.client(), &lock, (1, 1)).await;
        held.push((lock, holder, guard, waiter, waits));
    }

    dev.signal(Signal::SIGKILL);
    assert_eq!(dev.process.wait().unwrap().code(), Some(1), "dev says that nothing is left");
    let back = Dev::start(3, &["--data", &data]);
    assert_eq!(back.endpoints, dev.endpoints);
    let returned = Moment::now();
    let witness = client(&back.endpoints);
    for (lock, holder, guard, waiter, waits) in held {
        renewed_after(&holder, returned).await;
        renewed_after(&waiter, returned).await;
        assert!(!guard.is_lost() && !waits.is_finished());
        assert!(witness.verify(&lock, guard.token()).await.unwrap().held);
        guard.release().await.unwrap();
        let next = timeout(LONG, waits).await.expect("the waiter is told").unwrap().unwrap();
        assert_eq!(queued_token(&witness, &lock, waiter.id()).await, Some(next.token()));
        next.release().await.unwrap();
        assert_eq!(crowd(&witness, &lock).await, (0, 0));
    }
}

/// All nodes get SIGTERM at the same time, as in a shutdown of everything. No node can take over leadership, which is
/// not an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_all_nodes_is_quick_and_quiet() {
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let dev = Dev::start(3, &["--data", directory.path().to_str().unwrap()]);
        let mut held = Vec::new();
        for transport in TRANSPORTS {
            let holder = session(&client(&dev.endpoints), LONG, transport).await;
            held.push(holder.lock(lock_name("stop of all", transport)).lock().await.unwrap());
        }
        let told = Instant::now();
        dev.signal(Signal::SIGTERM);
        eventually("all nodes have stopped", || dev.pids.iter().all(|pid| !alive(pid.as_raw())));
        quickest = quickest.min(told.elapsed());
        for node in 1..=3 {
            let log = std::fs::read_to_string(dev.data.join(format!("node{node}.log"))).unwrap();
            let trouble: Vec<&str> =
                log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
            assert!(trouble.is_empty() && log.contains("stopped"), "node {node}: {trouble:?} in {log}");
        }
    }
    // Each of these would include a wait for a leader.
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
}
