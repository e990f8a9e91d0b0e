//! The tree of nodes with its indexes. It keeps parents, counters, queues and deadlines consistent with each change,
//! and checks nothing: `ops` decides what may be changed.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::lock_queue::Queue;
use super::namespaces::Namespaces;
use super::size;
use crate::acl::AclEntry;
use crate::command::NodeKind;
use crate::data::NodeData;
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::limits::CONTAINER_GRACE_MS;
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
    pub(crate) pzxid: Zxid,
    pub(crate) ctime_ms: u64,
    pub(crate) mtime_ms: u64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    /// The number of children ever created: the next sequence. It never goes back while the node lives.
    pub(crate) children_made: u64,
    /// When it last lost its last child, if it has had any.
    pub(crate) empty_since_ms: Option<u64>,
    pub(crate) children: OrdSet<Arc<str>>,
    pub(crate) queue: Queue,
}

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
            pzxid: Zxid(0),
            ctime_ms: 0,
            mtime_ms: 0,
            version: 0,
            aversion: 0,
            children_made: 0,
            empty_since_ms: None,
            children: OrdSet::new(),
            queue: Queue::default(),
        }
    }

    /// When it may be reaped, if it stays as it is.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        if !self.children.is_empty() {
            return None;
        }
        match self.kind {
            NodeKind::Container => self.empty_since_ms.map(|since| since.saturating_add(CONTAINER_GRACE_MS)),
            NodeKind::Ttl { ttl_ms } => Some(self.mtime_ms.saturating_add(ttl_ms)),
            NodeKind::Persistent | NodeKind::Ephemeral => None,
        }
    }

    pub(crate) fn is_ephemeral(&self) -> bool {
        self.kind == NodeKind::Ephemeral
    }

    /// The stat that clients see. `cversion` counts creations and deletions, of which only the creations are stored.
    pub(crate) fn stat(&self) -> Stat {
        let children = self.children.len() as u64;
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime_ms: self.ctime_ms,
            mtime_ms: self.mtime_ms,
            version: self.version,
            // Wraps as ZooKeeper's does; it is never compared.
            cversion: self.children_made.wrapping_mul(2).wrapping_sub(children) as i32,
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
    /// The memory of the nodes.
    pub(crate) bytes: u64,
    /// The namespaces with limits.
    pub(crate) namespaces: Namespaces,
    /// The access control list that nearly all nodes share.
    open_acl: Arc<[AclEntry]>,
}

impl Tree {
    /// A tree with only the root.
    pub(crate) fn new() -> Self {
        let open_acl: Arc<[AclEntry]> = Arc::from([AclEntry::open()]);
        let root = Node::new([], open_acl.clone(), NodeKind::Persistent, None);
        Self {
            bytes: size::of_node(&NodePath::root(), &root),
            nodes: OrdMap::unit(NodePath::root(), Arc::new(root)),
            deadlines: OrdSet::new(),
            delays: OrdSet::new(),
            queues: OrdSet::new(),
            ephemeral_count: 0,
            namespaces: Namespaces::default(),
            open_acl,
        }
    }

    pub(crate) fn get(&self, path: &NodePath) -> Option<&Node> {
        self.nodes.get(path).map(|node| &**node)
    }

    pub(crate) fn contains(&self, path: &NodePath) -> bool {
        self.nodes.contains_key(path)
    }

    /// Shares the list if it is the usual one.
    pub(crate) fn share_acl(&self, acl: &[AclEntry]) -> Arc<[AclEntry]> {
        if acl == &*self.open_acl { self.open_acl.clone() } else { Arc::from(acl) }
    }

    /// Changes a node and updates the index of deadlines and the size.
    pub(crate) fn update(&mut self, path: &NodePath, change: impl FnOnce(&mut Node)) {
        let Some(shared) = self.nodes.get_mut(path) else { return };
        let node = Arc::make_mut(shared);
        let (before, bytes_before) = (node.deadline_ms(), size::of_node(path, node));
        change(node);
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
            self.deadlines.remove(&(at_ms, path.clone()));
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
        self.place(path, node);
        let Some(parent) = path.parent() else { return };
        self.update(&parent, |directory| {
            directory.children_made += 1;
            directory.pzxid = zxid;
            directory.empty_since_ms = None;
        });
    }

    /// Inserts a node and everything derived from it: the part of [`attach`](Self::attach) that restoring needs too.
    pub(crate) fn place(&mut self, path: &NodePath, node: Node) {
        let token = FencingToken::from(node.czxid);
        let ephemeral = node.is_ephemeral();
        self.ephemeral_count += usize::from(ephemeral);
        self.bytes += size::of_node(path, &node);
        self.namespaces.add(path, &node);
        self.move_deadline(path, None, node.deadline_ms());
        if let Some(root) = self.nodes.insert(path.clone(), Arc::new(node)) {
            // Only a root ever replaces another.
            self.bytes -= size::of_node(path, &root);
        }
        let Some(parent) = path.parent() else { return };
        let name: Arc<str> = Arc::from(path.name());
        let mut queued = false;
        self.update(&parent, |directory| {
            directory.queue.insert(&name, token, ephemeral);
            queued = !directory.queue.is_empty();
            directory.children.insert(name);
        });
        if queued {
            self.queues.insert(parent);
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
            self.ephemeral_count -= usize::from(node.is_ephemeral());
            self.bytes -= size::of_node(path, &node);
            self.namespaces.remove(path, &node);
            self.move_deadline(path, node.deadline_ms(), None);
            nodes.push(node);
        }
        debug_assert!(nodes.is_empty() || nodes.len() == paths.len(), "one of {paths:?} is not there");
        let of = paths.first().filter(|_| !nodes.is_empty())?.parent_str()?;
        let (directory, parent) = self.nodes.get_key_value_mut(of)?;
        let (directory, parent) = (directory.clone(), Arc::make_mut(parent));
        let before = parent.deadline_ms();
        let mut emptied = !parent.queue.is_empty();
        if nodes.len() == parent.children.len() {
            (parent.children, parent.queue) = Default::default();
        } else {
            for (path, node) in paths.iter().zip(&nodes) {
                parent.children.remove(path.name());
                parent.queue.remove(path.name(), FencingToken::from(node.czxid), node.is_ephemeral());
            }
        }
        parent.pzxid = zxid;
        parent.empty_since_ms = parent.children.is_empty().then_some(clock_ms);
        emptied &= parent.queue.is_empty();
        let (acl, after) = (parent.acl.clone(), parent.deadline_ms());
        if before != after {
            self.move_deadline(&directory, before, after);
        }
        if emptied {
            self.queues.remove(&directory);
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
