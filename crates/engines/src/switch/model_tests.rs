//! Several members over engines that keep their promises, in any order of steps: reads that are delivered late,
//! compare-and-set that loses, sessions that end, pauses, engines that die, switches that are begun, finished and
//! cancelled by anyone. At no time do two members believe that they hold the lock, and each grant has a larger token
//! than those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_client::Moment;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use uuid::Uuid;

use super::member::{Counted, MemberState, Turn};
use super::state::{GroupState, SwitchMode};

const LEASE_MS: u64 = 1_000;
const SESSION_MS: u64 = 600;
/// The cluster ends a session so much later than its member stops to rely on it.
const MARGIN_MS: u64 = 60;
const ENGINES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Keepalive(usize),
    Expire,
    /// What the task of a process does when it is not disturbed.
    Follow(usize),
    /// A whole request, from its beginning to the grant.
    Take(usize),
    Read(usize),
    Deliver(usize),
    Begin(usize),
    Ask(usize),
    Finish(usize),
    GiveUp(usize),
    Renew(usize),
    Release(usize),
    Confirm(usize),
    Advance(usize),
    Remove(usize),
    Rejoin(usize),
    Switch(usize, usize, SwitchMode),
    Dies(usize),
    Lives(usize),
}

fn step(modes: Vec<SwitchMode>) -> impl Strategy<Value = Step> {
    let member = || 0..3_usize;
    let engine = || 0..ENGINES.len();
    let switch = (member(), engine(), prop::sample::select(modes));
    prop_oneof![
        5 => (1..150_u64).prop_map(Step::Pass),
        1 => (1..1_500_u64).prop_map(Step::Pass),
        16 => member().prop_map(Step::Keepalive),
        3 => Just(Step::Expire),
        18 => member().prop_map(Step::Follow),
        14 => member().prop_map(Step::Take),
        3 => member().prop_map(Step::Read),
        3 => member().prop_map(Step::Deliver),
        3 => member().prop_map(Step::Begin),
        6 => member().prop_map(Step::Ask),
        4 => member().prop_map(Step::Finish),
        1 => member().prop_map(Step::GiveUp),
        4 => member().prop_map(Step::Renew),
        18 => member().prop_map(Step::Release),
        3 => member().prop_map(Step::Confirm),
        2 => member().prop_map(Step::Advance),
        2 => member().prop_map(Step::Remove),
        4 => member().prop_map(Step::Rejoin),
        3 => switch.prop_map(|(member, engine, mode)| Step::Switch(member, engine, mode)),
        1 => engine().prop_map(Step::Dies),
        4 => engine().prop_map(Step::Lives),
    ]
}

/// An engine with one lock.
#[derive(Default)]
struct Engine {
    dead: bool,
    last_token: u64,
    held: Option<(Uuid, u64)>,
}

/// A request that a member is at.
struct Asking {
    turn: Turn,
    /// The engines that have granted, each with its token and the end of its lease.
    parts: Vec<(String, u64, u64)>,
}

/// What a member believes to hold, whether or not it is one still.
struct Belief {
    lease: Uuid,
    member: Uuid,
    ends_ms: u64,
}

struct Process {
    id: Uuid,
    member: MemberState,
    sure_until_ms: u64,
    seen: (GroupState, u64),
    absent_since: BTreeMap<Uuid, u64>,
    alive_seen: BTreeSet<Uuid>,
    asking: Option<Asking>,
}

struct World {
    now_ms: u64,
    next_id: u128,
    state: GroupState,
    version: u64,
    /// The sessions, and when the cluster ends them.
    alive: BTreeMap<Uuid, u64>,
    engines: BTreeMap<&'static str, Engine>,
    processes: Vec<Process>,
    beliefs: Vec<Belief>,
    largest_token: u64,
    grants: u32,
    serving_changes: u32,
}

