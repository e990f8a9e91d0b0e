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

/// A signed 64-bit number that many processes change at the same time. A counter that does not exist yet is 0.
///
/// Each change is one compare-and-set under a request id of the session: a lost answer is asked for again, so an
/// addition counts **once**. Where the outcome cannot be found out, the error is
/// [`UnknownOutcome`](crate::Error::UnknownOutcome); read the counter before you add again. When other changes come
/// between, the counter retries with a random pause, for up to 20 s, and then fails with
/// [`Contended`](RecipeError::Contended), having changed nothing. Clones of a handle do not conflict with each other:
/// concurrent additions are written as one sum, and each caller gets its own value.
///
/// The value is kept as decimal text in one persistent node. Do not delete that node while processes count: its version
/// would start again. A session that is lost in the middle leaves either the old or the new value.
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
    pending: Arc<Mutex<Vec<Addition>>>,
}

/// A pending addition of one clone, and where its answer goes.
#[derive(Debug)]
struct Addition {
    delta: i64,
    answer: oneshot::Sender<Result<i64, RecipeError>>,
}

impl Counter {
    pub(crate) fn new(session: Session, path: RecipePath) -> Self {
        Self { cell: CasCell::new(session, path), pending: Arc::default() }
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.cell.path.as_str()
    }

    /// Reads the value, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn get(&self) -> Result<i64, RecipeError> {
        let (bytes, _) = self.cell.read().await?;
        self.parse(bytes.as_deref())
    }

    /// Adds `delta` and returns the new value.
    ///
    /// # Errors
    /// [`RecipeError::Overflow`] if the sum does not fit; otherwise see [`RecipeError`].
    pub async fn add(&self, delta: i64) -> Result<i64, RecipeError> {
        let (answer, mut result) = oneshot::channel();
        self.pending.lock().push(Addition { delta, answer });
        let lock = tokio::select! {
            biased;
            result = &mut result => return result.unwrap_or_else(|_| Err(writer_ended())),
            lock = self.cell.lock() => lock,
        };
        let counter = self.clone();
        // The additions of other clones go on if this future is dropped.
        run_to_completion(&self.cell.session, async move {
            counter.add_pending(lock).await;
            Ok(())
        })
        .await?;
        // This addition was among them, or was answered just before this future got the update lock.
        result.await.unwrap_or_else(|_| Err(writer_ended()))
    }

    /// Writes the pending additions of all clones in one update. A caller that has gone away before that adds nothing.
    async fn add_pending(&self, lock: UpdateLock) {
        let mut additions = std::mem::take(&mut *self.pending.lock());
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
        for (index, addition) in additions.into_iter().enumerate() {
            let answer = match &done {
                Ok(each) => each[index].clone(),
                Err(error) => Err(error.clone()),
            };
            drop(addition.answer.send(answer));
        }
    }

    /// Adds 1 and returns the new value.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub async fn increment(&self) -> Result<i64, RecipeError> {
        self.add(1).await
    }

    /// Sets `new` if the value is `expected`; `false` if it is not.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn compare_and_set(&self, expected: i64, new: i64) -> Result<bool, RecipeError> {
        let exchange = |bytes: Option<&[u8]>| {
            Ok(if self.parse(bytes)? == expected { Edit::Put(new.to_string(), true) } else { Edit::Keep(false) })
        };
        self.cell.update(exchange).await
    }

    /// Sets the value, whatever it is, and returns the previous one.
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

/// The error for an addition whose writer ended with its runtime.
fn writer_ended() -> RecipeError {
    Error::UnknownOutcome("the runtime is shutting down".into()).into()
}
