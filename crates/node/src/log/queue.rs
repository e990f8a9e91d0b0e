//! Commands that wait to be proposed (promise P13). Addresses take turns, and so do the sessions of an address, so a
//! caller that asks for much waits behind itself, with however many sessions. The total is bounded, and an address
//! has at most its share of it.
//!
//! A large command never shares a batch with small ones, and small ones go first: while a large one is in flight, only
//! they are taken, and then each in its turn.
//!
//! A delayed command waits for one that is urgent, or for its time, so that both are in one batch. No command waits for
//! a delayed one, except as for any command before it in the queue.
//!
//! Within a session the order of arrival is kept. A command that frees resources is never refused because of other
//! commands: it makes room, and connections bound its callers.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AccessOp, Actor, Command, LockOp, Op, SessionId};
use lockkeeper_mutants::invariant;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Bound, NodeError};
use crate::replica::inflight::Pending;
use crate::time::clock::Clock;

/// The key of the round robin: commands of one flow keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Flow {
    Session(SessionId),
    Address(IpAddr),
    /// The node itself, and calls whose frontend names no address.
    Unnamed,
}

/// Commands and bytes that count towards the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    commands: usize,
    bytes: usize,
}

impl Size {
    fn of(pending: &Pending) -> Self {
        if frees_resources(&pending.command) { Self::default() } else { Self { commands: 1, bytes: pending.bytes } }
    }

    fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.bytes += other.bytes;
    }

    fn subtract(&mut self, other: Self) {
        invariant!(other.fits(*self), "the size of a queue includes each of its commands");
        self.commands -= other.commands;
        self.bytes -= other.bytes;
    }

    fn fits(self, within: Self) -> bool {
        self.commands <= within.commands && self.bytes <= within.bytes
    }
}

/// A command of more bytes is large. Copying it, and its barrier, take longer than a round of small ones.
const LARGE_COMMAND_BYTES: usize = 16 * 1024;

/// Whether a command goes in a batch of its own kind, one of which may be in flight.
pub(crate) fn is_large(pending: &Pending) -> bool {
    Size::of(pending).bytes > LARGE_COMMAND_BYTES
}

/// The address of a flow, if it is known.
type Source = Option<IpAddr>;

/// The order in which flows are served.
#[derive(Debug, Default)]
struct Turns {
    /// The flows that have commands, by the address from which their first command came.
    flows: HashMap<Source, VecDeque<Flow>>,
    addresses: VecDeque<Source>,
}

impl Turns {
    fn schedule(&mut self, source: Source, flow: Flow) {
        let flows = self.flows.entry(source).or_default();
        if flows.is_empty() {
            self.addresses.push_back(source);
        }
        flows.push_back(flow);
    }

    /// The flow whose turn it is.
    fn front(&self) -> Option<(Source, &Flow)> {
        let source = *self.addresses.front()?;
        Some((source, self.flows.get(&source)?.front()?))
    }

    /// The address whose flow had its turn goes behind the others.
    fn rotate(&mut self) {
        let Some(source) = self.addresses.pop_front() else { return };
        let Some(mut flows) = self.flows.remove(&source) else { return };
        flows.pop_front();
        if !flows.is_empty() {
            self.flows.insert(source, flows);
            self.addresses.push_back(source);
        }
    }
}

#[derive(Debug, Default)]
struct QueueState {
    flows: HashMap<Flow, VecDeque<Pending>>,
    /// The flows whose next command is small.
    small: Turns,
    /// The flows whose next command is large.
    large: Turns,
    /// The last batch was of small commands, so that a large one is not passed by for ever.
    small_was_taken: bool,
    size: Size,
    by_address: HashMap<IpAddr, Size>,
    /// How many small commands do not wait for another one.
    urgent: usize,
    /// When the first of the others is to be proposed. May be too early, once that one is gone. Zero once they are
    /// needed.
    delayed_until: Option<Duration>,
    closed: bool,
}

/// See the module's text.
pub(crate) struct CommandQueue {
    waiting: Mutex<QueueState>,
    arrived: Notify,
    most: Size,
    clock: Arc<dyn Clock>,
}

impl CommandQueue {
    pub(crate) fn new(max_commands: usize, max_bytes: usize, clock: Arc<dyn Clock>) -> Self {
        let most = Size { commands: max_commands, bytes: max_bytes };
        Self { waiting: Mutex::default(), arrived: Notify::new(), most, clock }
    }

