//! A count that goes down to 0 once (`java.util.concurrent.CountDownLatch`, Redisson's `RCountDownLatch`).

use lockkeeper_api::watch::ChangeKind;

use super::cas::{CasCell, Edit};
use super::error::RecipeError;
use super::gapless_watch::GaplessWatch;
use super::path::RecipePath;
use super::until_lost::until_lost;
use crate::session::Session;

/// Some processes count down, others wait until 0 is reached. The latch then stays at 0 until it is removed.
///
/// All processes state the same count, and the first one creates the latch; another count is refused with
/// [`Mismatch`](RecipeError::Mismatch). A count belongs to no session: it stays when the process that counted dies,
/// and no other process counts for one that died before. Where deaths matter, use a [group](crate::Session::group) or
/// a [double barrier](crate::Session::double_barrier).
///
/// Remove the latch only when all waiters have gone on: a process that still waits gets
/// [`Removed`](RecipeError::Removed).
///
/// Each count is applied exactly once under retries, as with [`Counter`](super::Counter). Each count notifies each
/// waiter: `waiters × count` notifications in the life of a latch. When the session of a waiter is lost, its wait ends
/// in [`Error::Lost`](crate::Error::Lost); the latch stays as it is.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let started = session.latch("/app/started", 2)?;
/// let waiting = tokio::spawn({
///     let started = started.clone();
///     async move { started.wait().await }
/// });
/// started.count_down().await?;
/// started.count_down().await?;
/// waiting.await??;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    cell: CasCell,
    count: u32,
}

impl Latch {
    pub(crate) fn new(session: Session, path: RecipePath, count: u32) -> Result<Self, RecipeError> {
        if count == 0 {
            return Err(RecipeError::BadArgument("a latch counts down from at least 1".into()));
        }
        Ok(Self { cell: CasCell::new(session, path), count })
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.cell.path.as_str()
    }

    /// How many counts remain, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn remaining(&self) -> Result<u32, RecipeError> {
        let (bytes, _) = self.cell.read().await?;
        self.parse(bytes.as_deref())
    }

    /// Counts down by one and returns the remaining count, which stays at 0.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn count_down(&self) -> Result<u32, RecipeError> {
        let step = |bytes: Option<&[u8]>| match self.parse(bytes)? {
            0 => Ok(Edit::Keep(0)),
            left => Ok(Edit::Put(format!("{}/{}", left - 1, self.count), left - 1)),
        };
        self.cell.update(step).await
    }

    /// Waits until 0 is reached. Dropping the future ends the wait and leaves nothing behind.
    ///
    /// # Errors
    /// [`RecipeError::Removed`] if the latch is removed; otherwise see [`RecipeError`].
    pub async fn wait(&self) -> Result<(), RecipeError> {
        until_lost(&self.cell.session, self.wait_inner()).await
    }

    async fn wait_inner(&self) -> Result<(), RecipeError> {
        let mut follow = GaplessWatch::node(self.cell.session.client(), self.path());
        let mut existed = false;
        loop {
            let (bytes, as_of) = self.cell.read().await?;
            if bytes.is_none() && existed {
                return Err(RecipeError::Removed { path: self.path().into() });
            }
            existed |= bytes.is_some();
            if self.parse(bytes.as_deref())? == 0 {
                return Ok(());
            }
            let change = follow.change(as_of, |_| true).await?;
            if change.is_some_and(|change| change.kind == ChangeKind::Deleted) {
                return Err(RecipeError::Removed { path: self.path().into() });
            }
        }
    }

    /// Removes the latch, so that another can use its path. A latch that does not exist is no error.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn remove(&self) -> Result<(), RecipeError> {
        match self.cell.session.client().delete(self.path(), None).await {
            Err(error) if error.code() != Some(lockkeeper_api::Code::NoNode) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn parse(&self, bytes: Option<&[u8]>) -> Result<u32, RecipeError> {
        let Some(bytes) = bytes else { return Ok(self.count) };
        let parsed = std::str::from_utf8(bytes).ok().and_then(|text| text.split_once('/'));
        let parsed = parsed.and_then(|(left, count)| Some((left.parse().ok()?, count.parse().ok()?)));
        match parsed {
            Some((left, count)) if count == self.count && left <= count => Ok(left),
            Some((_, count)) if count != self.count => Err(RecipeError::Mismatch {
                path: self.path().into(),
                asked: format!("a count of {}", self.count),
                found: format!("a count of {count}"),
            }),
            _ => Err(RecipeError::Foreign {
                path: self.path().into(),
                recipe: "latch",
                why: "its data is not 'remaining/count'".into(),
            }),
        }
    }
}
