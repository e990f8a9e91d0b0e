//! The world: a cluster, its clients, and everything between them, in one thread under one seed.
//!
//! It moves in ticks of the shortest link delay. In a tick, first everything that is due arrives, in order; then each
//! living host runs for as long, by its own clock. Whatever a host sends arrives in a later tick, so the hosts of a
//! tick could as well run at the same time, and their order does not matter. Between ticks nothing runs, and the
//! checks may look at everything.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_consensus::{MemberRole, seed_this_thread};
use lockkeeper_node::Node;
use lockkeeper_store::{Bounds, LogStorage, Record};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::calls::ClientNet;
use crate::disk::{Disk, DiskCopy};
use crate::host::{Host, panics, watch_for_panics};
use crate::membership;
use crate::net::{Event, EventKind, Net};
use crate::node::{Boot, Failures, address};
use crate::settings::{CLIENTS, Crash, DiskPlan, HostId, LinkPlan, WorldPlan};
use crate::trace::Trace;

/// A node could not go on, or something panicked. Never part of a fault that is simulated, so always a defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// When.
    pub at: Duration,
    /// On which host.
    pub host: HostId,
    /// What it said.
    pub why: String,
}

/// What a node says that its peers, or the log, have found to be an older copy of itself.
const TURNED_AWAY: [&str; 2] = ["does not accept this node", "the log names start"];

/// The part of a node that its host's runtime does not hold.
struct NodeSlot {
    disk: Disk,
    slot: Arc<Mutex<Option<Node>>>,
    /// EventKind [`World::node`] lends out; the same as in the slot.
    node: Option<Node>,
    role: MemberRole,
    removed: bool,
    /// How often it has booted. Its own count of starts goes back with its disk.
    lives: u64,
    copy: Option<DiskCopy>,
    /// Its disk was put back: its peers may turn it away, and then it stays down for good.
    put_back: bool,
    turned_away: bool,
}

/// A change of the membership that is under way.
struct MembershipChange {
    done: Arc<Mutex<bool>>,
    /// The node to be switched off when it is done.
    leaves: Option<HostId>,
}

/// See the module's text.
pub struct World {
    plan: WorldPlan,
    now_us: u64,
    net: Net,
    hosts: BTreeMap<HostId, Host>,
    slots: BTreeMap<HostId, NodeSlot>,
    /// What waits for a frozen host.
    inboxes: BTreeMap<HostId, Vec<Event>>,
    changes: Vec<MembershipChange>,
    failures: Failures,
    fatals: Vec<Fatal>,
    dice: StdRng,
}

impl World {
    /// Builds the world and boots its nodes. No time has passed yet.
    pub fn new(plan: &WorldPlan, seed: u64) -> World {
        watch_for_panics();
        let mut dice = StdRng::seed_from_u64(seed);
        seed_this_thread(dice.random());
        let net = Net::new(plan.tick, plan.links, dice.random(), Trace::new(plan.keep_trace));
        let mut world = World {
            plan: plan.clone(),
            now_us: 0,
            net,
            hosts: BTreeMap::new(),
            slots: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            changes: Vec::new(),
            failures: Failures::default(),
            fatals: Vec::new(),
            dice,
        };
        world.hosts.insert(CLIENTS, Host::new());
        world.boot_host(CLIENTS);
        for node in 1..=plan.nodes {
            world.settle(node, MemberRole::Member);
        }
        for node in 1..=plan.nodes {
            world.boot_node(node);
        }
        for _ in 0..plan.fronts {
            world.add_front();
        }
        world
    }

