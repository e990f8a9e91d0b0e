//! Who watches what over ZooKeeper's protocol (reference: `WatchManager` and `DataTree` of ZooKeeper 3.9).
//!
//! Four kinds: one-shot watches on a node's data or existence and on its children, persistent ones on one node, and persistent ones on a
//! whole subtree, which hear nothing of lists of children. Pure: it says who is to be told, and tells nobody.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use lockkeeper_core::{NodeEventKind, NodePath, Stat, Zxid};
use lockkeeper_node::network_of;
use lockkeeper_zookeeper::{EventType, WatcherType};
use thiserror::Error;

use crate::budget::{OF_ADDRESS, OF_ADDRESS_FOR_NEWCOMERS, give_back, within_share};

/// A connection, for as long as this process lives.
pub(super) type ConnectionId = u64;

/// How a watch came about, and so when it fires and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// By exists or getData: once, for the node itself.
    Data,
    /// By getChildren: once, for its children, or when it goes.
    Children,
    /// By addWatch: for both, until it is removed.
    Persistent,
    /// By addWatch: for the node and all below, until it is removed.
    Recursive,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Data, Self::Children, Self::Persistent, Self::Recursive];

    fn is_of(self, wanted: WatcherType) -> bool {
        match wanted {
            WatcherType::Any => true,
            WatcherType::Data => self == Self::Data,
            WatcherType::Children => self == Self::Children,
            WatcherType::Persistent => self == Self::Persistent,
            WatcherType::PersistentRecursive => self == Self::Recursive,
        }
    }

    fn hears(self, event: NodeEventKind) -> bool {
        match self {
            Self::Data => event != NodeEventKind::ChildrenChanged,
            Self::Children => matches!(event, NodeEventKind::ChildrenChanged | NodeEventKind::Deleted),
            Self::Persistent => true,
            Self::Recursive => event != NodeEventKind::ChildrenChanged,
        }
    }

    fn fires_once(self) -> bool {
        matches!(self, Self::Data | Self::Children)
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Watches {
    by_path: HashMap<NodePath, BTreeMap<ConnectionId, BTreeSet<Kind>>>,
    by_connection: HashMap<ConnectionId, BTreeSet<(NodePath, Kind)>>,
    /// Where each connection comes from, and how many watches there are for each address.
    addresses: HashMap<ConnectionId, IpAddr>,
    by_address: HashMap<IpAddr, usize>,
    /// How many of them are recursive: without any, no ancestor is looked at.
    recursive: usize,
    count: usize,
    bounds: Bounds,
}

/// How many watches there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) of_all: usize,
    pub(super) of_one: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { of_all: usize::MAX, of_one: usize::MAX }
    }
}

/// There are too many, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum TooMany {
    #[error("this node has as many watches of ZooKeeper's clients as it takes (zookeeper.watches)")]
    All,
    #[error("this address has its share of the watches that are free (zookeeper.watches)")]
    Address,
    #[error("this connection has as many watches as one may have (zookeeper.watches_per_connection)")]
    Connection,
}

impl TooMany {
    /// For the figures.
    pub(super) fn share(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Address => "address",
            Self::Connection => "connection",
        }
    }
}

/// A connection with fewer watches than this is a newcomer, whatever others at its address have.
const FEW: usize = 64;

/// The table of paths keeps room for so many when they are gone.
const KEPT_PATHS: usize = 4096;

impl Watches {
    /// Sets a watch; setting it again changes nothing. Kinds live side by side on one node (as since 3.9, ZOOKEEPER-4466).
    ///
    /// # Errors
    /// The connection, or all of them, have too many.
    pub(super) fn add(&mut self, connection: ConnectionId, path: NodePath, kind: Kind) -> Result<(), TooMany> {
        let own = self.by_connection.entry(connection).or_default();
        if own.contains(&(path.clone(), kind)) {
            return Ok(());
        }
        let free = self.bounds.of_all.saturating_sub(self.count);
        if own.len() >= self.bounds.of_one {
            return Err(TooMany::Connection);
        }
        if free == 0 {
            return Err(TooMany::All);
        }
        if let Some(address) = self.addresses.get(&connection) {
            let held = self.by_address.entry(*address).or_default();
            let weight = if own.len() < FEW { OF_ADDRESS_FOR_NEWCOMERS } else { OF_ADDRESS };
            if !within_share(*held, 1, free, weight) {
                return Err(TooMany::Address);
            }
            *held += 1;
        }
        own.insert((path.clone(), kind));
        self.count += 1;
        self.recursive += usize::from(kind == Kind::Recursive);
        self.by_path.entry(path).or_default().entry(connection).or_default().insert(kind);
        Ok(())
    }

