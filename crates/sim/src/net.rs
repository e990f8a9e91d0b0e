//! The network: directed links between hosts, and calls over them.
//!
//! Every message is an event in one queue, ordered by arrival and then by sending. Nothing arrives sooner than a tick
//! after it was sent, so no host sees within a tick what another does in it, and the order in which hosts run does
//! not matter. A call behaves like one over a TCP connection: a loss shows as a reset or as silence, a dead process
//! refuses, a dead machine is silent, and a call without a waiting caller is dropped at the other end too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lockkeeper_node::Node;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::AbortHandle;

use crate::clock::HostClock;
use crate::settings::{HostId, LinkPlan};
use crate::trace::Trace;

/// Messages that a cut link holds at most; more are lost.
const HELD_MAX: usize = 1024;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing listens there: the call was surely not acted on.
    #[error("connection refused")]
    Refused,
    /// The connection broke: it may have been acted on.
    #[error("connection lost")]
    Reset,
    /// No answer in time: it may have been acted on, or be yet.
    #[error("timed out")]
    TimedOut,
}

/// Does the work of a call on the node, and sends the answer.
pub(crate) type Serve = Box<dyn FnOnce(Node) -> BoxFuture<'static, ()> + Send>;
/// Hands something to the task that waits for it.
pub(crate) type Deliver = Box<dyn FnOnce() + Send>;
/// Tells the task that waits, or listens, that nothing more will come.
pub(crate) type Fail = Box<dyn FnMut(CallError) + Send>;

/// What arrives.
pub(crate) enum EventKind {
    Request {
        call: u64,
        from: HostId,
        serve: Serve,
    },
    Answer {
        call: u64,
        deliver: Deliver,
        more: bool,
    },
    Fail {
        call: u64,
        error: CallError,
    },
    /// Nobody waits for the call any more.
    Cancel {
        call: u64,
    },
}

/// An arrival.
pub(crate) struct Event {
    pub(crate) to: HostId,
    /// The life of the receiver that it was meant for; none takes any.
    life: Option<u64>,
    pub(crate) what: EventKind,
}

struct Link {
    plan: LinkPlan,
    cut: bool,
    held: Vec<Event>,
}

/// A host as the network sees it.
struct HostState {
    clock: HostClock,
    life: u64,
    /// A process runs there.
    up: bool,
    /// The machine answers for a process that does not run.
    powered: bool,
    serving: BTreeMap<u64, AbortHandle>,
}

/// A call, or a stream, for which somebody waits.
struct Pending {
    from: HostId,
    to: HostId,
    fail: Fail,
    /// No item overtakes another.
    last_at_us: u64,
    /// Something of the stream was lost: nothing that comes after it may arrive.
    torn: bool,
}

/// See the module's text. Clones share it.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<NetState>>);

pub(crate) struct NetState {
    now_us: u64,
    tick_us: u64,
    sequence: u64,
    calls: u64,
    plan: LinkPlan,
    queue: BTreeMap<(u64, u64), Event>,
    links: BTreeMap<(HostId, HostId), Link>,
    hosts: BTreeMap<HostId, HostState>,
    pending: BTreeMap<u64, Pending>,
    dice: StdRng,
    pub(crate) trace: Trace,
}

impl Net {
    pub(crate) fn new(tick: Duration, plan: LinkPlan, seed: u64, trace: Trace) -> Net {
        Net(Arc::new(Mutex::new(NetState {
            now_us: 0,
            tick_us: u64::try_from(tick.as_micros()).unwrap_or(u64::MAX).max(1),
            sequence: 0,
            calls: 0,
            plan,
            queue: BTreeMap::new(),
            links: BTreeMap::new(),
            hosts: BTreeMap::new(),
            pending: BTreeMap::new(),
            dice: StdRng::seed_from_u64(seed),
            trace,
        })))
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut NetState) -> T) -> T {
        act(&mut self.0.lock())
    }

    /// True time, as exactly as the host's clock tells it.
    pub(crate) fn now(&self, host: HostId) -> Duration {
        let state = self.0.lock();
        let since = state.hosts.get(&host).map_or(Duration::ZERO, |presence| presence.clock.true_since_tick());
        Duration::from_micros(state.now_us) + since.min(Duration::from_micros(state.tick_us))
    }

    /// Ends a call that nobody waits for; the other side hears of it a little later.
    pub(crate) fn abandon(&self, call: u64) {
        let gone = {
            let mut state = self.0.lock();
            let gone = state.pending.remove(&call);
            if let Some(pending) = &gone {
                let (from, to) = (pending.from, pending.to);
                state.trace_line(from, format_args!("abandons #{call} to {to}"));
                state.send(from, to, EventKind::Cancel { call });
            }
            gone
        };
        drop(gone);
    }

    /// The work of a call is done, or was cut off: it can no longer be cancelled.
    pub(crate) fn served(&self, host: HostId, call: u64) {
        let mut state = self.0.lock();
        if let Some(presence) = state.hosts.get_mut(&host) {
            presence.serving.remove(&call);
        }
    }
}

