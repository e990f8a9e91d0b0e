//! The requests that wait for a lock at this node. Each waiter watches exactly one node, its blocker, and is checked
//! again only when that node is deleted (promise P3). Requests that wait for a permit queue behind the lock's
//! directory, and a freed permit wakes only the first of them.
//!
//! Pure: the standing of a request is taken from the state after the batch that is being applied. A waiter must never
//! be woken as a holder unless its request holds in that state.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use lockkeeper_core::lock::parse_request;
use lockkeeper_core::{Event, NodeEventKind, NodePath, Standing, State};
use lockkeeper_mutants::{invariant, mutant};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::observers::{Observer, unlink};

/// Why a waiter is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// The request held when the waiter was woken.
    Holds,
    /// A node of the request was deleted.
    Gone,
}

#[derive(Debug)]
struct Waiter {
    /// All nodes of the request, and which of them waits.
    paths: Arc<[NodePath]>,
    number: usize,
    blocker: NodePath,
    wake: oneshot::Sender<Wakeup>,
}

impl Waiter {
    fn path(&self) -> &NodePath {
        &self.paths[self.number]
    }

    /// Its place in the queue for permits, if it waits for a permit.
    fn permit_sequence(&self) -> Option<u64> {
        let (sequence, _) = parse_request(self.path().name())?;
        is_directory_of(&self.blocker, self.path()).then_some(sequence)
    }
}

fn is_directory_of(directory: &NodePath, path: &NodePath) -> bool {
    path.as_str().strip_prefix(directory.as_str()).is_some_and(|rest| rest.strip_prefix('/') == Some(path.name()))
}

/// See the module's text.
#[derive(Debug, Default)]
struct WaiterTable {
    waiters: HashMap<u64, Waiter>,
    /// The waiters whose blocker a node is.
    behind: HashMap<NodePath, Vec<u64>>,
    /// The waiters for a permit of a directory, the first of them first.
    permit_queues: HashMap<NodePath, BTreeSet<(u64, u64)>>,
    /// The waiters whose request a node belongs to.
    at: HashMap<NodePath, Vec<u64>>,
    next_id: u64,
}

impl WaiterTable {
    /// See [`Waiters::register`].
    fn add(&mut self, paths: Arc<[NodePath]>, number: usize, blocker: NodePath) -> (u64, oneshot::Receiver<Wakeup>) {
        let id = self.next_id;
        self.next_id += 1;
        let (wake, woken) = oneshot::channel();
        for path in paths.iter() {
            self.at.entry(path.clone()).or_default().push(id);
        }
        let waiter = Waiter { paths, number, blocker, wake };
        self.link(id, &waiter);
        self.waiters.insert(id, waiter);
        (id, woken)
    }

    fn remove(&mut self, id: u64) {
        self.take(id);
    }

    fn take(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.unlink(id, &waiter);
        for path in waiter.paths.iter() {
            unlink(&mut self.at, path, &id);
        }
        let is_clean = self.at.is_empty() && self.behind.is_empty() && self.permit_queues.is_empty();
        invariant!(is_clean || !self.waiters.is_empty(), "nobody is linked who does not wait");
        Some(waiter)
    }

    fn link(&mut self, id: u64, waiter: &Waiter) {
        match waiter.permit_sequence() {
            Some(sequence) => {
                self.permit_queues.entry(waiter.blocker.clone()).or_default().insert((sequence, id));
            }
            None => self.behind.entry(waiter.blocker.clone()).or_default().push(id),
        }
    }

    fn unlink(&mut self, id: u64, waiter: &Waiter) {
        match waiter.permit_sequence() {
            Some(sequence) => {
                if let Some(queue) = self.permit_queues.get_mut(&waiter.blocker) {
                    invariant!(queue.remove(&(sequence, id)), "a waiter for a permit stands in the queue for it");
                    if queue.is_empty() {
                        self.permit_queues.remove(&waiter.blocker);
                    }
                }
            }
            None => unlink(&mut self.behind, &waiter.blocker, &id),
        }
    }

