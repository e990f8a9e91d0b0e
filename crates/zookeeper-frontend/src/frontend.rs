//! The state that all ZooKeeper connections share: the node, the connections, their watches. It observes the replica
//! and delivers events.
//!
//! Lock order: the replica's state, then `system_nodes`, `watches`, `connections`, then an outbox. Never wait while
//! holding one.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lockkeeper_core::{Event, NodeEventKind, NodePath, SessionEnd, SessionId, State, Zxid};
use lockkeeper_node::{Node, Observer, network_of};
use lockkeeper_service::audit::Audit;
use lockkeeper_service::budget::give_back;
use lockkeeper_zookeeper::WatcherEvent;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::connection_handle::{AttachedSession, ConnectionHandle};
use super::metrics::{Counts, Latency};
use super::outbox::Close;
use super::settings::Settings;
use super::system_nodes::{CONFIG, SystemNodes};
use super::values::zxid;
use super::watches::{ConnectionId, WatchTable, event_type};

/// Watches of a closed connection that are removed under one hold of the lock.
const REMOVE_BATCH: usize = 1_000;

/// See the module's text.
pub(super) struct Frontend {
    pub(super) node: Node,
    pub(super) audit: Arc<Audit>,
    pub(super) settings: Settings,
    pub(super) watches: Mutex<WatchTable>,
    pub(super) latency: Latency,
    pub(super) counts: Counts,
    /// When this node became leader, if it leads.
    leading_since: Mutex<Option<Instant>>,
    pub(super) started: Instant,
    /// Admits one count of a node's descendants at a time.
    pub(super) counting: Arc<Semaphore>,
    /// The nodes below `/zookeeper`, which change with the membership. A read holds the lock until its watch is set.
    pub(super) system_nodes: RwLock<SystemNodes>,
    connections: Mutex<ConnectionTable>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct ConnectionTable {
    all: HashMap<ConnectionId, Arc<ConnectionHandle>>,
    by_session: HashMap<SessionId, ConnectionId>,
    /// Connections per network, as for all shares.
    by_address: HashMap<IpAddr, usize>,
}

impl Frontend {
    pub(super) fn new(node: Node, audit: Arc<Audit>, settings: Settings) -> Arc<Self> {
        let frontend = Arc::new(Self {
            node: node.clone(),
            audit,
            watches: Mutex::new(WatchTable::bounded(settings.watches)),
            counting: Arc::new(Semaphore::new(1)),
            latency: Latency::default(),
            counts: Counts::default(),
            leading_since: Mutex::default(),
            started: Instant::now(),
            system_nodes: RwLock::default(),
            connections: Mutex::default(),
            next_id: AtomicU64::new(1),
            settings,
        });
        let observer: Arc<dyn Observer> = frontend.clone();
        node.observe(Arc::downgrade(&observer));
        frontend
    }

    pub(super) fn set_leading(&self, leading: bool) {
        let mut since = self.leading_since.lock();
        *since = if leading { since.or_else(|| Some(Instant::now())) } else { None };
    }

    /// How long this node has been leader; 0 if it is not.
    pub(super) fn leading_ms(&self) -> u128 {
        self.leading_since.lock().map_or(0, |since| since.elapsed().as_millis())
    }

    /// Replaces the nodes below `/zookeeper` after a change of the membership, and fires the watches on
    /// `/zookeeper/config`.
    pub(super) fn set_system_nodes(&self, system_nodes: SystemNodes) {
        let changed = system_nodes.differs(&self.system_nodes.read());
        if !changed {
            return;
        }
        // A read of the old nodes has set its watch by now; any later read sees the new ones.
        *self.system_nodes.write() = system_nodes;
        if let Ok(path) = NodePath::parse(CONFIG) {
            self.node.look(|state| self.fire(state.zxid(), NodeEventKind::DataChanged, &path, |_| true));
        }
    }

    /// Fires the watches on a node and sends the event to the connections that may read it.
    fn fire(&self, at: Zxid, kind: NodeEventKind, path: &NodePath, may_read: impl Fn(&ConnectionHandle) -> bool) {
        let notified = self.watches.lock().fire(kind, path);
        if notified.is_empty() {
            return;
        }
        let event = WatcherEvent::of_node(event_type(kind), path.as_str().to_owned());
        let connections = self.connections.lock();
        let notified = notified.iter().filter_map(|id| connections.all.get(id)).filter(|handle| may_read(handle));
        let count = notified.map(|handle| handle.outbox.push(|out| event.encode(zxid(at), out))).count();
        metrics::counter!("lockkeeper_zookeeper_events_total").increment(count as u64);
    }

