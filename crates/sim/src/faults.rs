//! The faults of a run: which, when, to which hosts and for how long. Drawn from the plan's seed as the world goes
//! on. The heal undoes everything that was begun here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::fault_kind::FaultKind;
use crate::settings::{CLIENTS, Crash, DiskPlan, HostId, LinkPlan};
use crate::swarm::Plan;
use crate::world::World;

/// Milliseconds of a year, about.
const YEAR_MS: i64 = 365 * 24 * 3_600_000;

/// What is to be undone, and when.
#[derive(Debug)]
struct Ongoing {
    until: Duration,
    undo: Undo,
}

#[derive(Debug)]
enum Undo {
    Mend(Vec<(HostId, HostId)>),
    Restart(Vec<HostId>),
    Resume(Vec<HostId>),
    Links(HostId),
    Disk(HostId),
}

/// A disk that was copied, and is to be put back.
#[derive(Clone, Copy, Debug)]
struct Rollback {
    node: HostId,
    strike_at: Duration,
    struck_at: Option<Duration>,
}

/// How long nothing may have been wrong before a disk is put back: within a second, peers write down what a node has
/// acknowledged to them.
const QUIET_BEFORE: Duration = Duration::from_secs(3);
/// For so long nothing else happens after that.
const FOUND_OUT_WITHIN: Duration = Duration::from_secs(4);

/// Deals out faults.
#[derive(Debug)]
pub struct Faults {
    rng: StdRng,
    kinds: Vec<(FaultKind, u32)>,
    every_ms: u64,
    lasts_ms: u64,
    drift: f64,
    links: LinkPlan,
    disk: DiskPlan,
    next: Duration,
    ongoing: Vec<Ongoing>,
    cut: BTreeMap<(HostId, HostId), u32>,
    counts: BTreeMap<FaultKind, u64>,
    nodes_wanted: usize,
    rollback: Option<Rollback>,
    /// Since when nothing but a rollback has been under way.
    quiet_since: Option<Duration>,
    /// Until then, whoever appends several entries at once loses power.
    armed_until: Duration,
}

impl Faults {
    /// The faults of a plan.
    pub fn new(plan: &Plan) -> Self {
        let mut rng = StdRng::seed_from_u64(plan.seed ^ 0xfa_0175);
        let first_ms = rng.random_range(1_000..4_000);
        Self {
            rng,
            kinds: plan.faults.iter().map(|(kind, share)| (*kind, *share)).collect(),
            every_ms: plan.fault_every_ms,
            lasts_ms: plan.fault_lasts_ms,
            drift: plan.drift,
            links: plan.world.links,
            disk: plan.world.disk,
            next: Duration::from_millis(first_ms),
            ongoing: Vec::new(),
            cut: BTreeMap::new(),
            counts: BTreeMap::new(),
            nodes_wanted: usize::try_from(plan.world.nodes).unwrap_or(usize::MAX),
            rollback: None,
            quiet_since: None,
            armed_until: Duration::ZERO,
        }
    }

    /// What was done, by kind.
    pub fn counts(&self) -> &BTreeMap<FaultKind, u64> {
        &self.counts
    }

    /// Does what is due: ends faults whose time has come, and begins new ones.
    pub fn act(&mut self, world: &mut World) {
        let now = world.now();
        while let Some(at) = self.ongoing.iter().position(|ongoing| ongoing.until <= now) {
            let ended = self.ongoing.swap_remove(at);
            self.undo(world, ended.undo);
        }
        if now < self.armed_until {
            self.strike_mid_append(world);
        }
        self.roll_back(world);
        let holds = self.rollback.as_ref().is_some_and(|rollback| rollback.strike_at <= now);
        if now < self.next || self.kinds.is_empty() || holds {
            return;
        }
        let gap = self.rng.random_range(1..=2 * self.every_ms);
        self.next = now + Duration::from_millis(gap);
        let kind = self.kinds.choose_weighted(&mut self.rng, |(_, share)| *share).map(|(kind, _)| *kind);
        if let Ok(kind) = kind
            && self.begin(world, kind)
        {
            world.note(&format!("fault {}", kind.name()));
            *self.counts.entry(kind).or_default() += 1;
        }
    }

    /// Whether nothing is under way: everything that was begun has been undone.
    pub fn is_quiet(&self) -> bool {
        self.ongoing.is_empty() && self.rollback.as_ref().is_none_or(|rollback| rollback.struck_at.is_none())
    }

