//! A node, or a subtree, kept in memory and up to date by a watch (Curator's `CuratorCache`).
//!
//! It loads, then follows from the zxid of its first read. A change marks its path, and what is marked is read again; so what is in
//! memory is always something that was true, and the order of events cannot confuse it. When the watch is cut off (`compacted`) it
//! loads again. It never stops by itself: in trouble it says so and goes on trying.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use lockkeeper_api::Code;
use lockkeeper_api::nodes::{Kind, Node, Stat};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::error::RecipeError;
use super::follow::{anonymous, bytes_of, look};
use super::place::Place;
use crate::client::Client;
use crate::error::Error;
use crate::routes::Reading;
use crate::watch::{Watch, WatchItem, WatchOptions};

/// Most nodes that a tree cache holds.
pub const MAX_CACHED_NODES: usize = 10_000;
const READS_AT_ONCE: usize = 16;
/// Changes that are taken together before they are read.
const MOST_AT_ONCE: usize = 512;
/// Pause after a failure, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
    fn of(node: &Node) -> Result<Self, RecipeError> {
        Ok(Self { data: bytes_of(node)?, kind: node.kind, stat: node.stat })
    }
}

/// What a cache holds at some moment. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Image {
    nodes: Arc<BTreeMap<Arc<str>, Arc<CachedNode>>>,
    zxid: u64,
    trouble: Option<Arc<str>>,
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

    /// Why it does not keep up at the moment, if it does not. It goes on trying.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn shows_the_same(&self, other: &Self) -> bool {
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

/// The task that keeps a cache up to date; ends with the last handle.
#[derive(Debug)]
struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
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
    _keeper: Arc<Keeper>,
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
            // The keeper ends with its runtime: nothing will come any more.
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
        let place = Place::readable(path)?;
        let inner = start(Scope { client: self.clone(), path: place.as_str().into(), tree: false }).await?;
        Ok(NodeCache { inner, path: path.into() })
    }

    /// A subtree kept in memory, loaded once. That it does not exist is no error. See [`TreeCache`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or it could not be loaded.
    pub async fn tree_cache(&self, path: &str) -> Result<TreeCache, RecipeError> {
        let place = Place::readable(path)?;
        start(Scope { client: self.clone(), path: place.as_str().into(), tree: true }).await
    }
}

async fn start(scope: Scope) -> Result<TreeCache, RecipeError> {
    let image = scope.load().await?;
    let (send, images) = watch::channel(image.clone());
    let keeper = Arc::new(Keeper(tokio::spawn(scope.keep(send))));
    Ok(TreeCache { images, seen: image, _keeper: keeper })
}

/// What is kept.
struct Scope {
    client: Client,
    path: Arc<str>,
    tree: bool,
}

type Nodes = BTreeMap<Arc<str>, Arc<CachedNode>>;

