//! The tree of nodes with its indexes. It keeps parents, counters, queues and deadlines consistent with each change,
//! and checks nothing: `ops` decides what may be changed.

use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use lockkeeper_mutants::invariant;

use super::children::Children;
use super::lock_queue::Queue;
use super::namespaces::Namespaces;
use super::size;
use crate::acl::{AclEntry, open_list};
use crate::command::NodeKind;
use crate::data::NodeData;
use crate::gate::is_pending;
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::limits::{CONTAINER_GRACE_MS, MAX_NODES_PER_PAGE};
use crate::lock::is_delay;
use crate::path::NodePath;
use crate::stat::Stat;

/// A node. Cheap to clone: everything large is shared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) data: NodeData,
    pub(crate) acl: Arc<[AclEntry]>,
    pub(crate) kind: NodeKind,
    pub(crate) owner: Option<SessionId>,
    pub(crate) czxid: Zxid,
    pub(crate) mzxid: Zxid,
    pub(crate) ctime_ms: u64,
    pub(crate) mtime_ms: u64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    /// Only of a node that has had children: most never do, and a million of them take half the memory without it.
    pub(crate) directory: Option<Box<Directory>>,
}

/// How a session holds a lock by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holds {
    /// How often.
    pub(crate) count: u32,
    /// Whether the call that made the request has given its hold back: it is nobody's to claim or withdraw any more.
    pub(crate) base_gone: bool,
}

impl Holds {
    /// As the request was made.
    pub(crate) const ONCE: Self = Self { count: 1, base_gone: false };
}

/// What a node has because of its children.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Directory {
    /// The transaction that last created or deleted a child.
    pub(crate) pzxid: Zxid,
    /// The number of children ever created: the next sequence. It never goes back while the node lives.
    pub(crate) children_made: u64,
    /// When it last lost its last child, if it has had any.
    pub(crate) empty_since_ms: Option<u64>,
    pub(crate) children: Children,
    pub(crate) queue: Queue,
}

impl Directory {
    const UNUSED: Self =
        Self { pzxid: Zxid(0), children_made: 0, empty_since_ms: None, children: Children::NONE, queue: Queue::EMPTY };

    /// Adds a child to the children and to the queue.
    pub(crate) fn add(&mut self, path: &NodePath, token: FencingToken, ephemeral: bool) {
        self.queue.insert(path, token, ephemeral);
        self.children.insert(path.clone());
    }
}

/// That of all nodes which have never had children.
static UNUSED_DIRECTORY: Directory = Directory::UNUSED;

impl Node {
    /// A new node.
    pub(crate) fn new(
        data: impl Into<NodeData>,
        acl: Arc<[AclEntry]>,
        kind: NodeKind,
        owner: Option<SessionId>,
    ) -> Self {
        Self {
            data: data.into(),
            acl,
            kind,
            owner,
            czxid: Zxid(0),
            mzxid: Zxid(0),
            ctime_ms: 0,
            mtime_ms: 0,
            version: 0,
            aversion: 0,
            directory: None,
        }
    }

    fn directory(&self) -> &Directory {
        self.directory.as_deref().unwrap_or(&UNUSED_DIRECTORY)
    }

    /// The part that a node has because of its children, to change it.
    pub(crate) fn directory_mut(&mut self) -> &mut Directory {
        self.directory.get_or_insert_with(|| Box::new(Directory { pzxid: self.czxid, ..Directory::UNUSED }))
    }

    /// The transaction that last created or deleted a child; that of its creation if it never had one.
    pub(crate) fn pzxid(&self) -> Zxid {
        self.directory.as_ref().map_or(self.czxid, |directory| directory.pzxid)
    }

    /// See [`Directory::children_made`].
    pub(crate) fn children_made(&self) -> u64 {
        self.directory().children_made
    }

    /// See [`Directory::empty_since_ms`].
    pub(crate) fn empty_since_ms(&self) -> Option<u64> {
        self.directory().empty_since_ms
    }

    pub(crate) fn children(&self) -> &Children {
        &self.directory().children
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.directory().queue
    }

