//! One run: a phase of faults, the heal, and then a cluster that must work again within bounded time. The checkers
//! look at it after every step.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::checkers::Checkers;
use crate::checks::{Check, Violation};
use crate::clients::{Lab, Phase, Tally};
use crate::fault_kind::FaultKind;
use crate::faults::Faults;
use crate::lock_counters::LockCounters;
use crate::settings::{CLIENTS, HostId};
use crate::swarm::Plan;
use crate::world::World;

/// The time after the heal within which every client has done something again; of locks, has held one. A wait of 10 s
/// may have begun just before it and its answer been lost; a holder may have died, and the delay of its lock goes by
/// a clock that waits for wall clocks that were set right: up to 20 s.
const WORKS_AGAIN: Duration = Duration::from_secs(60);
/// Within this, after they were told to, all clients have gone.
const CLIENTS_GO: Duration = Duration::from_secs(60);
/// The time after that within which all sessions have ended, all queues are empty, all replicas are the same, and all
/// watches have every event.
const SETTLES: Duration = Duration::from_secs(40);
/// For this long after the heal the clients go on working, so that what must be done soon is seen to be done soon.
const WORKS_ON: Duration = Duration::from_secs(12);
/// How often whole logs are matched once more, and replicas are summed up and looked through.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(500);

/// What came of a run.
#[derive(Debug, Default)]
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
    /// What the checkers have seen.
    pub seen: BTreeMap<&'static str, u64>,
    /// Waiters woken, and those who could have been.
    pub woken: (u64, u64),
    /// Lock requests behind many others that waited for another command.
    pub delayed: u64,
    /// From the heal until every client had done something.
    pub works_again: Option<Duration>,
    /// Of every line of the trace.
    pub trace_hash: u64,
    /// The trace, if the plan keeps it.
    pub trace: Vec<String>,
}

impl Report {
    /// Whether another run of the same plan was the same run.
    ///
    /// # Errors
    /// What differs.
    pub fn is_same_run_as(&self, other: &Report) -> Result<(), String> {
        fn same<T: PartialEq + std::fmt::Debug>(what: &str, one: &T, other: &T) -> Result<(), String> {
            if one == other {
                return Ok(());
            }
            Err(format!("{what}: {one:?} and {other:?}"))
        }
        same("what was broken", &self.violation, &other.violation)?;
        same("simulated time", &self.simulated, &other.simulated)?;
        same("faults", &self.faults, &other.faults)?;
        same("counters of the world", &self.counters, &other.counters)?;
        same("operations", &self.tally, &other.tally)?;
        same("what the checkers have seen", &self.seen, &other.seen)?;
        same("waiters woken", &self.woken, &other.woken)?;
        same("requests delayed", &self.delayed, &other.delayed)?;
        same("time to work again", &self.works_again, &other.works_again)?;
        same("hash of the trace", &self.trace_hash, &other.trace_hash)?;
        if self.trace == other.trace { Ok(()) } else { Err("the traces".into()) }
    }
}

/// What is known of a node between two steps.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    life: u64,
    applied: u64,
    /// It runs, or did when it was last looked at.
    up: bool,
    leadership: (u64, Option<u64>),
}

struct Run {
    world: World,
    checkers: Arc<Mutex<Checkers>>,
    lab: Lab,
    faults: Faults,
    known: BTreeMap<HostId, Known>,
    /// The world's own links and disks do what they should.
    sound: bool,
    /// Since when nothing has been wrong.
    right_since: Option<Duration>,
    lock_counters: Arc<LockCounters>,
    next_look: Duration,
    fatals: usize,
}

/// Runs a plan to its end, or to the first broken promise. A panic of the simulation itself counts as one: what it
/// would have found is unknown.
pub fn run(plan: &Plan) -> Report {
    match catch_unwind(AssertUnwindSafe(|| run_to_the_end(plan))) {
        Ok(report) => report,
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
            let violation =
                Violation { check: Check::Fatal, what: format!("the simulation itself panicked: {message}") };
            Report { seed: plan.seed, violation: Some(violation), ..Report::default() }
        }
    }
}

fn run_to_the_end(plan: &Plan) -> Report {
    let counters = LockCounters::new();
    // Everything happens on this thread, so everything that nodes count is counted here.
    let counted = counters.clone();
    let _counting = metrics::set_default_local_recorder(&*counted);
    let started = busy_time();
    let mut run = Run::new(plan, counters);
    let works_again = run.go(plan);
    run.report(plan, busy_time().saturating_sub(started), works_again)
}

/// What this thread has used of a core.
fn busy_time() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

