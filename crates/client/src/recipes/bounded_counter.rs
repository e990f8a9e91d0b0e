//! A number with a lower and an upper bound, which the cluster checks where it adds.
//!
//! This module must never read the number to decide whether an addition fits: only the cluster knows.

use std::ops::RangeInclusive;

use lockkeeper_api::Code;
use lockkeeper_api::nodes::Add;

use super::counter::Counter;
use super::error::RecipeError;
use super::path::{RecipePath, make_directories, parent};
use crate::client::Client;
use crate::error::Error;
use crate::session::Session;

/// A signed 64-bit number that many processes change at the same time, and that no addition leads out of a range: seats
/// of a course, stock of an article, a budget.
///
/// Each addition is one log entry, however many processes add at the same time: the cluster decides whether the sum is
/// within the range, and adds, or changes nothing. It is sent under a request id of the session: a lost answer is asked
/// for again, so an addition counts **once**. Where the outcome cannot be found out, the error is
/// [`UnknownOutcome`](crate::Error::UnknownOutcome); read the counter before you add again.
///
/// A bound counts only in the direction of the summand: a number that is beyond a bound, because another process uses
/// another range, can come back. The range belongs to the handle and is not stored.
///
/// A [`Counter`] of the same path is the same number, without a range.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// let seats = session.bounded_counter("/courses/7/seats", 0..=2)?;
/// assert_eq!(seats.add(2).await?, 2);
/// assert_eq!(seats.try_add(1).await?, None, "the course is full");
/// assert_eq!(seats.try_add(-1).await?, Some(1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BoundedCounter {
    session: Session,
    path: RecipePath,
    range: RangeInclusive<i64>,
}

impl BoundedCounter {
    pub(crate) fn new(session: Session, path: RecipePath, range: RangeInclusive<i64>) -> Result<Self, RecipeError> {
        if range.is_empty() {
            let (min, max) = (range.start(), range.end());
            return Err(RecipeError::BadArgument(format!("the range {min}..={max} of a bounded counter is empty")));
        }
        Ok(Self { session, path, range })
    }

    /// The path of its node.
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// The range.
    pub fn range(&self) -> &RangeInclusive<i64> {
        &self.range
    }

    /// Reads the value, linearizable.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn get(&self) -> Result<i64, RecipeError> {
        Counter::new(self.session.clone(), self.path.clone()).get().await
    }

    /// Adds `delta` and returns the new value.
    ///
    /// # Errors
    /// [`Code::OutOfBounds`] if the sum would be out of the range: nothing was added. [`Code::NotANumber`] if the node
    /// has other data. Otherwise see [`RecipeError`].
    pub async fn add(&self, delta: i64) -> Result<i64, RecipeError> {
        let bounds = Add { delta, min: Some(*self.range.start()), max: Some(*self.range.end()) };
        Ok(add(self.session.client(), self.path(), &bounds).await?)
    }

    /// As [`add`](Self::add), but gives `None` if the sum would be out of the range.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn try_add(&self, delta: i64) -> Result<Option<i64>, RecipeError> {
        match self.add(delta).await {
            Err(error) if error.code() == Some(Code::OutOfBounds) => Ok(None),
            done => done.map(Some),
        }
    }
}

/// Adds, and creates the missing directories above the node.
async fn add(client: &Client, path: &str, add: &Add) -> Result<i64, Error> {
    let mut is_retry = false;
    loop {
        match client.add(path, add).await {
            // The directories are containers: an empty one may vanish again before the node is there.
            Err(error) if error.code() == Some(Code::NoNode) && !is_retry => {
                is_retry = true;
                make_directories(client, parent(path)).await?;
            }
            done => return done.map(|added| added.value),
        }
    }
}