impl World {
    fn new() -> Self {
        let state = GroupState::new(ENGINES.iter().map(|name| (*name).to_owned()).collect(), 1);
        let mut world = Self {
            now_ms: 1_000,
            next_id: 1,
            state,
            version: 0,
            alive: BTreeMap::new(),
            engines: ENGINES.iter().map(|name| (*name, Engine::default())).collect(),
            processes: Vec::new(),
            beliefs: Vec::new(),
            largest_token: 0,
            grants: 0,
            serving_changes: 0,
        };
        for _ in 0..3 {
            let process = world.join();
            world.processes.push(process);
        }
        world
    }

    fn now(&self) -> Moment {
        Moment::from_millis(self.now_ms)
    }

    fn fresh_id(&mut self) -> Uuid {
        self.next_id += 1;
        Uuid::from_u128(self.next_id)
    }

    fn join(&mut self) -> Process {
        let id = self.fresh_id();
        self.alive.insert(id, self.now_ms + SESSION_MS + MARGIN_MS);
        let engines = self.state.engines.clone();
        self.state = self.state.join(id, &engines, 1, Duration::from_millis(LEASE_MS)).unwrap();
        self.version += 1;
        Process {
            id,
            member: MemberState::new(id, self.state.clone(), self.now()),
            sure_until_ms: self.now_ms + SESSION_MS,
            seen: (self.state.clone(), self.version),
            absent_since: BTreeMap::new(),
            alive_seen: self.alive.keys().copied().collect(),
            asking: None,
        }
    }

    fn is_sure(&self, at: usize) -> bool {
        self.now_ms < self.processes[at].sure_until_ms
    }

    /// Compare-and-set by what the member has seen.
    fn set(&mut self, at: usize, next: GroupState) {
        if self.processes[at].seen.1 != self.version {
            return;
        }
        self.serving_changes += u32::from(next.generation != self.state.generation);
        self.version += 1;
        self.state = next;
        self.read(at);
    }

    fn read(&mut self, at: usize) {
        let (now_ms, alive) = (self.now_ms, self.alive.keys().copied().collect::<BTreeSet<_>>());
        let process = &mut self.processes[at];
        process.seen = (self.state.clone(), self.version);
        process.absent_since.retain(|id, _| !alive.contains(id));
        for (id, _) in self.state.absent(&alive) {
            process.absent_since.entry(id).or_insert(now_ms);
        }
        process.alive_seen = alive;
    }

    fn deliver(&mut self, at: usize) {
        let now = self.now();
        let process = &mut self.processes[at];
        let lost = process.member.observe(&process.seen.0, now);
        self.beliefs.retain(|belief| !lost.contains(&belief.lease));
    }

    fn ask(&mut self, at: usize) {
        if !self.is_sure(at) {
            return;
        }
        let now_ms = self.now_ms;
        let Some(asking) = &mut self.processes[at].asking else { return };
        let Some(name) = asking.turn.engines.get(asking.parts.len()) else { return };
        let engine = self.engines.get_mut(name.as_str()).unwrap();
        let free = engine.held.is_none_or(|(_, ends_ms)| ends_ms <= now_ms);
        if engine.dead || !free {
            return;
        }
        engine.last_token += 1;
        engine.held = Some((asking.turn.id, now_ms + LEASE_MS));
        asking.parts.push((name.clone(), engine.last_token, now_ms + LEASE_MS));
    }

    fn give_back(&mut self, lease: Uuid, keep: &BTreeSet<String>) {
        for (name, engine) in &mut self.engines {
            if engine.held.is_some_and(|(owner, _)| owner == lease) && !engine.dead && !keep.contains(*name) {
                engine.held = None;
            }
        }
    }

