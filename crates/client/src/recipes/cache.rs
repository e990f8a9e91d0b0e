//! A node, or a subtree, kept in memory and up to date by a watch (Curator's `CuratorCache`).
//!
//! This is the reader's side: images, and the differences between them. [`cache_sync`](super::cache_sync) makes the
//! images.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockkeeper_api::nodes::{Kind, Node, Stat};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::error::RecipeError;
use super::gapless_watch::bytes_of;

/// Most nodes in a tree cache.
pub const MAX_CACHED_NODES: usize = 10_000;

/// A node in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedNode {
    /// The node's data.
    pub data: Vec<u8>,
    /// The node's kind: persistent, ephemeral, …
    pub kind: Kind,
    /// The node's versions, zxids and times.
    pub stat: Stat,
}

impl CachedNode {
    pub(super) fn of(node: &Node) -> Result<Self, RecipeError> {
        Ok(Self { data: bytes_of(node)?, kind: node.kind, stat: node.stat })
    }
}

pub(super) type Nodes = BTreeMap<Arc<str>, Arc<CachedNode>>;

/// The content of a cache at some moment. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pub(super) nodes: Arc<Nodes>,
    pub(super) zxid: u64,
    pub(super) trouble: Option<Arc<str>>,
}

impl Image {
    /// The node at that path.
    pub fn get(&self, path: &str) -> Option<&CachedNode> {
        self.nodes.get(path).map(|node| &**node)
    }

    /// All nodes, in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &CachedNode)> {
        self.nodes.iter().map(|(path, node)| (&**path, &**node))
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The image contains every change up to this zxid. Some nodes may be newer: each is as of its own read.
    pub fn zxid(&self) -> u64 {
        self.zxid
    }

    /// Why the cache is not up to date at the moment; `None` if it is. The cache keeps retrying.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(super) fn shows_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.nodes, &other.nodes) || self.nodes == other.nodes
    }
}

/// A difference between two images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// A node was created.
    Added(String),
    /// A node's data or [`Stat`] changed, or it was deleted and created again.
    Changed(String),
    /// A node was deleted.
    Removed(String),
}

/// The changes that turn one image into the other, in the order of their paths.
fn difference(old: &Image, new: &Image) -> Vec<CacheChange> {
    let mut changes = Vec::new();
    let paths: BTreeSet<&Arc<str>> = old.nodes.keys().chain(new.nodes.keys()).collect();
    for path in paths {
        match (old.nodes.get(path), new.nodes.get(path)) {
            (None, Some(_)) => changes.push(CacheChange::Added(path.to_string())),
            (Some(_), None) => changes.push(CacheChange::Removed(path.to_string())),
            (Some(before), Some(after)) if before != after => changes.push(CacheChange::Changed(path.to_string())),
            _ => {}
        }
    }
    changes
}

/// The task that keeps a cache up to date. It outlives the session that it was started through, so no close waits for
/// it; the drop of the last handle aborts it.
#[derive(Debug)]
struct SyncTask(JoinHandle<()>);

impl Drop for SyncTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A node kept in memory and up to date. Clones share the image; each has its own position in the sequence of changes.
///
/// A cache needs no session, and outlives the session that it was made through. Every change notifies it once and costs
/// one read.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::api::nodes::Create;
///
/// let mut config = client.node_cache("/config").await?;
/// assert_eq!(config.current(), None);
/// client.create("/config", &Create::default()).await?;
/// let node = config.changed().await.expect("it was made");
/// assert_eq!(node.stat.version, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NodeCache {
    pub(super) inner: TreeCache,
    pub(super) path: String,
}

impl NodeCache {
    /// The node as the cache has it now, without a request to the cluster; `None` if there is no node.
    pub fn current(&self) -> Option<CachedNode> {
        self.inner.current().get(&self.path).cloned()
    }

    /// The image, with its zxid and the reason why it is not up to date, if there is one.
    pub fn image(&self) -> Image {
        self.inner.current()
    }

    /// Waits until the node differs from that of the last call (or of when the cache was made), and returns it. Several
    /// changes may be reported as one. Dropping the future loses no change.
    pub async fn changed(&mut self) -> Option<CachedNode> {
        self.inner.changes().await;
        self.inner.seen.get(&self.path).cloned()
    }

    /// Waits until the node satisfies `fits`, and returns it.
    pub async fn wait_for(&mut self, mut fits: impl FnMut(Option<&CachedNode>) -> bool) -> Option<CachedNode> {
        let path = self.path.clone();
        let image = self.inner.wait_for(|image| fits(image.get(&path))).await;
        image.get(&self.path).cloned()
    }
}

/// A node and everything below it, kept in memory and up to date. Clones share the image; each has its own position in
/// the sequence of changes. Otherwise as [`NodeCache`].
///
/// A subtree of more than [`MAX_CACHED_NODES`] nodes is refused. If it grows beyond that later, [`Image::trouble`] says
/// so, and later changes are not in the image. The number of children in a node's [`Stat`] is that of its last read.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::api::nodes::Create;
/// use lockkeeper_client::recipes::CacheChange;
///
/// client.create("/app", &Create::default()).await?;
/// let mut app = client.tree_cache("/app").await?;
/// client.create("/app/feature", &Create::default()).await?;
/// assert_eq!(app.changes().await, [CacheChange::Added("/app/feature".into())]);
/// assert_eq!(app.current().len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TreeCache {
    images: watch::Receiver<Image>,
    seen: Image,
    _task: Arc<SyncTask>,
}

impl TreeCache {
    pub(super) fn new(image: Image, images: watch::Receiver<Image>, task: JoinHandle<()>) -> Self {
        Self { images, seen: image, _task: Arc::new(SyncTask(task)) }
    }

    /// The image as the cache has it now, without a request to the cluster.
    pub fn current(&self) -> Image {
        self.images.borrow().clone()
    }

    /// Waits for changes since the last call (or since the cache was made), and returns them in the order of their
    /// paths. Several changes of one node may be reported as one. Dropping the future loses no change.
    pub async fn changes(&mut self) -> Vec<CacheChange> {
        let seen = self.seen.clone();
        let image = self.wait_for(|image| !image.shows_the_same(&seen)).await;
        let changes = difference(&self.seen, &image);
        self.seen = image;
        changes
    }

    /// Waits until the image satisfies `fits`, and returns it.
    pub async fn wait_for(&mut self, mut fits: impl FnMut(&Image) -> bool) -> Image {
        match self.images.wait_for(|image| fits(image)).await {
            Ok(image) => image.clone(),
            // The task ends with its runtime: nothing will come any more.
            Err(_) => std::future::pending().await,
        }
    }
}