impl Run {
    fn new(plan: &Plan, lock_counters: Arc<LockCounters>) -> Self {
        let mut world = World::new(&plan.world, plan.seed);
        let checkers = Arc::new(Mutex::new(Checkers::new(1.0 + plan.drift)));
        let lab = Lab::new(&world, checkers.clone(), Arc::new(plan.clone()));
        world.note(&format!("plan {}", plan.summary()));
        let mut rng = StdRng::seed_from_u64(plan.seed ^ 0xc10c);
        if plan.drift > 0.0 {
            for node in world.nodes() {
                world.set_rate(node, 1.0 + rng.random_range(-plan.drift..=plan.drift));
            }
        }
        lab.start(&mut world);
        let faults = Faults::new(plan);
        let (known, sound, next_look) = (BTreeMap::new(), plan.is_sound(), Duration::ZERO);
        Self { world, checkers, lab, faults, known, sound, right_since: None, lock_counters, next_look, fatals: 0 }
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
        (self.sound, self.right_since) = (true, None);
        self.lab.set_nodes(self.world.nodes());
        let healed = self.world.now();
        self.lab.forget_done();
        self.until(WORKS_AGAIN, |run| match run.lab.idle().first() {
            None => Ok(()),
            Some(client) => Err(format!("client {client} got nothing done")),
        })?;
        let works_again = self.world.now() - healed;
        while self.world.now() < healed + WORKS_ON {
            self.step()?;
        }
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
        self.look_at_the_clock();
        if self.world.now() >= self.next_look {
            self.next_look = self.world.now() + LOOK_CLOSELY_EVERY;
            self.lab.set_nodes(self.world.nodes());
            self.look_closely();
        }
        self.checkers.lock().violation().is_none().then_some(())
    }

