//! What people know from Curator, Redisson and etcd's `concurrency` package, on top of sessions, nodes, transactions and watches.
//!
//! Each recipe is a handle that costs nothing to make: [`Session::counter`], [`Session::queue`] and so on check the path and
//! nothing else. They share four rules:
//!
//! - **Watch, then read, without a gap.** A wait reads, and watches from the zxid of what it read.
//! - **Cancellation.** A future may be dropped at any time. What it had made in the cluster is undone in the background.
//! - **Loss.** When the session is lost, what waits ends in [`Error::Lost`](crate::Error::Lost), and what the session owned is gone.
//! - **Unknown is an answer.** A change whose fate is not known is reported as
//!   [`Error::UnknownOutcome`](crate::Error::UnknownOutcome), never repeated under another request id.
//!
//! A recipe must never poll, never wake everybody where one would do (what it wakes is in its documentation), and never
//! delete what it did not make.

mod barrier;
mod cell;
mod counter;
mod error;
mod follow;
mod latch;
mod owned;
mod party;
mod place;

pub use barrier::Barrier;
pub use counter::Counter;
pub use error::RecipeError;
pub use latch::Latch;

use crate::session::Session;
use party::Party;
use place::Place;

impl Session {
    /// A number that everybody may change. See [`Counter`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn counter(&self, path: &str) -> Result<Counter, RecipeError> {
        Ok(Counter::new(Party::of(self), Place::parse(path)?))
    }

    /// A count that goes down to 0 once, and those who wait for it. See [`Latch`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or a count of 0.
    pub fn latch(&self, path: &str, count: u32) -> Result<Latch, RecipeError> {
        Latch::new(Party::of(self), Place::parse(path)?, count)
    }

    /// A gate across the way of many, opened by one. See [`Barrier`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn barrier(&self, path: &str) -> Result<Barrier, RecipeError> {
        Ok(Barrier::new(Party::of(self), Place::parse(path)?))
    }
}
