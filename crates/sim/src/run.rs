//! One run: a phase under the swarm's faults, the heal, and then a cluster that must work again within bounded time; the oracle watches
//! after every step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use lockkeeper_core::State;
use lockkeeper_node::Consistency;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::checks::{Check, Violation};
use crate::clients::{Lab, Phase, Tally};
use crate::counting::Woken;
use crate::faults::{FaultKind, Faults};
use crate::oracle::{Oracle, Seen};
use crate::settings::HostId;
use crate::swarm::Plan;
use crate::world::World;

/// Within this, after the heal, every client has done something again. A wait of 10 s may have begun just before it, and its answer been lost.
const WORKS_AGAIN: Duration = Duration::from_secs(30);
/// Within this, after they were told to, all clients have gone.
const CLIENTS_GO: Duration = Duration::from_secs(60);
/// Within this, after that, all sessions have ended, all queues are empty, all replicas are the same, and all watches have heard of it.
const SETTLES: Duration = Duration::from_secs(40);
/// How often replicas are compared, logs matched, and invariants checked.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(500);

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The plan's seed.
    pub seed: u64,
    /// The first broken promise; none is a pass.
    pub violation: Option<Violation>,
    /// Simulated time.
    pub simulated: Duration,
    /// Time that it took one core, whoever else was using it meanwhile.
    pub busy: Duration,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// The world's own figures.
    pub counters: BTreeMap<&'static str, u64>,
    /// Operations of clients.
    pub tally: Tally,
    /// What the oracle has seen.
    pub seen: Seen,
    /// Waiters woken, and those who could have been.
    pub woken: (u64, u64),
    /// From the heal until every client had done something.
    pub works_again: Option<Duration>,
    /// Of every line of the trace.
    pub trace_hash: u64,
    /// The trace, if the plan keeps it.
    pub trace: Vec<String>,
}

/// What is known of a node between two steps.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    incarnation: u64,
    applied: u64,
    leadership: (u64, Option<u64>),
}

struct Run {
    world: World,
    oracle: Arc<Mutex<Oracle>>,
    lab: Lab,
    faults: Faults,
    known: BTreeMap<HostId, Known>,
    woken: Arc<Woken>,
    next_look: Duration,
    fatals: usize,
}

/// Runs a plan to its end, or to the first broken promise.
pub fn run(plan: &Plan) -> Report {
    let woken = Woken::new();
    // Everything happens on this thread, so everything that nodes count is counted here.
    let counted = woken.clone();
    let _counting = metrics::set_default_local_recorder(&*counted);
    let started = busy_time();
    let mut run = Run::new(plan, woken);
    let works_again = run.go(plan);
    run.report(plan, busy_time().saturating_sub(started), works_again)
}

/// What this thread has used of a core.
fn busy_time() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

impl Run {
    fn new(plan: &Plan, woken: Arc<Woken>) -> Self {
        let mut world = World::new(&plan.world, plan.seed);
        let oracle = Arc::new(Mutex::new(Oracle::new(1.0 + plan.drift)));
        let lab = Lab::new(&world, oracle.clone(), Arc::new(plan.clone()));
        world.note(&format!("plan {}", plan.summary()));
        let mut rng = StdRng::seed_from_u64(plan.seed ^ 0xc10c);
        if plan.drift > 0.0 {
            for node in world.nodes() {
                world.set_rate(node, 1.0 + rng.random_range(-plan.drift..=plan.drift));
            }
        }
        lab.start(&mut world);
        let faults = Faults::new(plan);
        let known = BTreeMap::new();
        Self { world, oracle, lab, faults, known, woken, next_look: Duration::ZERO, fatals: 0 }
    }

    /// Gives how long the healed cluster took to work again.
    fn go(&mut self, plan: &Plan) -> Option<Duration> {
        while self.world.now() < plan.fault_phase {
            self.faults.act(&mut self.world);
            self.step()?;
        }
        self.world.note("heal");
        self.world.heal();
        self.faults.healed();
        self.lab.set_nodes(self.world.nodes());
        let healed = self.world.now();
        self.lab.forget_done();
        self.until(WORKS_AGAIN, |run| match run.lab.idle().first() {
            None => Ok(()),
            Some(client) => Err(format!("client {client} got nothing done")),
        })?;
        let works_again = self.world.now() - healed;
        self.lab.set_phase(Phase::Stop);
        self.until(CLIENTS_GO, |run| match run.lab.running() {
            0 => Ok(()),
            left => Err(format!("{left} clients are still waiting for something")),
        })?;
        self.until(SETTLES, Self::settled)?;
        self.look_closely();
        Some(works_again)
    }

    /// One step of the world, and a look at what it came to. None once a promise is broken.
    fn step(&mut self) -> Option<()> {
        self.world.step();
        self.observe();
        if self.world.now() >= self.next_look {
            self.next_look = self.world.now() + LOOK_CLOSELY_EVERY;
            self.lab.set_nodes(self.world.nodes());
            self.look_closely();
        }
        self.oracle.lock().violation().is_none().then_some(())
    }

