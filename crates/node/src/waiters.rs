//! Who waits for a lock at this node, and for whom: each waiter stands behind exactly one node, its blocker, and is looked at again
//! only when that node goes (promise P3).
//!
//! Pure: how a request stands is asked of the state as it is after the batch that is being applied. Nobody is ever told that they hold
//! unless that state says so.

use std::collections::HashMap;

use lockkeeper_core::{NodePath, Standing};
use tokio::sync::oneshot;

/// What a waiter is told, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request held when this was said.
    Holds,
    /// The request's node has gone.
    Gone,
}

#[derive(Debug)]
struct Waiter {
    path: NodePath,
    blocker: NodePath,
    tell: oneshot::Sender<Verdict>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct WaiterTable {
    waiters: HashMap<u64, Waiter>,
    behind: HashMap<NodePath, Vec<u64>>,
    at: HashMap<NodePath, Vec<u64>>,
    next_id: u64,
}

impl WaiterTable {
    /// Registers a request that waits behind `blocker`. The caller has the state locked, so nothing can come between.
    pub(crate) fn add(&mut self, path: NodePath, blocker: NodePath) -> (u64, oneshot::Receiver<Verdict>) {
        let id = self.next_id;
        self.next_id += 1;
        let (tell, told) = oneshot::channel();
        self.behind.entry(blocker.clone()).or_default().push(id);
        self.at.entry(path.clone()).or_default().push(id);
        self.waiters.insert(id, Waiter { path, blocker, tell });
        (id, told)
    }

    /// A waiter that waits no more.
    pub(crate) fn remove(&mut self, id: u64) {
        self.take(id);
    }

    fn take(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        unlink(&mut self.behind, &waiter.blocker, id);
        unlink(&mut self.at, &waiter.path, id);
        Some(waiter)
    }

    /// A node has gone. Gives how many waiters were looked at again because of it.
    pub(crate) fn deleted(&mut self, path: &NodePath, standing: impl Fn(&NodePath) -> Standing) -> usize {
        for id in self.at.get(path).cloned().unwrap_or_default() {
            self.tell(id, Verdict::Gone);
        }
        let behind = self.behind.remove(path).unwrap_or_default();
        let mut woken = 0;
        for id in behind {
            woken += 1;
            self.look_again(id, &standing);
        }
        woken
    }

    /// Looks at everyone again: the state has jumped, and nobody knows who went on the way.
    pub(crate) fn look_at_all(&mut self, standing: impl Fn(&NodePath) -> Standing) {
        let mut all: Vec<u64> = self.waiters.keys().copied().collect();
        all.sort_unstable();
        for id in all {
            self.look_again(id, &standing);
        }
    }

    fn look_again(&mut self, id: u64, standing: impl Fn(&NodePath) -> Standing) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        match standing(&waiter.path) {
            Standing::Holds { .. } => self.tell(id, Verdict::Holds),
            Standing::Gone => self.tell(id, Verdict::Gone),
            Standing::Waits { blocker } => {
                let before = std::mem::replace(&mut waiter.blocker, blocker.clone());
                unlink(&mut self.behind, &before, id);
                self.behind.entry(blocker).or_default().push(id);
            }
        }
    }

    fn tell(&mut self, id: u64, verdict: Verdict) {
        if let Some(waiter) = self.take(id) {
            // A waiter whose caller has gone is being withdrawn already.
            let _ = waiter.tell.send(verdict);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }
}

fn unlink(index: &mut HashMap<NodePath, Vec<u64>>, path: &NodePath, id: u64) {
    if let Some(ids) = index.get_mut(path) {
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            index.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("valid")
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
        let (_, mut b) = table.add(path("/b"), path("/a"));
        let (_, mut c) = table.add(path("/c"), path("/b"));
        assert_eq!(table.deleted(&path("/a"), queue(&["/b", "/c"])), 1);
        assert_eq!(b.try_recv(), Ok(Verdict::Holds));
        assert!(c.try_recv().is_err());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_death_in_the_middle_relinks_the_successor_alone() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(path("/b"), path("/a"));
        let (_, mut c) = table.add(path("/c"), path("/b"));
        let (_, mut d) = table.add(path("/d"), path("/c"));
        assert_eq!(table.deleted(&path("/b"), queue(&["/a", "/c", "/d"])), 1);
        assert_eq!(b.try_recv(), Ok(Verdict::Gone));
        assert!(c.try_recv().is_err() && d.try_recv().is_err());
        assert_eq!(table.deleted(&path("/a"), queue(&["/c", "/d"])), 1);
        assert_eq!(c.try_recv(), Ok(Verdict::Holds));
    }

    #[test]
    fn one_who_goes_in_the_same_batch_is_never_told_that_it_holds() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(path("/b"), path("/a"));
        let (_, mut c) = table.add(path("/c"), path("/b"));
        table.deleted(&path("/a"), queue(&["/c"]));
        assert_eq!(b.try_recv(), Ok(Verdict::Gone));
        table.deleted(&path("/b"), queue(&["/c"]));
        assert_eq!(c.try_recv(), Ok(Verdict::Holds));
    }

    #[test]
    fn readers_behind_one_writer_wake_together() {
        let mut table = WaiterTable::default();
        let mut readers: Vec<_> = (0..3).map(|n| table.add(path(&format!("/r{n}")), path("/w")).1).collect();
        assert_eq!(table.deleted(&path("/w"), |_| Standing::Holds { token: Default::default() }), 3);
        assert!(readers.iter_mut().all(|told| told.try_recv() == Ok(Verdict::Holds)));
    }

    #[test]
    fn a_jump_of_the_state_is_looked_into_and_nothing_is_left_behind() {
        let mut table = WaiterTable::default();
        let (_, mut b) = table.add(path("/b"), path("/a"));
        let (c_id, _c) = table.add(path("/c"), path("/b"));
        let (_, mut d) = table.add(path("/d"), path("/c"));
        table.look_at_all(queue(&["/c", "/d"]));
        assert_eq!(b.try_recv(), Ok(Verdict::Gone));
        assert!(d.try_recv().is_err());
        table.remove(c_id);
        assert_eq!(table.deleted(&path("/c"), queue(&["/d"])), 1);
        assert_eq!(d.try_recv(), Ok(Verdict::Holds));
        assert!(table.waiters.is_empty() && table.behind.is_empty() && table.at.is_empty());
    }
}