    fn finish(&mut self, at: usize) {
        let complete =
            self.processes[at].asking.as_ref().is_some_and(|asking| asking.parts.len() == asking.turn.engines.len());
        if !complete {
            return;
        }
        let Some(Asking { turn, parts }) = self.processes[at].asking.take() else { return };
        if self.processes[at].member.must_read(&turn) {
            self.read(at);
            self.deliver(at);
        }
        let ends_ms = parts.iter().map(|(_, _, ends_ms)| *ends_ms).min().unwrap();
        let (now, sure) = (self.now(), self.is_sure(at));
        let process = &mut self.processes[at];
        let counted = if sure { process.member.granted(&turn, now, Moment::from_millis(ends_ms)) } else { None };
        let Some(counted) = counted else {
            process.member.end(turn.id);
            self.give_back(turn.id, &BTreeSet::new());
            return;
        };
        self.beliefs.push(Belief { lease: turn.id, member: process.id, ends_ms });
        self.token(&counted, &parts);
        self.give_back(turn.id, &counted.keep);
    }

    fn token(&mut self, counted: &Counted, parts: &[(String, u64, u64)]) {
        let (_, token, _) = parts.iter().find(|(name, ..)| *name == counted.token_of).unwrap();
        let token = counted.tokens(&[*token]).unwrap()[0];
        assert!(token > self.largest_token, "token {token} after {}", self.largest_token);
        self.largest_token = token;
        self.grants += 1;
    }

    fn renew(&mut self, at: usize) {
        let (now, now_ms, id) = (self.now(), self.now_ms, self.processes[at].id);
        if !self.is_sure(at) {
            return;
        }
        let Some(belief) = self.beliefs.iter_mut().find(|belief| belief.member == id && belief.ends_ms > now_ms) else {
            return;
        };
        let lease = belief.lease;
        let keep = match self.processes[at].member.renewal(lease, now) {
            Ok(keep) => keep,
            // The holder is told.
            Err(_) => return self.beliefs.retain(|belief| belief.lease != lease),
        };
        assert!(!keep.is_empty());
        let held = |engine: &Engine| !engine.dead && engine.held.is_some_and(|(o, ends)| o == lease && ends > now_ms);
        if !keep.iter().all(|name| held(&self.engines[name.as_str()])) {
            return;
        }
        for name in &keep {
            self.engines.get_mut(name.as_str()).unwrap().held = Some((lease, now_ms + LEASE_MS));
        }
        assert!(self.processes[at].member.renewed(lease, now, Moment::from_millis(now_ms + LEASE_MS)));
        belief.ends_ms = now_ms + LEASE_MS;
        self.give_back(lease, &keep);
    }

    fn release(&mut self, at: usize) {
        let id = self.processes[at].id;
        let Some(place) = self.beliefs.iter().position(|belief| belief.member == id) else { return };
        let lease = self.beliefs.remove(place).lease;
        self.processes[at].member.end(lease);
        self.give_back(lease, &BTreeSet::new());
    }

    fn give_up(&mut self, at: usize) {
        if let Some(asking) = self.processes[at].asking.take() {
            self.processes[at].member.end(asking.turn.id);
            self.give_back(asking.turn.id, &BTreeSet::new());
        }
    }

    fn remove(&mut self, at: usize) {
        let process = &self.processes[at];
        let due = process.seen.0.absent(&process.alive_seen).find(|(id, wait)| {
            let since = process.absent_since.get(id).copied().unwrap_or(u64::MAX);
            self.now_ms.saturating_sub(since) >= u64::try_from(wait.as_millis()).unwrap()
        });
        if let Some((id, _)) = due {
            let next = process.seen.0.without(id);
            self.set(at, next);
        }
    }

