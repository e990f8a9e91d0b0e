//! Group membership (Curator's `GroupMember`, the membership recipe of ZooKeeper's guide).

use std::collections::BTreeMap;

use lockkeeper_api::nodes::{Create, Kind, SetData};
use lockkeeper_api::{Code, Data};

use super::cache::{CacheChange, Image, TreeCache};
use super::cache_sync::load_tree;
use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, check_data};
use super::gapless_watch::read_node;
use super::path::{self, RecipePath, check_part};
use super::until_lost::until_lost;
use crate::routes::Reading;
use crate::session::Session;

/// Largest data of a member, in bytes.
const MAX_MEMBER_BYTES: usize = 64 * 1024;

/// A group of processes that see each other, each under a name and with some data.
///
/// A member is an ephemeral node: it exists until the member leaves or its session ends, and all observers see that at
/// the same point of the cluster's order. Each change notifies each [`watch`](Self::watch) once. Membership says that
/// the session lives, not that the process is healthy.
///
/// A name belongs to one member at a time. A process that restarts before its old session has ended finds its name
/// [`Taken`](RecipeError::Taken): use a different name for each start, or wait.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::recipes::MemberChange;
///
/// let workers = session.group("/app/workers")?;
/// let mut watch = workers.watch().await?;
/// let me = workers.join("worker-1", b"10.0.0.1:80").await?;
/// assert_eq!(watch.changes().await, [MemberChange::Joined("worker-1".into())]);
/// assert_eq!(workers.members().await?["worker-1"], b"10.0.0.1:80");
/// me.leave().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Group {
    session: Session,
    path: RecipePath,
}

impl Group {
    pub(crate) fn new(session: Session, path: RecipePath) -> Self {
        Self { session, path }
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// Joins the group. Dropping the future undoes it.
    ///
    /// # Errors
    /// [`RecipeError::Taken`]; otherwise see [`RecipeError`].
    pub async fn join(&self, name: &str, data: &[u8]) -> Result<Membership, RecipeError> {
        check_part(name)?;
        check_data("a member's", data, MAX_MEMBER_BYTES)?;
        let (group, path) = (self.clone(), self.path.child(name));
        let data = Data::from_bytes(data);
        let join = run_to_completion(&self.session, async move { group.enter(path, data).await });
        until_lost(&self.session, join).await
    }

    async fn enter(self, path: String, data: Data) -> Result<Membership, RecipeError> {
        let create = Create { data, kind: Kind::Ephemeral, ..Create::default() };
        let client = self.session.client();
        let node = EphemeralNode::new(&self.session, path.clone());
        let mut undecided = None;
        match path::create_node_tracked(client, &path, &create, &mut undecided).await {
            Ok(_) => Ok(Membership { node }),
            Err(error) if error.code() == Some(Code::NodeExists) => {
                // Another handle owns the node, even if it is of the same session.
                node.forget();
                let owner =
                    read_node(client, &path, &Reading::default()).await?.node.and_then(|n| n.stat.ephemeral_owner);
                let owner = match owner {
                    Some(id) if id == self.session.id() => "another handle of this session".into(),
                    Some(id) => format!("session {id}"),
                    None => "another".into(),
                };
                Err(RecipeError::Taken { path, owner })
            }
            Err(error) => {
                node.creation_failed(undecided);
                Err(error.into())
            }
        }
    }

    /// Reads the members and their data, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn members(&self) -> Result<BTreeMap<String, Vec<u8>>, RecipeError> {
        Ok(members_of(self.path(), &load_tree(self.session.client(), self.path()).await?))
    }

    /// Follows the members. Outlives the session that it was made through.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn watch(&self) -> Result<Members, RecipeError> {
        let cache = self.session.client().tree_cache(self.path()).await?;
        Ok(Members { path: self.path().into(), cache })
    }
}

fn name_of<'a>(group: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(group)?.strip_prefix('/').filter(|name| !name.contains('/'))
}

fn members_of(group: &str, image: &Image) -> BTreeMap<String, Vec<u8>> {
    let named = |(path, node): (&str, &super::cache::CachedNode)| {
        name_of(group, path).map(|name| (name.to_owned(), node.data.clone()))
    };
    image.iter().filter_map(named).collect()
}

/// A change in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A member joined.
    Joined(String),
    /// A member's data changed, or it left and joined again.
    Updated(String),
    /// A member left, or its session ended.
    Left(String),
}

/// Follows the members of a group; made by [`Group::watch`].
#[derive(Clone, Debug)]
pub struct Members {
    path: String,
    cache: TreeCache,
}

impl Members {
    /// The members as known now, without a request to the cluster.
    pub fn current(&self) -> BTreeMap<String, Vec<u8>> {
        members_of(&self.path, &self.cache.current())
    }

    /// Waits for changes since the last call (or since the watch began), and returns them in the order of names. A
    /// member that joined and left in between may be left out. Dropping the future loses no change.
    pub async fn changes(&mut self) -> Vec<MemberChange> {
        loop {
            let changes = self.cache.changes().await;
            let told: Vec<MemberChange> = changes.into_iter().filter_map(|change| self.translate(&change)).collect();
            if !told.is_empty() {
                return told;
            }
        }
    }

    /// Waits until the members satisfy `fits`, and returns them.
    pub async fn wait_for(&mut self, fits: impl Fn(&BTreeMap<String, Vec<u8>>) -> bool) -> BTreeMap<String, Vec<u8>> {
        let path = self.path.clone();
        members_of(&self.path, &self.cache.wait_for(|image| fits(&members_of(&path, image))).await)
    }

    fn translate(&self, change: &CacheChange) -> Option<MemberChange> {
        let name = |path: &str| name_of(&self.path, path).map(str::to_owned);
        Some(match change {
            CacheChange::Added(path) => MemberChange::Joined(name(path)?),
            CacheChange::Changed(path) => MemberChange::Updated(name(path)?),
            CacheChange::Removed(path) => MemberChange::Left(name(path)?),
        })
    }
}

/// The membership of this process. Dropping it leaves the group, in the background.
#[derive(Debug)]
#[must_use = "dropping this leaves the group"]
pub struct Membership {
    node: EphemeralNode,
}

impl Membership {
    /// The member's name.
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Replaces this member's data.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn set_data(&self, data: &[u8]) -> Result<(), RecipeError> {
        check_data("a member's", data, MAX_MEMBER_BYTES)?;
        let set = SetData { data: Data::from_bytes(data) };
        self.node.session().client().set(self.node.path(), &set, None).await?;
        Ok(())
    }

    /// Completes, with the reason, when the membership is lost with its session.
    pub async fn lost(&self) -> String {
        self.node.session().lost().await
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// See [`RecipeError`]; leaving then goes on in the background.
    pub async fn leave(self) -> Result<(), RecipeError> {
        let session = self.node.session().clone();
        run_to_completion(&session, self.node.remove()).await
    }
}
