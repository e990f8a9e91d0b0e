//! Draws a plan from a seed: how many nodes, which faults and how strong, what the clients do. Swarm testing (Groce
//! and others, 2012): each run has a few kinds of faults and work and leaves out the rest, because leaving something
//! out lets other things happen.
//!
//! A plan is plain data and determines a run: the same seed gives the same plan on every machine.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_node::NodeConfig;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::fault_kind::FaultKind;
use crate::settings::{DiskPlan, LATER_LEVEL, LinkPlan, WorldPlan};

/// What clients do, by the share of each kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// An exclusive lock.
    Lock,
    /// A lock with readers and writers.
    ReadWrite,
    /// A semaphore.
    Semaphore,
    /// A lock with a delay.
    Delay,
    /// Several locks at once.
    Joint,
    /// Data of nodes, read and written.
    Data,
    /// Ephemeral and sequential nodes.
    Ephemeral,
    /// Idempotency gates.
    Gate,
    /// An exclusive lock that its session holds several times.
    Reentry,
    /// Permits of rate limits.
    Rate,
    /// Others' lock requests meddled with, and names of another recipe, by operations on nodes.
    ByHand,
    /// Sessions that own a great many nodes.
    Many,
    /// Namespaces with limits, used and changed.
    Namespace,
    /// Access control, whose rights are given and taken away.
    Guest,
}

/// All kinds of work that are drawn from one bag.
const WORK: [Work; 8] =
    [Work::Lock, Work::ReadWrite, Work::Semaphore, Work::Delay, Work::Joint, Work::Data, Work::Ephemeral, Work::Gate];

/// What one run is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From which it was drawn.
    pub seed: u64,
    /// The cluster.
    pub world: WorldPlan,
    /// How many clients there are.
    pub clients: u64,
    /// How many of them watch as well.
    pub watchers: u64,
    /// Shares of work; what is missing is not done.
    pub work: BTreeMap<Work, u32>,
    /// How long clients pause between two pieces of work, at most.
    pub pause_ms: u64,
    /// From this to twice as much: timeouts of sessions.
    pub session_timeout_ms: u32,
    /// How many ephemerals a session with a great many tries to own.
    pub many: u32,
    /// How many locks of each kind there are: the fewer, the longer their queues.
    pub locks: u64,
    /// Faults by their shares.
    pub faults: BTreeMap<FaultKind, u32>,
    /// Between the beginnings of two faults, on average.
    pub fault_every_ms: u64,
    /// How long a fault lasts at most.
    pub fault_lasts_ms: u64,
    /// Length of the phase with faults.
    pub fault_phase: Duration,
    /// Clocks of nodes and clients go right by a factor from `1 - drift` to `1 + drift`.
    pub drift: f64,
}

/// The largest error of a clock's rate: two of them together stay within the holder's margin of a tenth (see
/// `checks::sessions`).
pub const MAX_DRIFT: f64 = 0.045;
/// The length of the phase with faults, where nothing else is asked for.
pub const FAULT_PHASE: Duration = Duration::from_secs(30);

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        // Not the stream of the world itself.
        let mut rng = StdRng::seed_from_u64(seed ^ 0x05ee_d0fa_91a4);
        let faults = draw_faults(&mut rng);
        let drift =
            if rng.random_bool(0.5) { 0.0 } else { *[0.0005, 0.01, MAX_DRIFT].choose(&mut rng).unwrap_or(&0.0) };
        let nodes = if rng.random_bool(0.7) { 3 } else { 5 };
        let mut plan = Self {
            seed,
            world: draw_world(&mut rng, nodes),
            clients: rng.random_range(2..=8),
            watchers: rng.random_range(0..=3),
            work: draw_work(&mut rng),
            pause_ms: *[20, 100, 400, 1_500].choose(&mut rng).unwrap_or(&100),
            session_timeout_ms: *[600, 1_000, 2_000, 4_000].choose(&mut rng).unwrap_or(&2_000),
            many: 0,
            locks: rng.random_range(1..=3),
            faults,
            fault_every_ms: *[500, 1_500, 4_000].choose(&mut rng).unwrap_or(&1_500),
            fault_lasts_ms: *[1_000, 4_000, 8_000].choose(&mut rng).unwrap_or(&4_000),
            fault_phase: FAULT_PHASE,
            drift,
        };
        // Drawn last, so that all else of a seed is what it was, except in a crowd.
        if rng.random_bool(0.2) {
            plan.work.insert(Work::ByHand, 1);
        }
        if rng.random_bool(0.1) {
            let bound = *[700, 2_000, 10_000].choose(&mut rng).unwrap_or(&2_000);
            plan.own_many(1_500, bound);
        }
        plan.world.fronts = u64::from(rng.random_bool(0.3));
        for kind in [Work::Reentry, Work::Rate] {
            if rng.random_bool(0.3) {
                plan.work.insert(kind, rng.random_range(1..=4));
            }
        }
        if rng.random_bool(0.1) {
            plan.crowd(rng.random_range(14..=20));
        }
        for kind in [Work::Namespace, Work::Guest] {
            if rng.random_bool(0.2) {
                plan.work.insert(kind, rng.random_range(1..=4));
            }
        }
        plan
    }

    /// Has so many clients wait for one lock, more than begin to delay requests (`node/src/locks/entry_delay.rs`).
    pub(crate) fn crowd(&mut self, clients: u64) {
        (self.clients, self.locks, self.pause_ms) = (clients, 1, 20);
        self.work.insert(Work::Lock, 20);
    }

    /// Has sessions that try to own so many ephemerals, of which they may own `bound`.
    pub fn own_many(&mut self, many: u32, bound: u32) {
        self.many = many;
        self.work.insert(Work::Many, 1);
        self.world.node.rules.max_ephemerals_per_session = bound;
    }

    /// A plan without any fault, for tests and measurements.
    pub fn calm(seed: u64) -> Self {
        let mut plan = Self::draw(seed);
        plan.world.links = quiet_links();
        plan.world.disk = steady_disk();
        plan.faults.clear();
        plan.drift = 0.0;
        plan
    }

    /// Whether links lose nothing and hold nothing up, and disks do not stall, as long as no fault is under way.
    pub fn is_sound(&self) -> bool {
        let WorldPlan { links, disk, .. } = &self.world;
        links.loss == 0.0 && links.spike == 0.0 && disk.stall == 0.0
    }

    /// One line about it.
    pub fn summary(&self) -> String {
        let faults: Vec<&str> = self.faults.keys().map(|kind| kind.name()).collect();
        format!(
            "{} nodes, {} fronts, {} clients, {} watchers, work {:?}, faults {} every {} ms for up to {} ms, links {:?}, drift {}",
            self.world.nodes,
            self.world.fronts,
            self.clients,
            self.watchers,
            self.work.keys().collect::<Vec<_>>(),
            faults.join(" "),
            self.fault_every_ms,
            self.fault_lasts_ms,
            self.world.links,
            self.drift,
        )
    }
}

