//! The subscriptions of sessions to the loss of their locks and to their own end.
//!
//! Events are delivered under the state's lock, like those of watches: before an answer can reveal a loss, its event
//! is on its way. Delivery never waits for a subscriber. Each lock and each session gives one event, so a queue is
//! bounded by the subscriptions.
//!
//! A downgrade renames a lock's node. That is no loss: the node is followed under its new name, and its event has the
//! name that the subscriber knows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use lockkeeper_core::{Event, FencingToken, LockName, NodeEventKind, NodePath, SessionId, Standing, State, Zxid};
use parking_lot::{Mutex, MutexGuard};

use crate::observers::{Observer, unlink};

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The node of a lock that was [watched](crate::SessionEvents::watch_lock) was deleted.
    LockGone {
        /// The node, by the name under which it was watched.
        path: NodePath,
        /// When.
        zxid: Zxid,
    },
    /// The session has ended, and with it everything it owned.
    SessionEnded {
        /// When.
        zxid: Zxid,
    },
}

/// The events of one subscriber that it has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: Mutex<VecDeque<SessionEvent>>,
    waker: AtomicWaker,
}

impl EventQueue {
    fn push(&self, event: SessionEvent) {
        self.events.lock().push_back(event);
        self.waker.wake();
    }

    /// The next event, in the replicated order.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<SessionEvent> {
        if let Some(event) = self.events.lock().pop_front() {
            return Poll::Ready(event);
        }
        self.waker.register(context.waker());
        // An event may have come between the two.
        self.events.lock().pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// A lock whose loss is to be delivered.
#[derive(Debug)]
struct WatchedLock {
    token: FencingToken,
    /// The present name of its node.
    at: NodePath,
}

#[derive(Debug)]
struct Subscriber {
    session: SessionId,
    /// By the names that the subscriber knows.
    watched: HashMap<NodePath, WatchedLock>,
    queue: Arc<EventQueue>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct SessionEventTable {
    subscribers: BTreeMap<u64, Subscriber>,
    /// For the present name of a node: who watches it, and by which name.
    at: HashMap<NodePath, Vec<(u64, NodePath)>>,
    of: HashMap<SessionId, Vec<u64>>,
    next_id: u64,
}

impl SessionEventTable {
    pub(crate) fn add(&mut self, session: SessionId) -> (u64, Arc<EventQueue>) {
        let id = self.next_id;
        self.next_id += 1;
        let queue = Arc::new(EventQueue::default());
        self.of.entry(session).or_default().push(id);
        self.subscribers.insert(id, Subscriber { session, watched: HashMap::new(), queue: queue.clone() });
        (id, queue)
    }

    /// Watches a lock under this name, whatever its node is called now; delivers the loss at once if it is lost.
    pub(crate) fn watch_lock(&mut self, id: u64, state: &State, path: NodePath, token: FencingToken) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        if subscriber.watched.contains_key(&path) {
            return;
        }
        match now_at(state, subscriber.session, &path, token) {
            Some(at) => {
                subscriber.watched.insert(path.clone(), WatchedLock { token, at: at.clone() });
                self.at.entry(at).or_default().push((id, path));
            }
            None => subscriber.queue.push(SessionEvent::LockGone { path, zxid: state.zxid() }),
        }
    }

    pub(crate) fn unwatch_lock(&mut self, id: u64, path: &NodePath) {
        if let Some(watched) = self.subscribers.get_mut(&id).and_then(|subscriber| subscriber.watched.remove(path)) {
            unlink(&mut self.at, &watched.at, &(id, path.clone()));
        }
    }

    pub(crate) fn remove(&mut self, id: u64) {
        let Some(subscriber) = self.subscribers.remove(&id) else { return };
        unlink(&mut self.of, &subscriber.session, &id);
        self.unlink_kept(id, subscriber.watched);
    }

    fn unlink_kept(&mut self, id: u64, watched: HashMap<NodePath, WatchedLock>) {
        watched.into_iter().for_each(|(path, watched)| unlink(&mut self.at, &watched.at, &(id, path)));
    }

    /// A node was deleted: its lock is lost, unless the node has another name by now.
    fn node_deleted(&mut self, state: &State, gone: &NodePath, zxid: Zxid) {
        for (id, path) in self.at.remove(gone).unwrap_or_default() {
            let Some(subscriber) = self.subscribers.get_mut(&id) else { continue };
            let Some(watched) = subscriber.watched.get_mut(&path) else { continue };
            match now_at(state, subscriber.session, gone, watched.token) {
                Some(at) => {
                    watched.at = at.clone();
                    self.at.entry(at).or_default().push((id, path));
                }
                None => {
                    subscriber.watched.remove(&path);
                    subscriber.queue.push(SessionEvent::LockGone { path, zxid });
                }
            }
        }
    }