    /// True time since the beginning.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.now_us)
    }

    /// Moves by one tick.
    pub fn step(&mut self) {
        // Whoever goes in this step was looked at after the last.
        self.conclude_changes();
        self.net.with(|net| net.set_now(self.now_us));
        while let Some(event) = self.net.with(|net| net.next_due()) {
            if self.is_paused(event.to) {
                self.inboxes.entry(event.to).or_default().push(event);
            } else {
                self.deliver(event);
            }
        }
        for host in self.hosts.values_mut() {
            host.run(self.plan.tick);
        }
        self.now_us += u64::try_from(self.plan.tick.as_micros()).unwrap_or(0);
        self.net.with(|net| net.set_now(self.now_us));
        for node_slot in self.slots.values_mut().filter(|node_slot| node_slot.node.is_none()) {
            node_slot.node = node_slot.slot.lock().clone();
        }
        self.collect_failures();
    }

    /// Moves until the time has come.
    pub fn run_until(&mut self, time: Duration) {
        while self.now() < time {
            self.step();
        }
    }

    /// Moves on by this.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now() + time);
    }

    fn deliver(&mut self, event: Event) {
        let Event { to, what, .. } = event;
        let Some(host) = self.hosts.get(&to) else { return };
        let net = &self.net;
        match what {
            EventKind::Request { call, from, serve } => {
                let node = self.slots.get(&to).and_then(|node_slot| node_slot.slot.lock().clone());
                match node {
                    // It boots, and does not listen yet.
                    None => net.with(|net| net.refuse(to, from, call)),
                    Some(node) => {
                        net.with(|net| net.trace_line(to, format_args!("hears #{call} of {from}")));
                        host.inside(|| {
                            let running = tokio::spawn(serve(node));
                            net.with(|net| net.serving(to, call, running.abort_handle()));
                        });
                    }
                }
            }
            EventKind::Answer { call, deliver, more } => {
                if net.with(|net| net.conclude(call, more)).is_some() {
                    net.with(|net| net.trace_line(to, format_args!("is answered #{call}")));
                    host.inside(deliver);
                }
            }
            EventKind::Fail { call, error } => {
                if let Some(mut fail) = net.with(|net| net.break_off(call)) {
                    net.with(|net| net.trace_line(to, format_args!("loses #{call}: {error}")));
                    host.inside(|| fail(error));
                }
            }
            EventKind::Cancel { call } => {
                if let Some(running) = net.with(|net| net.cancel(to, call)) {
                    host.inside(|| running.abort());
                }
            }
        }
    }

    fn collect_failures(&mut self) {
        let mut failures = std::mem::take(&mut *self.failures.lock());
        failures.extend(panics().into_iter().map(|panic| (CLIENTS, format!("panicked: {panic}"))));
        for (host, why) in failures {
            self.trace(host, format_args!("cannot go on: {why}"));
            if let Some(node_slot) = self.slots.get_mut(&host).filter(|node_slot| node_slot.put_back)
                && TURNED_AWAY.iter().any(|reason| why.contains(reason))
            {
                node_slot.turned_away = true;
                self.count("rolled back and turned away");
                self.crash(host, Crash::Kill);
                // As the remedy says.
                self.remove_node(host);
                match self.is_front(host) {
                    true => self.add_front(),
                    false => self.add_node(),
                };
                continue;
            }
            self.fatals.push(Fatal { at: self.now(), host, why });
            if host != CLIENTS {
                self.crash(host, Crash::Kill);
            }
        }
    }

    fn conclude_changes(&mut self) {
        let (done, under_way): (Vec<MembershipChange>, Vec<MembershipChange>) =
            std::mem::take(&mut self.changes).into_iter().partition(|change| *change.done.lock());
        self.changes = under_way;
        for node in done.into_iter().filter_map(|change| change.leaves) {
            self.crash(node, Crash::Kill);
            if let Some(node_slot) = self.slots.get_mut(&node) {
                node_slot.removed = true;
            }
        }
    }
}

/// Looking, between ticks.
impl World {
    /// Every node that there ever was and that has not been removed, up or down, members or joining.
    pub fn nodes(&self) -> Vec<HostId> {
        self.slots.iter().filter(|(_, node_slot)| !node_slot.removed).map(|(node, _)| *node).collect()
    }