    /// When it may be reaped, if it stays as it is.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        if !self.children().is_empty() {
            return None;
        }
        match self.kind {
            NodeKind::Container => self.empty_since_ms().map(|since| since.saturating_add(CONTAINER_GRACE_MS)),
            NodeKind::Ttl { ttl_ms } => Some(self.mtime_ms.saturating_add(ttl_ms)),
            NodeKind::Persistent | NodeKind::Ephemeral => None,
        }
    }

    pub(crate) fn is_ephemeral(&self) -> bool {
        self.kind == NodeKind::Ephemeral
    }

    /// The stat that clients see. `cversion` counts creations and deletions, of which only the creations are stored.
    pub(crate) fn stat(&self) -> Stat {
        let children = self.children().len() as u64;
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid(),
            ctime_ms: self.ctime_ms,
            mtime_ms: self.mtime_ms,
            version: self.version,
            // Wraps as ZooKeeper's does; it is never compared.
            cversion: self.children_made().wrapping_mul(2).wrapping_sub(children) as i32,
            aversion: self.aversion,
            ephemeral_owner: self.owner,
            data_length: self.data.len() as u32,
            num_children: children as u32,
            kind: self.kind,
        }
    }
}

/// All nodes, and the indexes that avoid a scan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tree {
    pub(crate) nodes: OrdMap<NodePath, Arc<Node>>,
    /// Nodes that can be reaped, by deadline.
    pub(crate) deadlines: OrdSet<(u64, NodePath)>,
    /// Kept places among them.
    pub(crate) delays: OrdSet<(u64, NodePath)>,
    /// Directories with at least one lock request.
    pub(crate) queues: OrdSet<NodePath>,
    pub(crate) ephemeral_count: usize,
    /// How many gates have their operation under way.
    pub(crate) pending_gates: usize,
    /// The memory of the nodes.
    pub(crate) bytes: u64,
    /// The namespaces with limits.
    pub(crate) namespaces: Namespaces,
    /// How a session holds a lock by a request that it has re-entered: by the request's node, with which the entry
    /// goes.
    pub(crate) holds: OrdMap<NodePath, Holds>,
}

impl Tree {
    /// A tree with only the root.
    pub(crate) fn new() -> Self {
        let root = Node::new([], open_list(), NodeKind::Persistent, None);
        Self {
            bytes: size::of_node(&NodePath::root(), &root),
            nodes: OrdMap::unit(NodePath::root(), Arc::new(root)),
            deadlines: OrdSet::new(),
            delays: OrdSet::new(),
            queues: OrdSet::new(),
            ephemeral_count: 0,
            pending_gates: 0,
            namespaces: Namespaces::default(),
            holds: OrdMap::new(),
        }
    }

    pub(crate) fn get(&self, path: &NodePath) -> Option<&Node> {
        self.nodes.get(path).map(|node| &**node)
    }

