//! The table of watches of ZooKeeper connections (reference: `WatchManager` and `DataTree` of ZooKeeper 3.9).
//!
//! Four kinds: one-shot watches on a node's data or existence and on its children, persistent ones on one node, and
//! persistent ones on a whole subtree, which hear nothing of lists of children. Pure: it says who is to be notified,
//! and tells nobody.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use lockkeeper_core::{NodeEventKind, NodePath, Stat, Zxid};
use lockkeeper_node::network_of;
use lockkeeper_service::budget::{OF_ADDRESS, OF_ADDRESS_FOR_NEWCOMERS, give_back, within_share};
use lockkeeper_zookeeper::{EventType, WatcherType};
use thiserror::Error;

/// Number of a connection, unique within this process.
pub(super) type ConnectionId = u64;

/// The kind of a watch, which decides on which events it fires and whether it is removed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum WatchKind {
    /// Set by exists or getData: fires once, for the node itself.
    Data,
    /// Set by getChildren: fires once, for the node's children or its deletion.
    Children,
    /// Set by addWatch: fires for both until it is removed.
    Persistent,
    /// Set by addWatch: fires for the node and all below until it is removed.
    Recursive,
}

impl WatchKind {
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

    fn receives(self, event: NodeEventKind) -> bool {
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
pub(super) struct WatchTable {
    by_path: HashMap<NodePath, BTreeMap<ConnectionId, BTreeSet<WatchKind>>>,
    by_connection: HashMap<ConnectionId, BTreeSet<(NodePath, WatchKind)>>,
    /// The network of each connection, and the number of watches per network.
    addresses: HashMap<ConnectionId, IpAddr>,
    by_address: HashMap<IpAddr, usize>,
    /// Number of recursive watches. If 0, an event does not look at ancestors.
    recursive: usize,
    count: usize,
    bounds: WatchLimits,
}

/// Limits on the number of watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchLimits {
    pub(super) total: usize,
    pub(super) per_connection: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self { total: usize::MAX, per_connection: usize::MAX }
    }
}

/// Which limit a watch would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum WatchLimitReached {
    #[error("too many watches of ZooKeeper clients on this node (zookeeper.watches)")]
    All,
    #[error("this address has used up its share of the free watches (zookeeper.watches)")]
    Address,
    #[error("too many watches on this connection (zookeeper.watches_per_connection)")]
    Connection,
}

impl WatchLimitReached {
    /// Label in metrics.
    pub(super) fn share(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Address => "address",
            Self::Connection => "connection",
        }
    }
}

/// A connection with fewer watches than this counts as a newcomer, whatever other connections of its address have.
const FEW: usize = 64;

/// The table of paths is not shrunk below this capacity.
const MIN_PATHS_TO_SHRINK: usize = 4096;

impl WatchTable {
    /// Sets a watch; setting it again changes nothing. Kinds live side by side on one node (as since 3.9,
    /// ZOOKEEPER-4466).
    ///
    /// # Errors
    /// A limit is reached.
    pub(super) fn add(
        &mut self,
        connection: ConnectionId,
        path: NodePath,
        kind: WatchKind,
    ) -> Result<(), WatchLimitReached> {
        let own = self.by_connection.entry(connection).or_default();
        if own.contains(&(path.clone(), kind)) {
            return Ok(());
        }
        let free = self.bounds.total.saturating_sub(self.count);
        if own.len() >= self.bounds.per_connection {
            return Err(WatchLimitReached::Connection);
        }
        if free == 0 {
            return Err(WatchLimitReached::All);
        }
        if let Some(address) = self.addresses.get(&connection) {
            let held = self.by_address.entry(*address).or_default();
            let weight = if own.len() < FEW { OF_ADDRESS_FOR_NEWCOMERS } else { OF_ADDRESS };
            if !within_share(*held, 1, free, weight) {
                return Err(WatchLimitReached::Address);
            }
            *held += 1;
        }
        own.insert((path.clone(), kind));
        self.count += 1;
        self.recursive += usize::from(kind == WatchKind::Recursive);
        self.by_path.entry(path).or_default().entry(connection).or_default().insert(kind);
        Ok(())
    }

    /// Adds a connection, so that its watches count for its address.
    pub(super) fn add_connection(&mut self, connection: ConnectionId, address: IpAddr) {
        self.addresses.insert(connection, network_of(address));
    }

