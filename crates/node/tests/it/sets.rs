//! Several locks at once, lock delay, downgrade and gates over three nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use lockkeeper_core::{FencingToken, GateKey, GateOp, GateStanding, LockMode, LockOp, Principals, Refusal, Reply};
use lockkeeper_node::{Acquire, Acquired, Consistency, Credential, Node, NodeConfig, NodeError, SessionEvent};

use crate::common::*;

/// How many requests are in these queues, by the leader's state.
async fn standing(node: &Node, names: &[&str]) -> usize {
    let names = locks(names);
    let count = node.read(Consistency::Linearizable, move |state| {
        names.iter().map(|name| state.lock(name).map_or(0, |view| view.len())).sum()
    });
    count.await.unwrap().value
}

#[tokio::test]
async fn a_set_is_had_whole_or_not_at_all() {
    let cluster = Cluster::of_three().await;
    let (a, b) = (session(cluster.at(1), 30_000).await, session(cluster.at(2), 30_000).await);
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let busy = cluster.at(2).acquire(caller(b), acquire_all(&["l", "m", "n"], 0)).await.unwrap().value;
    let Acquired::Busy { lock: missing, holders, ahead, .. } = busy else { panic!("{busy:?}") };
    assert_eq!((missing, holders[0].token, ahead), (lock("m"), m.token, 1), "the lock that is missing is named");
    assert_eq!(standing(cluster.at(3), &["l", "m", "n"]).await, 1, "it left every queue");

    let n = granted(cluster.at(1).acquire(caller(a), acquire("n", 0)).await);
    let set = spawn_granted(cluster.at(2), b, acquire_all(&["l", "m", "n"], 30_000));
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    release(cluster.at(1), a, "m", m.token).await;
    until("it to wait for the next", || (waiting(&cluster) == 1).then_some(())).await;
    assert!(!set.is_finished());
    release(cluster.at(3), a, "n", n.token).await;
    let grant = set.await.unwrap();
    assert_eq!(grant.paths.len(), 3);
    for name in ["l", "m", "n"] {
        assert!(cluster.at(1).verify(&lock(name), grant.token).await.unwrap().value);
    }
    release_all(cluster.at(3), b, &["l", "m", "n"], grant.token).await;
    assert_eq!(standing(cluster.at(1), &["l", "m", "n"]).await, 0);
    cluster.finish().await;
}

#[tokio::test]
async fn a_set_whose_caller_goes_leaves_every_queue() {
    let cluster = Cluster::of_three().await;
    let [a, b, c] = sessions(&cluster, 30_000).await;
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let abandoned = spawn_acquire(cluster.at(2), b, acquire_all(&["l", "m"], 30_000));
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let next = spawn_granted(cluster.at(3), c, acquire("l", 30_000));
    until("c to wait behind it", || (waiting(&cluster) == 2).then_some(())).await;
    abandoned.abort();
    // Though the set's request held `l`.
    let l = next.await.unwrap();
    assert_eq!(standing(cluster.at(1), &["m"]).await, 1);
    release(cluster.at(1), c, "l", l.token).await;
    release(cluster.at(1), a, "m", m.token).await;
    // In every stage: before it is sent, in flight, in the queues, holding.
    for round in 0..30_u32 {
        let dropped = spawn_acquire(cluster.at(u64::from(round) % 3 + 1), b, acquire_all(&["l", "m", "n"], 30_000));
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 120)).await;
        dropped.abort();
        if let Ok(Ok(delivered)) = dropped.await {
            let Acquired::Held(grant) = delivered.value else { panic!("the locks were free") };
            release_all(cluster.at(1), b, &["l", "m", "n"], grant.token).await;
        }
    }
    let last = granted(cluster.at(1).acquire(caller(a), acquire_all(&["l", "m", "n"], 20_000)).await);
    release_all(cluster.at(1), a, &["l", "m", "n"], last.token).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_set_that_is_broken_by_force_while_it_waits_is_gone_at_once_and_whole() {
    let cluster = Cluster::of_three().await;
    let (a, b) = (session(cluster.at(1), 30_000).await, session(cluster.at(2), 30_000).await);
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let set = spawn_acquire(cluster.at(2), b, acquire_all(&["l", "m"], 30_000));
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let token = requests(cluster.at(2), "l").await[0].1;
    cluster.at(3).force_release(lock("l"), token, Principals::default()).await.unwrap();
    assert_eq!(set.await.unwrap().unwrap().value, Acquired::Gone);
    until_standing(cluster.at(1), &["l", "m"], 1).await;
    release(cluster.at(1), a, "m", m.token).await;
    cluster.finish().await;
}