    /// Those of [`nodes`](Self::nodes) that vote, or will.
    pub fn voters(&self) -> Vec<HostId> {
        self.nodes().into_iter().filter(|node| !self.is_front(*node)).collect()
    }

    /// Whether the node is a front node, which never votes.
    pub fn is_front(&self, node: HostId) -> bool {
        self.slots.get(&node).is_some_and(|node_slot| node_slot.role == MemberRole::Front)
    }

    /// The node, if it is up, booted and serving (it may be paused).
    pub fn node(&self, node: HostId) -> Option<&Node> {
        self.slots.get(&node)?.node.as_ref()
    }

    /// Looks at a node inside its own runtime and clock: what reads the time ([`Node::status`]) must be called so.
    pub fn observe<T>(&self, node: HostId, look: impl FnOnce(&Node) -> T) -> Option<T> {
        let node_slot = self.node(node)?;
        self.hosts.get(&node)?.inside(|| look(node_slot))
    }

    /// Whether the host has not crashed (it may be booting, or paused).
    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(Host::is_up)
    }

    /// Whether the host is frozen.
    pub fn is_paused(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(Host::is_paused)
    }

    /// Increases with each start of the node, whatever became of its disk.
    pub fn lives(&self, node: HostId) -> u64 {
        self.slots.get(&node).map_or(0, |node_slot| node_slot.lives)
    }

    /// Whether its peers have turned the node away because its disk was put back.
    pub fn is_turned_away(&self, node: HostId) -> bool {
        self.slots.get(&node).is_some_and(|node_slot| node_slot.turned_away)
    }

    /// The log as the node sees it (unsynced records included), or what is on its disk when it is down.
    pub fn log_bounds(&self, node: HostId) -> Bounds {
        self.slots.get(&node).map_or_else(Bounds::default, |node_slot| node_slot.disk.bounds())
    }

    /// See [`log_bounds`](Self::log_bounds).
    pub fn log(&self, node: HostId, range: Range<u64>) -> Vec<Record> {
        self.slots.get(&node).map_or_else(Vec::new, |node_slot| node_slot.disk.read_seen(range))
    }

    /// From which index on a node's log may be another since this was last asked; none if it is the same.
    pub fn take_log_changed(&self, node: HostId) -> Option<u64> {
        self.slots.get(&node)?.disk.take_changed()
    }

    /// The hash of every line of the trace so far: two runs of one seed are the same if it is.
    pub fn trace_hash(&self) -> u64 {
        self.net.with(|net| net.trace.hash())
    }

    /// The lines of the trace: all if they are kept, else the last few.
    pub fn trace_lines(&self) -> Vec<String> {
        self.net.with(|net| net.trace.kept().map(str::to_owned).collect())
    }

    /// What has happened, by kind: messages, losses, duplicates, syncs, torn writes, …
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.net.with(|net| {
            for node_slot in self.slots.values() {
                let counts = node_slot.disk.take_counts();
                net.trace.count_many("disk syncs", counts.syncs);
                net.trace.count_many("disk stalls", counts.stalls);
                net.trace.count_many("snapshots", counts.snapshots);
            }
            net.trace.counters()
        })
    }

    /// EventKind could not go on; see [`Fatal`].
    pub fn fatals(&self) -> &[Fatal] {
        &self.fatals
    }
}

