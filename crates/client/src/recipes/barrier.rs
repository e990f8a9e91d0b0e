//! A barrier that holds up many processes until one removes it (Curator's `DistributedBarrier`).

use lockkeeper_api::nodes::{Create, Kind};
use lockkeeper_api::watch::ChangeKind;
use lockkeeper_api::{Code, Data};

use super::error::RecipeError;
use super::gapless_watch::{GaplessWatch, read_node};
use super::path::{self, RecipePath};
use super::until_lost::until_lost;
use crate::routes::Reading;
use crate::session::Session;

/// While the barrier exists, [`wait`](Self::wait) waits; when it is removed, all waiters go on.
///
/// A barrier is a persistent node: it outlives the process that set it. A barrier that was set with
/// [`block_while_alive`](Self::block_while_alive) also ends with its session. A removal notifies each waiter once.
/// When the session of a waiter is lost, its wait ends in [`Error::Lost`](crate::Error::Lost); the barrier may still
/// exist then.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let migration = session.barrier("/app/migration")?;
/// migration.block().await?;
/// let waiting = tokio::spawn({
///     let migration = migration.clone();
///     async move { migration.wait().await }
/// });
/// // … migrate …
/// migration.remove().await?;
/// waiting.await??;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    session: Session,
    path: RecipePath,
}

impl Barrier {
    pub(crate) fn new(session: Session, path: RecipePath) -> Self {
        Self { session, path }
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// Sets the barrier; `false` if it already exists.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn block(&self) -> Result<bool, RecipeError> {
        self.set(Kind::Persistent).await
    }

    /// Sets a barrier that ends with this session; `false` if one already exists, which may live longer.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn block_while_alive(&self) -> Result<bool, RecipeError> {
        self.set(Kind::Ephemeral).await
    }

    async fn set(&self, kind: Kind) -> Result<bool, RecipeError> {
        let data = Data::Text("barrier".into());
        match path::create_node(self.session.client(), self.path(), &Create { data, kind, ..Create::default() }).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::NodeExists) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the barrier, whoever set it; `false` if there is none.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn remove(&self) -> Result<bool, RecipeError> {
        match self.session.client().delete(self.path(), None).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::NoNode) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the barrier exists, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn is_blocked(&self) -> Result<bool, RecipeError> {
        Ok(read_node(self.session.client(), self.path(), &Reading::default()).await?.node.is_some())
    }

    /// Waits until there is no barrier. Dropping the future ends the wait and leaves nothing behind.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn wait(&self) -> Result<(), RecipeError> {
        until_lost(&self.session, self.wait_inner()).await
    }

    async fn wait_inner(&self) -> Result<(), RecipeError> {
        let mut follow = GaplessWatch::node(self.session.client(), self.path());
        let mut waits_for = None;
        loop {
            let node = match self.session.client().node(self.path(), &Reading::default()).await {
                Ok(node) => node,
                Err(error) if error.code() == Some(Code::NoNode) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            // Another barrier at the same path means that the first one was removed.
            if *waits_for.get_or_insert(node.stat.czxid) != node.stat.czxid {
                return Ok(());
            }
            let change = follow.change(node.zxid, |_| true).await?;
            if change.is_some_and(|change| change.kind == ChangeKind::Deleted) {
                return Ok(());
            }
        }
    }
}
