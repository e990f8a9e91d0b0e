//! Faults of the network between a client and its nodes: silence, cuts, lost replies.

use std::time::{Duration, Instant};

use lockkeeper_client::{Client, Error, Session, SessionState, Transport};
use tokio::time::timeout;

use super::parties::{
    TRANSPORTS, bystander, client, crowd, leaves_no_orphan, lock_name, options, queued_token, session, until_crowd_is,
};
use crate::support::Dev;
use crate::support::proxy::{Mute, Proxy, Wire, eventually_async};

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(20);

/// A client that reaches each node through a proxy.
struct Wired {
    wires: Vec<Proxy>,
    client: Client,
}

impl Wired {
    async fn to(dev: &Dev) -> Self {
        let mut wires = Vec::new();
        for endpoint in &dev.endpoints {
            wires.push(Proxy::to(endpoint).await);
        }
        let client = client(wires.iter().map(Proxy::endpoint));
        Self { wires, client }
    }

    fn all_become(&self, wire: Wire) {
        self.wires.iter().for_each(|one| one.becomes(wire));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_behind_a_broken_wire() {
    let dev = Dev::start(3, &[]);
    let dev = &dev;
    let cases = TRANSPORTS.map(|transport| async move {
        futures::join!(
            it_expires_while_holding(dev, transport),
            it_expires_while_waiting(dev, transport),
            it_expires_while_reconnecting(dev, transport),
            a_short_break_costs_nothing(dev, transport),
        );
    });
    futures::future::join_all(cases).await;
}

/// Promise P11: the holder learns of the loss before another can hold the lock.
async fn it_expires_while_holding(dev: &Dev, transport: Transport) {
    let lock = lock_name("expires while holding", transport);
    let rival = bystander(dev).await;
    let wired = Wired::to(dev).await;
    let holder = session(&wired.client, TTL, transport).await;
    let guard = holder.lock(&lock).lock().await.unwrap();
    let rivals = rival.lock(&lock);
    let rivals_turn = tokio::spawn(async move { rivals.lock().await.map(|guard| (guard, Instant::now())) });
    until_crowd_is(rival.client(), &lock, (1, 1)).await;

    wired.all_become(Wire::Silent);
    let silent = Instant::now();
    timeout(LONG, guard.lost()).await.expect("the holder is told");
    let told = Instant::now();
    assert!(told - silent < TTL, "told {:?} after the wire fell silent", told - silent);
    assert!(guard.is_lost() && guard.remaining().is_zero());
    let (rivals, granted) = timeout(LONG, rivals_turn).await.expect("the lock becomes free").unwrap().unwrap();
    assert!(told < granted, "the holder is told first");
    assert!(rivals.token() > guard.token());
    leaves_no_orphan(rival.client(), &lock, holder.id(), silent, TTL).await;

    // The loss is final, and the loser's release does not release the winner's lock.
    wired.all_become(Wire::Sound);
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    assert!(matches!(holder.lock(&lock).try_lock().await, Err(Error::Lost(_))));
    assert!(matches!(*holder.state().borrow(), SessionState::Lost { .. }));
    assert!(rival.client().verify(&lock, rivals.token()).await.unwrap().held);
    rivals.release().await.unwrap();
}

async fn it_expires_while_waiting(dev: &Dev, transport: Transport) {
    let lock = lock_name("expires while waiting", transport);
    let rival = bystander(dev).await;
    let rivals = rival.lock(&lock).lock().await.unwrap();
    let wired = Wired::to(dev).await;
    let waiter = session(&wired.client, TTL, transport).await;
    let handle = waiter.lock(&lock);
    let waits = tokio::spawn(async move { handle.lock().await });
    until_crowd_is(rival.client(), &lock, (1, 1)).await;

    wired.all_become(broken_for_a_waiter(transport));
    let broken = Instant::now();
    let told = timeout(LONG, waits).await.expect("the waiter is told").unwrap();
    assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
    assert!(broken.elapsed() < TTL, "told after {:?}", broken.elapsed());
    leaves_no_orphan(rival.client(), &lock, waiter.id(), broken, TTL).await;
    assert_eq!(crowd(rival.client(), &lock).await, (1, 0));
    rivals.release().await.unwrap();
}

/// Over HTTP a waiting request keeps the session alive, so only the end of its connection ends the wait.
fn broken_for_a_waiter(transport: Transport) -> Wire {
    match transport {
        Transport::Http => Wire::Cut,
        Transport::Stream => Wire::Silent,
    }
}

async fn it_expires_while_reconnecting(dev: &Dev, transport: Transport) {
    let lock = lock_name("expires while reconnecting", transport);
    let rival = bystander(dev).await;
    let wired = Wired::to(dev).await;
    let holder = session(&wired.client, TTL, transport).await;
    let guard = holder.lock(&lock).lock().await.unwrap();
    wired.all_become(Wire::Cut);
    let cut = Instant::now();
    let token = guard.token();
    timeout(LONG, guard.lost()).await.expect("the holder is told");
    assert!(cut.elapsed() < TTL, "told after {:?}", cut.elapsed());
    let rivals = timeout(LONG, rival.lock(&lock).lock()).await.expect("the lock becomes free").unwrap();
    leaves_no_orphan(rival.client(), &lock, holder.id(), cut, TTL).await;

    // The network is back: the old request neither reappears nor hinders a new one.
    wired.all_become(Wire::Sound);
    drop(guard);
    assert!(holder.lock(&lock).try_lock().await.is_err());
    let again = session(&wired.client, TTL, transport).await;
    assert!(again.lock(&lock).try_lock().await.unwrap().is_none());
    rivals.release().await.unwrap();
    let next = timeout(LONG, again.lock(&lock).lock()).await.unwrap().unwrap();
    assert!(next.token() > token);
    again.close().await.unwrap();
    assert_eq!(crowd(rival.client(), &lock).await, (0, 0));
}

async fn a_short_break_costs_nothing(dev: &Dev, transport: Transport) {
    let lock = lock_name("short break", transport);
    let rival = bystander(dev).await;
    let wired = Wired::to(dev).await;
    let holder = session(&wired.client, 5 * TTL, transport).await;
    let guard = holder.lock(&lock).lock().await.unwrap();
    for _ in 0..3 {
        wired.all_become(Wire::Cut);
        // Long enough for every request under way to fail.
        eventually_async("nothing gets through", || async {
            client(wired.wires.iter().map(Proxy::endpoint))
                .status_of_all(false, TTL)
                .await
                .iter()
                .all(|(_, s)| s.is_err())
        })
        .await;
        wired.all_become(Wire::Sound);
        holder.client().verify(&lock, guard.token()).await.unwrap();
    }
    assert!(!guard.is_lost());
    assert_eq!(queued_token(rival.client(), &lock, holder.id()).await, Some(guard.token()));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_after_the_lock_was_granted() {
    let dev = Dev::start(3, &[]);
    let dev = &dev;
    let cases = TRANSPORTS.map(|transport| async move {
        futures::join!(
            the_same_request_is_asked_for_again(dev, transport, true),
            the_same_request_is_asked_for_again(dev, transport, false),
            a_caller_that_has_gone_leaves_nothing(dev, transport),
        );
    });
    futures::future::join_all(cases).await;
}

/// Promise P9: the cluster has executed a request, and the client, which does not know, repeats it at any node.
async fn the_same_request_is_asked_for_again(dev: &Dev, transport: Transport, elsewhere: bool) {
    let lock = lock_name(if elsewhere { "lost answer elsewhere" } else { "lost answer" }, transport);
    let witness = bystander(dev).await;
    let wire = Proxy::to(&dev.endpoints[0]).await;
    let mut endpoints = vec![wire.endpoint()];
    endpoints.extend(elsewhere.then(|| dev.endpoints[1].clone()));
    let asker = connected(&client(endpoints), &lock, transport).await;
    wire.becomes(Wire::SwallowsAnswers);
    let handle = asker.lock(&lock);
    let mut asks = tokio::spawn(async move { handle.lock().await });
    let mut granted = None;
    while granted.is_none() {
        if asks.is_finished() {
            panic!("nothing can have been answered, but there is {:?}", (&mut asks).await);
        }
        granted = queued_token(witness.client(), &lock, asker.id()).await;
    }
    wire.becomes(Wire::Cut);
    if !elsewhere {
        wire.becomes(Wire::Sound);
    }
    let guard = timeout(LONG, asks).await.expect("it is answered in the end").unwrap().unwrap();
    assert_eq!(Some(guard.token()), granted, "the grant of the first time");
    assert_eq!(crowd(witness.client(), &lock).await, (1, 0));
    assert!(witness.client().verify(&lock, guard.token()).await.unwrap().held);
    guard.release().await.unwrap();
    assert_eq!(crowd(witness.client(), &lock).await, (0, 0));
}

/// A session with one answered request on the connection that it will use.
async fn connected(client: &Client, lock: &str, transport: Transport) -> Session {
    let session = session(client, 5 * TTL, transport).await;
    session.lock(lock).lock().await.unwrap().release().await.unwrap();
    session
}

/// The lock was granted to a caller that no longer waits and whose session is alive.
async fn a_caller_that_has_gone_leaves_nothing(dev: &Dev, transport: Transport) {
    let lock = lock_name("lost answer and caller", transport);
    let witness = bystander(dev).await;
    let wire = Proxy::to(&dev.endpoints[0]).await;
    let asker = connected(&client([wire.endpoint()]), &lock, transport).await;
    wire.becomes(Wire::SwallowsAnswers);
    let handle = asker.lock(&lock);
    let asks = tokio::spawn(async move { handle.lock().await });
    until_crowd_is(witness.client(), &lock, (1, 0)).await;
    asks.abort();
    assert!(asks.await.unwrap_err().is_cancelled());
    let gone = Instant::now();
    wire.becomes(Wire::Cut);
    wire.becomes(Wire::Sound);
    leaves_no_orphan(witness.client(), &lock, asker.id(), gone, asker.timeout()).await;
    assert!(!asker.left().is_zero(), "the session has not ended for it");
    assert!(asker.lock(&lock).try_lock().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_connections_and_says_nothing() {
    let dev = Dev::start(1, &[]);
    let mute = Mute::start().await;
    for transport in TRANSPORTS {
        let lock = lock_name("mute", transport);
        let all = client([mute.endpoint(), dev.endpoints[0].clone()]);
        let began = Instant::now();
        let session = timeout(LONG, session(&all, TTL, transport)).await.expect("the other one serves");
        let guard = timeout(LONG, session.lock(&lock).lock()).await.unwrap().unwrap();
        assert!(began.elapsed() < 6 * options().attempt_timeout, "it took {:?}", began.elapsed());
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        session.close().await.unwrap();
        assert_eq!(crowd(&all, &lock).await, (0, 0));
    }
    for transport in TRANSPORTS {
        let began = Instant::now();
        let opened = timeout(LONG, open(&client([mute.endpoint()]), transport)).await.expect("it does not hang");
        // The node may have received the request: then the outcome is unknown.
        assert!(matches!(opened, Err(Error::Unreachable { .. } | Error::UnknownOutcome(_))), "{opened:?}");
        let bound = options().patience + 2 * options().attempt_timeout;
        assert!(began.elapsed() < bound, "it took {:?}", began.elapsed());
    }
}

async fn open(client: &Client, transport: Transport) -> Result<Session, Error> {
    let options = lockkeeper_client::SessionOptions { timeout: TTL, label: "mute".into(), transport };
    Session::open(client, &options).await
}
