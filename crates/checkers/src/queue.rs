//! The rule of a queue, and one lock's queue as the log moves it on.
//!
//! A request holds when nothing blocks it. An exclusive request is blocked by any predecessor, a shared one by a
//! predecessor that is not shared, a permit by as many predecessors as there are permits. A kept place blocks like a
//! request, and nobody holds by it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::name::{self, LockMode, MAX_PERMITS, RequestName};

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The predecessor at this place.
    Request(usize),
    /// Whichever holder of a permit goes first.
    AnyHolder,
}

/// What blocks a request of this mode behind these predecessors; `None` if it holds.
pub fn blocker(before: &[LockMode], own: LockMode) -> Option<Blocker> {
    match own {
        LockMode::Exclusive | LockMode::Write => before.len().checked_sub(1).map(Blocker::Request),
        LockMode::Shared => before.iter().rposition(|mode| *mode != LockMode::Shared).map(Blocker::Request),
        LockMode::Permit(permits) => match before.iter().rposition(|mode| mode.permits().is_none()) {
            Some(lock) => Some(Blocker::Request(lock)),
            None => (before.len() >= usize::from(permits)).then_some(Blocker::AnyHolder),
        },
    }
}

/// A node in a queue.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// What its name says.
    pub name: RequestName,
    /// The zxid that created it. A downgraded writer keeps the one that it had.
    pub token: u64,
    /// What the user of the queue keeps with it.
    pub value: T,
}

/// A node came into a queue.
#[derive(Clone, Debug)]
pub struct Came<T> {
    /// The node.
    pub entry: Entry<T>,
    /// Whether it is a writer that has become a reader, which stays the same request.
    pub is_renamed: bool,
}

/// A node went.
#[derive(Clone, Debug)]
pub struct Went<T> {
    /// The node.
    pub entry: Entry<T>,
    /// Whether it held.
    pub held: bool,
}

/// What a transaction did to a queue.
#[derive(Clone, Debug)]
pub struct Moves<T> {
    /// Nodes that came.
    pub came: Vec<Came<T>>,
    /// Nodes that went.
    pub went: Vec<Went<T>>,
    /// Requests whose blocker went. None waits for one holder of a permit.
    pub freed: Vec<Entry<T>>,
    /// Requests that hold now and did not before.
    pub gained: Vec<Entry<T>>,
}

/// From which zxid on a request held, and from which on no more.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: Option<u64>,
}

/// One lock's queue: who is in it, who holds, and who held when.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    /// In queue order.
    entries: BTreeMap<(u64, String), Entry<T>>,
    holding: BTreeSet<u64>,
    held: BTreeMap<u64, Vec<Span>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), holding: BTreeSet::new(), held: BTreeMap::new() }
    }
}

impl<T: Clone> Queue<T> {
    /// Carries out a transaction: the children of the lock's directory that it created (true) and deleted, in order.
    /// Children that are in no queue are passed over.
    ///
    /// # Errors
    /// A node went that was not there.
    pub fn transaction<'n>(
        &mut self,
        zxid: u64,
        changes: impl IntoIterator<Item = (bool, &'n str)>,
        value: impl Fn(&str) -> T,
    ) -> Result<Moves<T>, String> {
        let parsed = |(created, node): (bool, &'n str)| Some((created, node, name::parse(node)?));
        let changes: Vec<(bool, &str, RequestName)> = changes.into_iter().filter_map(parsed).collect();
        let gone = changes.iter().filter(|(created, ..)| !created);
        let freed = gone.flat_map(|(_, node, name)| self.waiting_for(node, name)).cloned().collect();
        let mut moves = Moves { came: Vec::new(), went: Vec::new(), freed, gained: Vec::new() };
        let mut gone = Vec::new();
        for (created, node, name) in changes {
            if !created {
                let entry = self.remove(node, &name);
                let entry = entry.ok_or_else(|| format!("{node} went at {zxid}, and was not there"))?;
                let held = self.holds(entry.token);
                moves.went.push(Went { entry, held });
                gone.push(node);
                continue;
            }
            let writer = gone.iter().position(|writer| name::is_downgrade(writer, node));
            let entry = match writer.and_then(|at| moves.went.get(at)) {
                Some(Went { entry, .. }) => Entry { name, ..entry.clone() },
                None => Entry { name, token: zxid, value: value(node) },
            };
            self.insert(node, entry.clone());
            moves.came.push(Came { entry, is_renamed: writer.is_some() });
        }
        moves.gained = self.settle(zxid).into_iter().cloned().collect();
        Ok(moves)
    }
}

impl<T> Queue<T> {
    fn insert(&mut self, node: &str, entry: Entry<T>) {
        self.entries.insert((entry.name.sequence, node.to_owned()), entry);
    }

