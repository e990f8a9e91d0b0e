//! A first-in, first-out queue that loses no item with its consumer (compare Curator's `DistributedQueue` with its lock
//! safety, and Amazon SQS for take and acknowledge).
//!
//! Below the queue's path, `items` holds one node for each item, numbered by the cluster, and `claims` holds one
//! ephemeral node of the same name for each item that a consumer works on. Taking an item creates the claim and raises
//! the item's version in one transaction; acknowledging removes both in one transaction that checks that version. So a
//! consumer that lost its claim cannot acknowledge an item that another has taken since, and the version counts the
//! deliveries.

use std::collections::HashSet;
use std::time::Duration;

use lockkeeper_api::nodes::{Create, Kind, Txn, TxnDone, TxnOp};
use lockkeeper_api::watch::{Change, ChangeKind};
use lockkeeper_api::{Code, Data};

use super::delivery::Delivery;
use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, refused_operation};
use super::gapless_watch::{GaplessWatch, bytes_of, read_node};
use super::path::{RecipePath, make_directories};
use super::until_lost::until_lost;
use crate::client::Client;
use crate::error::Error;
use crate::routes::{Reading, txn_spec};
use crate::session::Session;
use crate::tracked_change::TrackedChange;

/// Largest item, in bytes: each delivery writes it once.
const MAX_ITEM_BYTES: usize = 256 * 1024;
/// How many items one page has. Claimed items come before free ones, so this should exceed the number of consumers.
const PAGE: u32 = 64;

/// A queue in the cluster.
///
/// - **Order.** Items are delivered in the order in which they were put. A returned item keeps its position, so it is
///   delivered next.
/// - **At least once.** An item stays until it is [acknowledged](Delivery::ack). If its consumer returns it, drops it,
///   or dies (its session ends), it is delivered to another; [`Delivery::attempt`] counts the deliveries. The work
///   should be safe to repeat, or be done in the acknowledging transaction itself ([`Delivery::ack_with`]).
/// - **Cost.** A put is one write. A take reads the names of the claims and at most one page of items beyond them,
///   however long the queue is, and writes once; so does an acknowledgement. Items stay in the memory of every node:
///   use the queue for jobs, not for bulk data.
/// - **No herd.** Consumers that wait for items wait in a fair queue (the lock [`line`](Self::line)). Only the first of
///   them watches the items and is notified of changes. A consumer that finds an item at once does not wait in line.
///
/// The path and its `items` stay until you delete them.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let jobs = session.queue("/app/jobs")?;
/// jobs.put(b"resize 42.jpg").await?;
/// let job = jobs.take().await?;
/// assert_eq!((job.data(), job.attempt()), (&b"resize 42.jpg"[..], 1));
/// // … work, and stop if job.lost() completes …
/// job.ack().await?;
/// assert!(jobs.is_empty().await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Queue {
    session: Session,
    path: RecipePath,
}

impl Queue {
    pub(crate) fn new(session: Session, path: RecipePath) -> Self {
        Self { session, path }
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// The lock in whose queue consumers wait.
    pub fn line(&self) -> String {
        format!("queues{}", self.path())
    }

    fn items(&self) -> String {
        self.path.child("items")
    }

    fn claims(&self) -> String {
        self.path.child("claims")
    }

    fn client(&self) -> &Client {
        self.session.client()
    }

    /// Puts an item at the end and returns its name, which is unique in this queue.
    ///
    /// # Errors
    /// After [`UnknownOutcome`](crate::Error::UnknownOutcome) the item may be in the queue; after any other error it
    /// is not. See [`RecipeError`].
    pub async fn put(&self, data: &[u8]) -> Result<String, RecipeError> {
        if data.len() > MAX_ITEM_BYTES {
            return Err(RecipeError::BadArgument(format!(
                "an item is at most {MAX_ITEM_BYTES} bytes, this one has {}; store the data elsewhere and put its \
                 address",
                data.len()
            )));
        }
        let create = Create { data: Data::from_bytes(data), sequential: true, ..Create::default() };
        let prefix = format!("{}/i-", self.items());
        let made = match self.client().create(&prefix, &create).await {
            Err(error) if error.code() == Some(Code::NoNode) => {
                self.prepare().await?;
                self.client().create(&prefix, &create).await?
            }
            made => made?,
        };
        Ok(made.path.rsplit('/').next().unwrap_or_default().to_owned())
    }

    /// The number of items, claimed ones included.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn len(&self) -> Result<u64, RecipeError> {
        let seen = read_node(self.client(), &self.items(), &Reading::default()).await?;
        Ok(seen.node.map_or(0, |node| node.stat.num_children.into()))
    }

