//! A cluster boots, elects, writes and survives; and the same seed gives the same trace.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::Zxid;
use lockkeeper_sim::{CLIENTS, Crash, HostId, LinkPlan, World, WorldPlan};

use crate::support::{SECOND, leader, plan, until, writer};

fn zxid(world: &World, node: HostId) -> Zxid {
    world.node(node).map_or(Zxid(0), |node| node.state().zxid())
}

#[test]
fn a_cluster_elects_writes_and_survives_the_death_of_each_node() {
    let mut world = World::new(&plan(), 1);
    until(&mut world, "a leader", |world| leader(world).is_some());
    let written = writer(&mut world, Duration::from_millis(20));
    for how in [Crash::Kill, Crash::PowerLoss] {
        for node in 1..=3 {
            let before = written.load(Ordering::SeqCst);
            until(&mut world, "some writes", |_| written.load(Ordering::SeqCst) > before + 20);
            world.crash(node, how);
            assert!(world.node(node).is_none() && !world.is_up(node));
            let before = written.load(Ordering::SeqCst);
            until(&mut world, "writes without it", |_| written.load(Ordering::SeqCst) > before + 5);
            world.restart(node);
            let behind = (1..=3).map(|node| zxid(&world, node)).max().unwrap();
            until(&mut world, "the node to catch up", |world| zxid(world, node) >= behind);
        }
    }
    let states: Vec<_> =
        (1..=3).map(|node| (zxid(&world, node), world.node(node).unwrap().state().checksum())).collect();
    for (one, other) in [(0, 1), (1, 2)] {
        assert!(states[one].0 != states[other].0 || states[one].1 == states[other].1, "{states:?}");
    }
}

/// Everything at once.
fn stormy() -> WorldPlan {
    let mut plan = plan();
    plan.links = LinkPlan { jitter_ms: 5, loss: 0.02, duplicate: 0.05, spike: 0.01, spike_ms: 400 };
    plan.disk.stall = 0.01;
    plan.disk.stall_ms = 300;
    plan.node.consensus.snapshot_every_entries = 40;
    plan.node.consensus.keep_entries = 5;
    plan
}

fn live(seed: u64) -> World {
    let mut world = World::new(&stormy(), seed);
    let _written = writer(&mut world, Duration::from_millis(10));
    world.run_for(5 * SECOND);
    world.crash(1, Crash::PowerLoss);
    world.pause(2);
    world.run_for(2 * SECOND);
    world.restart(1);
    world.resume(2);
    world.set_rate(3, 1.3);
    world.cut(1, 2);
    world.jump_wall(2, 60_000);
    world.run_for(3 * SECOND);
    world.mend(1, 2);
    world.snapshot_now(3);
    let joined = world.add_node();
    world.run_for(3 * SECOND);
    world.crash(joined, Crash::Kill);
    world.pause(CLIENTS);
    world.run_for(SECOND);
    world.heal();
    world.run_for(5 * SECOND);
    world
}

#[test]
fn the_same_seed_is_the_same_life_and_another_seed_another() {
    let (one, again, other) = (live(21), live(21), live(22));
    let (one_lines, again_lines) = (one.trace_lines(), again.trace_lines());
    if let Some(at) = one_lines.iter().zip(&again_lines).position(|(one, again)| one != again) {
        panic!(
            "line {at} differs:\n{}\n{}\nafter {:#?}",
            one_lines[at],
            again_lines[at],
            &one_lines[at.saturating_sub(20)..at]
        );
    }
    assert_eq!(one_lines.len(), again_lines.len());
    assert_eq!(one.trace_hash(), again.trace_hash());
    assert_ne!(one.trace_hash(), other.trace_hash());
    let counters = one.counters();
    for kind in ["losses", "duplicates", "delay spikes", "disk stalls", "snapshots", "messages into a cut"] {
        assert!(counters.get(kind).is_some_and(|count| *count > 0), "no {kind}: {counters:?}");
    }
    assert_eq!(one.fatals(), []);
}
