//! What all connections of ZooKeeper's clients share: the node, who is connected, who watches what.
//!
//! Lock order: the replica's state, then `special`, `watches`, `lines`, then an outbox. Nothing waits while it holds one.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Event, NodeEventKind, NodePath, SessionEnd, SessionId, Zxid};
use lockkeeper_node::{Node, Observer, network_of};
use lockkeeper_zookeeper::WatcherEvent;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::figures::{Counts, Latency};
use super::line::{Carried, Line};
use super::outbox::End;
use super::special::{CONFIG, Special};
use super::values::zxid;
use super::watches::{Bounds, ConnectionId, Watches, event_type};
use crate::budget::{Budget, give_back};
use crate::principals::SuperDigest;

/// Bounds and choices, from the configuration.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Unit of session timeouts: they are between 2 and 20 of them.
    pub(super) tick: Duration,
    /// Requests of one connection that are not answered yet.
    pub(super) outstanding: usize,
    /// Connections from one address; 0 is no bound.
    pub(super) connections_per_address: usize,
    /// Longest frame.
    pub(super) max_frame_bytes: usize,
    /// What may wait to be read by one client.
    pub(super) max_unread_bytes: usize,
    /// Requests that are being read, and answers that are not, of all clients of the node.
    pub(super) request_bytes: Arc<Budget>,
    pub(super) reply_bytes: Arc<Budget>,
    /// Watches of all, and of one connection.
    pub(super) watches: Bounds,
    /// A client that reads nothing for so long is cut off.
    pub(super) write_timeout: Duration,
    /// How long a request may go without an answer before the connection is closed.
    pub(super) request_timeout: Duration,
    /// Reads see everything that was acknowledged before them, whoever asked.
    pub(super) linearizable_reads: bool,
    /// What `super` proves itself by.
    pub(super) super_digest: SuperDigest,
    /// Whether these clients may delete what belongs to other sessions.
    pub(super) may_force: bool,
    /// Four-letter words that are answered.
    pub(super) words: Vec<String>,
}

/// So many watches are let go of while nobody else gets at them.
const AT_ONCE: usize = 1_000;

/// See the module's text.
pub(super) struct Door {
    pub(super) node: Node,
    pub(super) settings: Settings,
    pub(super) watches: Mutex<Watches>,
    pub(super) latency: Latency,
    pub(super) counts: Counts,
    /// Since when this node leads, if it does.
    leading_since: Mutex<Option<Instant>>,
    /// Since when the door is open.
    pub(super) since: Instant,
    /// One count of what lies below a node at a time.
    pub(super) counting: Arc<Semaphore>,
    /// What is below `/zookeeper`; changes with the membership. Held while it is read and its watch is set.
    pub(super) special: RwLock<Special>,
    lines: Mutex<Lines>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct Lines {
    all: HashMap<ConnectionId, Arc<Line>>,
    by_session: HashMap<SessionId, ConnectionId>,
    /// By their networks, as everybody's shares.
    by_address: HashMap<IpAddr, usize>,
}

impl Door {
    pub(super) fn new(node: Node, settings: Settings) -> Arc<Self> {
        let door = Arc::new(Self {
            node: node.clone(),
            watches: Mutex::new(Watches::bounded(settings.watches)),
            counting: Arc::new(Semaphore::new(1)),
            latency: Latency::default(),
            counts: Counts::default(),
            leading_since: Mutex::default(),
            since: Instant::now(),
            special: RwLock::default(),
            lines: Mutex::default(),
            next_id: AtomicU64::new(1),
            settings,
        });
        let observer: Arc<dyn Observer> = door.clone();
        node.observe(Arc::downgrade(&observer));
        door
    }

    /// Leadership is another.
    pub(super) fn leads(&self, leading: bool) {
        let mut since = self.leading_since.lock();
        *since = if leading { since.or_else(|| Some(Instant::now())) } else { None };
    }

    /// For how long this node has led.
    pub(super) fn leading_ms(&self) -> u128 {
        self.leading_since.lock().map_or(0, |since| since.elapsed().as_millis())
    }

    /// The membership is another. Who watches the node that shows it is told.
    pub(super) fn show(&self, special: Special) {
        let changed = special.differs(&self.special.read());
        if !changed {
            return;
        }
        // Whoever has read the old one has its watch by now, and whoever reads from now on reads the new one.
        *self.special.write() = special;
        if let Ok(path) = NodePath::parse(CONFIG) {
            self.node.look(|state| self.tell(state.zxid(), NodeEventKind::DataChanged, &path, |_| true));
        }
    }

