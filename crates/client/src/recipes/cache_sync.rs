//! The task that keeps a cache up to date.
//!
//! It loads the nodes, then watches from the zxid of its first read. A change marks its path, and marked paths are
//! read again: so the image never holds a state that was not true, whatever the order of the events. When the watch is
//! cut off (`compacted`) the task loads again. It must never stop by itself: on an error it reports the reason and
//! retries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use lockkeeper_api::Code;
use lockkeeper_api::nodes::Node;
use tokio::sync::watch;
use tokio::time::sleep;

use super::cache::{CachedNode, Image, MAX_CACHED_NODES, NodeCache, Nodes, TreeCache};
use super::error::RecipeError;
use super::gapless_watch::read_node;
use super::path::RecipePath;
use crate::client::Client;
use crate::error::Error;
use crate::routes::Reading;
use crate::watch::{Watch, WatchItem, WatchOptions};

const READS_AT_ONCE: usize = 16;
/// Most changes that are read together.
const CHANGES_AT_ONCE: usize = 512;
/// Pause after a failure; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

struct CacheSync {
    client: Client,
    path: Arc<str>,
    tree: bool,
}

impl Client {
    /// A node kept in memory, loaded once. A node that does not exist is no error. See [`NodeCache`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or it could not be loaded.
    pub async fn node_cache(&self, path: &str) -> Result<NodeCache, RecipeError> {
        Ok(NodeCache { inner: CacheSync::new(self, path, false)?.start().await?, path: path.into() })
    }

    /// A subtree kept in memory, loaded once. A node that does not exist is no error. See [`TreeCache`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or it could not be loaded.
    pub async fn tree_cache(&self, path: &str) -> Result<TreeCache, RecipeError> {
        CacheSync::new(self, path, true)?.start().await
    }
}

/// Loads a subtree once.
pub(super) async fn load_tree(client: &Client, path: &str) -> Result<Image, RecipeError> {
    CacheSync { client: client.clone(), path: path.into(), tree: true }.load().await
}

impl CacheSync {
    fn new(client: &Client, path: &str, tree: bool) -> Result<Self, RecipeError> {
        Ok(Self { client: client.clone(), path: RecipePath::readable(path)?.as_str().into(), tree })
    }

    async fn start(self) -> Result<TreeCache, RecipeError> {
        let image = self.load().await?;
        let (sender, images) = watch::channel(image.clone());
        Ok(TreeCache::new(image, images, tokio::spawn(self.run(sender))))
    }

    async fn run(mut self, send: watch::Sender<Image>) {
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
                        // The nodes belong to no session: they can be read without one.
                        self.client = self.client.anonymous();
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

    /// The image after the next changes of the watch; `None` if the watch was cut off.
    async fn follow(&self, watch: &mut Watch, image: &Image) -> Result<Option<Image>, RecipeError> {
        let mut dirty = BTreeSet::new();
        let mut next = watch.next().await;
        // Changes that came together are read together.
        for _ in 0..CHANGES_AT_ONCE {
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
        // So many changes that loading costs no more.
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
        let first = read_node(&self.client, &self.path, &reading).await?;
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
        "a cache holds at most {MAX_CACHED_NODES} nodes, and the subtree has more; cache a smaller subtree"
    )))
}