/// Links that only take their time.
pub fn quiet_links() -> LinkPlan {
    LinkPlan { jitter_ms: 1, loss: 0.0, duplicate: 0.0, spike: 0.0, spike_ms: 0 }
}

/// A disk that only takes its time.
pub fn steady_disk() -> DiskPlan {
    DiskPlan { sync_min_ms: 1, sync_max_ms: 3, stall: 0.0, stall_ms: 0, blocking_ms: 5 }
}

fn draw_world(rng: &mut StdRng, nodes: u64) -> WorldPlan {
    let bad_links = rng.random_bool(0.5);
    let links = if bad_links {
        LinkPlan {
            jitter_ms: *[1, 5, 30].choose(rng).unwrap_or(&1),
            loss: *[0.0, 0.001, 0.01, 0.05].choose(rng).unwrap_or(&0.0),
            duplicate: *[0.0, 0.01, 0.1].choose(rng).unwrap_or(&0.0),
            spike: *[0.0, 0.001, 0.01].choose(rng).unwrap_or(&0.0),
            spike_ms: *[50, 300, 1_500].choose(rng).unwrap_or(&50),
        }
    } else {
        quiet_links()
    };
    let slow_disk = rng.random_bool(0.3);
    let disk = if slow_disk {
        DiskPlan { sync_min_ms: 1, sync_max_ms: 25, stall: 0.005, stall_ms: 700, blocking_ms: 200 }
    } else {
        steady_disk()
    };
    WorldPlan {
        nodes,
        fronts: 0,
        tick: Duration::from_millis(rng.random_range(1..=3)),
        links,
        disk,
        node: draw_node(rng),
        keep_trace: false,
    }
}

fn draw_node(rng: &mut StdRng) -> NodeConfig {
    // The world fills in who the node is.
    let mut consensus = lockkeeper_consensus::Config::new("sim", 1, BTreeMap::from([(1, "sim:1".to_owned())]));
    consensus.snapshot_every_entries = *[50, 200, 1_000, 50_000].choose(rng).unwrap_or(&1_000);
    consensus.keep_entries = *[10, 100, 1_000].choose(rng).unwrap_or(&100);
    let mut node = NodeConfig::new(consensus);
    (node.supported_level, node.consensus.feature_level) = (LATER_LEVEL, LATER_LEVEL.0);
    node.bookmark_every_ms = 500;
    node.watch_queue_events = *[2, 16, 1_024].choose(rng).unwrap_or(&1_024);
    node.history_events = *[20, 1_000, 100_000].choose(rng).unwrap_or(&1_000);
    node
}

fn draw_work(rng: &mut StdRng) -> BTreeMap<Work, u32> {
    let mut kinds = WORK;
    kinds.shuffle(rng);
    let count = rng.random_range(2..=WORK.len());
    kinds.iter().take(count).map(|kind| (*kind, rng.random_range(1..=4))).collect()
}

fn draw_faults(rng: &mut StdRng) -> BTreeMap<FaultKind, u32> {
    // One seed in twenty has a quiet world: what breaks there needs no fault.
    if rng.random_bool(0.05) {
        return BTreeMap::new();
    }
    let mut kinds = FaultKind::ALL.to_vec();
    kinds.shuffle(rng);
    let count = rng.random_range(1..=10);
    kinds.into_iter().take(count).map(|kind| (kind, rng.random_range(1..=4))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan_and_another_seed_another() {
        let show = |seed| format!("{:?}", Plan::draw(seed));
        assert_eq!(show(7), show(7));
        assert_ne!(show(7), show(8));
    }

    #[test]
    fn every_kind_of_fault_and_work_is_drawn_and_all_plans_are_in_order() {
        let (mut faults, mut work, mut with_front) = (BTreeMap::new(), BTreeMap::new(), 0);
        for seed in 0..200 {
            let plan = Plan::draw(seed);
            plan.world.node.validate().unwrap();
            assert!(plan.drift <= MAX_DRIFT && (1.0 + MAX_DRIFT) / (1.0 - MAX_DRIFT) < 1.0 / 0.9);
            with_front += plan.world.fronts;
            faults.extend(plan.faults);
            work.extend(plan.work);
        }
        assert_eq!((faults.len(), work.len()), (FaultKind::ALL.len(), WORK.len() + 6));
        assert!((30..100).contains(&with_front), "{with_front} of 200 plans have a front node");
    }
}