    /// A node was deleted. Returns how many waiters were checked again because of it: those whose blocker it was, and
    /// the first in the queue that got permits.
    fn node_deleted(&mut self, path: &NodePath, standing: impl Fn(&NodePath) -> Standing) -> usize {
        for id in self.at.get(path).cloned().unwrap_or_default() {
            self.wake(id, Wakeup::Gone);
        }
        if mutant!(WakeAllWaiters) {
            let all = self.len();
            self.recheck_all(standing);
            return all;
        }
        if mutant!(LoseWakeup) {
            return 0;
        }
        let behind = self.behind.get(path).cloned().unwrap_or_default();
        for id in &behind {
            self.recheck(*id, &standing);
        }
        behind.len() + self.grant_permits(path, standing)
    }

    /// Wakes the first waiters for a permit, as far as they hold one now. No other waiter is woken.
    fn grant_permits(&mut self, gone: &NodePath, standing: impl Fn(&NodePath) -> Standing) -> usize {
        if self.permit_queues.is_empty() {
            return 0;
        }
        let Some(directory) = gone.parent() else { return 0 };
        let mut woken = 0;
        while let Some(&(_, id)) = self.permit_queues.get(&directory).and_then(|queue| queue.first()) {
            let Some(waiter) = self.waiters.get(&id) else { break };
            let now = standing(waiter.path());
            if now == (Standing::Waits { blocker: directory.clone() }) {
                break;
            }
            woken += usize::from(matches!(now, Standing::Holds { .. }));
            self.follow(id, now);
        }
        woken
    }

    /// Checks every waiter again: the state skipped ahead, and which nodes were deleted on the way is unknown.
    fn recheck_all(&mut self, standing: impl Fn(&NodePath) -> Standing) {
        let mut all: Vec<u64> = self.waiters.keys().copied().collect();
        all.sort_unstable();
        for id in all {
            let Some(waiter) = self.waiters.get(&id) else { continue };
            if waiter.paths.iter().any(|path| standing(path) == Standing::Gone) {
                self.wake(id, Wakeup::Gone);
            } else {
                self.recheck(id, &standing);
            }
        }
    }

    fn recheck(&mut self, id: u64, standing: impl Fn(&NodePath) -> Standing) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let now = standing(waiter.path());
        self.follow(id, now);
    }

    fn follow(&mut self, id: u64, now: Standing) {
        match now {
            Standing::Holds { .. } => self.wake(id, Wakeup::Holds),
            Standing::Gone => self.wake(id, Wakeup::Gone),
            Standing::Waits { blocker } => {
                let Some(mut waiter) = self.waiters.remove(&id) else { return };
                self.unlink(id, &waiter);
                waiter.blocker = blocker;
                self.link(id, &waiter);
                self.waiters.insert(id, waiter);
            }
        }
    }

    fn wake(&mut self, id: u64, why: Wakeup) {
        if let Some(waiter) = self.take(id) {
            // If the receiver is gone, the request is being cancelled already.
            let _ = waiter.wake.send(why);
        }
    }

    fn len(&self) -> usize {
        self.waiters.len()
    }

    fn show_count(&self) {
        metrics::gauge!("lockkeeper_lock_waiters").set(self.len() as f64);
    }
}

/// The waiters of this node, in step with the state.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<WaiterTable>);