    /// A connection from there may set watches now.
    pub(super) fn enter(&mut self, connection: ConnectionId, address: IpAddr) {
        self.addresses.insert(connection, network_of(address));
    }

    /// All that it watched has been forgotten.
    pub(super) fn gone(&mut self, connection: ConnectionId) {
        self.addresses.remove(&connection);
    }

    /// None yet, and no more than that.
    pub(super) fn bounded(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Whether the connection has a watch like that.
    pub(super) fn has(&self, connection: ConnectionId, path: &NodePath, wanted: WatcherType) -> bool {
        let kinds = self.by_path.get(path).and_then(|there| there.get(&connection));
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.is_of(wanted)))
    }

    /// Takes watches like that away; whether there was one.
    pub(super) fn take(&mut self, connection: ConnectionId, path: &NodePath, wanted: WatcherType) -> bool {
        let mut found = false;
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_of(wanted)) {
            found |= self.remove(connection, path, kind);
        }
        found
    }

    fn remove(&mut self, connection: ConnectionId, path: &NodePath, kind: Kind) -> bool {
        let Some(own) = self.by_connection.get_mut(&connection) else { return false };
        if !own.remove(&(path.clone(), kind)) {
            return false;
        }
        if own.is_empty() {
            self.by_connection.remove(&connection);
        }
        self.unlink(connection, path, kind);
        true
    }

    fn unlink(&mut self, connection: ConnectionId, path: &NodePath, kind: Kind) {
        self.count -= 1;
        if let Some(address) = self.addresses.get(&connection) {
            give_back(&mut self.by_address, *address, 1);
        }
        self.recursive -= usize::from(kind == Kind::Recursive);
        if let Some(there) = self.by_path.get_mut(path) {
            if let Some(kinds) = there.get_mut(&connection) {
                kinds.remove(&kind);
                if kinds.is_empty() {
                    there.remove(&connection);
                }
            }
            if there.is_empty() {
                self.by_path.remove(path);
                self.give_room_back();
            }
        }
    }

    /// A table that held a million paths does not keep their room.
    fn give_room_back(&mut self) {
        if self.by_path.capacity() > KEPT_PATHS && self.by_path.len() < self.by_path.capacity() / 8 {
            self.by_path.shrink_to(2 * self.by_path.len());
        }
    }

    /// The connection has gone: what it watched, for [`forget`](Self::forget). It gets no more watches after this.
    pub(super) fn leave(&mut self, connection: ConnectionId) -> Vec<(NodePath, Kind)> {
        self.by_connection.remove(&connection).into_iter().flatten().collect()
    }

    /// Lets go of some of what a connection watched that has gone. What has fired meanwhile is not there any more.
    pub(super) fn forget(&mut self, connection: ConnectionId, some: &[(NodePath, Kind)]) {
        for (path, kind) in some {
            let there = self.by_path.get(path).and_then(|there| there.get(&connection));
            if there.is_some_and(|kinds| kinds.contains(kind)) {
                self.unlink(connection, path, *kind);
            }
        }
    }

    /// Something happened: who is to be told, each once. What fires once is gone after this.
    pub(super) fn fire(&mut self, event: NodeEventKind, path: &NodePath) -> Vec<ConnectionId> {
        let mut told = BTreeSet::new();
        let mut spent = Vec::new();
        for (connection, kinds) in self.by_path.get(path).into_iter().flatten() {
            for kind in kinds.iter().filter(|kind| kind.hears(event)) {
                told.insert(*connection);
                if kind.fires_once() {
                    spent.push((*connection, *kind));
                }
            }
        }
        for (connection, kind) in spent {
            // Of one that has just gone it is known here alone.
            if !self.remove(connection, path, kind) {
                self.unlink(connection, path, kind);
            }
        }
        if self.recursive > 0 && Kind::Recursive.hears(event) {
            let mut above = path.parent();
            while let Some(ancestor) = above {
                let there = self.by_path.get(&ancestor).into_iter().flatten();
                told.extend(
                    there.filter(|(_, kinds)| kinds.contains(&Kind::Recursive)).map(|(connection, _)| *connection),
                );
                above = ancestor.parent();
            }
        }
        told.into_iter().collect()
    }

    /// How many connections have watches, how many paths are watched, and how many watches there are.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.by_connection.len(), self.by_path.len(), self.count)
    }

    /// Which connections watch which paths, in order.
    pub(super) fn by_path(&self) -> BTreeMap<&NodePath, Vec<ConnectionId>> {
        self.by_path.iter().map(|(path, there)| (path, there.keys().copied().collect())).collect()
    }
}