/// Faults. A fault that makes no sense where things stand (to crash what is down) does nothing.
impl World {
    /// A node dies.
    pub fn crash(&mut self, node: HostId, how: Crash) {
        let (Some(host), Some(node_slot)) = (self.hosts.get_mut(&node), self.slots.get_mut(&node)) else { return };
        if !host.is_up() {
            return;
        }
        // Whatever its tasks try to say as they are dropped, nobody hears it.
        self.net.with(|net| {
            net.halt(node, how == Crash::Kill);
            net.trace.all_at_once();
        });
        let damage = node_slot.disk.crash(how);
        self.inboxes.remove(&node);
        node_slot.node = None;
        node_slot.slot.lock().take();
        host.halt();
        self.net.with(|net| net.trace.one_by_one());
        // A node that is dropped half-way leaves its complaints behind; they are of a dead one.
        self.failures.lock().retain(|(of, _)| *of != node);
        self.trace(
            node,
            format_args!("dies by {how:?}, loses {} writes, cuts an append in two: {}", damage.lost, damage.torn),
        );
        self.net.with(|net| {
            net.trace.count(match how {
                Crash::Kill => "kills",
                Crash::PowerLoss => "power losses",
            });
            net.trace.count_many("writes lost before the barrier", damage.lost as u64);
            net.trace.count_many("appends cut in two", u64::from(damage.torn));
        });
    }

    /// Starts a crashed node again, over what its disk has kept.
    pub fn restart(&mut self, node: HostId) {
        let gone = self.slots.get(&node).is_none_or(|node_slot| node_slot.removed || node_slot.turned_away);
        if !gone && !self.is_up(node) {
            self.count("restarts");
            self.boot_node(node);
        }
    }

    /// Copies what is durable on a node's disk, to be put back later.
    pub fn copy_disk(&mut self, node: HostId) {
        self.trace(node, format_args!("has its disk copied"));
        if let Some(node_slot) = self.slots.get_mut(&node) {
            node_slot.copy = Some(node_slot.disk.copy());
        }
    }

    /// Kills a node, puts the copy of its disk back and starts it over that.
    pub fn put_back(&mut self, node: HostId) {
        self.crash(node, Crash::Kill);
        let Some(node_slot) = self.slots.get_mut(&node) else { return };
        let Some(copy) = node_slot.copy.take() else { return };
        node_slot.disk.put_back(copy);
        node_slot.put_back = true;
        self.trace(node, format_args!("has its disk put back to what it was"));
        self.count("disks put back");
        self.restart(node);
    }

    /// Freezes a host ([`CLIENTS`] too) as SIGSTOP does.
    pub fn pause(&mut self, host: HostId) {
        if self.is_up(host) && !self.is_paused(host) {
            self.count("pauses");
            self.trace(host, format_args!("is frozen"));
            self.hosts.entry(host).and_modify(Host::pause);
        }
    }

    /// Lets it go on: its clocks jump by what it has missed, and what came meanwhile is there all at once.
    pub fn resume(&mut self, host: HostId) {
        if !self.is_paused(host) {
            return;
        }
        self.trace(host, format_args!("goes on"));
        self.hosts.entry(host).and_modify(Host::wake);
        for event in self.inboxes.remove(&host).unwrap_or_default() {
            self.deliver(event);
        }
    }

    /// Sets how fast a host's clocks go: 1.0 is true. Kept between 0.1 and 10.
    pub fn set_rate(&mut self, host: HostId, rate: f64) {
        if let Some(there) = self.hosts.get(&host) {
            there.clock.set_rate(rate.clamp(0.1, 10.0));
            self.count("clock rates");
            self.trace(host, format_args!("has clocks that go at {rate}"));
        }
    }

    /// Sets a node's wall clock forward or back. Its monotonic clock goes on.
    pub fn jump_wall(&mut self, node: HostId, by_ms: i64) {
        if let Some(there) = self.hosts.get(&node) {
            there.clock.jump_wall(by_ms);
            self.count("clock jumps");
            self.trace(node, format_args!("has its wall clock set by {by_ms} ms"));
        }
    }

    /// Nothing passes from one host to the other any more; the other direction is not touched.
    pub fn cut(&mut self, from: HostId, to: HostId) {
        self.count("cuts");
        self.trace(from, format_args!("is cut off towards {to}"));
        self.net.with(|net| net.cut(from, to));
    }

    /// Undoes one cut.
    pub fn mend(&mut self, from: HostId, to: HostId) {
        self.trace(from, format_args!("reaches {to} again"));
        self.net.with(|net| net.mend(from, to));
    }