    /// A page of what `item` makes of the nodes below `root`: those whose names there start with `prefix` and come
    /// after `after`, at most `limit` items. Looks at no more than [`MAX_NODES_PER_PAGE`] nodes. Also returns the last
    /// node that it looked at, if there may be more behind it.
    pub(crate) fn page<'a, T>(
        &'a self,
        root: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        item: impl Fn(&'a NodePath, &'a Node) -> Option<T>,
    ) -> (Vec<T>, Option<&'a NodePath>) {
        let prefix = format!("{root}/{prefix}");
        let after = after.map(|after| format!("{root}/{after}"));
        let from = match &after {
            Some(after) if *after >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix.as_str()),
        };
        let nodes = self.nodes.range::<_, str>((from, Bound::Unbounded));
        let (mut items, mut last) = (Vec::new(), None);
        for (index, (path, node)) in nodes.take_while(|(path, _)| path.as_str().starts_with(&prefix)).enumerate() {
            if items.len() >= limit || index >= MAX_NODES_PER_PAGE {
                return (items, last);
            }
            items.extend(item(path, node));
            last = Some(path);
        }
        (items, None)
    }

    pub(crate) fn contains(&self, path: &NodePath) -> bool {
        self.nodes.contains_key(path)
    }

    /// Shares the list if it is the usual one.
    pub(crate) fn share_acl(&self, acl: &[AclEntry]) -> Arc<[AclEntry]> {
        if matches!(acl, [only] if only.is_open()) { open_list() } else { Arc::from(acl) }
    }

    /// How often a session holds a lock by this request.
    pub(crate) fn holds(&self, request: &NodePath) -> u32 {
        self.holds_of(request).count
    }

    /// Whether the call that made the request has given its hold back, and others of the session still hold by it.
    pub(crate) fn base_is_gone(&self, request: &NodePath) -> bool {
        !self.holds.is_empty() && self.holds_of(request).base_gone
    }

    pub(crate) fn holds_of(&self, request: &NodePath) -> Holds {
        self.holds.get(request).copied().unwrap_or(Holds::ONCE)
    }

    /// Sets how it holds. A request that holds once, as it was made, has no entry.
    pub(crate) fn set_holds(&mut self, request: &NodePath, holds: Holds) {
        let added = holds != Holds::ONCE;
        let was_there = match added {
            true => self.holds.insert(request.clone(), holds).is_some(),
            false => !self.holds.is_empty() && self.holds.remove(request).is_some(),
        };
        match (was_there, added) {
            (false, true) => self.bytes += size::of_holds(request),
            (true, false) => self.bytes -= size::of_holds(request),
            _ => {}
        }
    }

    /// Changes a node and updates the index of deadlines and the size.
    pub(crate) fn update(&mut self, path: &NodePath, change: impl FnOnce(&mut Node)) {
        let Some(shared) = self.nodes.get_mut(path) else { return };
        let node = Arc::make_mut(shared);
        let (before, bytes_before) = (node.deadline_ms(), size::of_node(path, node));
        self.pending_gates -= usize::from(is_pending(path, &node.data));
        change(node);
        self.pending_gates += usize::from(is_pending(path, &node.data));
        let after = node.deadline_ms();
        let bytes_after = size::of_node(path, node);
        self.bytes = self.bytes + bytes_after - bytes_before;
        self.namespaces.resize(path, bytes_before, bytes_after);
        if before != after {
            self.move_deadline(path, before, after);
        }
    }

    fn move_deadline(&mut self, path: &NodePath, before: Option<u64>, after: Option<u64>) {
        if before.is_none() && after.is_none() {
            return;
        }
        let is_delay = is_delay(path.name());
        if let Some(at_ms) = before {
            let was_kept = self.deadlines.remove(&(at_ms, path.clone())).is_some();
            invariant!(was_kept, "each deadline of a node is in the index");
            self.delays.remove(&(at_ms, path.clone()));
        }
        if let Some(at_ms) = after {
            self.deadlines.insert((at_ms, path.clone()));
            if is_delay {
                self.delays.insert((at_ms, path.clone()));
            }
        }
    }

    /// Inserts a node whose parent exists, and counts it there.
    pub(crate) fn attach(&mut self, path: &NodePath, node: Node, zxid: Zxid) {
        let (token, ephemeral) = (FencingToken::from(node.czxid), node.is_ephemeral());
        let count = self.nodes.len();
        self.place(path, node);
        invariant!(self.nodes.len() == count + 1, "a node is created where none is");
        let Some(parent) = path.parent_str() else { return };
        let mut has_parent = false;
        self.adopt(parent, |directory| {
            has_parent = true;
            invariant!(directory.pzxid <= zxid, "a directory changes at rising zxids");
            directory.add(path, token, ephemeral);
            directory.children_made += 1;
            directory.pzxid = zxid;
            directory.empty_since_ms = None;
            let (made, there) = (directory.children_made, directory.children.len() as u64);
            invariant!(there <= made, "a directory counts each child that it ever had");
        });
        invariant!(has_parent, "the parent of a new node is there");
    }

    /// Inserts a node and what is derived from it, but for its place in its directory.
    pub(crate) fn place(&mut self, path: &NodePath, node: Node) {
        self.ephemeral_count += usize::from(node.is_ephemeral());
        self.pending_gates += usize::from(is_pending(path, &node.data));
        self.bytes += size::of_node(path, &node);
        self.namespaces.add(path, &node);
        self.move_deadline(path, None, node.deadline_ms());
        if let Some(root) = self.nodes.insert(path.clone(), Arc::new(node)) {
            // Only a root ever replaces another.
            self.bytes -= size::of_node(path, &root);
        }
    }

    /// Adds children, which have been placed, to their directory, and updates the indexes. The size of a node does not
    /// depend on its children.
    pub(crate) fn adopt(&mut self, directory: &str, add: impl FnOnce(&mut Directory)) {
        let Some((path, node)) = self.nodes.get_key_value_mut(directory) else { return };
        let (path, node) = (path.clone(), Arc::make_mut(node));
        let before = (node.deadline_ms(), node.queue().is_empty());
        add(node.directory_mut());
        let after = (node.deadline_ms(), node.queue().is_empty());
        if before.0 != after.0 {
            self.move_deadline(&path, before.0, after.0);
        }
        if before.1 && !after.1 {
            self.queues.insert(path);
        }
    }

    /// Removes a node that has no children.
    pub(crate) fn detach(&mut self, path: &NodePath, zxid: Zxid, clock_ms: u64) -> Option<Arc<Node>> {
        self.detach_siblings(&[path], zxid, clock_ms)?.nodes.pop()
    }

    /// Removes nodes of one directory that have no children. The directory is changed once, however many they are.
    /// `None` if none of them existed.
    ///
    /// A session may own thousands of locks, and other commands wait while they are removed. So no node is looked up
    /// twice, no existing path is built anew, and the indexes of an emptied directory are dropped whole.
    pub(crate) fn detach_siblings(&mut self, paths: &[&NodePath], zxid: Zxid, clock_ms: u64) -> Option<Detached> {
        let mut nodes = Vec::with_capacity(paths.len());
        for path in paths {
            let Some(node) = self.nodes.remove(*path) else { continue };
            let (ephemerals, pending) = (usize::from(node.is_ephemeral()), usize::from(is_pending(path, &node.data)));
            let bytes = size::of_node(path, &node);
            invariant!(node.children().is_empty(), "a node that is deleted has no children");
            invariant!(ephemerals <= self.ephemeral_count, "the count of ephemerals includes each");
            invariant!(pending <= self.pending_gates, "the count of pending gates includes each");
            invariant!(bytes <= self.bytes, "the bytes of the tree include those of each node");
            self.ephemeral_count -= ephemerals;
            self.pending_gates -= pending;
            self.bytes -= bytes;
            self.namespaces.remove(path, &node);
            self.move_deadline(path, node.deadline_ms(), None);
            self.set_holds(path, Holds::ONCE);
            nodes.push(node);
        }
        invariant!(nodes.is_empty() || nodes.len() == paths.len(), "siblings that are deleted together are there");
        let of = paths.first().filter(|_| !nodes.is_empty())?.parent_str()?;
        let (directory, parent) = self.nodes.get_key_value_mut(of)?;
        let (directory, parent) = (directory.clone(), Arc::make_mut(parent));
        let before = parent.deadline_ms();
        let own = parent.directory_mut();
        let (mut emptied, listed) = (!own.queue.is_empty(), own.children.len());
        if nodes.len() == own.children.len() {
            (own.children, own.queue) = Default::default();
        } else {
            for (path, node) in paths.iter().zip(&nodes) {
                own.children.remove(path);
                own.queue.remove(path, FencingToken::from(node.czxid), node.is_ephemeral());
            }
        }
        invariant!(listed - own.children.len() == nodes.len(), "a directory lists each of its children");
        invariant!(own.pzxid <= zxid, "a directory changes at rising zxids");
        own.pzxid = zxid;
        own.empty_since_ms = own.children.is_empty().then_some(clock_ms);
        emptied &= own.queue.is_empty();
        let (acl, after) = (parent.acl.clone(), parent.deadline_ms());
        if before != after {
            self.move_deadline(&directory, before, after);
        }
        if emptied {
            invariant!(self.queues.remove(&directory).is_some(), "each queue with a request is in the index");
        }
        Some(Detached { nodes, directory, acl })
    }
}

/// The nodes removed from a directory.
pub(crate) struct Detached {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) directory: NodePath,
    /// The directory's.
    pub(crate) acl: Arc<[AclEntry]>,
}
