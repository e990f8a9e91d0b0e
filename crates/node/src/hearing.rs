//! What the stream of a session listens for beside its watches: that a lock it holds has gone, and that the session has ended.
//!
//! Filled under the lock under which the state changes, like the watch table: what an answer could reveal has been told before it is
//! given. It never waits for a listener. Each lock and each session is told of once, so nothing more can be waiting than was asked for.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use lockkeeper_core::{FencingToken, LockRequest, NodePath, SessionId, Standing, State, Zxid};
use parking_lot::Mutex;

use crate::replica::Replica;

/// What a listener is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The node of a lock that was [kept](Hearing::keep) has gone.
    LockGone {
        /// The node.
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

#[derive(Debug, Default)]
struct Queue {
    told: Mutex<VecDeque<Told>>,
    waker: AtomicWaker,
}

impl Queue {
    fn tell(&self, told: Told) {
        self.told.lock().push_back(told);
        self.waker.wake();
    }
}

#[derive(Debug)]
struct Listener {
    session: SessionId,
    kept: HashSet<NodePath>,
    queue: Arc<Queue>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct HearingTable {
    listeners: BTreeMap<u64, Listener>,
    at: HashMap<NodePath, Vec<u64>>,
    of: HashMap<SessionId, Vec<u64>>,
    next_id: u64,
}

impl HearingTable {
    fn add(&mut self, session: SessionId) -> (u64, Arc<Queue>) {
        let id = self.next_id;
        self.next_id += 1;
        let queue = Arc::new(Queue::default());
        self.of.entry(session).or_default().push(id);
        self.listeners.insert(id, Listener { session, kept: HashSet::new(), queue: queue.clone() });
        (id, queue)
    }

    fn keep(&mut self, id: u64, path: NodePath) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        if listener.kept.insert(path.clone()) {
            self.at.entry(path).or_default().push(id);
        }
    }

    fn forget(&mut self, id: u64, path: &NodePath) {
        if self.listeners.get_mut(&id).is_some_and(|listener| listener.kept.remove(path)) {
            unlink(&mut self.at, path, id);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(listener) = self.listeners.remove(&id) else { return };
        listener.kept.iter().for_each(|path| unlink(&mut self.at, path, id));
        unlink(&mut self.of, &listener.session, id);
    }

    /// A node has gone.
    pub(crate) fn gone(&mut self, path: &NodePath, zxid: Zxid) {
        for id in self.at.remove(path).unwrap_or_default() {
            let Some(listener) = self.listeners.get_mut(&id) else { continue };
            listener.kept.remove(path);
            listener.queue.tell(Told::LockGone { path: path.clone(), zxid });
        }
    }

    /// A session has ended.
    pub(crate) fn ended(&mut self, session: SessionId, zxid: Zxid) {
        for id in self.of.remove(&session).unwrap_or_default() {
            let Some(listener) = self.listeners.remove(&id) else { continue };
            listener.kept.iter().for_each(|path| unlink(&mut self.at, path, id));
            listener.queue.tell(Told::SessionEnded { zxid });
        }
    }

    /// The state has jumped, and nobody knows what went on the way.
    pub(crate) fn look_at_all(&mut self, state: &State) {
        let zxid = state.zxid();
        let over: Vec<SessionId> = self.of.keys().filter(|of| state.session(**of).is_none()).copied().collect();
        over.into_iter().for_each(|session| self.ended(session, zxid));
        let holds = |path: &NodePath| matches!(state.standing(path), Standing::Holds { .. });
        let lost: Vec<NodePath> = self.at.keys().filter(|path| !holds(path)).cloned().collect();
        lost.iter().for_each(|path| self.gone(path, zxid));
    }
}

fn unlink<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<u64>>, key: &K, id: u64) {
    if let Some(ids) = index.get_mut(key) {
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

/// Listens on behalf of a session. Dropping it ends that.
pub struct Hearing {
    id: u64,
    held: Vec<LockRequest>,
    replica: Arc<Replica>,
    queue: Arc<Queue>,
}

impl std::fmt::Debug for Hearing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hearing").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Hearing {
    /// Begins to listen, for the session's end and for the loss of what it holds. The caller has the state locked.
    pub(crate) fn begin(replica: &Arc<Replica>, state: &State, session: SessionId) -> Self {
        let mut table = replica.hearing.lock();
        let (id, queue) = table.add(session);
        let held: Vec<LockRequest> = state.held_by(session).collect();
        held.iter().for_each(|request| table.keep(id, request.path.clone()));
        Self { id, held, replica: replica.clone(), queue }
    }

    /// What the session held when this began; their losses are told.
    pub fn take_held(&mut self) -> Vec<LockRequest> {
        std::mem::take(&mut self.held)
    }

    /// Listens for the loss of a lock that was granted. Should it be lost already, that is told at once.
    pub fn keep(&self, path: NodePath, token: FencingToken) {
        let state = self.replica.state.read();
        match state.standing(&path) {
            Standing::Holds { token: holds } if holds == token => self.replica.hearing.lock().keep(self.id, path),
            _ => self.queue.tell(Told::LockGone { path, zxid: state.zxid() }),
        }
    }

    /// Listens no more for the loss of a lock: it is being given back.
    pub fn forget(&self, path: &NodePath) {
        self.replica.hearing.lock().forget(self.id, path);
    }

    /// What has been told, in the replicated order.
    pub fn poll_told(&self, context: &mut Context<'_>) -> Poll<Told> {
        if let Some(told) = self.queue.told.lock().pop_front() {
            return Poll::Ready(told);
        }
        self.queue.waker.register(context.waker());
        // Something may have been told between the two.
        self.queue.told.lock().pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.replica.hearing.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("valid")
    }

    fn told(queue: &Queue) -> Vec<Told> {
        queue.told.lock().drain(..).collect()
    }

    #[test]
    fn a_loss_is_told_once_to_those_who_keep_the_lock() {
        let mut table = HearingTable::default();
        let (one, hears_one) = table.add(SessionId(1));
        let (two, hears_two) = table.add(SessionId(2));
        table.keep(one, path("/a"));
        table.keep(one, path("/a"));
        table.keep(two, path("/b"));
        table.gone(&path("/a"), Zxid(7));
        table.gone(&path("/a"), Zxid(8));
        assert_eq!(told(&hears_one), [Told::LockGone { path: path("/a"), zxid: Zxid(7) }]);
        table.forget(two, &path("/b"));
        table.gone(&path("/b"), Zxid(9));
        assert_eq!(told(&hears_two), []);
        table.remove(one);
        table.remove(two);
        assert!(table.listeners.is_empty() && table.at.is_empty() && table.of.is_empty());
    }

    #[test]
    fn the_end_of_a_session_is_told_to_all_its_listeners_and_nothing_is_left_behind() {
        let mut table = HearingTable::default();
        let (one, hears_one) = table.add(SessionId(1));
        let (_, hears_two) = table.add(SessionId(1));
        table.keep(one, path("/a"));
        table.ended(SessionId(1), Zxid(3));
        table.gone(&path("/a"), Zxid(3));
        for hears in [hears_one, hears_two] {
            assert_eq!(told(&hears), [Told::SessionEnded { zxid: Zxid(3) }]);
        }
        table.keep(one, path("/b"));
        assert!(table.listeners.is_empty() && table.at.is_empty() && table.of.is_empty());
    }

    #[test]
    fn a_jump_of_the_state_is_looked_into() {
        let mut table = HearingTable::default();
        let (one, hears) = table.add(SessionId(1));
        table.keep(one, path("/locks/a/_c_x"));
        table.look_at_all(&State::new());
        assert_eq!(told(&hears), [Told::SessionEnded { zxid: Zxid(0) }]);
        assert!(table.at.is_empty());
    }
}