    fn remove(&mut self, node: &str, name: &RequestName) -> Option<Entry<T>> {
        self.entries.remove(&(name.sequence, node.to_owned()))
    }

    /// Ends a transaction: works out who holds now. Gives the requests that did not hold before.
    fn settle(&mut self, zxid: u64) -> Vec<&Entry<T>> {
        let now = holders(&self.entries);
        let tokens: BTreeSet<u64> = now.iter().map(|entry| entry.token).collect();
        for lost in self.holding.difference(&tokens) {
            if let Some(span) = self.held.get_mut(lost).and_then(|spans| spans.last_mut()) {
                span.to = Some(zxid);
            }
        }
        let gained: Vec<&Entry<T>> = now.into_iter().filter(|entry| !self.holding.contains(&entry.token)).collect();
        for entry in &gained {
            self.held.entry(entry.token).or_default().push(Span { from: zxid, to: None });
        }
        self.holding = tokens;
        gained
    }

    /// Whether the request held when the last transaction had ended.
    pub fn holds(&self, token: u64) -> bool {
        self.holding.contains(&token)
    }

    /// Whether the request held right after that zxid.
    pub fn held_at(&self, token: u64, zxid: u64) -> bool {
        let spans = self.held.get(&token).into_iter().flatten();
        spans.into_iter().any(|span| span.from <= zxid && span.to.is_none_or(|to| zxid < to))
    }

    /// From which zxid on the request held.
    pub fn held_from(&self, token: u64) -> Option<u64> {
        self.held.get(&token)?.first().map(|span| span.from)
    }

    /// The tokens that held right after that zxid.
    pub fn holders_at(&self, zxid: u64) -> Vec<u64> {
        self.held.keys().copied().filter(|token| self.held_at(*token, zxid)).collect()
    }

    /// How many hold.
    pub fn holding(&self) -> usize {
        self.holding.len()
    }

    /// All that is in the queue, in its order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<T>> {
        self.entries.values()
    }

    /// The request with this token.
    pub fn request(&self, token: u64) -> Option<&Entry<T>> {
        self.entries().find(|entry| entry.token == token && entry.name.keeps_place_of.is_none())
    }

    /// The node of this name.
    pub fn node(&self, node: &str) -> Option<&Entry<T>> {
        self.entries.get(&(name::parse(node)?.sequence, node.to_owned()))
    }

    /// The requests whose blocker is this node. None waits for one holder of a permit.
    fn waiting_for(&self, node: &str, name: &RequestName) -> Vec<&Entry<T>> {
        let key = (name.sequence, node.to_owned());
        let mut behind = self.entries.range((Bound::Excluded(key), Bound::Unbounded)).map(|(_, entry)| entry);
        match name.mode {
            LockMode::Permit(_) => Vec::new(),
            LockMode::Shared => behind.next().filter(|next| next.name.mode.is_exclusive()).into_iter().collect(),
            LockMode::Exclusive | LockMode::Write => {
                let next = behind.next();
                let readers = next.is_some_and(|next| next.name.mode == LockMode::Shared);
                let others = behind.take_while(|entry| readers && entry.name.mode == LockMode::Shared);
                next.into_iter().chain(others).collect()
            }
        }
    }
}

