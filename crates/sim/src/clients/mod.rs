//! Simulated clients: they behave like the client library over the simulated network, and pass every answer to the
//! checkers. They keep sessions alive by their own clocks, retry elsewhere under the same request id, and acknowledge
//! a request only when no attempt at it is open.
//!
//! A client never judges an answer, and never knows the true time: only the checkers use it.

mod attempt;
mod gates;
mod guests;
mod lifecycle;
mod locks;
mod many_ephemerals;
mod nodes;
mod rates;
mod raw_node_ops;
mod retry;
mod session;
mod tenants;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{AclEntry, NodeData, NodeKind, NodeOp, NodePath};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::ClientNet;
use crate::checkers::Checkers;
use crate::settings::HostId;
use crate::swarm::Plan;
use crate::world::World;

/// How far a run has come, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Work.
    Work,
    /// Finish what is under way and go.
    Stop,
}

/// What an operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It was done.
    Ok,
    /// It was refused, which is an answer.
    Refused,
    /// Surely not done.
    Failed,
    /// Nobody knows.
    Unknown,
}

/// Operations by what they came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// By operation and outcome.
    pub counts: BTreeMap<(&'static str, Outcome), u64>,
}

impl Tally {
    /// How many ended so.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.counts.iter().filter(|((_, other), _)| *other == outcome).map(|(_, count)| count).sum()
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Tally) {
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_default() += count;
        }
    }
}

/// What all clients share.
#[derive(Clone)]
pub struct Lab {
    pub(crate) net: ClientNet,
    pub(crate) checkers: Arc<Mutex<Checkers>>,
    pub(crate) plan: Arc<Plan>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    phase: AtomicU8,
    nodes: Mutex<Vec<HostId>>,
    tally: Mutex<Tally>,
    running: AtomicU64,
    /// How much work each client has done since it was last asked.
    done: Mutex<BTreeMap<u64, u64>>,
    /// How far watches have been told, and which are still open.
    watched: Mutex<BTreeMap<u64, u64>>,
}

impl Lab {
    /// Everything that clients need.
    pub fn new(world: &World, checkers: Arc<Mutex<Checkers>>, plan: Arc<Plan>) -> Self {
        let lab = Self { net: world.client_net(), checkers, plan, shared: Arc::default() };
        lab.set_nodes(world.nodes());
        lab
    }

