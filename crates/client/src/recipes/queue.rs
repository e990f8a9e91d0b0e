//! A queue: first in, first out, and nothing is lost with the one who took it (compare Curator's `DistributedQueue` with its
//! lock safety, and Amazon's SQS for take and acknowledge).
//!
//! Below the queue's path `items` holds one node for each item, numbered by the cluster, and `claims` one ephemeral node, of the same
//! name, for each item that somebody is at work on. Taking an item makes the claim and raises the item's version in one transaction;
//! acknowledging removes both in one transaction that checks that version. So a taker that lost its claim cannot acknowledge what
//! another has taken since, and the version says how often the item was given out.

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
use super::tracked_change::TrackedChange;
use super::until_lost::until_lost;
use crate::client::Client;
use crate::error::Error;
use crate::routes::{Reading, txn_spec};
use crate::session::Session;

/// Largest item, in bytes: each taking writes it once.
const MAX_ITEM_BYTES: usize = 256 * 1024;
/// How many items are looked at in one go. Items in work stand before those that are free, so this should exceed the takers.
const PAGE: u32 = 64;

/// A queue in the cluster.
///
/// - **Order.** Items are given out in the order in which they were put; one that was given back keeps its place, so it goes next.
/// - **At least once.** An item is there until it is [acknowledged](Delivery::ack). If its taker gives it back, drops it, or dies (its session
///   ends), it is given to another; [`Delivery::attempt`] says for the how-many-th time. What a taker does should be safe to repeat, or be done in
///   the acknowledging transaction itself ([`Delivery::ack_with`]).
/// - **Cost.** A put is one write. Taking reads the names of the claims and at most one page of items beyond them, however long the
///   queue is, and writes once; so does acknowledging. Items stay in the memory of every node: this is for jobs, not for bulk.
/// - **No herd.** Those who wait for items stand in a fair line (the lock [`line`](Self::line)); only the first of them watches the queue, and is
///   told what happens in it; the others are told of nothing. Takers that find an item at once do not stand in line.
///
/// The path and its `items` stay until somebody removes them.
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

    /// Where it lives.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// The lock in whose queue takers wait.
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

    /// Puts an item at the end and gives its name, which is unique in this queue.
    ///
    /// # Errors
    /// With [`UnknownOutcome`](crate::Error::UnknownOutcome) it may be there; otherwise nothing was put. See [`RecipeError`].
    pub async fn put(&self, data: &[u8]) -> Result<String, RecipeError> {
        if data.len() > MAX_ITEM_BYTES {
            return Err(RecipeError::BadArgument(format!(
                "an item is at most {MAX_ITEM_BYTES} bytes, this one has {}; put what is large elsewhere and its address here",
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

    /// How many items there are, those in work included.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn len(&self) -> Result<u64, RecipeError> {
        let seen = read_node(self.client(), &self.items(), &Reading::default()).await?;
        Ok(seen.node.map_or(0, |node| node.stat.num_children.into()))
    }

    /// Whether there are none, those in work included.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn is_empty(&self) -> Result<bool, RecipeError> {
        Ok(self.len().await? == 0)
    }

    /// Takes the first item that nobody is at work on, if there is one. Does not stand in line.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn try_take(&self) -> Result<Option<Delivery>, RecipeError> {
        until_lost(&self.session, async { Ok(self.find().await?.0) }).await
    }

    /// Takes the first item that nobody is at work on, and waits for one in line. Dropping the future leaves the line, and gives
    /// back what had been taken at that moment.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn take(&self) -> Result<Delivery, RecipeError> {
        match self.try_take().await? {
            Some(delivery) => Ok(delivery),
            None => until_lost(&self.session, self.wait_in_line()).await,
        }
    }

    /// The same, waiting for so long at most.
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
            follow.change(as_of, |change| offers.may_be_one(change)).await?;
        }
    }

    /// Claims the first free item. If there is none: as of when that is true.
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

    /// The items that somebody is at work on.
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

    /// Makes an item mine; `None` if somebody was faster.
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
        // From here on it is cleaned up, whatever comes of the transaction.
        let claim = EphemeralNode::new(&self.session, claim);
        let mut asked = TrackedChange::new(txn_spec(&txn)?);
        let mut done = asked.ask::<TxnDone>(self.client()).await;
        if done.as_ref().err().and_then(refused_operation) == Some((0, Code::NoNode)) {
            if let Err(error) = self.prepare().await {
                claim.forget();
                return Err(error);
            }
            // Under another id: the first was refused for good.
            asked = TrackedChange::new(txn_spec(&txn)?);
            done = asked.ask(self.client()).await;
        }
        match done {
            Ok(_) => Ok(Some(Delivery { claim, item, version, data })),
            // Somebody was faster: claimed it, had it and gave it back, or acknowledged it.
            Err(error) if refused_operation(&error).is_some() => {
                claim.forget();
                Ok(None)
            }
            Err(error) => {
                let open = matches!(error, Error::UnknownOutcome(_) | Error::NotLockkeeper { .. });
                claim.not_made(open.then_some(asked));
                Err(error.into())
            }
        }
    }

    /// Makes the directories. That of the items is persistent: its numbers never begin anew.
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

/// Tells the changes that may offer an item from those that do not.
struct Offers {
    items: String,
    claims: String,
    /// The item that was removed last, and when.
    removed: Option<(u64, String)>,
}

impl Offers {
    fn new(queue: &Queue) -> Self {
        Self { items: format!("{}/", queue.items()), claims: format!("{}/", queue.claims()), removed: None }
    }

    /// An item that was put, or a claim that went without its item: an acknowledgement removes both, the item first.
    fn may_be_one(&mut self, change: &Change) -> bool {
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
