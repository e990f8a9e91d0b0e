//! Each fault does what it says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_sim::{CLIENTS, CallError, Crash, DiskPlan, LinkPlan, World};
use parking_lot::Mutex;

use crate::support::{SECOND, create, leader, plan, until, writer};

type Outcomes = Arc<Mutex<Vec<(Duration, Result<u64, CallError>)>>>;

/// Asks a node something that it answers at once, again and again.
fn pinger(world: &mut World, node: u64) -> Outcomes {
    let (outcomes, net) = (Outcomes::default(), world.client_net());
    let seen = outcomes.clone();
    world.spawn_client(async move {
        loop {
            let outcome = net.call(node, SECOND, |node| async move { node.state().zxid().0 }).await;
            seen.lock().push((net.now(), outcome));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    outcomes
}

fn since(outcomes: &Outcomes, time: Duration) -> Vec<Result<u64, CallError>> {
    outcomes.lock().iter().filter(|(at, _)| *at >= time).map(|(_, outcome)| *outcome).collect()
}

fn led() -> World {
    let mut world = World::new(&plan(), 3);
    until(&mut world, "a leader", |world| leader(world).is_some());
    world
}

#[test]
fn a_killed_process_refuses_and_a_machine_without_power_is_silent() {
    let mut world = led();
    let outcomes = pinger(&mut world, 1);
    world.run_for(SECOND);
    let killed = world.now();
    world.crash(1, Crash::Kill);
    world.run_for(SECOND);
    let results = since(&outcomes, killed);
    assert!(results.len() > 10 && results.iter().skip(1).all(|one| *one == Err(CallError::Refused)), "{results:?}");
    world.restart(1);
    world.run_for(SECOND);
    assert!(since(&outcomes, world.now() - SECOND / 2).iter().all(Result::is_ok));
    let lost = world.now();
    world.crash(1, Crash::PowerLoss);
    world.run_for(5 * SECOND);
    let results = since(&outcomes, lost);
    assert!(results.len() >= 4 && results.iter().skip(1).all(|one| *one == Err(CallError::TimedOut)), "{results:?}");
}

#[test]
fn one_direction_is_cut_and_the_other_is_not() {
    let mut world = led();
    // What the node hears of its clients, and what they hear of it.
    let received = Arc::new(AtomicU64::new(0));
    let outcomes = Outcomes::default();
    let (net, counter, seen) = (world.client_net(), received.clone(), outcomes.clone());
    world.spawn_client(async move {
        loop {
            let counter = counter.clone();
            let call = net.call(2, SECOND, |_| async move { counter.fetch_add(1, Ordering::SeqCst) });
            let outcome = call.await;
            seen.lock().push((net.now(), outcome));
        }
    });
    world.run_for(SECOND);
    for (from, to, arrives) in [(CLIENTS, 2, false), (2, CLIENTS, true)] {
        world.cut(from, to);
        // What was under way when the link was cut.
        world.run_for(2 * SECOND);
        let (before, cut) = (received.load(Ordering::SeqCst), world.now());
        world.run_for(3 * SECOND);
        assert_eq!(received.load(Ordering::SeqCst) > before, arrives, "{from} to {to}");
        assert!(since(&outcomes, cut).iter().all(|one| *one == Err(CallError::TimedOut)));
        world.mend(from, to);
        let mended = world.now();
        world.run_for(2 * SECOND);
        assert!(since(&outcomes, mended).iter().filter(|one| one.is_ok()).count() > 100);
    }
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_steps_down() {
    let mut world = led();
    let old = leader(&world).unwrap();
    for other in (1..=3).filter(|other| *other != old) {
        world.cut(old, other);
        world.cut(other, old);
    }
    let leads =
        |world: &World, node| world.node(node).is_some_and(|node| node.consensus().leadership().borrow().leading);
    until(&mut world, "another leader", |world| (1..=3).any(|node| node != old && leads(world, node)));
    world.heal();
    until(&mut world, "the old one to know", |world| !leads(world, old));
}

#[test]
fn a_frozen_host_does_nothing_and_then_everything() {
    let mut world = led();
    let outcomes = pinger(&mut world, 1);
    world.run_for(SECOND);
    let clock = |world: &World| world.observe(1, |node| node.state().clock_ms()).unwrap();
    let (frozen, before) = (world.now(), clock(&world));
    world.pause(1);
    assert!(world.is_paused(1) && world.is_up(1));
    world.run_for(10 * SECOND);
    assert_eq!(clock(&world), before);
    assert!(since(&outcomes, frozen).iter().skip(1).all(|one| *one == Err(CallError::TimedOut)));
    world.resume(1);
    let resumed = world.now();
    world.run_for(2 * SECOND);
    assert!(since(&outcomes, resumed).iter().filter(|one| one.is_ok()).count() > 10);
    assert_eq!(world.fatals(), []);
}

#[test]
fn a_skewed_clock_goes_at_its_rate_and_a_wall_clock_jumps_alone() {
    let mut world = led();
    let elapsed = Arc::new(Mutex::new((Duration::ZERO, Duration::ZERO)));
    let (net, seen) = (world.client_net(), elapsed.clone());
    world.spawn_client(async move {
        let (began, truly) = (tokio::time::Instant::now(), net.now());
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            *seen.lock() = (began.elapsed(), net.now() - truly);
        }
    });
    world.set_rate(CLIENTS, 1.5);
    world.run_for(20 * SECOND);
    let (local, truly) = *elapsed.lock();
    let rate = local.as_secs_f64() / truly.as_secs_f64();
    assert!((1.49..1.51).contains(&rate), "{rate}: {local:?} {truly:?}");

    // The state's clock goes by the leader's monotonic clock: a wall clock that jumps moves nothing.
    let written = writer(&mut world, Duration::from_millis(50));
    world.run_for(SECOND);
    let node = leader(&world).unwrap();
    let before = world.node(node).unwrap().state().clock_ms();
    world.jump_wall(node, 3_600_000);
    world.run_for(SECOND);
    let after = world.node(node).unwrap().state().clock_ms();
    assert!((900..1_100).contains(&(after - before)), "{before} {after}");
    assert_eq!(leader(&world), Some(node));
    assert!(written.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_request_that_goes_twice_is_heard_twice_and_answered_once() {
    let mut world = led();
    for to in 1..=3 {
        for from in (1..=3).filter(|from| *from != to) {
            world.set_link(from, to, LinkPlan { duplicate: 1.0, ..plan().links });
        }
    }
    let written = writer(&mut world, Duration::from_millis(20));
    world.run_for(5 * SECOND);
    let mut received = std::collections::BTreeMap::<String, u64>::new();
    for line in world.trace_lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let [_, _, what @ ("hears" | "is"), rest @ ..] = &words[..]
            && let Some(call) = rest.iter().find(|word| word.starts_with('#'))
        {
            *received.entry(format!("{what} {call}")).or_default() += 1;
        }
    }
    assert!(received.iter().filter(|(what, count)| what.starts_with("hears") && **count == 2).count() > 50);
    assert!(received.iter().filter(|(what, _)| what.starts_with("is")).all(|(_, count)| *count == 1));
    assert!(written.load(Ordering::SeqCst) > 20);
}

#[test]
fn a_cluster_that_loses_power_keeps_what_it_acknowledged() {
    // Barriers take long, so much is under way at any time.
    let mut plan = plan();
    plan.disk = DiskPlan { sync_min_ms: 5, sync_max_ms: 40, stall: 0.1, stall_ms: 100, blocking_ms: 5 };
    plan.node.consensus.snapshot_every_entries = 100;
    plan.node.consensus.keep_entries = 10;
    let mut world = World::new(&plan, 11);
    let acknowledged: Arc<Mutex<Vec<String>>> = Arc::default();
    for client in 1..=6_u64 {
        let (net, acknowledged) = (world.client_net(), acknowledged.clone());
        world.spawn_client(async move {
            for number in 0.. {
                let path = format!("/c{client}-{number}");
                if create(&net, client % 3 + 1, &path).await {
                    acknowledged.lock().push(path);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    for _ in 0..8 {
        let before = acknowledged.lock().len();
        until(&mut world, "writes", |_| acknowledged.lock().len() > before + 50);
        // One follower falls behind and catches up by long appends, in the middle of which the power goes.
        let behind = (1..=3).find(|node| *node != leader(&world).unwrap()).unwrap();
        world.crash(behind, Crash::PowerLoss);
        let more = acknowledged.lock().len() + 20;
        until(&mut world, "writes without one node", |_| acknowledged.lock().len() > more);
        world.restart(behind);
        until(&mut world, "a long append", |world| world.is_appending_many(behind));
        (1..=3).for_each(|node| world.crash(node, Crash::PowerLoss));
        world.run_for(Duration::from_millis(100));
        (1..=3).for_each(|node| world.restart(node));
    }
    let before = acknowledged.lock().len();
    until(&mut world, "writes", |_| acknowledged.lock().len() > before + 10);
    world.run_for(SECOND);
    let state = world.node(leader(&world).unwrap()).unwrap().state();
    for path in &*acknowledged.lock() {
        let path = lockkeeper_core::NodePath::parse(path).unwrap();
        assert!(state.get(&path).is_some(), "{path:?} was acknowledged and is gone");
    }
    let counters = world.counters();
    for kind in ["writes lost before the barrier", "appends cut in two", "snapshots", "power losses"] {
        assert!(counters.get(kind).is_some_and(|count| *count > 0), "no {kind}: {counters:?}");
    }
}

#[test]
fn a_front_node_joins_and_is_no_majority_with_one_voter() {
    let mut world = led();
    let front = world.add_front();
    until(&mut world, "the front node to join", |world| world.changes_under_way() == 0);
    let written = writer(&mut world, Duration::from_millis(20));
    let leads = leader(&world).unwrap();
    world.crash(leads, Crash::PowerLoss);
    let before = written.load(Ordering::SeqCst);
    until(&mut world, "writes with two voters", |_| written.load(Ordering::SeqCst) > before + 10);
    let second = leader(&world).unwrap();
    world.crash(second, Crash::PowerLoss);
    world.run_for(2 * SECOND);
    let before = written.load(Ordering::SeqCst);
    world.run_for(10 * SECOND);
    assert_eq!(written.load(Ordering::SeqCst), before, "one voter and a front node acknowledge nothing");
    world.restart(leads);
    until(&mut world, "writes", |_| written.load(Ordering::SeqCst) > before + 10);
    assert!(!world.voters().contains(&front) && leader(&world) != Some(front));
}

#[test]
fn nodes_come_and_go() {
    let mut world = led();
    let written = writer(&mut world, Duration::from_millis(20));
    let joined = world.add_node();
    until(&mut world, "the node to join", |world| world.changes_under_way() == 0);
    world.remove_node(1);
    until(&mut world, "the node to leave", |world| world.changes_under_way() == 0);
    assert_eq!(world.nodes(), [2, 3, joined]);
    assert!(!world.is_up(1));
    let before = written.load(Ordering::SeqCst);
    until(&mut world, "writes", |_| written.load(Ordering::SeqCst) > before + 10);
    let members = world.node(joined).unwrap().consensus().members().borrow().clone();
    assert_eq!(members.voters.keys().copied().collect::<Vec<_>>(), [2, 3, joined]);
}
