//! A node, or a subtree, kept in memory and up to date by a watch (Curator's `CuratorCache`).
//!
//! This is what a reader sees: images, and the differences between them. `keeping` makes the images.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockkeeper_api::nodes::{Kind, Node, Stat};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::cache_sync::CacheSync;
use super::error::RecipeError;
use super::gapless_watch::bytes_of;
use super::path::RecipePath;
use crate::client::Client;

/// Most nodes that a tree cache holds.
pub const MAX_CACHED_NODES: usize = 10_000;

/// A node in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedNode {
    /// Its data.
    pub data: Vec<u8>,
    /// How it lives.
    pub kind: Kind,
    /// Its bookkeeping.
    pub stat: Stat,
}

impl CachedNode {
    pub(super) fn of(node: &Node) -> Result<Self, RecipeError> {
        Ok(Self { data: bytes_of(node)?, kind: node.kind, stat: node.stat })
    }
}

pub(super) type Nodes = BTreeMap<Arc<str>, Arc<CachedNode>>;

/// What a cache holds at some moment. Cheap to clone.
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

    /// All nodes in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &CachedNode)> {
        self.nodes.iter().map(|(path, node)| (&**path, &**node))
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Every change up to this zxid is in it. Some nodes may be newer: each is as of its own reading.
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
    /// A node came to be.
    Added(String),
    /// A node's data or bookkeeping is another. So it is for one that was removed and made again in between.
    Changed(String),
    /// A node went.
    Removed(String),
}

/// What must be done to one image to get the other, in the order of the paths.
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

/// A node kept in memory and up to date. Clones share what they hold; each has its own place in the sequence of changes.
///
/// It needs no session, and outlives the one through which it was made. Every change notifies it once, and costs one read.
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
    inner: TreeCache,
    path: String,
}

impl NodeCache {
    /// What is there now, as far as is known; nothing is asked of the cluster.
    pub fn current(&self) -> Option<CachedNode> {
        self.inner.current().get(&self.path).cloned()
    }

    /// The same with its zxid and with what troubles it.
    pub fn image(&self) -> Image {
        self.inner.current()
    }

    /// Waits until what is there is another than at the last call (or than when the cache was made), and gives it. Several changes in a
    /// row may be given as one. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Option<CachedNode> {
        self.inner.changes().await;
        self.inner.seen.get(&self.path).cloned()
    }

    /// Waits until what is there fits.
    pub async fn wait_for(&mut self, mut fits: impl FnMut(Option<&CachedNode>) -> bool) -> Option<CachedNode> {
        let path = self.path.clone();
        let image = self.inner.wait_for(|image| fits(image.get(&path))).await;
        image.get(&self.path).cloned()
    }
}

/// A node and everything below it kept in memory and up to date. Clones share what they hold; each has its own place in the
/// sequence of changes. Otherwise as [`NodeCache`].
///
/// A subtree of more than [`MAX_CACHED_NODES`] nodes is refused; if it grows beyond that later, [`Image::trouble`] says so, and what came
/// since is not in the image. Counts of children in a node's [`Stat`] are those of its last reading.
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
    _keeper: Arc<SyncTask>,
}

impl TreeCache {
    /// What is there now, as far as is known; nothing is asked of the cluster.
    pub fn current(&self) -> Image {
        self.images.borrow().clone()
    }

    /// Waits for changes since the last call (or since the cache was made), and gives them in the order of their paths. Several changes of one
    /// node may be given as one. Dropping the future loses nothing.
    pub async fn changes(&mut self) -> Vec<CacheChange> {
        let seen = self.seen.clone();
        let image = self.wait_for(|image| !image.shows_the_same(&seen)).await;
        let changes = difference(&self.seen, &image);
        self.seen = image;
        changes
    }

    /// Waits until the image fits.
    pub async fn wait_for(&mut self, mut fits: impl FnMut(&Image) -> bool) -> Image {
        match self.images.wait_for(|image| fits(image)).await {
            Ok(image) => image.clone(),
            // The task ends with its runtime: nothing will come any more.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Client {
    /// A node kept in memory, loaded once. That it does not exist is no error. See [`NodeCache`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or it could not be loaded.
    pub async fn node_cache(&self, path: &str) -> Result<NodeCache, RecipeError> {
        let checked = RecipePath::readable(path)?;
        let inner = start(CacheSync { client: self.clone(), path: checked.as_str().into(), tree: false }).await?;
        Ok(NodeCache { inner, path: path.into() })
    }

    /// A subtree kept in memory, loaded once. That it does not exist is no error. See [`TreeCache`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or it could not be loaded.
    pub async fn tree_cache(&self, path: &str) -> Result<TreeCache, RecipeError> {
        let checked = RecipePath::readable(path)?;
        start(CacheSync { client: self.clone(), path: checked.as_str().into(), tree: true }).await
    }
}

/// A subtree as it is, once.
pub(super) async fn load_tree(client: &Client, path: &str) -> Result<Image, RecipeError> {
    CacheSync { client: client.clone(), path: path.into(), tree: true }.load().await
}

async fn start(scope: CacheSync) -> Result<TreeCache, RecipeError> {
    let image = scope.load().await?;
    let (send, images) = watch::channel(image.clone());
    let task = Arc::new(SyncTask(tokio::spawn(scope.run(send))));
    Ok(TreeCache { images, seen: image, _keeper: task })
}