async fn until_standing(node: &Node, names: &[&str], count: usize) {
    let started = Instant::now();
    while standing(node, names).await != count {
        assert!(started.elapsed() < Duration::from_secs(30), "waited in vain for {count} in {names:?}");
    }
}

#[tokio::test]
async fn a_retried_set_finds_all_of_its_nodes() {
    let cluster = Cluster::of_three().await;
    let (a, b) = (session(cluster.at(1), 30_000).await, session(cluster.at(2), 30_000).await);
    let m = granted(cluster.at(1).acquire(caller(a), acquire("m", 0)).await);
    let (id, wanted) = (request_id(), acquire_all(&["l", "m"], 30_000));
    let mut tries = Vec::new();
    for (number, node) in [2, 3].into_iter().enumerate() {
        let (node, wanted) = (cluster.at(node).clone(), wanted.clone());
        tries.push(tokio::spawn(async move { node.acquire(keyed(b, id), wanted).await }));
        until("the try to wait", || (waiting(&cluster) == number + 1).then_some(())).await;
    }
    assert_eq!(standing(cluster.at(1), &["l", "m"]).await, 3, "the retry stands where the first try stood");
    tries.remove(0).abort();
    until("the first try to go", || (waiting(&cluster) == 1).then_some(())).await;
    // The cancellation of the first attempt is in flight: let it be decided before the lock is granted.
    cluster.at(2).close_session(&session(cluster.at(2), 30_000).await).await.unwrap();
    release(cluster.at(1), a, "m", m.token).await;
    let theirs = granted(tries.remove(0).await.unwrap());
    let again = granted(cluster.at(1).acquire(keyed(b, id), wanted.clone()).await);
    assert_eq!((again.token, again.paths), (theirs.token, theirs.paths));
    let other = cluster.at(1).acquire(caller(b), Acquire { locks: locks(&["l"]), ..wanted.clone() }).await;
    assert_eq!(other, Err(NodeError::Refused(Refusal::RequestMismatch)), "the same uuid for part of the set");
    release_all(cluster.at(1), b, &["l", "m"], theirs.token).await;
    assert_eq!(cluster.at(3).acquire(keyed(b, id), wanted).await.unwrap().value, Acquired::Gone);
    cluster.finish().await;
}