    /// Adds a command after those of its session. Never waits.
    pub(crate) fn push(&self, pending: Pending) -> Result<(), NodeError> {
        let size = Size::of(&pending);
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(NodeError::ShuttingDown);
        }
        let address = address_of(&pending.command);
        if size != Size::default() {
            self.admit(&waiting, size, address)?;
            waiting.size.add(size);
            if let Some(address) = address {
                waiting.by_address.entry(address).or_default().add(size);
            }
        }
        if waiting.append(pending, address) {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// An address has at most as much as is still free, so there is always room for another address. Its first command
    /// always fits if there is any room.
    fn admit(&self, waiting: &QueueState, size: Size, address: Option<IpAddr>) -> Result<(), NodeError> {
        let mut all = waiting.size;
        all.add(size);
        if !all.fits(self.most) {
            return Err(NodeError::overloaded(Bound::QueuedChanges));
        }
        let Some(held) = address.and_then(|address| waiting.by_address.get(&address)) else { return Ok(()) };
        let mut own = *held;
        own.add(size);
        let free =
            Size { commands: self.most.commands - waiting.size.commands, bytes: self.most.bytes - waiting.size.bytes };
        if own.fits(free) { Ok(()) } else { Err(NodeError::overloaded(Bound::OwnQueuedChanges)) }
    }

    /// Waits for a command that is to be proposed, then takes all of its kind that are there, in turn and within these
    /// bounds; `None` once the queue is closed. Large commands are left there unless `large_may_go`.
    pub(crate) async fn take(&self, max_commands: usize, max_bytes: usize, large_may_go: bool) -> Option<Vec<Pending>> {
        loop {
            let arrived = self.arrived.notified();
            let delayed_until = {
                let mut waiting = self.waiting.lock();
                if waiting.closed {
                    return None;
                }
                let why = waiting.due(self.clock.now());
                let large_goes = large_may_go && !waiting.large.addresses.is_empty();
                if large_goes && (why.is_none() || waiting.small_was_taken) {
                    return Some(waiting.take_large(max_commands, max_bytes));
                }
                if let Some(why) = why {
                    return Some(waiting.take_small(max_commands, max_bytes, why));
                }
                waiting.delayed_until.filter(|_| !waiting.small.addresses.is_empty())
            };
            match delayed_until {
                None => arrived.await,
                Some(at) => tokio::select! {
                    biased;
                    () = arrived => {}
                    () = self.clock.sleep_until(at) => {}
                },
            }
        }
    }

    /// Has the delayed commands proposed now, because somebody needs them.
    pub(crate) fn end_delays(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.delayed_until.is_some_and(|until| until > Duration::ZERO) {
            waiting.delayed_until = Some(Duration::ZERO);
            self.arrived.notify_one();
        }
    }

    /// Refuses further commands, and drops those that wait.
    pub(crate) fn close(&self) {
        let dropped =
            std::mem::replace(&mut *self.waiting.lock(), QueueState { closed: true, ..QueueState::default() });
        drop(dropped);
        self.arrived.notify_one();
    }
}

/// About how many nodes one entry of the log changes before it takes no further command.
pub(crate) const MAX_BATCH_NODES: usize = 5_000;

impl QueueState {
    /// True if the commands may be due earlier than before.
    fn append(&mut self, pending: Pending, source: Source) -> bool {
        let is_earlier = match pending.may_wait_until {
            None => {
                self.urgent += usize::from(!is_large(&pending));
                true
            }
            Some(until) => {
                let is_earlier = self.delayed_until.is_none_or(|before| until < before);
                self.delayed_until = if is_earlier { Some(until) } else { self.delayed_until };
                is_earlier
            }
        };
        let (flow, is_large) = (flow_of(&pending.command), is_large(&pending));
        let commands = self.flows.entry(flow.clone()).or_default();
        let is_new = commands.is_empty();
        commands.push_back(pending);
        if is_new {
            self.turns(is_large).schedule(source, flow);
        }
        is_earlier
    }

    fn turns(&mut self, is_large: bool) -> &mut Turns {
        if is_large { &mut self.large } else { &mut self.small }
    }

    /// Why the small commands are to be proposed now, if they are; one that is urgent takes the delayed ones along.
    fn due(&self, now: Duration) -> Option<&'static str> {
        match self.delayed_until {
            _ if self.small.addresses.is_empty() => None,
            _ if self.urgent > 0 => Some("with_another"),
            Some(Duration::ZERO) => Some("when_needed"),
            Some(until) if until <= now => Some("when_due"),
            _ => None,
        }
    }