    /// Drops a connection whose watches have all been removed.
    pub(super) fn remove_connection(&mut self, connection: ConnectionId) {
        self.addresses.remove(&connection);
    }

    /// An empty table with limits.
    pub(super) fn bounded(bounds: WatchLimits) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Whether there is no watch.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the connection has such a watch.
    pub(super) fn has(&self, connection: ConnectionId, path: &NodePath, wanted: WatcherType) -> bool {
        let kinds = self.by_path.get(path).and_then(|there| there.get(&connection));
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.is_of(wanted)))
    }

    /// Removes such watches. Returns whether there was one.
    pub(super) fn remove_matching(&mut self, connection: ConnectionId, path: &NodePath, wanted: WatcherType) -> bool {
        let mut found = false;
        for kind in WatchKind::ALL.into_iter().filter(|kind| kind.is_of(wanted)) {
            found |= self.remove(connection, path, kind);
        }
        found
    }

    fn remove(&mut self, connection: ConnectionId, path: &NodePath, kind: WatchKind) -> bool {
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

    fn unlink(&mut self, connection: ConnectionId, path: &NodePath, kind: WatchKind) {
        self.count -= 1;
        if let Some(address) = self.addresses.get(&connection) {
            give_back(&mut self.by_address, *address, 1);
        }
        self.recursive -= usize::from(kind == WatchKind::Recursive);
        if let Some(there) = self.by_path.get_mut(path) {
            if let Some(kinds) = there.get_mut(&connection) {
                kinds.remove(&kind);
                if kinds.is_empty() {
                    there.remove(&connection);
                }
            }
            if there.is_empty() {
                self.by_path.remove(path);
                self.shrink();
            }
        }
    }

    /// Frees the memory of a table that held many more paths.
    fn shrink(&mut self) {
        if self.by_path.capacity() > MIN_PATHS_TO_SHRINK && self.by_path.len() < self.by_path.capacity() / 8 {
            self.by_path.shrink_to(2 * self.by_path.len());
        }
    }

    /// Takes the watches of a closed connection, which the caller passes to [`remove_closed`](Self::remove_closed). No
    /// watch may be added for it afterwards.
    pub(super) fn close_connection(&mut self, connection: ConnectionId) -> Vec<(NodePath, WatchKind)> {
        self.by_connection.remove(&connection).into_iter().flatten().collect()
    }

    /// Removes a batch of a closed connection's watches. One-shot watches that fired since are already gone.
    pub(super) fn remove_closed(&mut self, connection: ConnectionId, batch: &[(NodePath, WatchKind)]) {
        for (path, kind) in batch {
            let there = self.by_path.get(path).and_then(|there| there.get(&connection));
            if there.is_some_and(|kinds| kinds.contains(kind)) {
                self.unlink(connection, path, *kind);
            }
        }
    }

    /// The connections to notify of an event, each once. One-shot watches that fire are removed.
    pub(super) fn fire(&mut self, event: NodeEventKind, path: &NodePath) -> Vec<ConnectionId> {
        let mut notified = BTreeSet::new();
        let mut fired = Vec::new();
        for (connection, kinds) in self.by_path.get(path).into_iter().flatten() {
            for kind in kinds.iter().filter(|kind| kind.receives(event)) {
                notified.insert(*connection);
                if kind.fires_once() {
                    fired.push((*connection, *kind));
                }
            }
        }
        for (connection, kind) in fired {
            // `close_connection` has taken it out of `by_connection` already.
            if !self.remove(connection, path, kind) {
                self.unlink(connection, path, kind);
            }
        }
        if self.recursive > 0 && WatchKind::Recursive.receives(event) {
            let mut above = path.parent();
            while let Some(ancestor) = above {
                let there = self.by_path.get(&ancestor).into_iter().flatten();
                notified.extend(
                    there.filter(|(_, kinds)| kinds.contains(&WatchKind::Recursive)).map(|(connection, _)| *connection),
                );
                above = ancestor.parent();
            }
        }
        notified.into_iter().collect()
    }

    /// Number of connections with watches, of watched paths, and of watches.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.by_connection.len(), self.by_path.len(), self.count)
    }

    /// The connections that watch each path, ordered by path.
    pub(super) fn by_path(&self) -> BTreeMap<&NodePath, Vec<ConnectionId>> {
        self.by_path.iter().map(|(path, there)| (path, there.keys().copied().collect())).collect()
    }
}