    /// Tells those who watch a node and may know of it.
    fn tell(&self, at: Zxid, kind: NodeEventKind, path: &NodePath, may: impl Fn(&Line) -> bool) {
        let told = self.watches.lock().fire(kind, path);
        if told.is_empty() {
            return;
        }
        let event = WatcherEvent::of_node(event_type(kind), path.as_str().to_owned());
        let lines = self.lines.lock();
        let told = told.iter().filter_map(|id| lines.all.get(id)).filter(|line| may(line));
        let count = told.map(|line| line.outbox.say(|out| event.encode(zxid(at), out))).count();
        metrics::counter!("lockkeeper_zookeeper_events_total").increment(count as u64);
    }

    /// Lets a connection in; none if there are too many from its address.
    pub(super) fn enter(self: &Arc<Self>, from: SocketAddr) -> Option<Entered> {
        let mut lines = self.lines.lock();
        let from_there = lines.by_address.entry(network_of(from.ip())).or_default();
        let most = self.settings.connections_per_address;
        if most > 0 && *from_there >= most {
            Counts::add(&self.counts.rejected, 1);
            return None;
        }
        *from_there += 1;
        let line = Arc::new(Line::new(self.next_id.fetch_add(1, Ordering::Relaxed), from, &self.settings));
        lines.all.insert(line.id, line.clone());
        self.watches.lock().enter(line.id, line.address);
        metrics::gauge!("lockkeeper_zookeeper_connections").set(lines.all.len() as f64);
        Some(Entered { door: self.clone(), line })
    }

    /// A session is used over this line from now on; an older line of it on this node ends. False if it has moved on already: looked at under
    /// the state's lock, so that whoever moves it later finds this line and ends it.
    pub(super) fn attach(&self, line: &Arc<Line>, carried: Carried) -> bool {
        let Carried { id: session, attachment, .. } = carried;
        let older = self.node.look(|state| {
            if state.session(session).map(|session| session.attachment) != Some(attachment) {
                return None;
            }
            line.open(carried);
            let mut lines = self.lines.lock();
            let older = lines.by_session.insert(session, line.id).filter(|id| *id != line.id);
            Some(older.and_then(|id| lines.all.get(&id).cloned()))
        });
        if let Some(Some(older)) = &older {
            older.outbox.end(End::WhenSaid);
        }
        older.is_some()
    }

    /// All connections, oldest first.
    pub(super) fn lines(&self) -> Vec<Arc<Line>> {
        let mut lines: Vec<Arc<Line>> = self.lines.lock().all.values().cloned().collect();
        lines.sort_by_key(|line| line.id);
        lines
    }

    fn line_of(&self, session: SessionId) -> Option<Arc<Line>> {
        let lines = self.lines.lock();
        lines.by_session.get(&session).and_then(|id| lines.all.get(id).cloned())
    }

    fn leave(&self, line: &Line) {
        // In pieces: whoever applies an entry needs them too.
        let left = self.watches.lock().leave(line.id);
        for some in left.chunks(AT_ONCE) {
            self.watches.lock().forget(line.id, some);
        }
        self.watches.lock().gone(line.id);
        let mut lines = self.lines.lock();
        lines.all.remove(&line.id);
        if let Some(session) = line.session()
            && lines.by_session.get(&session.id) == Some(&line.id)
        {
            lines.by_session.remove(&session.id);
        }
        give_back(&mut lines.by_address, network_of(line.address), 1);
        metrics::gauge!("lockkeeper_zookeeper_connections").set(lines.all.len() as f64);
    }
}

impl Observer for Door {
    fn happened(&self, events: &[Event]) {
        for event in events {
            match event {
                Event::Node { zxid: at, kind, path, acl } => {
                    self.tell(*at, *kind, path, |line| line.may_read(acl));
                }
                // Who closed it itself is told so first.
                Event::SessionEnded { session, cause, .. } => {
                    if let Some(line) = self.line_of(*session)
                        && !(*cause == SessionEnd::Closed && line.is_closing())
                    {
                        line.outbox.end(End::WhenSaid);
                    }
                }
                // It goes on elsewhere, or over a line that has not been attached yet.
                Event::SessionAttached { session, zxid } => {
                    if let Some(line) = self.line_of(*session)
                        && line.session().is_some_and(|known| known.attachment < *zxid)
                    {
                        line.outbox.end(End::WhenSaid);
                    }
                }
                Event::SessionOpened { .. } | Event::ForcedDeletion { .. } => {}
            }
        }
    }

    /// What happened on the way is known to nobody here. Clients re-attach, and what they have missed is found by the nodes' bookkeeping.
    fn jumped(&self) {
        for line in self.lines() {
            line.outbox.end(End::WhenSaid);
        }
    }
}

/// A connection that was let in, for as long as it is there.
pub(super) struct Entered {
    pub(super) door: Arc<Door>,
    pub(super) line: Arc<Line>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.line.outbox.end(End::AtOnce);
        self.door.leave(&self.line);
    }
}
