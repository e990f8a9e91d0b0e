//! The replicated clock where wall clocks are years off, and come back.

use std::time::Duration;

use lockkeeper_sim::{Crash, HostId, World};

use crate::support::{SECOND, leader, plan, until, writer};

const YEAR_MS: i64 = 365 * 24 * 3_600_000;
const OUTAGE: Duration = Duration::from_secs(600);

/// A cluster in which something is written ten times a second, so that each look finds a fresh stamp.
fn at_work() -> World {
    let mut world = World::new(&plan(), 3);
    until(&mut world, "a leader", |world| leader(world).is_some());
    let _ = writer(&mut world, SECOND / 10);
    world.run_for(5 * SECOND);
    world
}

fn clock_ms(world: &World) -> u64 {
    let clocks = world.nodes().into_iter().filter_map(|node| Some(world.node(node)?.state().clock_ms()));
    clocks.max().expect("a node that runs")
}

/// Since when, and what the clock showed then.
struct Since(Duration, u64);

impl Since {
    fn now(world: &World) -> Self {
        Self(world.now(), clock_ms(world))
    }

    /// As much time has passed in the cluster as in truth, to within a hundredth and what a takeover takes.
    #[track_caller]
    fn check(&self, world: &World) {
        let truly = (world.now() - self.0).as_millis() as u64;
        let shown = clock_ms(world) - self.1;
        let off = shown.abs_diff(truly);
        assert!(
            off <= 2_000 + truly / 100,
            "{shown} ms of {truly} ms: {:#?}",
            world.trace_lines().iter().rev().take(20)
        );
    }
}

fn others(world: &World, but: HostId) -> Vec<HostId> {
    world.nodes().into_iter().filter(|node| *node != but).collect()
}

#[test]
fn time_passes_at_its_pace_under_leaders_whose_wall_clocks_are_years_off_and_back() {
    let mut world = at_work();
    let since = Since::now(&world);
    for years in [30, -30, 5, -60, 0, 40, 0] {
        let old = leader(&world).expect("a leader");
        world.set_wall(old, years * YEAR_MS);
        world.run_for(10 * SECOND);
        since.check(&world);
        // The next leader is off as well, and comes back while it leads.
        others(&world, old).into_iter().for_each(|node| world.set_wall(node, -years * YEAR_MS));
        world.crash(old, Crash::Kill);
        until(&mut world, "another leader", |world| leader(world).is_some_and(|now| now != old));
        world.run_for(10 * SECOND);
        since.check(&world);
        others(&world, old).into_iter().for_each(|node| world.set_wall(node, 0));
        world.restart(old);
        world.run_for(5 * SECOND);
        since.check(&world);
    }
}

#[test]
fn after_an_outage_of_all_nodes_the_clock_shows_it_and_one_wrong_wall_clock_changes_nothing() {
    for years in [0, 30, -30] {
        let mut world = at_work();
        let since = Since::now(&world);
        world.nodes().into_iter().for_each(|node| world.crash(node, Crash::Kill));
        world.run_for(OUTAGE);
        world.set_wall(1, years * YEAR_MS);
        world.nodes().into_iter().for_each(|node| world.restart(node));
        until(&mut world, "a leader", |world| leader(world).is_some());
        world.run_for(5 * SECOND);
        since.check(&world);
    }
}

/// The trial that showed the fault: one node alone, 30 years ahead for one write, then right again.
#[test]
fn a_clock_that_was_once_years_ahead_goes_on_at_its_pace() {
    let mut world = World::new(&plan(), 1);
    world.set_wall(1, 30 * YEAR_MS);
    until(&mut world, "a leader", |world| leader(world).is_some());
    let _ = writer(&mut world, SECOND / 10);
    world.run_for(5 * SECOND);
    world.crash(1, Crash::Kill);
    world.set_wall(1, 0);
    world.restart(1);
    until(&mut world, "a leader", |world| leader(world).is_some());
    world.run_for(5 * SECOND);
    let since = Since::now(&world);
    world.run_for(60 * SECOND);
    since.check(&world);
}
