//! A number in the cluster (Curator's `DistributedAtomicLong`, Redisson's `RAtomicLong`).

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::cas::{CasCell, Edit, UpdateLock};
use super::ephemeral::run_to_completion;
use super::error::RecipeError;
use super::path::RecipePath;
use crate::error::Error;
use crate::session::Session;

/// A signed 64-bit number that many change at the same time. A counter that nobody has touched stands at 0.
///
/// Each change is one compare-and-set under a request id of the session: a lost answer is asked for again, so an addition counts
/// **once**; where its fate cannot be found out, the error is [`UnknownOutcome`](crate::Error::UnknownOutcome) and the caller must look
/// before it adds again. When others come between, it tries again with a jittered pause, for up to 20 s, and gives up with
/// [`Contended`](RecipeError::Contended), having changed nothing. Clones of a handle do not collide among themselves: what they add at
/// the same time is written as one sum, and each is given its own value.
///
/// The value is kept as decimal text in one persistent node. Do not delete that node while somebody counts: versions start anew
/// with it. A session that is lost in the middle leaves either the old or the new value.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let orders = session.counter("/app/orders")?;
/// assert_eq!(orders.increment().await?, 1);
/// assert_eq!(orders.add(41).await?, 42);
/// assert!(!orders.compare_and_set(7, 0).await?, "it is not 7");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    cell: CasCell,
    waiting: Arc<Mutex<Vec<Addition>>>,
}

/// What a clone wants added, and where its answer goes.
#[derive(Debug)]
struct Addition {
    delta: i64,
    answer: oneshot::Sender<Result<i64, RecipeError>>,
}

impl Counter {
    pub(crate) fn new(session: Session, path: RecipePath) -> Self {
        Self { cell: CasCell::new(session, path), waiting: Arc::default() }
    }

    /// Where it lives.
    pub fn path(&self) -> &str {
        self.cell.path.as_str()
    }

    /// Its value, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn get(&self) -> Result<i64, RecipeError> {
        let (bytes, _) = self.cell.read().await?;
        self.parse(bytes.as_deref())
    }

    /// Adds and gives the new value.
    ///
    /// # Errors
    /// [`RecipeError::Overflow`] if the sum does not fit; otherwise see [`RecipeError`].
    pub async fn add(&self, delta: i64) -> Result<i64, RecipeError> {
        let (answer, mut told) = oneshot::channel();
        self.waiting.lock().push(Addition { delta, answer });
        let lock = tokio::select! {
            biased;
            told = &mut told => return told.unwrap_or_else(|_| Err(cut_off())),
            lock = self.cell.lock() => lock,
        };
        let counter = self.clone();
        // The others' additions go on if this future is dropped.
        run_to_completion(&self.cell.session, async move {
            counter.add_what_waits(lock).await;
            Ok(())
        })
        .await?;
        // It was among them, or had been answered just before it got the update lock.
        told.await.unwrap_or_else(|_| Err(cut_off()))
    }

    /// Adds what all clones wait for in one write. Whoever went away before that has nothing added.
    async fn add_what_waits(&self, lock: UpdateLock) {
        let mut additions = std::mem::take(&mut *self.waiting.lock());
        additions.retain(|addition| !addition.answer.is_closed());
        if additions.is_empty() {
            return;
        }
        let sums = |bytes: Option<&[u8]>| {
            let (before, mut value) = (self.parse(bytes)?, self.parse(bytes)?);
            let each = additions.iter().map(|addition| match value.checked_add(addition.delta) {
                Some(sum) => {
                    value = sum;
                    Ok(sum)
                }
                None => Err(RecipeError::Overflow { path: self.path().into(), value, delta: addition.delta }),
            });
            let each: Vec<Result<i64, RecipeError>> = each.collect();
            Ok(if value == before { Edit::Keep(each) } else { Edit::Put(value.to_string(), each) })
        };
        let done = self.cell.update_locked(&lock, sums).await;
        for (place, addition) in additions.into_iter().enumerate() {
            let answer = match &done {
                Ok(each) => each[place].clone(),
                Err(error) => Err(error.clone()),
            };
            drop(addition.answer.send(answer));
        }
    }

    /// Adds 1 and gives the new value.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub async fn increment(&self) -> Result<i64, RecipeError> {
        self.add(1).await
    }

    /// Puts `new` in the place of `expected`; `false` if another value is there.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn compare_and_set(&self, expected: i64, new: i64) -> Result<bool, RecipeError> {
        let exchange = |bytes: Option<&[u8]>| {
            Ok(if self.parse(bytes)? == expected { Edit::Put(new.to_string(), true) } else { Edit::Keep(false) })
        };
        self.cell.update(exchange).await
    }

    /// Puts a value there, whatever is there, and gives the one before.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn set(&self, value: i64) -> Result<i64, RecipeError> {
        self.cell.update(|bytes| Ok(Edit::Put(value.to_string(), self.parse(bytes)?))).await
    }

    fn parse(&self, bytes: Option<&[u8]>) -> Result<i64, RecipeError> {
        let Some(bytes) = bytes else { return Ok(0) };
        let text = std::str::from_utf8(bytes).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| RecipeError::Foreign {
            path: self.path().into(),
            recipe: "counter",
            why: format!("its {} bytes are not a decimal number of 64 bits", bytes.len()),
        })
    }
}

/// The runtime of whoever wrote for all has ended.
fn cut_off() -> RecipeError {
    Error::UnknownOutcome("the runtime is shutting down".into()).into()
}