    /// Registers a connection; `None` if its address has too many.
    pub(super) fn register(self: &Arc<Self>, from: SocketAddr, is_local: bool) -> Option<RegisteredConnection> {
        let mut connections = self.connections.lock();
        let from_there = connections.by_address.entry(network_of(from.ip())).or_default();
        let most = self.settings.connections_per_address;
        if most > 0 && *from_there >= most {
            Counts::add(&self.counts.rejected, 1);
            return None;
        }
        *from_there += 1;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let handle = Arc::new(ConnectionHandle::new(id, (from, is_local), &self.settings));
        connections.all.insert(handle.id, handle.clone());
        self.watches.lock().add_connection(handle.id, handle.address);
        metrics::gauge!("lockkeeper_zookeeper_connections").set(connections.all.len() as f64);
        Some(RegisteredConnection { frontend: self.clone(), handle })
    }

    /// Ties a session to this connection and closes its older connection on this node. Returns false if the session has
    /// already moved on. This is checked under the state's lock, so that a later move finds this connection and closes
    /// it.
    pub(super) fn attach(&self, handle: &Arc<ConnectionHandle>, attached: AttachedSession) -> bool {
        let AttachedSession { id: session, attachment, .. } = attached;
        let older = self.node.look(|state| {
            if state.session(session).map(|session| session.attachment) != Some(attachment) {
                return None;
            }
            handle.set_session(attached);
            let mut connections = self.connections.lock();
            let older = connections.by_session.insert(session, handle.id).filter(|id| *id != handle.id);
            Some(older.and_then(|id| connections.all.get(&id).cloned()))
        });
        if let Some(Some(older)) = &older {
            older.outbox.close(Close::AfterFlush);
        }
        older.is_some()
    }

    /// All connections, oldest first.
    pub(super) fn handles(&self) -> Vec<Arc<ConnectionHandle>> {
        let mut handles: Vec<Arc<ConnectionHandle>> = self.connections.lock().all.values().cloned().collect();
        handles.sort_by_key(|handle| handle.id);
        handles
    }

    fn handle_of(&self, session: SessionId) -> Option<Arc<ConnectionHandle>> {
        let connections = self.connections.lock();
        connections.by_session.get(&session).and_then(|id| connections.all.get(id).cloned())
    }

    fn unregister(&self, handle: &ConnectionHandle) {
        // In batches: applying a log entry needs this lock too.
        let left = self.watches.lock().close_connection(handle.id);
        for some in left.chunks(REMOVE_BATCH) {
            self.watches.lock().remove_closed(handle.id, some);
        }
        self.watches.lock().remove_connection(handle.id);
        let mut connections = self.connections.lock();
        connections.all.remove(&handle.id);
        if let Some(session) = handle.session()
            && connections.by_session.get(&session.id) == Some(&handle.id)
        {
            connections.by_session.remove(&session.id);
        }
        give_back(&mut connections.by_address, network_of(handle.address), 1);
        metrics::gauge!("lockkeeper_zookeeper_connections").set(connections.all.len() as f64);
    }
}

impl Observer for Frontend {
    fn deliver(&self, state: &State, events: &[Event]) {
        for event in events {
            match event {
                Event::Node { zxid: at, kind, path, acl } => {
                    self.fire(*at, *kind, path, |handle| handle.may_read(state, path, acl));
                }
                // A connection that closed the session itself first gets its reply.
                Event::SessionEnded { session, cause, .. } => {
                    if let Some(handle) = self.handle_of(*session)
                        && !(*cause == SessionEnd::Closed && handle.is_closing())
                    {
                        handle.outbox.close(Close::AfterFlush);
                    }
                }
                // The session continues on another node, or on a connection of this node that is not attached yet.
                Event::SessionAttached { session, zxid } => {
                    if let Some(handle) = self.handle_of(*session)
                        && handle.session().is_some_and(|known| known.attachment < *zxid)
                    {
                        handle.outbox.close(Close::AfterFlush);
                    }
                }
                Event::SessionOpened { .. } | Event::ForcedDeletion { .. } => {}
            }
        }
    }

    /// The events that the replica skipped are unknown here. Clients reconnect, and setWatches finds what they missed
    /// by the nodes' zxids.
    fn skipped(&self, _: &State) {
        for handle in self.handles() {
            handle.outbox.close(Close::AfterFlush);
        }
    }

    /// Other deliveries end connections.
    fn is_awaited(&self) -> bool {
        !self.watches.lock().is_empty()
    }
}

/// Unregisters its connection when it is dropped.
pub(super) struct RegisteredConnection {
    pub(super) frontend: Arc<Frontend>,
    pub(super) handle: Arc<ConnectionHandle>,
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.handle.outbox.close(Close::Immediately);
        self.frontend.unregister(&self.handle);
    }
}