    /// Forgets what is under way: the world has been healed as a whole.
    pub fn healed(&mut self) {
        self.ongoing.clear();
        self.rollback = None;
        self.armed_until = Duration::ZERO;
        self.cut.clear();
    }

    fn strike_mid_append(&mut self, world: &mut World) {
        let Some(node) = world.nodes().into_iter().find(|node| world.is_appending_many(*node)) else { return };
        self.armed_until = Duration::ZERO;
        let kind = FaultKind::PowerMidAppend;
        world.crash(node, Crash::PowerLoss);
        self.last(world.now(), Undo::Restart(vec![node]));
        world.note(&format!("fault {}", kind.name()));
        *self.counts.entry(kind).or_default() += 1;
    }

    fn undo(&mut self, world: &mut World, undo: Undo) {
        match undo {
            Undo::Mend(cuts) => {
                for (from, to) in cuts {
                    let left = self.cut.entry((from, to)).or_insert(1);
                    *left -= 1;
                    if *left == 0 {
                        self.cut.remove(&(from, to));
                        world.mend(from, to);
                    }
                }
            }
            Undo::Restart(nodes) => {
                for node in nodes {
                    if world.nodes().contains(&node) && !world.is_up(node) {
                        world.restart(node);
                    }
                }
            }
            Undo::Resume(hosts) => {
                for host in hosts {
                    if world.is_paused(host) {
                        world.resume(host);
                    }
                }
            }
            Undo::Links(host) => self.set_links(world, host, self.links),
            Undo::Disk(node) => {
                if world.nodes().contains(&node) {
                    world.set_disk(node, self.disk);
                }
            }
        }
    }

    fn last(&mut self, now: Duration, undo: Undo) -> bool {
        let lasts = Duration::from_millis(self.rng.random_range(self.lasts_ms / 4..=self.lasts_ms));
        self.ongoing.push(Ongoing { until: now + lasts, undo });
        true
    }

    /// True if there was anything to do.
    fn begin(&mut self, world: &mut World, kind: FaultKind) -> bool {
        use FaultKind as K;
        match kind {
            K::PartitionOne
            | K::PartitionLeader
            | K::PartitionHalves
            | K::PartitionRing
            | K::PartitionBridge
            | K::OneWay
            | K::PartitionClients => self.partition(world, kind),
            K::KillOne | K::KillLeader | K::KillAll => self.crash(world, kind, Crash::Kill),
            K::PowerOne | K::PowerLeader | K::PowerMajority | K::PowerAll => self.crash(world, kind, Crash::PowerLoss),
            K::PowerMidAppend => {
                // Counted when it strikes.
                self.armed_until = world.now() + Duration::from_millis(self.lasts_ms);
                false
            }
            K::PauseOne | K::PauseLeader | K::PauseAll | K::PauseClients => self.pause(world, kind),
            K::BadLinks | K::SlowDisk | K::ClockJump | K::ClockYears | K::ClockRate | K::Snapshot => {
                self.trouble(world, kind)
            }
            K::Rollback => {
                self.plan_rollback(world);
                false
            }
            K::AddNode | K::RemoveNode => self.membership(world, kind),
        }
    }

    fn any(&mut self, hosts: &[HostId]) -> Option<HostId> {
        hosts.choose(&mut self.rng).copied()
    }