    /// A session has ended.
    fn session_ended(&mut self, session: SessionId, zxid: Zxid) {
        for id in self.of.remove(&session).unwrap_or_default() {
            let Some(subscriber) = self.subscribers.remove(&id) else { continue };
            self.unlink_kept(id, subscriber.watched);
            subscriber.queue.push(SessionEvent::SessionEnded { zxid });
        }
    }

    /// The state skipped ahead, and which nodes were deleted on the way is unknown.
    fn recheck_all(&mut self, state: &State) {
        let zxid = state.zxid();
        let over: Vec<SessionId> = self.of.keys().filter(|of| state.session(**of).is_none()).copied().collect();
        over.into_iter().for_each(|session| self.session_ended(session, zxid));
        let holds = |path: &NodePath| matches!(state.standing(path), Standing::Holds { .. });
        let gone: Vec<NodePath> = self.at.keys().filter(|path| !holds(path)).cloned().collect();
        gone.iter().for_each(|path| self.node_deleted(state, path, zxid));
    }
}

/// The node by which the session holds: at `path`, or in the same queue under another name.
fn now_at(state: &State, session: SessionId, path: &NodePath, token: FencingToken) -> Option<NodePath> {
    match state.standing(path) {
        Standing::Holds { token: holds } if holds == token => Some(path.clone()),
        _ => state.held_by_token(session, &LockName::of_directory(&path.parent()?)?, token),
    }
}

/// The subscribers of this node, in step with the state.
#[derive(Debug, Default)]
pub(crate) struct SessionEventRegistry(Mutex<SessionEventTable>);

impl SessionEventRegistry {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SessionEventTable> {
        self.0.lock()
    }
}

impl Observer for SessionEventRegistry {
    fn deliver(&self, state: &State, events: &[Event]) {
        let mut table = self.0.lock();
        for event in events {
            match event {
                Event::Node { kind: NodeEventKind::Deleted, path, zxid, .. } => table.node_deleted(state, path, *zxid),
                Event::SessionEnded { session, zxid, .. } => table.session_ended(*session, *zxid),
                _ => {}
            }
        }
    }

    fn skipped(&self, state: &State) {
        self.0.lock().recheck_all(state);
    }

    /// Every session stream subscribes, for long. It may learn a few ms later that its session has expired or its lock
    /// was taken by force; its client's own clock has told it of the expiry before (promise P11).
    fn is_awaited(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Actor, Batch, Command, LockMode, LockOp, NodeId, Origin, Reply, RequestId, Term};

    use super::*;

    /// A state, and the number of commands applied to it.
    #[derive(Default)]
    struct Held {
        state: State,
        sequence: u64,
    }

    impl Held {
        fn apply(&mut self, command: Command) -> Reply {
            self.sequence += 1;
            let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
            let batch = Batch::consecutive(origin, self.sequence, vec![command]);
            self.state.apply(Term(1), &batch).remove(0).reply.unwrap()
        }

        fn open(&mut self) -> SessionId {
            let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
            let Reply::SessionOpened { session, .. } = self.apply(open) else { panic!("not opened") };
            session
        }

        fn lock(&mut self, session: SessionId, name: &str) -> (NodePath, FencingToken) {
            let (locks, uuid) = (vec![LockName::parse(name).unwrap()], RequestId(self.sequence.into()));
            let op = LockOp::Acquire { locks, mode: LockMode::Write, delay_ms: 0, uuid, label: "test".into() };
            let Reply::Queued { mut paths, token, held: true } = self.by(session, op) else { panic!("not held") };
            (paths.remove(0), token)
        }

        fn downgrade(&mut self, session: SessionId, name: &str, token: FencingToken) -> NodePath {
            let op = LockOp::Downgrade { lock: LockName::parse(name).unwrap(), token };
            let Reply::Downgraded { path } = self.by(session, op) else { panic!("not downgraded") };
            path
        }

        fn release(&mut self, session: SessionId, name: &str, token: FencingToken) {
            self.by(session, LockOp::Release { locks: vec![LockName::parse(name).unwrap()], token });
        }

        fn by(&mut self, session: SessionId, op: LockOp) -> Reply {
            self.apply(Command::Do { actor: Actor::of(session), op: op.into() })
        }
    }