    /// Whether there are no items, not even claimed ones.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn is_empty(&self) -> Result<bool, RecipeError> {
        Ok(self.len().await? == 0)
    }

    /// Takes the first item that is not claimed, if there is one. Does not wait in line.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn try_take(&self) -> Result<Option<Delivery>, RecipeError> {
        until_lost(&self.session, async { Ok(self.find().await?.0) }).await
    }

    /// Takes the first item that is not claimed, and waits in line if there is none. Dropping the future leaves the
    /// line, and returns an item that was taken at that moment.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn take(&self) -> Result<Delivery, RecipeError> {
        match self.try_take().await? {
            Some(delivery) => Ok(delivery),
            None => until_lost(&self.session, self.wait_in_line()).await,
        }
    }

    /// As [`take`](Self::take), waiting at most that long.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn take_timeout(&self, wait: Duration) -> Result<Option<Delivery>, RecipeError> {
        match tokio::time::timeout(wait, self.take()).await {
            Ok(taken) => taken.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn wait_in_line(&self) -> Result<Delivery, RecipeError> {
        let _first_in_line = self.session.lock(self.line()).label("waits for an item").lock().await?;
        let mut follow = GaplessWatch::tree(self.client(), self.path());
        loop {
            let (found, as_of) = self.find().await?;
            if let Some(delivery) = found {
                return Ok(delivery);
            }
            let mut offers = Offers::new(self);
            follow.change(as_of, |change| offers.may_offer(change)).await?;
        }
    }

    /// Claims the first free item. Also returns the zxid as of which there was no earlier one.
    async fn find(&self) -> Result<(Option<Delivery>, u64), RecipeError> {
        let (claimed, as_of) = self.claimed().await?;
        let mut reading = Reading { children: true, children_limit: Some(PAGE), ..Reading::default() };
        loop {
            let Some(page) = read_node(self.client(), &self.items(), &reading).await?.node else {
                return Ok((None, as_of));
            };
            for name in page.children.unwrap_or_default() {
                if claimed.contains(&name) {
                    continue;
                }
                let queue = self.clone();
                if let Some(delivery) = run_to_completion(&self.session, async move { queue.claim(name).await }).await?
                {
                    return Ok((Some(delivery), as_of));
                }
            }
            match page.next_children {
                Some(next) => reading.children_after = Some(next),
                None => return Ok((None, as_of)),
            }
        }
    }

    /// The names of claimed items.
    async fn claimed(&self) -> Result<(HashSet<String>, u64), RecipeError> {
        let mut names = HashSet::new();
        let mut reading = Reading { children: true, ..Reading::default() };
        let mut as_of = None;
        loop {
            let seen = read_node(self.client(), &self.claims(), &reading).await?;
            let as_of = *as_of.get_or_insert(seen.as_of);
            let Some(page) = seen.node else { return Ok((names, as_of)) };
            names.extend(page.children.unwrap_or_default());
            match page.next_children {
                Some(next) => reading.children_after = Some(next),
                None => return Ok((names, as_of)),
            }
        }
    }

    /// Claims an item; `None` if another consumer was faster.
    async fn claim(self, name: String) -> Result<Option<Delivery>, RecipeError> {
        let item = format!("{}/{name}", self.items());
        let node = match self.client().node(&item, &Reading::default()).await {
            Ok(node) => node,
            Err(error) if error.code() == Some(Code::NoNode) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let claim = format!("{}/{name}", self.claims());
        let txn = Txn {
            operations: vec![
                TxnOp::Create {
                    path: claim.clone(),
                    data: Data::default(),
                    kind: Kind::Ephemeral,
                    ttl_ms: None,
                    sequential: false,
                    acl: None,
                },
                TxnOp::Set { path: item.clone(), data: node.data.clone(), version: Some(node.stat.version) },
            ],
        };
        let version = node.stat.version.wrapping_add(1);
        let data = bytes_of(&node)?;
        // From here on the claim is cleaned up, whatever the outcome of the transaction.
        let claim = EphemeralNode::new(&self.session, claim);
        let mut change = TrackedChange::new(txn_spec(&txn));
        let mut done = change.send::<TxnDone>(self.client()).await;
        if done.as_ref().err().and_then(refused_operation) == Some((0, Code::NoNode)) {
            if let Err(error) = self.prepare().await {
                claim.forget();
                return Err(error);
            }
            // Under another request id: the first transaction was refused for good.
            change = TrackedChange::new(txn_spec(&txn));
            done = change.send(self.client()).await;
        }
        match done {
            Ok(_) => Ok(Some(Delivery { claim, item, version, data })),
            // Another consumer was faster: it claimed, returned or acknowledged the item.
            Err(error) if refused_operation(&error).is_some() => {
                claim.forget();
                Ok(None)
            }
            Err(error) => {
                let unknown = matches!(error, Error::UnknownOutcome(_) | Error::NotLockkeeper { .. });
                claim.creation_failed(unknown.then_some(change));
                Err(error.into())
            }
        }
    }

    /// Creates the directories. That of the items is persistent: its numbers must never start again.
    async fn prepare(&self) -> Result<(), RecipeError> {
        if let Some((above, _)) = self.path().rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
            make_directories(self.client(), above).await?;
        }
        for (path, kind) in [
            (self.path().to_owned(), Kind::Persistent),
            (self.items(), Kind::Persistent),
            (self.claims(), Kind::Container),
        ] {
            match self.client().create(&path, &Create { kind, ..Create::default() }).await {
                Err(error) if error.code() != Some(Code::NodeExists) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Recognizes the changes that may offer an item.
struct Offers {
    items: String,
    claims: String,
    /// The zxid and name of the item that was removed last.
    removed: Option<(u64, String)>,
}

impl Offers {
    fn new(queue: &Queue) -> Self {
        Self { items: format!("{}/", queue.items()), claims: format!("{}/", queue.claims()), removed: None }
    }

    /// An item was put, or a claim was removed without its item: an acknowledgement removes both, the item first.
    fn may_offer(&mut self, change: &Change) -> bool {
        let name_in = |directory: &str| change.path.strip_prefix(directory).map(str::to_owned);
        match (change.kind, name_in(&self.items), name_in(&self.claims)) {
            (ChangeKind::Created, Some(_), _) => true,
            (ChangeKind::Deleted, Some(name), _) => {
                self.removed = Some((change.zxid, name));
                false
            }
            (ChangeKind::Deleted, _, Some(name)) => self.removed != Some((change.zxid, name)),
            _ => false,
        }
    }
}