/// The node of a waiting set is killed and part of the set is released by force: nothing owns the rest until its caller
/// asks again.
async fn a_retry_of_a_broken_set(with_memory: bool) {
    let mut cluster = Cluster::of_three().await;
    let first_node = cluster.but(cluster.leader().await)[0];
    let others = cluster.but(first_node);
    let (a, b, c) = (
        session(cluster.at(others[0]), 60_000).await,
        session(cluster.at(others[1]), 60_000).await,
        session(cluster.at(others[1]), 60_000).await,
    );
    let l = granted(cluster.at(others[0]).acquire(caller(a), acquire("l", 0)).await);
    let (id, wanted) = (request_id(), acquire_all(&["l", "m"], 30_000));
    let who = || if with_memory { keyed(b, id) } else { caller(b) };
    let (node, first, by) = (cluster.at(first_node).clone(), wanted.clone(), who());
    let set = tokio::spawn(async move { node.acquire(by, first).await });
    until("the set to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let killed = cluster.kill(first_node);
    set.abort();
    cluster.leader().await;
    let token = requests(cluster.at(others[0]), "m").await[0].1;
    cluster.at(others[0]).force_release(lock("m"), token, Principals::default()).await.unwrap();
    assert_eq!(standing(cluster.at(others[0]), &["l", "m"]).await, 2, "the rest waits for l still");
    let again = cluster.at(others[1]).acquire(who(), wanted).await;
    if with_memory {
        assert_eq!(again.unwrap().value, Acquired::Gone);
    } else {
        assert!(matches!(again, Err(NodeError::Refused(Refusal::NotQueued { .. }))), "{again:?}");
    }
    assert_eq!(requests(cluster.at(others[1]), "l").await, [(a.session, l.token)], "by the answer the rest has gone");
    release(cluster.at(others[0]), a, "l", l.token).await;
    granted(cluster.at(others[0]).acquire(caller(c), acquire_all(&["l", "m"], 0)).await);
    Cluster::bury(killed).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_retry_of_a_broken_set_leaves_nothing_behind() {
    a_retry_of_a_broken_set(false).await;
}

#[tokio::test]
async fn a_retry_of_a_broken_set_whose_first_answer_is_remembered_leaves_nothing_behind() {
    a_retry_of_a_broken_set(true).await;
}

#[tokio::test]
async fn random_sets_never_wait_for_each_other_in_a_circle() {
    let cluster = Cluster::of_three().await;
    let names = ["a", "b", "c", "d", "e"];
    let tasks = (0..9_usize).map(|number| {
        let node = cluster.at(number as u64 % 3 + 1).clone();
        tokio::spawn(async move {
            let mine = session(&node, 30_000).await;
            for round in 0..20 {
                let (from, step) = (number + round, 1 + (number * round) % 3);
                let mut set = [names[from % 5], names[(from + step) % 5], names[(from + 2 * step) % 5]].to_vec();
                set.sort_unstable();
                set.dedup();
                let grant = granted(node.acquire(caller(mine), acquire_all(&set, 30_000)).await);
                release_all(&node, mine, &set, grant.token).await;
            }
        })
    });
    join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
    assert_eq!(standing(cluster.at(1), &names).await, 0);
    cluster.finish().await;
}

/// The lock is granted after a delay as soon as the reaper runs.
fn rarely_reaping(config: &mut NodeConfig) {
    config.reap_every_ms = 3_600_000;
}

#[tokio::test]
async fn nobody_is_granted_before_the_delay_of_a_dead_holder_is_over() {
    const DELAY_MS: u32 = 700;
    let cluster = Cluster::start(3, rarely_reaping).await;
    let heir = session(cluster.at(3), 30_000).await;
    let delayed = |names| Acquire { delay_ms: DELAY_MS, ..acquire_all(names, 0) };
    // A clean release has no delay.
    let mine = session(cluster.at(1), 30_000).await;
    let grant = granted(cluster.at(1).acquire(caller(mine), delayed(&["k", "l"])).await);
    release_all(cluster.at(1), mine, &["k", "l"], grant.token).await;
    let theirs = granted(cluster.at(3).acquire(caller(heir), acquire("l", 0)).await);
    release(cluster.at(3), heir, "l", theirs.token).await;
    // Nor has a session that is closed.
    let grant = granted(cluster.at(1).acquire(caller(mine), delayed(&["l"])).await);
    cluster.at(2).close_session(&mine).await.unwrap();
    let theirs = granted(cluster.at(3).acquire(caller(heir), acquire("l", 0)).await);
    assert!(theirs.token > grant.token);
    release(cluster.at(3), heir, "l", theirs.token).await;
    // One that expires has.
    let dies = session(cluster.at(1), 600).await;
    let grant = granted(cluster.at(1).acquire(caller(dies), delayed(&["k", "l"])).await);
    let next = spawn_granted(cluster.at(3), heir, acquire("l", 30_000));
    until("the heir to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let (watched, dead) = (cluster.at(3).clone(), dies.session);
    let started = Instant::now();
    while stale(&watched, move |state| state.session(dead).is_some()).await {
        assert!(started.elapsed() < Duration::from_secs(20), "it does not expire");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!cluster.at(2).verify(&lock("l"), grant.token).await.unwrap().value, "the dead holds no more");
    let view = stale(&watched, |state| state.lock(&lock("l")).unwrap().requests().next().unwrap()).await;
    let until_ms = view.delayed_until_ms.expect("a place kept free");
    assert!(!cluster.at(2).verify(&lock("l"), view.token).await.unwrap().value, "and nobody holds by the delay");
    let busy = cluster.at(3).acquire(caller(heir), acquire("k", 0)).await.unwrap().value;
    let Acquired::Busy { holders, .. } = busy else { panic!("{busy:?}") };
    assert_eq!(holders[0].delayed_until_ms, Some(until_ms), "a refused request learns until when");
    let theirs = next.await.unwrap();
    assert!(theirs.token > grant.token);
    let clock_ms = cluster.at(3).read(Consistency::Linearizable, |state| state.clock_ms()).await.unwrap().value;
    assert!(clock_ms >= until_ms, "granted too early: {clock_ms} of {until_ms}");
    cluster.finish().await;
}

#[tokio::test]
async fn a_delay_outlives_the_leader_and_can_be_broken() {
    let mut cluster = Cluster::start(3, rarely_reaping).await;
    let leader = cluster.leader().await;
    let other = cluster.but(leader)[0];
    let (dies, heir) = (session(cluster.at(other), 600).await, session(cluster.at(other), 60_000).await);
    let wanted = Acquire { delay_ms: 600_000, ..acquire("l", 0) };
    granted(cluster.at(other).acquire(caller(dies), wanted).await);
    let short = Acquire { delay_ms: 1_500, ..acquire("s", 0) };
    granted(cluster.at(other).acquire(caller(dies), short).await);
    until("it to expire", || (cluster.at(other).status().sessions == 1).then_some(())).await;
    let killed = cluster.kill(leader);
    let new = cluster.leader().await;
    granted(cluster.at(new).acquire(caller(heir), acquire("s", 30_000)).await);
    let token = stale(cluster.at(new), |state| state.lock(&lock("l")).unwrap().requests().next().unwrap().token).await;
    cluster.at(new).force_release(lock("l"), token, Principals::default()).await.unwrap();
    granted(cluster.at(new).acquire(caller(heir), acquire("l", 0)).await);
    Cluster::bury(killed).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_downgrade_lets_the_readers_behind_it_in() {
    let cluster = Cluster::of_three().await;
    let [a, b, c] = sessions(&cluster, 30_000).await;
    let in_mode = |mode, wait_ms| Acquire { mode, ..acquire("rw", wait_ms) };
    let grant = granted(cluster.at(1).acquire(caller(a), in_mode(LockMode::Write, 0)).await);
    let (reader, writer) = (cluster.at(2).clone(), cluster.at(3).clone());
    let reading =
        tokio::spawn(async move { granted(reader.acquire(caller(b), in_mode(LockMode::Shared, 30_000)).await) });
    until("the reader to wait", || (waiting(&cluster) == 1).then_some(())).await;
    let writing =
        tokio::spawn(async move { granted(writer.acquire(caller(c), in_mode(LockMode::Write, 30_000)).await) });
    until("the writer to wait", || (waiting(&cluster) == 2).then_some(())).await;
    let mut session_events = cluster.at(1).session_events(a.session).await.unwrap().value;
    let held = session_events.take_held().remove(0).path;
    let downgrade = LockOp::Downgrade { lock: lock("rw"), token: grant.token };
    let done = cluster.at(2).execute(caller(a), downgrade).await.unwrap().value;
    assert!(matches!(&done, Reply::Downgraded { path } if path.name().contains("__READ__")), "{done:?}");
    let read = reading.await.unwrap();
    for token in [grant.token, read.token] {
        assert!(cluster.at(3).verify(&lock("rw"), token).await.unwrap().value);
    }
    cluster.at(1).read(Consistency::Linearizable, |_| ()).await.unwrap();
    let context = &mut std::task::Context::from_waker(futures::task::noop_waker_ref());
    assert!(session_events.poll_next(context).is_pending(), "it has another name, and is held still");
    release(cluster.at(1), a, "rw", grant.token).await;
    let event = std::future::poll_fn(|context| session_events.poll_next(context)).await;
    assert!(matches!(&event, SessionEvent::LockGone { path, .. } if *path == held), "{event:?}");
    assert!(!writing.is_finished());
    release(cluster.at(1), b, "rw", read.token).await;
    writing.await.unwrap();
    cluster.finish().await;
}

fn begin(key: &str, pending_ms: u64) -> GateOp {
    let key = GateKey::parse(key).unwrap();
    GateOp::Begin { key, fingerprint: "print".into(), pending_ms, label: "test".into() }
}

async fn gate(node: &Node, who: Credential, op: GateOp) -> GateStanding {
    match node.execute(caller(who), op).await.unwrap().value {
        Reply::Gate(standing) => standing,
        other => panic!("{other:?}"),
    }
}

fn proceeds(standing: &GateStanding) -> FencingToken {
    match standing {
        GateStanding::Proceed { token, .. } => *token,
        other => panic!("does not proceed: {other:?}"),
    }
}

#[tokio::test]
async fn a_gate_lets_one_through_and_tells_the_others() {
    let cluster = Cluster::of_three().await;
    let tasks = (0..30_u64).map(|number| {
        let node = cluster.at(number % 3 + 1).clone();
        tokio::spawn(async move {
            let mine = session(&node, 30_000).await;
            (node.clone(), mine, gate(&node, mine, begin("once", 30_000)).await)
        })
    });
    let begun: Vec<_> = join_all(tasks).await.into_iter().map(|task| task.unwrap()).collect();
    let chosen: Vec<_> = begun.iter().filter(|(.., g)| matches!(g, GateStanding::Proceed { .. })).collect();
    let [(node, worker, standing)] = chosen[..] else { panic!("{} were let through", chosen.len()) };
    let token = proceeds(standing);
    let key = || GateKey::parse("once").unwrap();
    let result: Arc<[u8]> = Arc::from(*b"result");
    let finish = GateOp::Finish { key: key(), token, result: result.clone(), keep_ms: 30_000 };
    let stranger = cluster.at(2).execute(caller(begun[0].1), finish.clone()).await;
    assert!(begun[0].1 == *worker || matches!(stranger, Err(NodeError::Refused(Refusal::GateNotPending { .. }))));
    node.execute(caller(*worker), finish).await.unwrap();
    let done = gate(cluster.at(3), begun[1].1, begin("once", 30_000)).await;
    assert!(matches!(&done, GateStanding::Done { result: kept, .. } if *kept == result), "{done:?}");
    let read = cluster.at(1).read(Consistency::Linearizable, move |state| state.gate(&key())).await.unwrap().value;
    assert_eq!(read, Ok(Some(done)));
    cluster.finish().await;
}

#[tokio::test]
async fn a_gate_is_freed_by_the_end_of_its_session_and_of_its_time() {
    let cluster = Cluster::of_three().await;
    let (dies, slow, next) =
        (session(cluster.at(1), 600).await, session(cluster.at(2), 30_000).await, session(cluster.at(3), 30_000).await);
    let id = request_id();
    let ask_again = |node: u64| cluster.at(node).execute(keyed(slow, id), begin("slow", 400));
    let began = Instant::now();
    let first = ask_again(2).await.unwrap().value;
    assert_eq!(ask_again(3).await.unwrap().value, first, "a retried beginning gets the same answer");
    let dead = proceeds(&gate(cluster.at(1), dies, begin("dies", 30_000)).await);
    let taken_over = |key: &'static str| {
        let node = cluster.at(3).clone();
        async move {
            let started = Instant::now();
            loop {
                if let GateStanding::Proceed { token, .. } = gate(&node, next, begin(key, 30_000)).await {
                    break (token, Instant::now());
                }
                assert!(started.elapsed() < Duration::from_secs(20), "{key} is not freed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let (_, at) = taken_over("slow").await;
    assert!(at - began >= Duration::from_millis(390), "before its time: {:?}", at - began);
    assert!(taken_over("dies").await.0 > dead);
    let Reply::Gate(standing) = first else { panic!("{first:?}") };
    let (key, token) = (GateKey::parse("slow").unwrap(), proceeds(&standing));
    let late = cluster.at(2).execute(caller(slow), GateOp::Fail { key, token }).await;
    assert!(matches!(late, Err(NodeError::Refused(Refusal::GateNotPending { .. }))), "{late:?}");
    cluster.finish().await;
}