/// What the protocol calls it.
pub(super) fn event_type(event: NodeEventKind) -> EventType {
    match event {
        NodeEventKind::Created => EventType::NodeCreated,
        NodeEventKind::Deleted => EventType::NodeDeleted,
        NodeEventKind::DataChanged => EventType::NodeDataChanged,
        NodeEventKind::ChildrenChanged => EventType::NodeChildrenChanged,
    }
}

/// What a client asks to be watched again after it was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The data of a node that was there.
    Data,
    /// A node that was not there.
    Exists,
    /// The children of a node that was there.
    Children,
}

/// What a client has missed at a node since `seen`, if anything; else it is watched again. The client tells what it has seen by the last
/// zxid that it was told, so that the node's own bookkeeping shows the rest (reference: `DataTree.setWatches`).
pub(super) fn missed(again: Again, node: Option<&Stat>, seen: Zxid) -> Option<EventType> {
    match (again, node) {
        (Again::Exists, Some(_)) => Some(EventType::NodeCreated),
        (Again::Exists, None) => None,
        (Again::Data | Again::Children, None) => Some(EventType::NodeDeleted),
        (Again::Data, Some(stat)) if stat.mzxid > seen => Some(EventType::NodeDataChanged),
        (Again::Children, Some(stat)) if stat.pzxid > seen => Some(EventType::NodeChildrenChanged),
        (Again::Data | Again::Children, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeEventKind::{ChildrenChanged, Created, DataChanged, Deleted};

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).unwrap()
    }

    fn watching(kinds: &[(ConnectionId, &str, Kind)]) -> Watches {
        let mut watches = Watches::default();
        for (connection, at, kind) in kinds {
            watches.add(*connection, path(at), *kind).unwrap();
        }
        watches
    }

    #[test]
    fn the_room_of_a_great_many_is_given_back() {
        let mut watches = Watches::default();
        let paths: Vec<NodePath> = (0..50_000).map(|number| path(&format!("/{number}"))).collect();
        paths.iter().for_each(|path| watches.add(1, path.clone(), Kind::Data).unwrap());
        assert!(watches.by_path.capacity() >= 50_000);
        for path in &paths {
            watches.take(1, path, WatcherType::Any);
        }
        assert_eq!(watches.counts(), (0, 0, 0));
        assert!(watches.by_path.capacity() <= 2 * KEPT_PATHS, "room for {}", watches.by_path.capacity());
    }

    #[test]
    fn a_one_shot_watch_fires_once_for_what_it_is_for() {
        let mut watches = watching(&[(1, "/a", Kind::Data), (2, "/a", Kind::Children)]);
        assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [2]);
        assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [] as [u64; 0]);
        assert_eq!(watches.fire(DataChanged, &path("/b")), [] as [u64; 0]);
        assert_eq!(watches.fire(DataChanged, &path("/a")), [1]);
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn a_deletion_fires_both_kinds_and_tells_each_connection_once() {
        let mut watches = watching(&[(1, "/a", Kind::Data), (1, "/a", Kind::Children), (2, "/a", Kind::Children)]);
        assert_eq!(watches.fire(Deleted, &path("/a")), [1, 2]);
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn persistent_watches_stay_and_recursive_ones_hear_what_is_below_but_no_lists() {
        let mut watches =
            watching(&[(1, "/a", Kind::Persistent), (2, "/a", Kind::Recursive), (3, "/", Kind::Recursive)]);
        for _ in 0..2 {
            assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [1]);
            assert_eq!(watches.fire(DataChanged, &path("/a")), [1, 2, 3]);
            assert_eq!(watches.fire(Created, &path("/a/b/c")), [2, 3]);
            assert_eq!(watches.fire(Created, &path("/ab")), [3], "a name that begins alike is not below");
        }
        assert!(watches.take(3, &path("/"), WatcherType::PersistentRecursive));
        assert_eq!(watches.fire(Created, &path("/ab")), [] as [u64; 0]);
    }

    #[test]
    fn kinds_on_one_node_live_side_by_side() {
        let mut watches = watching(&[(1, "/a", Kind::Data), (1, "/a", Kind::Persistent)]);
        assert_eq!(watches.fire(DataChanged, &path("/a")), [1], "told once");
        assert!(watches.has(1, &path("/a"), WatcherType::Any) && !watches.has(1, &path("/a"), WatcherType::Data));
        watches.add(1, path("/a"), Kind::Recursive).unwrap();
        assert!(watches.has(1, &path("/a"), WatcherType::Persistent));
        assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [1], "the recursive one says nothing of lists");
        assert!(watches.take(1, &path("/a"), WatcherType::Any) && !watches.take(1, &path("/a"), WatcherType::Any));
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn a_connection_that_went_leaves_nothing() {
        let mut watches = watching(&[(1, "/a", Kind::Data), (1, "/b", Kind::Recursive), (2, "/b", Kind::Children)]);
        let left = watches.leave(1);
        assert_eq!(watches.fire(DataChanged, &path("/a")), [1], "it is told of one that has gone");
        watches.forget(1, &left);
        watches.forget(1, &left);
        assert_eq!(watches.counts(), (1, 1, 1));
        assert_eq!(watches.fire(Created, &path("/b/c")), [] as [u64; 0]);
        let left = watches.leave(2);
        watches.forget(2, &left);
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn there_is_a_bound_to_them() {
        let mut watches = Watches::bounded(Bounds { of_all: 3, of_one: 2 });
        assert_eq!(watches.add(1, path("/a"), Kind::Data), Ok(()));
        assert_eq!(watches.add(1, path("/a"), Kind::Data), Ok(()), "again");
        assert_eq!(watches.add(1, path("/b"), Kind::Data), Ok(()));
        assert_eq!(watches.add(1, path("/c"), Kind::Data), Err(TooMany::Connection));
        assert_eq!(watches.add(2, path("/a"), Kind::Data), Ok(()));
        assert_eq!(watches.add(3, path("/a"), Kind::Data), Err(TooMany::All));
        watches.fire(DataChanged, &path("/a"));
        assert_eq!(watches.add(3, path("/a"), Kind::Data), Ok(()));
    }

    #[test]
    fn many_connections_of_an_address_leave_room_for_others() {
        let mut watches = Watches::bounded(Bounds { of_all: 1_000, of_one: 100 });
        let greedy = 1..=10;
        for connection in greedy.clone() {
            watches.enter(connection, IpAddr::from([10, 0, 0, 1]));
            (0..100).all(|number| watches.add(connection, path(&format!("/{number}")), Kind::Data).is_ok());
        }
        assert_eq!(watches.counts().2, 750, "the first few of each are taken while less than three quarters are");
        watches.enter(11, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(watches.add(11, path("/honest"), Kind::Data), Err(TooMany::Address));
        watches.enter(12, IpAddr::from([10, 0, 0, 2]));
        let honest = (0..100).filter(|number| watches.add(12, path(&format!("/{number}")), Kind::Data).is_ok());
        assert_eq!(honest.count(), 100);
        for connection in greedy.chain([11, 12]) {
            let left = watches.leave(connection);
            watches.forget(connection, &left);
            watches.gone(connection);
        }
        assert!(watches.addresses.is_empty() && watches.by_address.is_empty());
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn what_was_missed_is_told_by_the_bookkeeping_of_the_node() {
        let stat = Stat { mzxid: Zxid(5), pzxid: Zxid(7), ..Stat::default() };
        let at = |again, node, seen| missed(again, node, Zxid(seen));
        assert_eq!(at(Again::Data, Some(&stat), 5), None);
        assert_eq!(at(Again::Data, Some(&stat), 4), Some(EventType::NodeDataChanged));
        assert_eq!(at(Again::Children, Some(&stat), 7), None);
        assert_eq!(at(Again::Children, Some(&stat), 6), Some(EventType::NodeChildrenChanged));
        assert_eq!(at(Again::Data, None, 9), Some(EventType::NodeDeleted));
        assert_eq!(at(Again::Children, None, 9), Some(EventType::NodeDeleted));
        assert_eq!(at(Again::Exists, None, 0), None);
        assert_eq!(at(Again::Exists, Some(&stat), 9), Some(EventType::NodeCreated));
    }
}