    /// Mends every cut, and leaves every link with its delay and nothing worse.
    pub fn heal_network(&mut self) {
        self.trace(CLIENTS, format_args!("the network heals"));
        let calm = LinkPlan { loss: 0.0, duplicate: 0.0, spike: 0.0, ..self.plan.links };
        self.net.with(|net| net.calm(calm));
    }

    /// Sets a node's wall clock to so much before or after what it truly is. Its monotonic clock goes on.
    pub fn set_wall(&mut self, node: HostId, off_by_ms: i64) {
        if let Some(there) = self.hosts.get(&node) {
            there.clock.set_wall(self.now_us, off_by_ms);
            self.count("clock jumps");
            self.trace(node, format_args!("has its wall clock set to {off_by_ms} ms off"));
        }
    }

    /// Undoes every fault: the network heals, pauses end, clocks run and are set right, disks behave as planned and
    /// do not stall, crashed nodes start.
    pub fn heal(&mut self) {
        self.heal_network();
        let hosts: Vec<HostId> = self.hosts.keys().copied().collect();
        for host in hosts {
            self.resume(host);
            self.restart(host);
            self.hosts.entry(host).and_modify(|host| {
                host.clock.set_rate(1.0);
                host.clock.set_wall(self.now_us, 0);
            });
        }
        for node_slot in self.slots.values() {
            node_slot.disk.set_plan(DiskPlan { stall: 0.0, ..self.plan.disk });
        }
    }

    /// Makes one direction between two hosts better or worse.
    pub fn set_link(&mut self, from: HostId, to: HostId, plan: LinkPlan) {
        self.trace(from, format_args!("has another link to {to}: {plan:?}"));
        self.net.with(|net| net.set_link(from, to, plan));
    }

    /// Makes a disk better or worse.
    pub fn set_disk(&mut self, node: HostId, plan: DiskPlan) {
        self.trace(node, format_args!("has another disk: {plan:?}"));
        if let Some(node_slot) = self.slots.get(&node) {
            node_slot.disk.set_plan(plan);
        }
    }

    /// Has a node take a snapshot.
    pub fn snapshot_now(&mut self, node: HostId) {
        self.trace(node, format_args!("is to take a snapshot"));
        let (Some(there), Some(host)) = (self.node(node).cloned(), self.hosts.get(&node)) else { return };
        host.inside(|| {
            tokio::spawn(async move {
                // One that fails as the node stops is not missed.
                let _ = there.consensus().take_snapshot().await;
            })
        });
    }

    /// Boots a new node with an empty disk, adds it as a learner and promotes it, in the background and for as long
    /// as it takes.
    pub fn add_node(&mut self) -> HostId {
        let members = self.nodes();
        let node = self.boot_new(MemberRole::Member);
        self.change(None, membership::add(self.client_net(), members, node));
        node
    }

    /// Boots a new front node with an empty disk and adds it, in the background and for as long as it takes.
    pub fn add_front(&mut self) -> HostId {
        let members = self.nodes();
        let node = self.boot_new(MemberRole::Front);
        self.change(None, membership::add_front(self.client_net(), members, node));
        node
    }

    fn boot_new(&mut self, role: MemberRole) -> HostId {
        let node = self.slots.keys().last().copied().unwrap_or(0) + 1;
        self.count("nodes added");
        self.trace(node, format_args!("is to join as {role}"));
        self.settle(node, role);
        self.boot_node(node);
        node
    }

    /// Removes a node from the membership in the background, for as long as it takes; then it is switched off for
    /// ever.
    pub fn remove_node(&mut self, node: HostId) {
        let members: Vec<HostId> = self.nodes().into_iter().filter(|other| *other != node).collect();
        if members.is_empty() {
            return;
        }
        self.count("nodes removed");
        self.trace(node, format_args!("is to leave"));
        let net = self.client_net();
        self.change(Some(node), membership::remove(net, members, node));
    }