    /// Goes on until a condition holds; that it does not in time is a broken promise as well.
    fn until(&mut self, within: Duration, condition: impl Fn(&Self) -> Result<(), String>) -> Option<()> {
        let give_up = self.world.now() + within;
        loop {
            let Err(why) = condition(self) else { return Some(()) };
            if self.world.now() >= give_up {
                let what = format!("{} s after the world was healed: {why}; {}", within.as_secs(), self.describe());
                self.oracle.lock().broken(Check::Progress, what);
                return None;
            }
            self.step()?;
        }
    }

    fn describe(&self) -> String {
        let nodes = self.world.nodes();
        let node = |id: &HostId| match self.world.node(*id) {
            Some(node) => {
                let leadership = *node.consensus().leadership().borrow();
                let applied = *node.consensus().applied().borrow();
                format!("node {id}: term {}, leader {:?}, applied {applied}", leadership.term, leadership.leader)
            }
            None => format!("node {id}: {}", if self.world.is_up(*id) { "booting" } else { "down" }),
        };
        nodes.iter().map(node).collect::<Vec<_>>().join("; ")
    }

    /// Nobody is left, everyone has applied everything, and every watch has heard of it.
    fn settled(&self) -> Result<(), String> {
        let oracle = self.oracle.lock();
        oracle.deserted()?;
        let last = oracle.last_applied();
        for node in self.world.nodes() {
            let applied = self.world.node(node).map(|node| *node.consensus().applied().borrow());
            if applied.is_none_or(|applied| applied < last) {
                return Err(format!("node {node} has applied {applied:?} of {last}"));
            }
        }
        match self.lab.watched() {
            Some((number, up_to)) if up_to < oracle.state().zxid().0 => {
                Err(format!("watch {number} has heard up to {up_to} of {}", oracle.state().zxid()))
            }
            _ => Ok(()),
        }
    }

    /// After every step: who leads, and what was applied.
    fn observe(&mut self) {
        let now_us = crate::clients::micros(self.world.now());
        let mut oracle = self.oracle.lock();
        for id in self.world.nodes() {
            let Some(node) = self.world.node(id) else { continue };
            let known = self.known.entry(id).or_default();
            let incarnation = self.world.incarnation(id);
            if known.incarnation != incarnation {
                *known = Known { incarnation, ..Known::default() };
            }
            let leadership = *node.consensus().leadership().borrow();
            if known.leadership != (leadership.term, leadership.leader) {
                known.leadership = (leadership.term, leadership.leader);
                if let Some(leader) = leadership.leader {
                    oracle.leader(id, leadership.term, leader);
                }
            }
            let applied = *node.consensus().applied().borrow();
            if known.applied < applied {
                let kept = self.world.log_bounds(id).purged.map_or(0, |purged| purged.index + 1);
                let from = (known.applied + 1).max(kept);
                oracle.applied(id, &self.world.log(id, from..applied + 1), now_us);
                known.applied = applied;
            }
        }
        oracle.woken(self.woken.count());
        let fatals = self.world.fatals();
        if let Some(fatal) = fatals.get(self.fatals) {
            oracle.broken(Check::Fatal, format!("host {} at {:?}: {}", fatal.host, fatal.at, fatal.why));
        }
        self.fatals = fatals.len();
    }

    /// Now and then: whole states and whole logs.
    fn look_closely(&mut self) {
        let now_us = crate::clients::micros(self.world.now());
        let mut oracle = self.oracle.lock();
        for id in self.world.nodes() {
            let bounds = self.world.log_bounds(id);
            if let Some(last) = bounds.last {
                let from = bounds.purged.map_or(0, |purged| purged.index + 1);
                oracle.log(id, &self.world.log(id, from..last.index + 1));
            }
            let Some(node) = self.world.node(id) else { continue };
            let applied = *node.consensus().applied().borrow();
            // A stale read never waits.
            if let Some(Ok(at)) = node.read(Consistency::Stale, State::clone).now_or_never() {
                oracle.replica(id, applied, &at.value, now_us);
                oracle.validate(id, &at.value);
            }
        }
    }

    fn report(self, plan: &Plan, busy: Duration, works_again: Option<Duration>) -> Report {
        let oracle = self.oracle.lock();
        Report {
            seed: plan.seed,
            violation: oracle.violation().cloned(),
            simulated: self.world.now(),
            busy,
            faults: self.faults.counts().clone(),
            counters: self.world.counters(),
            tally: self.lab.tally(),
            seen: oracle.seen(),
            woken: oracle.woken_and_due(),
            works_again,
            trace_hash: self.world.trace_hash(),
            trace: self.world.trace_lines(),
        }
    }
}