/// The protocol's type of an event.
pub(super) fn event_type(event: NodeEventKind) -> EventType {
    match event {
        NodeEventKind::Created => EventType::NodeCreated,
        NodeEventKind::Deleted => EventType::NodeDeleted,
        NodeEventKind::DataChanged => EventType::NodeDataChanged,
        NodeEventKind::ChildrenChanged => EventType::NodeChildrenChanged,
    }
}

/// The kind of a one-shot watch that a client sets again after reconnecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rewatch {
    /// On the data of a node that existed.
    Data,
    /// On a node that did not exist.
    Exists,
    /// On the children of a node that existed.
    Children,
}

/// The event that a client has missed at a node since the zxid `seen`, by comparing the node's own zxids (reference:
/// `DataTree.setWatches`). If `None`, the watch is set again.
pub(super) fn missed(again: Rewatch, node: Option<&Stat>, seen: Zxid) -> Option<EventType> {
    match (again, node) {
        (Rewatch::Exists, Some(_)) => Some(EventType::NodeCreated),
        (Rewatch::Exists, None) => None,
        (Rewatch::Data | Rewatch::Children, None) => Some(EventType::NodeDeleted),
        (Rewatch::Data, Some(stat)) if stat.mzxid > seen => Some(EventType::NodeDataChanged),
        (Rewatch::Children, Some(stat)) if stat.pzxid > seen => Some(EventType::NodeChildrenChanged),
        (Rewatch::Data | Rewatch::Children, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeEventKind::{ChildrenChanged, Created, DataChanged, Deleted};

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).unwrap()
    }

    fn watching(kinds: &[(ConnectionId, &str, WatchKind)]) -> WatchTable {
        let mut watches = WatchTable::default();
        for (connection, at, kind) in kinds {
            watches.add(*connection, path(at), *kind).unwrap();
        }
        watches
    }

    #[test]
    fn the_memory_of_many_paths_is_freed() {
        let mut watches = WatchTable::default();
        let paths: Vec<NodePath> = (0..50_000).map(|number| path(&format!("/{number}"))).collect();
        paths.iter().for_each(|path| watches.add(1, path.clone(), WatchKind::Data).unwrap());
        assert!(watches.by_path.capacity() >= 50_000);
        for path in &paths {
            watches.remove_matching(1, path, WatcherType::Any);
        }
        assert_eq!(watches.counts(), (0, 0, 0));
        assert!(watches.by_path.capacity() <= 2 * MIN_PATHS_TO_SHRINK, "room for {}", watches.by_path.capacity());
    }

    #[test]
    fn a_one_shot_watch_fires_once_for_what_it_is_for() {
        let mut watches = watching(&[(1, "/a", WatchKind::Data), (2, "/a", WatchKind::Children)]);
        assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [2]);
        assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [] as [u64; 0]);
        assert_eq!(watches.fire(DataChanged, &path("/b")), [] as [u64; 0]);
        assert_eq!(watches.fire(DataChanged, &path("/a")), [1]);
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn a_deletion_fires_both_kinds_and_tells_each_connection_once() {
        let mut watches =
            watching(&[(1, "/a", WatchKind::Data), (1, "/a", WatchKind::Children), (2, "/a", WatchKind::Children)]);
        assert_eq!(watches.fire(Deleted, &path("/a")), [1, 2]);
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn persistent_watches_stay_and_recursive_ones_fire_for_descendants_but_not_for_child_lists() {
        let mut watches = watching(&[
            (1, "/a", WatchKind::Persistent),
            (2, "/a", WatchKind::Recursive),
            (3, "/", WatchKind::Recursive),
        ]);
        for _ in 0..2 {
            assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [1]);
            assert_eq!(watches.fire(DataChanged, &path("/a")), [1, 2, 3]);
            assert_eq!(watches.fire(Created, &path("/a/b/c")), [2, 3]);
            assert_eq!(watches.fire(Created, &path("/ab")), [3], "a name that begins alike is not below");
        }
        assert!(watches.remove_matching(3, &path("/"), WatcherType::PersistentRecursive));
        assert_eq!(watches.fire(Created, &path("/ab")), [] as [u64; 0]);
    }

    #[test]
    fn kinds_on_one_node_are_independent() {
        let mut watches = watching(&[(1, "/a", WatchKind::Data), (1, "/a", WatchKind::Persistent)]);
        assert_eq!(watches.fire(DataChanged, &path("/a")), [1], "notified once");
        assert!(watches.has(1, &path("/a"), WatcherType::Any) && !watches.has(1, &path("/a"), WatcherType::Data));
        watches.add(1, path("/a"), WatchKind::Recursive).unwrap();
        assert!(watches.has(1, &path("/a"), WatcherType::Persistent));
        assert_eq!(watches.fire(ChildrenChanged, &path("/a")), [1], "the recursive one says nothing of lists");
        assert!(
            watches.remove_matching(1, &path("/a"), WatcherType::Any)
                && !watches.remove_matching(1, &path("/a"), WatcherType::Any)
        );
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn a_closed_connection_leaves_nothing() {
        let mut watches =
            watching(&[(1, "/a", WatchKind::Data), (1, "/b", WatchKind::Recursive), (2, "/b", WatchKind::Children)]);
        let left = watches.close_connection(1);
        assert_eq!(watches.fire(DataChanged, &path("/a")), [1], "it is notified of one that has gone");
        watches.remove_closed(1, &left);
        watches.remove_closed(1, &left);
        assert_eq!(watches.counts(), (1, 1, 1));
        assert_eq!(watches.fire(Created, &path("/b/c")), [] as [u64; 0]);
        let left = watches.close_connection(2);
        watches.remove_closed(2, &left);
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn watches_are_limited() {
        let mut watches = WatchTable::bounded(WatchLimits { total: 3, per_connection: 2 });
        assert_eq!(watches.add(1, path("/a"), WatchKind::Data), Ok(()));
        assert_eq!(watches.add(1, path("/a"), WatchKind::Data), Ok(()), "again");
        assert_eq!(watches.add(1, path("/b"), WatchKind::Data), Ok(()));
        assert_eq!(watches.add(1, path("/c"), WatchKind::Data), Err(WatchLimitReached::Connection));
        assert_eq!(watches.add(2, path("/a"), WatchKind::Data), Ok(()));
        assert_eq!(watches.add(3, path("/a"), WatchKind::Data), Err(WatchLimitReached::All));
        watches.fire(DataChanged, &path("/a"));
        assert_eq!(watches.add(3, path("/a"), WatchKind::Data), Ok(()));
    }

    #[test]
    fn many_connections_of_an_address_leave_room_for_others() {
        let mut watches = WatchTable::bounded(WatchLimits { total: 1_000, per_connection: 100 });
        let greedy = 1..=10;
        for connection in greedy.clone() {
            watches.add_connection(connection, IpAddr::from([10, 0, 0, 1]));
            (0..100).all(|number| watches.add(connection, path(&format!("/{number}")), WatchKind::Data).is_ok());
        }
        assert_eq!(watches.counts().2, 750, "the first few of each are taken while less than three quarters are");
        watches.add_connection(11, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(watches.add(11, path("/honest"), WatchKind::Data), Err(WatchLimitReached::Address));
        watches.add_connection(12, IpAddr::from([10, 0, 0, 2]));
        let honest = (0..100).filter(|number| watches.add(12, path(&format!("/{number}")), WatchKind::Data).is_ok());
        assert_eq!(honest.count(), 100);
        for connection in greedy.chain([11, 12]) {
            let left = watches.close_connection(connection);
            watches.remove_closed(connection, &left);
            watches.remove_connection(connection);
        }
        assert!(watches.addresses.is_empty() && watches.by_address.is_empty());
        assert_eq!(watches.counts(), (0, 0, 0));
    }

    #[test]
    fn missed_events_follow_from_the_zxids_of_the_node() {
        let stat = Stat { mzxid: Zxid(5), pzxid: Zxid(7), ..Stat::default() };
        let at = |again, node, seen| missed(again, node, Zxid(seen));
        assert_eq!(at(Rewatch::Data, Some(&stat), 5), None);
        assert_eq!(at(Rewatch::Data, Some(&stat), 4), Some(EventType::NodeDataChanged));
        assert_eq!(at(Rewatch::Children, Some(&stat), 7), None);
        assert_eq!(at(Rewatch::Children, Some(&stat), 6), Some(EventType::NodeChildrenChanged));
        assert_eq!(at(Rewatch::Data, None, 9), Some(EventType::NodeDeleted));
        assert_eq!(at(Rewatch::Children, None, 9), Some(EventType::NodeDeleted));
        assert_eq!(at(Rewatch::Exists, None, 0), None);
        assert_eq!(at(Rewatch::Exists, Some(&stat), 9), Some(EventType::NodeCreated));
    }
}