    fn partition(&mut self, world: &mut World, kind: FaultKind) -> bool {
        let mut nodes = world.nodes();
        nodes.shuffle(&mut self.rng);
        let cuts: BTreeSet<(HostId, HostId)> = match kind {
            FaultKind::PartitionOne | FaultKind::PartitionLeader => {
                let chosen = if kind == FaultKind::PartitionLeader { leader(world) } else { nodes.first().copied() };
                let Some(one) = chosen else { return false };
                let with_clients = self.rng.random_bool(0.5).then_some(CLIENTS);
                both_ways(&[one], nodes.iter().copied().filter(|node| *node != one).chain(with_clients))
            }
            FaultKind::PartitionHalves => {
                let (one, other) = nodes.split_at(nodes.len() / 2);
                both_ways(one, other.iter().copied())
            }
            FaultKind::PartitionBridge => {
                let (one, other) = nodes[1..].split_at((nodes.len() - 1) / 2);
                both_ways(one, other.iter().copied())
            }
            FaultKind::PartitionRing => {
                let places = nodes.len();
                let far = |a: usize, b: usize| a != b && (a + 1) % places != b && (b + 1) % places != a;
                let pairs = (0..places).flat_map(|a| (0..places).map(move |b| (a, b)));
                // Three nodes are a ring already: take one link out.
                match places {
                    3 => both_ways(&nodes[..1], [nodes[1]].into_iter()),
                    _ => pairs.filter(|(a, b)| far(*a, *b)).map(|(a, b)| (nodes[a], nodes[b])).collect(),
                }
            }
            FaultKind::OneWay => {
                let Some(one) = leader(world).filter(|_| self.rng.random_bool(0.5)).or(nodes.first().copied()) else {
                    return false;
                };
                let out = self.rng.random_bool(0.5);
                let others = nodes.iter().copied().filter(|node| *node != one);
                others.map(|other| if out { (one, other) } else { (other, one) }).collect()
            }
            _ => {
                let reached = self.rng.random_range(1..=nodes.len().max(2) - 1);
                both_ways(&[CLIENTS], nodes[reached..].iter().copied())
            }
        };
        for (from, to) in &cuts {
            *self.cut.entry((*from, *to)).or_default() += 1;
            world.cut(*from, *to);
        }
        let cuts = cuts.into_iter().collect::<Vec<_>>();
        !cuts.is_empty() && self.last(world.now(), Undo::Mend(cuts))
    }

    fn crash(&mut self, world: &mut World, kind: FaultKind, how: Crash) -> bool {
        let mut up: Vec<HostId> = world.nodes().into_iter().filter(|node| world.is_up(*node)).collect();
        up.shuffle(&mut self.rng);
        let chosen: Vec<HostId> = match kind {
            FaultKind::KillLeader | FaultKind::PowerLeader => leader(world).into_iter().collect(),
            FaultKind::KillAll | FaultKind::PowerAll => up,
            FaultKind::PowerMajority => {
                let voters = world.voters();
                up.into_iter().filter(|node| voters.contains(node)).take(voters.len() / 2 + 1).collect()
            }
            _ => up.into_iter().take(1).collect(),
        };
        for node in &chosen {
            world.crash(*node, how);
        }
        // Machines come back one after the other.
        for node in &chosen {
            self.last(world.now(), Undo::Restart(vec![*node]));
        }
        !chosen.is_empty()
    }

    fn pause(&mut self, world: &mut World, kind: FaultKind) -> bool {
        let running: Vec<HostId> =
            world.nodes().into_iter().filter(|node| world.is_up(*node) && !world.is_paused(*node)).collect();
        let chosen = match kind {
            FaultKind::PauseClients => vec![CLIENTS],
            FaultKind::PauseLeader => leader(world).into_iter().collect(),
            FaultKind::PauseAll => running,
            _ => self.any(&running).into_iter().collect(),
        };
        let chosen: Vec<HostId> = chosen.into_iter().filter(|host| !world.is_paused(*host)).collect();
        for host in &chosen {
            world.pause(*host);
        }
        !chosen.is_empty() && self.last(world.now(), Undo::Resume(chosen))
    }

    fn trouble(&mut self, world: &mut World, kind: FaultKind) -> bool {
        let nodes = world.nodes();
        let Some(node) = self.any(&nodes) else { return false };
        match kind {
            FaultKind::BadLinks => {
                let plan = LinkPlan {
                    jitter_ms: self.rng.random_range(0..=100),
                    loss: self.rng.random_range(0.0..=0.3),
                    duplicate: self.rng.random_range(0.0..=0.3),
                    spike: self.rng.random_range(0.0..=0.05),
                    spike_ms: self.rng.random_range(1..=2_000),
                };
                let host = if self.rng.random_bool(0.2) { CLIENTS } else { node };
                self.set_links(world, host, plan);
                self.last(world.now(), Undo::Links(host))
            }
            FaultKind::SlowDisk => {
                let plan = DiskPlan {
                    sync_min_ms: 1,
                    sync_max_ms: self.rng.random_range(5..=300),
                    stall: self.rng.random_range(0.0..=0.1),
                    stall_ms: self.rng.random_range(100..=3_000),
                    blocking_ms: self.rng.random_range(1..=2_000),
                };
                world.set_disk(node, plan);
                self.last(world.now(), Undo::Disk(node))
            }
            FaultKind::ClockJump => {
                let off_by_ms = self.rng.random_range(-20_000..=20_000);
                world.set_wall(node, off_by_ms);
                true
            }
            FaultKind::ClockYears => {
                let years = self.rng.random_range(-40..=40);
                let off_by_ms = if self.rng.random_bool(0.4) { 0 } else { years * YEAR_MS };
                let nodes = if self.rng.random_bool(0.2) { world.nodes() } else { vec![node] };
                nodes.into_iter().for_each(|node| world.set_wall(node, off_by_ms));
                true
            }
            FaultKind::ClockRate => {
                let rate = 1.0 + self.rng.random_range(-self.drift..=self.drift);
                world.set_rate(node, rate);
                self.drift > 0.0
            }
            _ if world.node(node).is_some() => {
                world.snapshot_now(node);
                true
            }
            _ => false,
        }
    }

