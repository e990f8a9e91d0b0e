//! Waits for changes without a gap: a read gives the zxid as of which it is true, and the watch begins right after it.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::nodes::Node;
use lockkeeper_api::watch::Change;
use tokio::time::sleep;

use super::error::RecipeError;
use crate::client::Client;
use crate::error::Error;
use crate::routes::Reading;
use crate::watch::{Watch, WatchItem, WatchOptions};

/// Pause before a watch that was cut off is begun again.
const PAUSE_AFTER_CUT: Duration = Duration::from_millis(20);

/// The result of a linearizable read.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) node: Option<Node>,
    /// A watch from this zxid reports every change after the read.
    pub(crate) as_of: u64,
}

/// Reads a node that may not exist.
pub(crate) async fn read_node(client: &Client, path: &str, reading: &Reading) -> Result<Observed, Error> {
    if let Some(seen) = present(client, path, reading).await? {
        return Ok(seen);
    }
    // A refusal carries no zxid. A read of the root does, and it comes before the second read.
    let as_of = client.node("/", &Reading::default()).await?.zxid;
    Ok(present(client, path, reading).await?.unwrap_or(Observed { node: None, as_of }))
}

async fn present(client: &Client, path: &str, reading: &Reading) -> Result<Option<Observed>, Error> {
    match client.node(path, reading).await {
        Ok(node) => Ok(Some(Observed { as_of: node.zxid, node: Some(node) })),
        Err(error) if error.code() == Some(Code::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The bytes of a node.
pub(crate) fn bytes_of(node: &Node) -> Result<Vec<u8>, RecipeError> {
    let foreign = |why| RecipeError::Foreign { path: node.path.clone(), recipe: "readable data", why };
    node.data.to_bytes().map_err(foreign)
}

/// Watches a path from read to read.
pub(crate) struct GaplessWatch {
    client: Client,
    path: String,
    recursive: bool,
    watch: Option<Watch>,
}

impl GaplessWatch {
    /// Watches one node.
    pub(crate) fn node(client: &Client, path: &str) -> Self {
        Self { client: client.clone(), path: path.into(), recursive: false, watch: None }
    }

    /// Watches a node and everything below it.
    pub(crate) fn tree(client: &Client, path: &str) -> Self {
        Self { recursive: true, ..Self::node(client, path) }
    }

    /// Waits for the next change after `as_of` that matters; `None` when changes may have been missed. In both cases
    /// the caller reads again, and calls this with the zxid of that read.
    pub(crate) async fn change(
        &mut self,
        as_of: u64,
        mut matters: impl FnMut(&Change) -> bool,
    ) -> Result<Option<Change>, RecipeError> {
        let options =
            || WatchOptions { recursive: self.recursive, from: Some(as_of), ..WatchOptions::new(self.path.clone()) };
        let watch = self.watch.get_or_insert_with(|| self.client.watch(options()));
        loop {
            match watch.next().await {
                Some(Ok(WatchItem::Change(change))) if change.zxid > as_of && matters(&change) => {
                    return Ok(Some(change));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) if error.code() != Some(Code::Compacted) => {
                    self.watch = None;
                    return Err(error.into());
                }
                Some(Err(_)) | None => {
                    self.watch = None;
                    sleep(PAUSE_AFTER_CUT).await;
                    return Ok(None);
                }
            }
        }
    }
}