    fn delivered(queue: &EventQueue) -> Vec<SessionEvent> {
        queue.events.lock().drain(..).collect()
    }

    fn is_empty(table: &SessionEventTable) -> bool {
        table.subscribers.is_empty() && table.at.is_empty() && table.of.is_empty()
    }

    #[test]
    fn a_loss_is_delivered_once_to_those_who_watch_the_lock() {
        let (mut held, mut table) = (Held::default(), SessionEventTable::default());
        let (one, two) = (held.open(), held.open());
        let ((a, a_token), (b, b_token)) = (held.lock(one, "a"), held.lock(two, "b"));
        let ((id_one, queue_one), (id_two, queue_two)) = (table.add(one), table.add(two));
        table.watch_lock(id_one, &held.state, a.clone(), a_token);
        table.watch_lock(id_one, &held.state, a.clone(), a_token);
        table.watch_lock(id_two, &held.state, b.clone(), b_token);
        held.release(one, "a", a_token);
        table.node_deleted(&held.state, &a, Zxid(7));
        table.node_deleted(&held.state, &a, Zxid(8));
        assert_eq!(delivered(&queue_one), [SessionEvent::LockGone { path: a.clone(), zxid: Zxid(7) }]);
        table.unwatch_lock(id_two, &b);
        held.release(two, "b", b_token);
        table.node_deleted(&held.state, &b, Zxid(9));
        assert_eq!(delivered(&queue_two), []);
        table.watch_lock(id_one, &held.state, a.clone(), a_token);
        assert_eq!(
            delivered(&queue_one),
            [SessionEvent::LockGone { path: a, zxid: held.state.zxid() }],
            "lost before it was watched"
        );
        table.remove(id_one);
        table.remove(id_two);
        assert!(is_empty(&table));
    }

    #[test]
    fn the_end_of_a_session_is_delivered_to_all_its_subscribers_and_nothing_is_left_behind() {
        let (mut held, mut table) = (Held::default(), SessionEventTable::default());
        let session = held.open();
        let (a, token) = held.lock(session, "a");
        let (one, queue_one) = table.add(session);
        let (_, queue_two) = table.add(session);
        table.watch_lock(one, &held.state, a.clone(), token);
        held.apply(Command::CloseSession { session });
        table.session_ended(session, Zxid(3));
        table.node_deleted(&held.state, &a, Zxid(3));
        for queue in [queue_one, queue_two] {
            assert_eq!(delivered(&queue), [SessionEvent::SessionEnded { zxid: Zxid(3) }]);
        }
        table.watch_lock(one, &held.state, a, token);
        assert!(is_empty(&table));
    }

    #[test]
    fn a_downgrade_is_no_loss_and_the_loss_after_it_has_the_name_that_is_known() {
        let (mut held, mut table) = (Held::default(), SessionEventTable::default());
        let session = held.open();
        let (id, queue) = table.add(session);
        for jumps in [false, true] {
            let (writer, token) = held.lock(session, "a");
            table.watch_lock(id, &held.state, writer.clone(), token);
            let reader = held.downgrade(session, "a", token);
            let mut follow = |state: &State, gone: &NodePath| match jumps {
                true => table.recheck_all(state),
                false => table.node_deleted(state, gone, state.zxid()),
            };
            follow(&held.state, &writer);
            assert_eq!(delivered(&queue), []);
            held.release(session, "a", token);
            follow(&held.state, &reader);
            assert_eq!(delivered(&queue), [SessionEvent::LockGone { path: writer, zxid: held.state.zxid() }]);
        }
        // A release under the known name is no loss either, nor is a downgrade before the lock was watched.
        let (writer, token) = held.lock(session, "a");
        let reader = held.downgrade(session, "a", token);
        table.watch_lock(id, &held.state, writer.clone(), token);
        assert_eq!(delivered(&queue), []);
        table.unwatch_lock(id, &writer);
        held.release(session, "a", token);
        table.node_deleted(&held.state, &reader, held.state.zxid());
        assert_eq!(delivered(&queue), []);
        table.remove(id);
        assert!(is_empty(&table));
    }

    #[test]
    fn a_jump_of_the_state_is_looked_into() {
        let (mut held, mut table) = (Held::default(), SessionEventTable::default());
        let session = held.open();
        let (a, token) = held.lock(session, "a");
        let (one, queue) = table.add(session);
        table.watch_lock(one, &held.state, a, token);
        table.recheck_all(&State::new());
        assert_eq!(delivered(&queue), [SessionEvent::SessionEnded { zxid: Zxid(0) }]);
        assert!(table.at.is_empty());
    }
}