    fn membership(&mut self, world: &mut World, kind: FaultKind) -> bool {
        let nodes = world.voters();
        if world.changes_under_way() > 0 {
            return false;
        }
        match kind {
            FaultKind::AddNode if nodes.len() <= self.nodes_wanted => {
                world.add_node();
                true
            }
            FaultKind::RemoveNode if nodes.len() >= self.nodes_wanted => match self.any(&nodes) {
                Some(node) => {
                    world.remove_node(node);
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    fn plan_rollback(&mut self, world: &mut World) {
        let up: Vec<HostId> = world.nodes().into_iter().filter(|node| world.node(*node).is_some()).collect();
        if self.rollback.is_some() {
            return;
        }
        let Some(node) = leader(world).filter(|_| self.rng.random_bool(0.3)).or_else(|| self.any(&up)) else { return };
        world.copy_disk(node);
        let after = Duration::from_millis(self.rng.random_range(200..=2 * self.lasts_ms));
        self.rollback = Some(Rollback { node, strike_at: world.now() + after, struck_at: None });
    }

    /// Puts a disk back when that is due and nothing else is wrong. A node that its peers turn away for that stays
    /// down: the world removes it and another node joins in its place.
    fn roll_back(&mut self, world: &mut World) {
        let now = world.now();
        let well = |node: HostId| world.node(node).is_some() && !world.is_paused(node);
        let calm = self.ongoing.is_empty()
            && now >= self.armed_until
            && world.changes_under_way() == 0
            && world.nodes().into_iter().all(well);
        self.quiet_since = calm.then(|| self.quiet_since.unwrap_or(now));
        let Some(Rollback { node, strike_at, struck_at }) = self.rollback else { return };
        match struck_at {
            // Whoever is turned away counts no longer: of two voters, the other one could not even have it removed.
            None if !world.nodes().contains(&node) || world.voters().len() < 3 => self.rollback = None,
            None if now >= strike_at && self.quiet_since.is_some_and(|since| now >= since + QUIET_BEFORE) => {
                world.put_back(node);
                world.note("fault rollback");
                *self.counts.entry(FaultKind::Rollback).or_default() += 1;
                self.rollback = Some(Rollback { node, strike_at, struck_at: Some(now) });
            }
            Some(_) if world.is_turned_away(node) => self.rollback = None,
            Some(at) if now >= at + FOUND_OUT_WITHIN => self.rollback = None,
            _ => {}
        }
    }

    fn set_links(&mut self, world: &mut World, host: HostId, plan: LinkPlan) {
        let others = world.nodes().into_iter().chain([CLIENTS]).filter(|other| *other != host);
        for other in others.collect::<Vec<_>>() {
            world.set_link(host, other, plan);
            world.set_link(other, host, plan);
        }
    }
}

/// The node that leads, as far as it knows.
pub fn leader(world: &World) -> Option<HostId> {
    let leading = |node: &HostId| {
        let leadership = world.node(*node).map(|node| *node.consensus().leadership().borrow());
        leadership.filter(|leadership| leadership.leading).map(|leadership| (leadership.term, *node))
    };
    world.nodes().iter().filter_map(leading).max().map(|(_, node)| node)
}

fn both_ways(one: &[HostId], others: impl Iterator<Item = HostId>) -> BTreeSet<(HostId, HostId)> {
    others.flat_map(|other| one.iter().flat_map(move |one| [(*one, other), (other, *one)])).collect()
}