    /// Starts the clients.
    pub fn start(&self, world: &mut World) {
        for number in 0..self.plan.clients {
            self.shared.running.fetch_add(1, Ordering::Relaxed);
            self.shared.done.lock().insert(number, 0);
            let (lab, client) = (self.clone(), Client::new(self, number));
            world.spawn_client(async move {
                lifecycle::run(client).await;
                lab.shared.running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for number in 0..self.plan.watchers {
            let client = Client::new(self, 1_000 + number);
            self.shared.watched.lock().insert(number, 0);
            world.spawn_client(watches::follow(client, number));
        }
    }

    /// Which nodes there are to be asked.
    pub fn set_nodes(&self, nodes: Vec<HostId>) {
        *self.shared.nodes.lock() = nodes;
    }

    /// Tells the clients how far the run has come.
    pub fn set_phase(&self, phase: Phase) {
        self.shared.phase.store(u8::from(phase == Phase::Stop), Ordering::Relaxed);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.shared.phase.load(Ordering::Relaxed) != 0
    }

    /// Clients that have not gone.
    pub fn running(&self) -> u64 {
        self.shared.running.load(Ordering::Relaxed)
    }

    /// Begins to count anew who does any work.
    pub fn forget_done(&self) {
        self.shared.done.lock().values_mut().for_each(|done| *done = 0);
    }

    /// Clients that have done nothing since.
    pub fn idle(&self) -> Vec<u64> {
        self.shared.done.lock().iter().filter(|(_, done)| **done == 0).map(|(number, _)| *number).collect()
    }

    /// The watch that is furthest behind, and how far it has come.
    pub fn watched(&self) -> Option<(u64, u64)> {
        self.shared.watched.lock().iter().map(|(number, up_to)| (*number, *up_to)).min_by_key(|(_, up_to)| *up_to)
    }

    /// What operations came to.
    pub fn tally(&self) -> Tally {
        self.shared.tally.lock().clone()
    }

    pub(crate) fn count(&self, what: &'static str, outcome: Outcome) {
        *self.shared.tally.lock().counts.entry((what, outcome)).or_default() += 1;
    }
}

/// One client, as its tasks see it.
pub(crate) struct Client {
    pub(crate) lab: Lab,
    pub(crate) number: u64,
    pub(crate) rng: StdRng,
    pub(crate) clock: LocalClock,
    /// The node that it asks first.
    preferred: usize,
    next_id: u64,
    /// Pieces of work that are left for this session.
    pieces: u32,
    /// It has had a session with a great many ephemerals.
    owned_many: bool,
    /// It has had access control enforced.
    has_access: bool,
}

impl Client {
    fn new(lab: &Lab, number: u64) -> Self {
        use rand::Rng;
        let mut rng = StdRng::seed_from_u64(lab.plan.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let drift = lab.plan.drift;
        let rate = 1.0 + if drift > 0.0 { rng.random_range(-drift..=drift) } else { 0.0 };
        let preferred = rng.random_range(0..64);
        Self::with(lab.clone(), number, rng, LocalClock { rate }, preferred)
    }

    fn with(lab: Lab, number: u64, rng: StdRng, clock: LocalClock, preferred: usize) -> Self {
        let (next_id, pieces, owned_many, has_access) = (0, 0, false, false);
        Self { lab, number, rng, clock, preferred, next_id, pieces, owned_many, has_access }
    }

    /// Another task of the same client, with dice of its own.
    pub(crate) fn fork(&mut self) -> Self {
        let rng = StdRng::from_rng(&mut self.rng);
        Self::with(self.lab.clone(), self.number, rng, self.clock, self.preferred)
    }

    /// The node to ask now.
    pub(crate) fn node(&self) -> HostId {
        let nodes = self.lab.shared.nodes.lock();
        nodes.get(self.preferred % nodes.len().max(1)).copied().unwrap_or(1)
    }

    /// That one is of no use at the moment.
    pub(crate) fn move_on(&mut self) {
        self.preferred += 1;
    }

    /// True time, for the checkers' books.
    pub(crate) fn now_us(&self) -> u64 {
        micros(self.lab.net.now())
    }

    /// A request id that nobody else has.
    pub(crate) fn new_id(&mut self) -> u128 {
        use rand::Rng;
        self.next_id += 1;
        u128::from(self.number + 1) << 96 | u128::from(self.next_id) << 64 | u128::from(self.rng.random::<u64>())
    }

    pub(crate) async fn sleep_ms(&self, ms: u64) {
        self.clock.sleep(Duration::from_millis(ms)).await;
    }

    /// It ends its session after so many more pieces of work.
    pub(crate) fn leave_after(&mut self, pieces: u32) {
        self.pieces = self.pieces.min(pieces + 1);
    }

    /// It has done some work.
    pub(crate) fn progress(&self) {
        *self.lab.shared.done.lock().entry(self.number).or_default() += 1;
    }

    pub(crate) fn watched(&self, number: u64, up_to: u64) {
        self.lab.shared.watched.lock().insert(number, up_to);
    }
}

/// A clock that goes wrong by a factor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalClock {
    rate: f64,
}

impl LocalClock {
    /// Sleeps for a while of its own time.
    pub(crate) async fn sleep(self, time: Duration) {
        tokio::time::sleep(time.div_f64(self.rate)).await;
    }

    /// How long its time truly takes, in microseconds.
    pub(crate) fn truly_us(self, time: Duration) -> u64 {
        micros(time.div_f64(self.rate))
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The creation of a node that everybody may use.
fn create(path: NodePath, data: NodeData, kind: NodeKind, sequential: bool) -> NodeOp {
    NodeOp::Create { path, data, kind, sequential: sequential.into(), acl: vec![AclEntry::open()] }
}