    fn take(&mut self, step: &Step) {
        let now = self.now();
        match *step {
            Step::Pass(ms) => self.now_ms += ms,
            Step::Keepalive(at) => {
                let (id, sure) = (self.processes[at].id, self.is_sure(at));
                if let Some(until) = self.alive.get_mut(&id).filter(|_| sure) {
                    *until = self.now_ms + SESSION_MS + MARGIN_MS;
                    self.processes[at].sure_until_ms = self.now_ms + SESSION_MS;
                }
            }
            Step::Expire => self.alive.retain(|_, until_ms| *until_ms > self.now_ms),
            Step::Follow(at) => {
                for step in [Step::Read, Step::Deliver, Step::Confirm, Step::Remove, Step::Advance, Step::Deliver] {
                    self.take(&step(at));
                }
            }
            Step::Take(at) => {
                for step in [Step::Begin, Step::Ask, Step::Ask, Step::Finish] {
                    self.take(&step(at));
                }
            }
            Step::Read(at) => self.read(at),
            Step::Deliver(at) => self.deliver(at),
            Step::Begin(at) => {
                if self.processes[at].asking.is_none() && self.is_sure(at) {
                    let id = self.fresh_id();
                    let turn = self.processes[at].member.begin(id);
                    self.processes[at].asking = turn.map(|turn| Asking { turn, parts: Vec::new() });
                }
            }
            Step::Ask(at) => self.ask(at),
            Step::Finish(at) => self.finish(at),
            Step::GiveUp(at) => self.give_up(at),
            Step::Renew(at) => self.renew(at),
            Step::Release(at) => self.release(at),
            Step::Confirm(at) => {
                let process = &mut self.processes[at];
                if process.member.is_to_confirm(now) && process.member.state().epoch == process.seen.0.epoch {
                    let next = process.seen.0.confirm(process.id);
                    self.set(at, next);
                }
            }
            Step::Advance(at) => {
                if let Some(next) = self.processes[at].seen.0.advance() {
                    self.set(at, next);
                }
            }
            Step::Remove(at) => self.remove(at),
            Step::Rejoin(at) => {
                if !self.is_sure(at) {
                    self.give_up(at);
                    let process = self.join();
                    self.processes[at] = process;
                }
            }
            Step::Switch(at, to, mode) => {
                if let Ok(Some(next)) = self.processes[at].seen.0.switch(ENGINES[to], mode, false) {
                    self.set(at, next);
                }
            }
            Step::Dies(engine) => self.engines.get_mut(ENGINES[engine]).unwrap().dead = true,
            Step::Lives(engine) => self.engines.get_mut(ENGINES[engine]).unwrap().dead = false,
        }
    }

    fn holders(&self) -> usize {
        self.beliefs.iter().filter(|belief| belief.ends_ms > self.now_ms).count()
    }
}

const SAFE: [SwitchMode; 4] = [
    SwitchMode::Drain { patience: None },
    SwitchMode::Drain { patience: Some(Duration::from_millis(200)) },
    SwitchMode::Both { stay: true },
    SwitchMode::Both { stay: false },
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn never_two_holders(steps in prop::collection::vec(step(SAFE.to_vec()), 1..400)) {
        let mut world = World::new();
        for (place, step) in steps.iter().enumerate() {
            world.take(step);
            prop_assert!(world.holders() <= 1, "two holders after step {place}, {step:?}");
        }
    }
}

/// The steps above come far: without this, a test of nothing would pass.
#[test]
fn random_steps_grant_and_switch() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(step(SAFE.to_vec()), 400);
    let (mut grants, mut switches) = (0, 0);
    for _ in 0..100 {
        let mut world = World::new();
        for step in strategy.new_tree(&mut runner).unwrap().current() {
            world.take(&step);
        }
        grants += world.grants;
        switches += world.serving_changes;
    }
    assert!(grants > 500 && switches > 50, "{grants} grants, {switches} switches");
}

/// The negative control: the same steps with switches at once do lead to two holders.
#[test]
fn at_once_two_can_hold() {
    let at_once = SwitchMode::AtOnce { accept_two_holders: true };
    let mut world = World::new();
    for step in [
        Step::Begin(0),
        Step::Ask(0),
        Step::Finish(0),
        Step::Read(1),
        Step::Switch(1, 1, at_once),
        Step::Deliver(1),
        Step::Begin(1),
        Step::Ask(1),
        Step::Finish(1),
    ] {
        world.take(&step);
    }
    assert_eq!(world.holders(), 2);
    world.take(&Step::Read(0));
    world.take(&Step::Deliver(0));
    assert_eq!(world.holders(), 1, "the earlier holder is told");
}