impl Waiters {
    /// Registers a request whose node of this number waits for `blocker`. The caller holds the state's lock, so the
    /// blocker cannot go before this returns.
    pub(crate) fn register(self: &Arc<Self>, paths: &[NodePath], number: usize, blocker: NodePath) -> WaiterGuard {
        let mut table = self.0.lock();
        let (id, woken) = table.add(paths.into(), number, blocker);
        table.show_count();
        WaiterGuard { waiters: self.clone(), id, woken }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Observer for Waiters {
    fn deliver(&self, state: &State, events: &[Event]) {
        let mut table = self.0.lock();
        if table.len() == 0 {
            return;
        }
        let gone = events.iter().filter_map(|event| match event {
            Event::Node { kind: NodeEventKind::Deleted, path, .. } => Some(path),
            _ => None,
        });
        let woken: usize = gone.map(|path| table.node_deleted(path, |path| state.standing(path))).sum();
        if woken > 0 {
            metrics::counter!("lockkeeper_lock_notifications_total").increment(woken as u64);
            table.show_count();
        }
    }

    fn skipped(&self, state: &State) {
        self.0.lock().recheck_all(|path| state.standing(path));
    }

    fn is_awaited(&self) -> bool {
        self.len() > 0
    }
}

/// A registered waiter. Dropping it removes the waiter.
#[derive(Debug)]
pub(crate) struct WaiterGuard {
    waiters: Arc<Waiters>,
    id: u64,
    pub(crate) woken: oneshot::Receiver<Wakeup>,
}

impl WaiterGuard {
    /// The defect of a mutant: the waiter is registered only after the pause.
    pub(crate) async fn register_late(&mut self, pause: impl Future<Output = ()>) {
        let waiter = self.waiters.0.lock().take(self.id);
        pause.await;
        if let Some(Waiter { paths, number, blocker, .. }) = waiter {
            (self.id, self.woken) = self.waiters.0.lock().add(paths, number, blocker);
        }
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        let mut table = self.waiters.0.lock();
        table.remove(self.id);
        table.show_count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("valid")
    }

    fn one(text: &str) -> Arc<[NodePath]> {
        Arc::from([path(text)])
    }

    /// Requests in queue order, all exclusive.
    fn queue<'a>(paths: &'a [&'a str]) -> impl Fn(&NodePath) -> Standing + 'a {
        |of| match paths.iter().position(|p| *p == of.as_str()) {
            None => Standing::Gone,
            Some(0) => Standing::Holds { token: Default::default() },
            Some(place) => Standing::Waits { blocker: path(paths[place - 1]) },
        }
    }

    #[test]
    fn a_release_wakes_one() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(one("/b"), 0, path("/a"));
        let (_, mut c) = table.add(one("/c"), 0, path("/b"));
        assert_eq!(table.node_deleted(&path("/a"), queue(&["/b", "/c"])), 1);
        assert_eq!(b.try_recv(), Ok(Wakeup::Holds));
        assert!(c.try_recv().is_err());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_death_in_the_middle_relinks_the_successor_alone() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(one("/b"), 0, path("/a"));
        let (_, mut c) = table.add(one("/c"), 0, path("/b"));
        let (_, mut d) = table.add(one("/d"), 0, path("/c"));
        assert_eq!(table.node_deleted(&path("/b"), queue(&["/a", "/c", "/d"])), 1);
        assert_eq!(b.try_recv(), Ok(Wakeup::Gone));
        assert!(c.try_recv().is_err() && d.try_recv().is_err());
        assert_eq!(table.node_deleted(&path("/a"), queue(&["/c", "/d"])), 1);
        assert_eq!(c.try_recv(), Ok(Wakeup::Holds));
    }

    #[test]
    fn one_who_goes_in_the_same_batch_is_never_woken_as_a_holder() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(one("/b"), 0, path("/a"));
        let (_, mut c) = table.add(one("/c"), 0, path("/b"));
        table.node_deleted(&path("/a"), queue(&["/c"]));
        assert_eq!(b.try_recv(), Ok(Wakeup::Gone));
        table.node_deleted(&path("/b"), queue(&["/c"]));
        assert_eq!(c.try_recv(), Ok(Wakeup::Holds));
    }

    #[test]
    fn readers_behind_one_writer_wake_together() {
        let mut table = WaiterTable::default();
        let mut readers: Vec<_> = (0..3).map(|n| table.add(one(&format!("/r{n}")), 0, path("/w")).1).collect();
        assert_eq!(table.node_deleted(&path("/w"), |_| Standing::Holds { token: Default::default() }), 3);
        assert!(readers.iter_mut().all(|wakeup| wakeup.try_recv() == Ok(Wakeup::Holds)));
    }

    /// A semaphore of two, with the requests that stand there, in order.
    fn semaphore<'a>(sequences: &'a [u64]) -> impl Fn(&NodePath) -> Standing + 'a {
        |of| match sequences.iter().position(|sequence| permit(*sequence)[0] == *of) {
            None => Standing::Gone,
            Some(0 | 1) => Standing::Holds { token: Default::default() },
            Some(_) => Standing::Waits { blocker: path("/s") },
        }
    }

    fn permit(sequence: u64) -> Arc<[NodePath]> {
        one(&format!("/s/permit-2-{sequence:010}"))
    }

    #[test]
    fn a_freed_permit_wakes_the_foremost_and_nobody_else() {
        let mut table = WaiterTable::default();
        // Registered in any order.
        let wakeups: Vec<_> = [5, 3, 4, 2].map(|n| table.add(permit(n), 0, path("/s")).1).into();
        let [mut five, mut three, mut four, mut two] = wakeups.try_into().expect("four");
        assert_eq!(table.node_deleted(&permit(1)[0], semaphore(&[0, 2, 3, 4, 5])), 1);
        assert_eq!(two.try_recv(), Ok(Wakeup::Holds));
        // A waiter that dies wakes no other, wherever it stood.
        assert_eq!(table.node_deleted(&permit(3)[0], semaphore(&[0, 2, 4, 5])), 0);
        assert_eq!(three.try_recv(), Ok(Wakeup::Gone));
        // Both holders at once: both are freed, each wakes one.
        assert_eq!(table.node_deleted(&permit(0)[0], semaphore(&[4, 5])), 2);
        assert_eq!(table.node_deleted(&permit(2)[0], semaphore(&[4, 5])), 0);
        assert_eq!((four.try_recv(), five.try_recv()), (Ok(Wakeup::Holds), Ok(Wakeup::Holds)));
        assert!(table.permit_queues.is_empty() && table.waiters.is_empty() && table.at.is_empty());
    }

    #[test]
    fn a_set_waits_for_one_blocker_and_goes_with_any_of_its_nodes() {
        let mut table = WaiterTable::default();
        let set: Arc<[NodePath]> = Arc::from([path("/l/x"), path("/m/x"), path("/n/x")]);
        let standing = |of: &NodePath| match of.as_str() {
            "/m/x" => Standing::Waits { blocker: path("/m/a") },
            _ => Standing::Holds { token: Default::default() },
        };
        let (_, mut first) = table.add(set.clone(), 0, path("/l/a"));
        assert_eq!(table.node_deleted(&path("/m/b"), standing), 0, "that one is not waited for");
        assert_eq!(table.node_deleted(&path("/l/a"), standing), 1);
        assert_eq!(first.try_recv(), Ok(Wakeup::Holds), "the first of its locks");
        let (_, mut second) = table.add(set.clone(), 1, path("/m/a"));
        assert_eq!(table.node_deleted(&path("/n/x"), standing), 0);
        assert_eq!(second.try_recv(), Ok(Wakeup::Gone), "the set can never hold");
        let (_, mut third) = table.add(set, 1, path("/m/a"));
        table.recheck_all(|of| if of.as_str() == "/l/x" { Standing::Gone } else { standing(of) });
        assert_eq!(third.try_recv(), Ok(Wakeup::Gone));
        assert!(table.behind.is_empty() && table.waiters.is_empty() && table.at.is_empty());
    }

    #[test]
    fn a_jump_of_the_state_is_looked_into_and_nothing_is_left_behind() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(one("/b"), 0, path("/a"));
        let (c_id, _c) = table.add(one("/c"), 0, path("/b"));
        let (_, mut d) = table.add(one("/d"), 0, path("/c"));
        table.recheck_all(queue(&["/c", "/d"]));
        assert_eq!(b.try_recv(), Ok(Wakeup::Gone));
        assert!(d.try_recv().is_err());
        table.remove(c_id);
        assert_eq!(table.node_deleted(&path("/c"), queue(&["/d"])), 1);
        assert_eq!(d.try_recv(), Ok(Wakeup::Holds));
        assert!(table.waiters.is_empty() && table.behind.is_empty() && table.at.is_empty());
    }
}