/// The requests that nothing blocks, in one pass.
fn holders<T>(entries: &BTreeMap<(u64, String), Entry<T>>) -> Vec<&Entry<T>> {
    let mut holders = Vec::new();
    let (mut only_readers, mut only_permits) = (true, true);
    for (before, entry) in entries.values().enumerate() {
        let mode = entry.name.mode;
        let holds = match mode {
            LockMode::Exclusive | LockMode::Write => before == 0,
            LockMode::Shared => only_readers,
            LockMode::Permit(permits) => only_permits && before < usize::from(permits),
        };
        if holds && entry.name.keeps_place_of.is_none() {
            holders.push(entry);
        }
        only_readers &= mode == LockMode::Shared;
        only_permits &= mode.permits().is_some();
        // Behind here nothing can hold.
        if !only_readers && (!only_permits || before >= usize::from(MAX_PERMITS)) {
            break;
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::parse;

    const KINDS: [(&str, LockMode); 5] = [
        ("lock-", LockMode::Exclusive),
        ("__WRIT__", LockMode::Write),
        ("__READ__", LockMode::Shared),
        ("permit-1-", LockMode::Permit(1)),
        ("permit-3-", LockMode::Permit(3)),
    ];

    /// Every queue of up to five requests.
    fn every_queue(mut with: impl FnMut(&[usize])) {
        for length in 0..=5u32 {
            for number in 0..KINDS.len().pow(length) {
                let kinds: Vec<usize> = (0..length).map(|at| number / KINDS.len().pow(at) % KINDS.len()).collect();
                with(&kinds);
            }
        }
    }

    fn queue_of(kinds: &[usize]) -> Queue<()> {
        let mut queue = Queue::default();
        for (at, kind) in kinds.iter().enumerate() {
            let node = node_of(at, *kind);
            let entry = Entry { name: parse(&node).unwrap(), token: at as u64, value: () };
            queue.insert(&node, entry);
        }
        queue
    }

    fn node_of(at: usize, kind: usize) -> String {
        format!("x-{}{at:010}", KINDS[kind].0)
    }

    #[test]
    fn who_holds_and_who_waits_for_whom_is_what_the_rule_says() {
        every_queue(|kinds| {
            let mut queue = queue_of(kinds);
            let modes: Vec<LockMode> = kinds.iter().map(|kind| KINDS[*kind].1).collect();
            let blockers: Vec<_> = (0..modes.len()).map(|at| blocker(&modes[..at], modes[at])).collect();
            let unblocked = (0..modes.len()).filter(|at| blockers[*at].is_none()).map(|at| at as u64);
            let unblocked: Vec<u64> = unblocked.collect();
            let held: Vec<u64> = queue.settle(9).iter().map(|entry| entry.token).collect();
            assert_eq!(held, unblocked, "{modes:?}");
            if modes.iter().any(|mode| mode.permits().is_some()) {
                return;
            }
            for (at, kind) in kinds.iter().enumerate() {
                let node = node_of(at, *kind);
                let waiting = queue.waiting_for(&node, &parse(&node).unwrap());
                let waiting: Vec<u64> = waiting.iter().map(|entry| entry.token).collect();
                let expected = (0..modes.len()).filter(|other| blockers[*other] == Some(Blocker::Request(at)));
                assert_eq!(waiting, expected.map(|other| other as u64).collect::<Vec<_>>(), "{modes:?} {at}");
            }
        });
    }

    #[test]
    fn the_rule_itself() {
        use LockMode::{Exclusive, Permit, Shared, Write};
        assert_eq!(blocker(&[], Exclusive), None);
        assert_eq!(blocker(&[Shared], Write), Some(Blocker::Request(0)));
        assert_eq!(blocker(&[Shared, Shared], Shared), None);
        assert_eq!(blocker(&[Write, Shared, Shared], Shared), Some(Blocker::Request(0)));
        assert_eq!(blocker(&[Permit(2)], Permit(2)), None);
        assert_eq!(blocker(&[Permit(2), Permit(2)], Permit(2)), Some(Blocker::AnyHolder));
        // Where hand-made requests mix, a lock before a permit is in its way.
        assert_eq!(blocker(&[Exclusive, Permit(3)], Permit(3)), Some(Blocker::Request(0)));
    }

    #[test]
    fn what_was_held_when_is_remembered() {
        let mut queue = queue_of(&[0, 0]);
        assert_eq!(queue.settle(1).len(), 1);
        let node = node_of(0, 0);
        let name = parse(&node).unwrap();
        assert!(queue.remove(&node, &name).is_some());
        assert!(queue.remove(&node, &name).is_none());
        assert_eq!(queue.settle(5).iter().map(|entry| entry.token).collect::<Vec<_>>(), [1]);
        assert_eq!((queue.holders_at(4), queue.holders_at(5), queue.holders_at(0)), (vec![0], vec![1], vec![]));
        assert!(queue.holds(1) && !queue.holds(0) && queue.holding() == 1);
        assert!(queue.request(0).is_none() && queue.request(1).is_some());
    }

    #[test]
    fn nobody_holds_by_a_kept_place_or_passes_it() {
        let mut queue: Queue<()> = Queue::default();
        for (token, node) in [(5, "delay-500-1-lock-0000000000"), (2, "x-lock-0000000001")] {
            queue.insert(node, Entry { name: parse(node).unwrap(), token, value: () });
        }
        assert!(queue.settle(5).is_empty());
        assert!(queue.request(5).is_none());
        assert_eq!(queue.entries().count(), 2);
    }
}