    /// Goes on until a condition holds; that it does not in time is a broken promise as well.
    fn until(&mut self, within: Duration, condition: impl Fn(&Self) -> Result<(), String>) -> Option<()> {
        let give_up = self.world.now() + within;
        loop {
            let Err(why) = condition(self) else { return Some(()) };
            if self.world.now() >= give_up {
                let what = format!("{} s after the world was healed: {why}; {}", within.as_secs(), self.describe());
                self.checkers.lock().broken(Check::Progress, what);
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
        let checkers = self.checkers.lock();
        checkers.deserted()?;
        let last = checkers.committed.last().unwrap_or(0);
        for node in self.world.nodes() {
            let applied = self.world.node(node).map(|node| *node.consensus().applied().borrow());
            if applied.is_none_or(|applied| applied < last) {
                return Err(format!("node {node} has applied {applied:?} of {last}"));
            }
        }
        self.membership_settled()?;
        match self.lab.watched() {
            Some((number, up_to)) if up_to < checkers.state().zxid().0 => {
                Err(format!("watch {number} has heard up to {up_to} of {}", checkers.state().zxid()))
            }
            _ => Ok(()),
        }
    }

    /// Every change of the membership that was begun is made, and what was said to be made is so.
    fn membership_settled(&self) -> Result<(), String> {
        let nodes = self.world.nodes();
        if self.world.changes_under_way() > 0 {
            return Err(format!("a change of the membership to {nodes:?} is not made"));
        }
        for node in &nodes {
            let members = self.world.node(*node).map(|node| node.consensus().members().borrow().clone());
            let members = members.unwrap_or_default();
            let named = (members.voters.into_keys().collect::<Vec<_>>(), members.fronts.into_keys().collect());
            let (voters, fronts): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| !self.world.is_front(**node));
            if named != (voters.clone(), fronts.clone()) {
                let named = format!("the voters and front nodes {named:?}");
                return Err(format!("node {node} names {named}, and they are to be {voters:?} and {fronts:?}"));
            }
        }
        Ok(())
    }

    /// Where nothing has been wrong for a while, nobody waits for what is due.
    fn look_at_the_clock(&mut self) {
        let (now, world) = (self.world.now(), &self.world);
        let nodes = world.nodes();
        let runs = |node: &HostId| world.node(*node).is_some() && !world.is_paused(*node);
        let right = self.sound
            && self.faults.is_quiet()
            && world.changes_under_way() == 0
            && !world.is_paused(CLIENTS)
            && nodes.iter().all(runs);
        let voters = world.voters();
        if voters.iter().filter(|node| world.is_up(**node)).count() <= voters.len() / 2 {
            self.checkers.lock().sessions.no_majority_up(crate::clients::micros(now));
        }
        self.right_since = right.then(|| self.right_since.unwrap_or(now));
        let now_us = crate::clients::micros(now);
        self.checkers.lock().judge(Check::SessionLate, |it| it.sessions.pass(now_us, right));
        if let Some(since) = self.right_since {
            self.checkers.lock().all_is_well(now_us, crate::clients::micros(since));
        }
    }

    /// After every step: who runs and who leads, what came into which log, what was applied, and what state that made.
    fn observe(&mut self) {
        let now_us = crate::clients::micros(self.world.now());
        let mut checkers = self.checkers.lock();
        for (id, known) in &mut self.known {
            if known.up && (!self.world.is_up(*id) || self.world.lives(*id) != known.life) {
                known.up = false;
                checkers.node_died(*id, now_us);
            }
        }
        let mut moved = Vec::new();
        for id in self.world.nodes() {
            if let Some(from) = self.world.take_log_changed(id) {
                let bounds = self.world.log_bounds(id);
                let end = bounds.last.map_or(0, |last| last.index + 1);
                // With the entry before, for what the new ones follow.
                checkers.log(id, &self.world.log(id, from.saturating_sub(1)..end));
            }
            let Some(node) = self.world.node(id) else { continue };
            let known = self.known.entry(id).or_default();
            let life = self.world.lives(id);
            if known.life != life {
                *known = Known { life, ..Known::default() };
            }
            known.up = true;
            let leadership = *node.consensus().leadership().borrow();
            if known.leadership != (leadership.term, leadership.leader) {
                known.leadership = (leadership.term, leadership.leader);
                if let Some(leader) = leadership.leader {
                    checkers.judge(Check::OneLeader, |it| it.leaders.saw(id, leadership.term, leader));
                    if self.world.is_front(leader) {
                        let what = format!("front node {leader} leads term {}, as node {id} says", leadership.term);
                        checkers.broken(Check::OneLeader, what);
                    }
                }
            }
            let applied = *node.consensus().applied().borrow();
            if known.applied < applied {
                let kept = self.world.log_bounds(id).purged.map_or(0, |purged| purged.index + 1);
                let from = (known.applied + 1).max(kept);
                checkers.applied(id, &self.world.log(id, from..applied + 1), now_us);
                known.applied = applied;
                moved.push(id);
            }
        }
        // The log has been followed as far as any of them has come.
        for id in moved {
            if let Some(node) = self.world.node(id) {
                checkers.judge(Check::AppliedAgreement, |it| it.agreement.shown(id, &node.state()));
            }
        }
        checkers.judge(Check::Rates, |it| it.rates.compare());
        checkers.judge(Check::Herd, |it| it.locks.counted(self.lock_counters.woken()));
        let fatals = self.world.fatals();
        if let Some(fatal) = fatals.get(self.fatals) {
            checkers.broken(Check::Fatal, format!("host {} at {:?}: {}", fatal.host, fatal.at, fatal.why));
        }
        self.fatals = fatals.len();
    }

    /// Now and then: whole logs, and every replica, whether it has moved or not.
    fn look_closely(&mut self) {
        let mut checkers = self.checkers.lock();
        for id in self.world.nodes() {
            let bounds = self.world.log_bounds(id);
            if let Some(last) = bounds.last {
                let from = bounds.purged.map_or(0, |purged| purged.index + 1);
                checkers.log(id, &self.world.log(id, from..last.index + 1));
            }
            let Some(node) = self.world.node(id) else { continue };
            let shown = node.state();
            checkers.judge(Check::AppliedAgreement, |it| it.agreement.shown(id, &shown));
            checkers.look_through(id, &shown);
        }
    }

    fn report(self, plan: &Plan, busy: Duration, works_again: Option<Duration>) -> Report {
        let checkers = self.checkers.lock();
        Report {
            seed: plan.seed,
            violation: checkers.violation().cloned(),
            simulated: self.world.now(),
            busy,
            faults: self.faults.counts().clone(),
            counters: self.world.counters(),
            tally: self.lab.tally(),
            seen: checkers.seen(),
            woken: checkers.locks.woken_and_due(),
            delayed: self.lock_counters.delayed(),
            works_again,
            trace_hash: self.world.trace_hash(),
            trace: self.world.trace_lines(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_differ_in_anything_are_not_the_same() {
        let one = || Report { seed: 1, trace_hash: 7, trace: vec!["a".into()], ..Report::default() };
        one().is_same_run_as(&one()).unwrap();
        let violation = Some(Violation { check: Check::Locks, what: "two".into() });
        let mut tally = Tally::default();
        tally.counts.insert(("read", crate::clients::Outcome::Ok), 1);
        for other in [
            Report { violation, ..one() },
            Report { simulated: Duration::from_secs(1), ..one() },
            Report { faults: BTreeMap::from([(FaultKind::KillAll, 1)]), ..one() },
            Report { counters: BTreeMap::from([("losses", 1)]), ..one() },
            Report { tally, ..one() },
            Report { seen: BTreeMap::from([("grants of locks", 1)]), ..one() },
            Report { woken: (1, 1), ..one() },
            Report { delayed: 1, ..one() },
            Report { works_again: Some(Duration::ZERO), ..one() },
            Report { trace_hash: 8, ..one() },
            Report { trace: vec!["b".into()], ..one() },
        ] {
            one().is_same_run_as(&other).unwrap_err();
        }
    }

    #[test]
    fn a_crowd_at_a_lock_has_requests_delayed() {
        let mut plan = Plan::calm(5);
        plan.crowd(20);
        plan.fault_phase = Duration::from_secs(5);
        let report = run(&plan);
        assert!(report.violation.is_none() && report.delayed > 0, "{:?}, {}", report.violation, report.delayed);
    }

    #[test]
    fn a_panic_of_the_simulation_is_a_failure_that_names_its_seed() {
        let mut plan = Plan::calm(5);
        // No gap can be drawn from this.
        plan.faults.insert(FaultKind::Snapshot, 1);
        plan.fault_every_ms = 0;
        let report = run(&plan);
        let violation = report.violation.unwrap();
        assert_eq!((report.seed, violation.check), (5, Check::Fatal));
        assert!(violation.what.contains("the simulation itself"), "{violation}");
    }
}