impl Scope {
    /// Follows for ever.
    async fn keep(mut self, send: watch::Sender<Image>) {
        let mut image = send.borrow().clone();
        let mut watch = Some(self.watch(image.zxid));
        let mut pause = FIRST_PAUSE;
        loop {
            let next = match &mut watch {
                Some(watch) => self.follow(watch, &image).await,
                None => self.load().await.map(Some),
            };
            let failed = next.is_err();
            match next {
                Ok(Some(next)) => {
                    watch.get_or_insert_with(|| self.watch(next.zxid));
                    (image, pause) = (next, FIRST_PAUSE);
                }
                Ok(None) => watch = None,
                Err(error) => {
                    if error.is_lost() {
                        // What is cached is nobody's in particular: it can be read without a session.
                        self.client = anonymous(&self.client);
                    }
                    image.trouble = Some(error.to_string().into());
                    watch = None;
                }
            }
            send.send_if_modified(|shown| {
                let changed = !shown.shows_the_same(&image) || shown.trouble != image.trouble;
                *shown = image.clone();
                changed
            });
            if failed {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn watch(&self, from: u64) -> Watch {
        let path = self.path.to_string();
        self.client.watch(WatchOptions { recursive: self.tree, from: Some(from), ..WatchOptions::new(path) })
    }

    /// The image after what the watch tells next; `None` if it was cut off.
    async fn follow(&self, watch: &mut Watch, image: &Image) -> Result<Option<Image>, RecipeError> {
        let mut dirty = BTreeSet::new();
        let mut next = watch.next().await;
        // What came together is read together.
        for _ in 0..MOST_AT_ONCE {
            let zxid = match next {
                Some(Ok(WatchItem::Change(change))) => {
                    dirty.insert(Arc::<str>::from(change.path));
                    change.zxid
                }
                Some(Ok(WatchItem::Bookmark(mark))) => mark,
                Some(Err(error)) if error.code() == Some(Code::Compacted) => return Ok(None),
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(None),
            };
            match watch.next().now_or_never() {
                Some(another) => next = another,
                None => {
                    let nodes = self.read_again(dirty, image).await?;
                    return Ok(Some(Image { nodes, zxid: zxid.max(image.zxid), trouble: None }));
                }
            }
        }
        // So many that loading is no dearer.
        Ok(None)
    }

    async fn read_again(&self, dirty: BTreeSet<Arc<str>>, image: &Image) -> Result<Arc<Nodes>, RecipeError> {
        if dirty.is_empty() {
            return Ok(image.nodes.clone());
        }
        let reads = dirty.into_iter().map(|path| async move {
            let seen = self.client.node(&path, &Reading::default()).await;
            Ok::<_, RecipeError>((path, found(seen)?.as_ref().map(CachedNode::of).transpose()?))
        });
        let read: Vec<_> = stream::iter(reads).buffer_unordered(READS_AT_ONCE).try_collect().await?;
        let mut nodes = Nodes::clone(&image.nodes);
        for (path, node) in read {
            match node {
                Some(node) => drop(nodes.insert(path, Arc::new(node))),
                None => drop(nodes.remove(&path)),
            }
        }
        within_bound(&nodes)?;
        Ok(Arc::new(nodes))
    }

    async fn load(&self) -> Result<Image, RecipeError> {
        let mut nodes = Nodes::new();
        let reading = Reading { children: self.tree, ..Reading::default() };
        let first = look(&self.client, &self.path, &reading).await?;
        let mut level: Vec<Node> = first.node.into_iter().collect();
        while !level.is_empty() {
            let mut below = Vec::new();
            for node in &level {
                nodes.insert(Arc::from(node.path.as_str()), Arc::new(CachedNode::of(node)?));
                let mut names = node.children.clone().unwrap_or_default();
                if node.next_children.is_some() {
                    names = self.client.children(&node.path).await?;
                }
                let above = if node.path == "/" { "" } else { &node.path };
                below.extend(names.into_iter().map(|name| format!("{above}/{name}")));
            }
            within_bound(&nodes)?;
            let read = |path: String| {
                let reading = &reading;
                async move { Ok::<_, RecipeError>(found(self.client.node(&path, reading).await)?) }
            };
            let read: Vec<Option<Node>> =
                stream::iter(below.into_iter().map(read)).buffer_unordered(READS_AT_ONCE).try_collect().await?;
            level = read.into_iter().flatten().collect();
        }
        Ok(Image { nodes: Arc::new(nodes), zxid: first.as_of, trouble: None })
    }
}

fn found(read: Result<Node, Error>) -> Result<Option<Node>, Error> {
    match read {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.code() == Some(Code::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

fn within_bound(nodes: &Nodes) -> Result<(), RecipeError> {
    if nodes.len() <= MAX_CACHED_NODES {
        return Ok(());
    }
    Err(RecipeError::BadArgument(format!(
        "a cache holds at most {MAX_CACHED_NODES} nodes, and there are more; cache a smaller subtree"
    )))
}