    fn take_small(&mut self, max_commands: usize, max_bytes: usize, why: &'static str) -> Vec<Pending> {
        let taken = self.take(false, max_commands, max_bytes);
        let delayed = taken.iter().filter(|pending| pending.may_wait_until.is_some()).count();
        invariant!(taken.len() - delayed <= self.urgent, "each small command that does not wait counts as urgent");
        self.urgent -= taken.len() - delayed;
        if self.flows.is_empty() {
            self.delayed_until = None;
        }
        if delayed > 0 {
            metrics::counter!("lockkeeper_delayed_requests_total", "ended" => why).increment(delayed as u64);
        }
        self.small_was_taken = true;
        taken
    }

    fn take_large(&mut self, max_commands: usize, max_bytes: usize) -> Vec<Pending> {
        self.small_was_taken = false;
        self.take(true, max_commands, max_bytes)
    }

    fn take(&mut self, large: bool, max_commands: usize, max_bytes: usize) -> Vec<Pending> {
        let mut taken: Vec<Pending> = Vec::new();
        let (mut bytes, mut nodes) = (0, 0);
        while taken.len() < max_commands {
            let Some((source, flow)) = self.turns(large).front() else { break };
            let flow = flow.clone();
            let Some(commands) = self.flows.get_mut(&flow) else { break };
            // A batch has at least one command, however large.
            let is_over = |next: &Pending| bytes + next.bytes > max_bytes || nodes + next.nodes > MAX_BATCH_NODES;
            if !taken.is_empty() && commands.front().is_some_and(is_over) {
                break;
            }
            let Some(pending) = commands.pop_front() else { break };
            let next_is_large = commands.front().map(is_large);
            self.turns(large).rotate();
            match next_is_large {
                Some(is_large) => self.turns(is_large).schedule(source, flow),
                None => drop(self.flows.remove(&flow)),
            }
            bytes += pending.bytes;
            nodes += pending.nodes;
            self.forget(&pending);
            taken.push(pending);
        }
        taken
    }

    fn forget(&mut self, pending: &Pending) {
        let size = Size::of(pending);
        self.size.subtract(size);
        let Some(address) = address_of(&pending.command) else { return };
        if let Some(held) = self.by_address.get_mut(&address) {
            held.subtract(size);
            if *held == Size::default() {
                self.by_address.remove(&address);
            }
        }
    }
}

fn actor_of(command: &Command) -> Option<&Actor> {
    match command {
        Command::Do { actor, .. } => Some(actor),
        _ => None,
    }
}

fn flow_of(command: &Command) -> Flow {
    match command {
        Command::CloseSession { session } | Command::AttachSession { session } => Flow::Session(*session),
        _ => match actor_of(command).and_then(|actor| actor.session) {
            Some(session) => Flow::Session(session),
            None => address_of(command).map_or(Flow::Unnamed, Flow::Address),
        },
    }
}

/// The address that the command came from, as its frontend says.
fn address_of(command: &Command) -> Option<IpAddr> {
    let principals = match command {
        Command::OpenSessionAs { principals, .. } => principals,
        _ => &actor_of(command)?.principals,
    };
    principals.address.map(network_of)
}

/// The network to whose share a call from this address counts: the address itself, or for IPv6 its /64, which belongs
/// to one host.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// Whether it frees resources, takes rights away, or is the node's own.
fn frees_resources(command: &Command) -> bool {
    match command {
        Command::CloseSession { .. }
        | Command::ExpireSessions { .. }
        | Command::EndUnauthorised { .. }
        | Command::Reap { .. } => true,
        // A right must be taken away in any flood.
        Command::Do { op: Op::Access(op), .. } => {
            matches!(
                op,
                AccessOp::Revoke { .. }
                    | AccessOp::RevokeToken { .. }
                    | AccessOp::DeleteRole { .. }
                    | AccessOp::PutNamespace { .. }
            )
        }
        Command::Do { op, .. } => matches!(
            op,
            Op::Lock(
                LockOp::Release { .. }
                    | LockOp::Withdraw { .. }
                    | LockOp::Abandon { .. }
                    | LockOp::Claim { .. }
                    | LockOp::Downgrade { .. }
            )
        ),
        // The node's own as well, but it can wait.
        Command::RecordTokenUses { .. } | Command::RaiseFeatureLevel { .. } | Command::SetClusterUid { .. } => false,
        Command::OpenSession { .. } | Command::OpenSessionAs { .. } | Command::AttachSession { .. } => false,
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
