//! One request: its nodes in the queues of its locks, from their creation until they are deleted.
//!
//! The nodes must go with the request, however it ends, also when nobody knows whether they were created.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, MultiWriteResult};

use super::queue::{Kind, QueueStanding, node_prefix, owner_prefix, standing};
use crate::wait::Deadline;

const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The nodes of one request. Dropping it deletes them, the last one first.
pub(super) struct Request {
    pub(super) session: Arc<Client>,
    owner: Uuid,
    directories: Vec<String>,
    /// The paths of the nodes, as far as they are known, in the order of the directories.
    nodes: Vec<String>,
    /// The czxid of each node.
    pub(super) tokens: Vec<u64>,
    /// Whether there may be nodes.
    created: bool,
    /// Whether an answer to a creation was lost, so that there may be nodes beside those that are known.
    unsure: bool,
}

impl Request {
    pub(super) fn new(session: Arc<Client>, owner: Uuid, directories: Vec<String>) -> Self {
        Self { session, owner, directories, nodes: Vec::new(), tokens: Vec::new(), created: false, unsure: false }
    }

    pub(super) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Enters the queues of all locks at one point of ZooKeeper's order, so that requests never wait in a circle.
    pub(super) async fn enter(&mut self, kind: Kind, label: &str) -> Result<(), Error> {
        loop {
            // From here on a node may exist.
            self.created = true;
            let outcome = self.create(kind, label).await;
            match outcome {
                Ok(nodes) => self.nodes = nodes,
                Err(Error::NoNode) => {
                    self.make_directories().await?;
                    continue;
                }
                Err(Error::ConnectionLoss) => {
                    self.unsure = true;
                    sleep(RETRY_AFTER).await;
                    if !self.recover().await? {
                        continue;
                    }
                }
                Err(error) => return Err(error),
            }
            self.tokens.clear();
            for node in &self.nodes {
                let stat = retried(|| self.session.check_stat(node)).await?.ok_or(Error::NoNode)?;
                self.tokens.push(u64::try_from(stat.czxid).unwrap_or_default());
            }
            return Ok(());
        }
    }

    async fn create(&self, kind: Kind, label: &str) -> Result<Vec<String>, Error> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefixes =
            self.directories.iter().map(|directory| format!("{directory}/{}", node_prefix(self.owner, kind)));
        let prefixes: Vec<String> = prefixes.collect();
        if let [prefix] = prefixes.as_slice() {
            let (_, sequence) = self.session.create(prefix, label.as_bytes(), &options).await?;
            return Ok(vec![format!("{prefix}{sequence}")]);
        }
        let mut together = self.session.new_multi_writer();
        for prefix in &prefixes {
            together.add_create(prefix, label.as_bytes(), &options)?;
        }
        let created = together.commit().await.map_err(Error::from)?;
        let path = |result| match result {
            MultiWriteResult::Create { path, .. } => Some(path),
            _ => None,
        };
        Ok(created.into_iter().filter_map(path).collect())
    }

    /// Containers, which ZooKeeper removes when they are empty.
    async fn make_directories(&self) -> Result<(), Error> {
        let options: CreateOptions<'_> = CreateMode::Container.with_acls(Acls::anyone_all());
        for directory in &self.directories {
            retried(|| self.session.mkdir(directory, &options)).await?;
        }
        Ok(())
    }

    /// All nodes of this request in each directory, the lowest first, as the leader has them. After the `sync` no
    /// creation from before it can still take effect unseen.
    async fn find(&self) -> Result<Vec<Vec<String>>, Error> {
        let prefix = owner_prefix(self.owner);
        let mut found = Vec::new();
        for directory in &self.directories {
            let list = || async {
                self.session.sync(directory).await?;
                self.session.list_children(directory).await
            };
            let children = match retried(list).await {
                Err(Error::NoNode) => Vec::new(),
                listed => listed?,
            };
            let own = children.iter().filter(|name| name.starts_with(&prefix));
            let mut own: Vec<String> = own.map(|name| format!("{directory}/{name}")).collect();
            // They differ in nothing but the sequence.
            own.sort_unstable();
            found.push(own);
        }
        Ok(found)
    }

    /// Keeps one node for each lock, the lowest, and deletes the others. False, with no node left, if one is missing.
    async fn recover(&mut self) -> Result<bool, Error> {
        let found = self.find().await?;
        let complete = found.iter().all(|own| !own.is_empty());
        let kept = usize::from(complete);
        for own in &found {
            for node in own.iter().skip(kept) {
                self.delete(node).await?;
            }
        }
        self.nodes = found.into_iter().flat_map(|own| own.into_iter().take(kept)).collect();
        Ok(complete)
    }

    /// False if the node was gone before.
    async fn delete(&self, node: &str) -> Result<bool, Error> {
        match retried(|| self.session.delete(node, None)).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until it holds all locks. False if the wait is over before that.
    pub(super) async fn hold(&self, deadline: Deadline) -> Result<bool, Error> {
        for (directory, node) in self.directories.iter().zip(&self.nodes) {
            let own = node.get(directory.len() + 1..).unwrap_or_default();
            loop {
                let children = retried(|| self.session.list_children(directory)).await?;
                let blocker = match standing(&children, own) {
                    QueueStanding::Holds => break,
                    QueueStanding::Gone => return Err(Error::NoNode),
                    QueueStanding::WaitsFor(blocker) => format!("{directory}/{blocker}"),
                };
                if deadline.is_over() {
                    return Ok(false);
                }
                let (present, watch) = retried(|| self.session.check_and_watch_stat(&blocker)).await?;
                if present.is_some() {
                    tokio::select! {
                        _ = watch.changed() => {}
                        () = deadline.over() => return Ok(false),
                    }
                }
            }
        }
        Ok(true)
    }

    /// Whether all nodes are there, as the leader knows.
    pub(super) async fn is_held(&self) -> Result<bool, Error> {
        for node in &self.nodes {
            self.session.sync(node).await?;
            if self.session.check_stat(node).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes the nodes, the last one first. False if one was gone before.
    pub(super) async fn leave(&mut self) -> Result<bool, Error> {
        self.unsure |= self.nodes.len() != self.directories.len();
        let mut all = true;
        while let Some(node) = self.nodes.last() {
            all &= self.delete(node).await?;
            self.nodes.pop();
        }
        if self.unsure {
            for node in self.find().await?.iter().flatten().rev() {
                self.delete(node).await?;
            }
        }
        self.created = false;
        Ok(all)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !std::mem::take(&mut self.created) {
            return;
        }
        let mut left = Self {
            session: self.session.clone(),
            owner: self.owner,
            directories: std::mem::take(&mut self.directories),
            nodes: std::mem::take(&mut self.nodes),
            tokens: Vec::new(),
            created: false,
            unsure: self.unsure,
        };
        runtime.spawn(async move {
            if let Err(error) = left.leave().await {
                tracing::debug!(%error, owner = %left.owner, "nodes left to the end of their session");
            }
        });
    }
}

/// Repeats a request that changes nothing, or the same at each repetition, until the connection or the session is there
/// again or gone for good.
pub(super) async fn retried<T, F: Future<Output = Result<T, Error>>>(request: impl Fn() -> F) -> Result<T, Error> {
    loop {
        match request().await {
            Err(Error::ConnectionLoss) => sleep(RETRY_AFTER).await,
            outcome => return outcome,
        }
    }
}