impl NetState {
    pub(crate) fn set_now(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    pub(crate) fn trace_line(&mut self, host: HostId, what: std::fmt::Arguments<'_>) {
        self.trace.line(self.now_us, host, what);
    }

    /// A host is there and runs.
    pub(crate) fn boot(&mut self, host: HostId, clock: HostClock) {
        let life = self.hosts.get(&host).map_or(0, |presence| presence.life) + 1;
        let serving = BTreeMap::new();
        self.hosts.insert(host, HostState { clock, life, up: true, powered: true, serving });
        // What it was asked in another life, it knows nothing of.
        self.fail_calls_to(host);
    }

    /// A host's process is gone. If its machine is not, the others hear of it.
    pub(crate) fn halt(&mut self, host: HostId, powered: bool) {
        let Some(presence) = self.hosts.get_mut(&host) else { return };
        (presence.up, presence.powered) = (false, powered);
        let serving = std::mem::take(&mut presence.serving);
        drop(serving);
        if powered {
            self.fail_calls_to(host);
        }
        let own: Vec<(u64, HostId)> =
            self.pending.iter().filter(|(_, call)| call.from == host).map(|(call, of)| (*call, of.to)).collect();
        for (call, to) in own {
            if powered {
                self.send(host, to, EventKind::Cancel { call });
            }
            self.pending.remove(&call);
        }
    }

    fn fail_calls_to(&mut self, host: HostId) {
        let waiting: Vec<(u64, HostId)> =
            self.pending.iter().filter(|(_, call)| call.to == host).map(|(call, of)| (*call, of.from)).collect();
        for (call, from) in waiting {
            self.send_reliably(host, from, call, EventKind::Fail { call, error: CallError::Reset });
        }
    }

    fn link(&mut self, from: HostId, to: HostId) -> &mut Link {
        let plan = self.plan;
        self.links.entry((from, to)).or_insert_with(|| Link { plan, cut: false, held: Vec::new() })
    }

    pub(crate) fn set_link(&mut self, from: HostId, to: HostId, plan: LinkPlan) {
        self.link(from, to).plan = plan;
    }

    pub(crate) fn cut(&mut self, from: HostId, to: HostId) {
        self.link(from, to).cut = true;
    }

    /// Lets messages pass again; those that were held go on their way now.
    pub(crate) fn mend(&mut self, from: HostId, to: HostId) {
        let link = self.link(from, to);
        link.cut = false;
        for event in std::mem::take(&mut link.held) {
            let at_us = self.arrival(from, to);
            let at_us = match &event.what {
                EventKind::Answer { call, .. } => self.in_order(*call, at_us),
                _ => at_us,
            };
            self.enqueue(at_us, event);
        }
    }

    /// Mends every cut, and gives every link the plan.
    pub(crate) fn calm(&mut self, plan: LinkPlan) {
        self.plan = plan;
        let links: Vec<(HostId, HostId)> = self.links.keys().copied().collect();
        for (from, to) in links {
            self.link(from, to).plan = plan;
            self.mend(from, to);
        }
    }

    /// A new call: its number.
    pub(crate) fn begin(&mut self, from: HostId, to: HostId, fail: Fail) -> u64 {
        self.calls += 1;
        self.pending.insert(self.calls, Pending { from, to, fail, last_at_us: 0, torn: false });
        self.calls
    }

    /// Sends a request, twice if it so happens.
    pub(crate) fn request(&mut self, from: HostId, to: HostId, call: u64, serve: Serve, again: Option<Serve>) {
        let plan = self.link(from, to).plan;
        self.trace.count("messages");
        if self.lose(plan, from, to, call) {
            return;
        }
        self.send(from, to, EventKind::Request { call, from, serve });
        if let Some(serve) = again.filter(|_| plan.duplicate > 0.0)
            && self.dice.random_bool(plan.duplicate)
        {
            self.trace.count("duplicates");
            self.trace_line(from, format_args!("#{call} to {to} goes twice"));
            self.send(from, to, EventKind::Request { call, from, serve });
        }
    }

    /// Sends an answer, or an item of a stream.
    pub(crate) fn answer(&mut self, from: HostId, to: HostId, call: u64, deliver: Deliver, more: bool) {
        let plan = self.link(from, to).plan;
        self.trace.count("messages");
        let Some(pending) = self.pending.get(&call) else { return };
        if pending.torn || self.lose(plan, from, to, call) {
            return;
        }
        self.send_reliably(from, to, call, EventKind::Answer { call, deliver, more });
    }

    /// Whether a message is lost. Half of the losses show as a broken connection, the other half are silence. A
    /// stream always breaks, because it must not miss an item in the middle.
    fn lose(&mut self, plan: LinkPlan, from: HostId, to: HostId, call: u64) -> bool {
        if plan.loss <= 0.0 || !self.dice.random_bool(plan.loss) {
            return false;
        }
        self.trace.count("losses");
        self.trace_line(from, format_args!("#{call} to {to} is lost"));
        let Some(pending) = self.pending.get_mut(&call) else { return true };
        let caller = pending.from;
        pending.torn = pending.last_at_us > 0;
        if pending.torn || self.dice.random_bool(0.5) {
            let other = if caller == from { to } else { from };
            self.send(other, caller, EventKind::Fail { call, error: CallError::Reset });
            // A connection breaks at both its ends, at neither of them when the other does.
            self.send(caller, other, EventKind::Cancel { call });
        }
        true
    }

    /// As [`send`](Self::send), but in order with what was sent before on the same call.
    fn send_reliably(&mut self, from: HostId, to: HostId, call: u64, what: EventKind) {
        let at_us = self.arrival(from, to);
        let at_us = self.in_order(call, at_us);
        self.dispatch(at_us, from, to, what);
    }

    fn in_order(&mut self, call: u64, at_us: u64) -> u64 {
        match self.pending.get_mut(&call) {
            Some(pending) => {
                pending.last_at_us = pending.last_at_us.max(at_us);
                pending.last_at_us
            }
            None => at_us,
        }
    }

    fn send(&mut self, from: HostId, to: HostId, what: EventKind) {
        let at_us = self.arrival(from, to);
        self.dispatch(at_us, from, to, what);
    }

    fn dispatch(&mut self, at_us: u64, from: HostId, to: HostId, what: EventKind) {
        // To a host that is down it is an attempt to connect, which the next life may take.
        let life = self.hosts.get(&to).filter(|presence| presence.up).map(|presence| presence.life);
        let event = Event { to, life, what };
        if !self.link(from, to).cut {
            return self.enqueue(at_us, event);
        }
        // TCP sends it again and again: it may yet arrive, long after, or the connection may have been given up.
        self.trace.count("messages into a cut");
        let streaming = match event.what {
            EventKind::Answer { call, more: true, .. } => Some(call),
            _ => None,
        };
        let hold = self.dice.random_bool(0.5) || streaming.is_some();
        let link = self.link(from, to);
        if hold && link.held.len() < HELD_MAX {
            link.held.push(event);
        } else if let Some(call) = streaming {
            // Nothing may be missing in the middle of a stream: the receiver gives it up.
            if let Some(pending) = self.pending.get_mut(&call) {
                pending.torn = true;
            }
            let what = EventKind::Fail { call, error: CallError::Reset };
            let (at_us, life) = (self.now_us + self.tick_us, event.life);
            self.enqueue(at_us, Event { to, life, what });
        }
    }

    /// When a message sent now arrives.
    fn arrival(&mut self, from: HostId, to: HostId) -> u64 {
        let plan = self.link(from, to).plan;
        let mut delay_us = self.tick_us;
        if plan.jitter_ms > 0 {
            delay_us += self.dice.random_range(0..=plan.jitter_ms * 1000);
        }
        if plan.spike > 0.0 && self.dice.random_bool(plan.spike) {
            self.trace.count("delay spikes");
            delay_us += self.dice.random_range(0..=plan.spike_ms * 1000);
        }
        self.now_us + delay_us
    }

    fn enqueue(&mut self, at_us: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at_us, self.sequence), event);
    }

    /// The next arrival that is due.
    pub(crate) fn next_due(&mut self) -> Option<Event> {
        let entry = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now_us)?;
        let event = entry.remove();
        let presence = self.hosts.get(&event.to)?;
        if event.life.is_some_and(|life| life != presence.life) {
            return self.next_due();
        }
        if !presence.up {
            self.turn_away(event);
            return self.next_due();
        }
        Some(event)
    }

    /// Nobody is there to take it.
    fn turn_away(&mut self, event: Event) {
        let powered = self.hosts.get(&event.to).is_some_and(|presence| presence.powered);
        if let EventKind::Request { call, from, .. } = event.what
            && powered
        {
            self.refuse(event.to, from, call);
        }
    }

    /// Nothing listens at `host`: the caller is told.
    pub(crate) fn refuse(&mut self, host: HostId, caller: HostId, call: u64) {
        self.send(host, caller, EventKind::Fail { call, error: CallError::Refused });
    }

    /// The work for a call has begun on its node.
    pub(crate) fn serving(&mut self, host: HostId, call: u64, handle: AbortHandle) {
        if let Some(presence) = self.hosts.get_mut(&host) {
            presence.serving.insert(call, handle);
        }
    }

    /// The work to be cut off.
    pub(crate) fn cancel(&mut self, host: HostId, call: u64) -> Option<AbortHandle> {
        self.hosts.get_mut(&host)?.serving.remove(&call)
    }

    /// Takes the call out, if its caller still waits; a stream stays.
    pub(crate) fn conclude(&mut self, call: u64, more: bool) -> Option<()> {
        if more { self.pending.contains_key(&call).then_some(()) } else { self.pending.remove(&call).map(|_| ()) }
    }

    /// What to tell the caller with, if it still waits.
    pub(crate) fn break_off(&mut self, call: u64) -> Option<Fail> {
        self.pending.remove(&call).map(|pending| pending.fail)
    }
}