    fn change(&mut self, leaves: Option<HostId>, work: impl Future<Output = ()> + Send + 'static) {
        let done = Arc::new(Mutex::new(false));
        self.changes.push(MembershipChange { done: done.clone(), leaves });
        self.spawn_client(async move {
            work.await;
            *done.lock() = true;
        });
    }

    /// Whether the node has an append of several records on its way to the disk.
    pub fn is_appending_many(&self, node: HostId) -> bool {
        self.is_up(node) && self.slots.get(&node).is_some_and(|node_slot| node_slot.disk.is_appending_many())
    }

    /// Changes of the membership under way.
    pub fn changes_under_way(&self) -> usize {
        self.changes.len()
    }
}

/// Clients, and what else the caller does.
impl World {
    /// Starts a task on the host of the clients.
    pub fn spawn_client(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(host) = self.hosts.get(&CLIENTS) {
            host.inside(|| tokio::spawn(task));
        }
    }

    /// For client tasks.
    pub fn client_net(&self) -> ClientNet {
        ClientNet { net: self.net.clone() }
    }

    /// A line in the trace.
    pub fn note(&mut self, line: &str) {
        self.trace(CLIENTS, format_args!("{line}"));
    }

    /// One more of a kind among the [`counters`](Self::counters).
    pub fn count(&mut self, kind: &'static str) {
        self.net.with(|net| net.trace.count(kind));
    }

    fn trace(&self, host: HostId, what: std::fmt::Arguments<'_>) {
        self.net.with(|net| net.trace_line(host, what));
    }
}

/// Booting.
impl World {
    fn settle(&mut self, node: HostId, role: MemberRole) {
        let disk = Disk::new(self.plan.disk, self.dice.random());
        self.hosts.insert(node, Host::new());
        let node_slot = NodeSlot {
            disk,
            slot: Arc::default(),
            node: None,
            role,
            removed: false,
            lives: 0,
            copy: None,
            put_back: false,
            turned_away: false,
        };
        self.slots.insert(node, node_slot);
    }

    fn boot_host(&mut self, id: HostId) {
        let seed = self.dice.random();
        let Some(host) = self.hosts.get_mut(&id) else { return };
        if let Err(error) = host.boot(seed) {
            let why = format!("its runtime does not start: {error}");
            self.fatals.push(Fatal { at: Duration::from_micros(self.now_us), host: id, why });
            return;
        }
        let clock = host.clock.clone();
        self.net.with(|net| {
            net.boot(id, clock);
            net.trace_line(id, format_args!("boots"));
        });
    }

    fn boot_node(&mut self, node: HostId) {
        self.boot_host(node);
        let seed = self.dice.random();
        // Where everybody is, as the configuration of a node says it: those it starts with, and itself if it votes.
        let itself = (!self.is_front(node)).then_some(node);
        let peers = (1..=self.plan.nodes).chain(itself).map(|peer| (peer, address(peer))).collect();
        let (Some(host), Some(node_slot)) = (self.hosts.get(&node), self.slots.get_mut(&node)) else { return };
        node_slot.slot = Arc::default();
        node_slot.lives += 1;
        let boot = Boot {
            host: node,
            config: self.plan.node.clone(),
            peers,
            role: node_slot.role,
            net: self.net.clone(),
            disk: node_slot.disk.clone(),
            clock: host.clock.clone(),
            seed,
            failures: self.failures.clone(),
        };
        host.inside(|| boot.start(node_slot.slot.clone()));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // In order, and with nobody to hear what the dying say.
        let hosts: BTreeSet<HostId> = self.hosts.keys().copied().collect();
        for host in hosts {
            self.net.with(|net| net.halt(host, false));
            if let Some(node_slot) = self.slots.get_mut(&host) {
                node_slot.node = None;
                node_slot.slot.lock().take();
            }
            self.hosts.entry(host).and_modify(Host::halt);
        }
    }
}
