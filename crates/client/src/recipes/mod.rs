//! What people know from Curator, Redisson and etcd's `concurrency` package, on top of sessions, nodes, transactions and watches.
//!
//! Each recipe is a handle that costs nothing to make: [`Session::counter`], [`Session::queue`] and so on check the path and
//! nothing else. They share four rules:
//!
//! - **Watch, then read, without a gap.** A wait reads, and watches from the zxid of what it read.
//! - **Cancellation.** A future may be dropped at any time. What stood for the caller in the cluster (a place in a queue, a claim, a
//!   membership) is undone in the background; a change that was under way (an addition, an item put) may take place or not.
//! - **Loss.** When the session is lost, what waits ends in [`Error::Lost`](crate::Error::Lost), and what the session owned is gone.
//! - **Unknown is an answer.** A change whose fate is not known is reported as
//!   [`Error::UnknownOutcome`](crate::Error::UnknownOutcome), never repeated under another request id.
//!
//! A recipe must never poll, never wake everybody where one would do (what it wakes is in its documentation), and never
//! delete what it did not make.

mod barrier;
mod cache;
mod cache_sync;
mod cas;
mod counter;
mod delivery;
mod double_barrier;
mod election;
mod ephemeral;
mod error;
mod gapless_watch;
mod gate;
mod group;
mod latch;
mod leadership;
mod path;
mod persistent;
mod queue;
mod stale_participants;
mod tracked_change;
mod txn;
mod until_lost;

pub use barrier::Barrier;
pub use cache::{CacheChange, CachedNode, Image, MAX_CACHED_NODES, NodeCache, TreeCache};
pub use counter::Counter;
pub use delivery::Delivery;
pub use double_barrier::{DoubleBarrier, Entered};
pub use election::{Election, Leader, LeaderWatch};
pub use error::RecipeError;
pub use gate::{Begun, Done, Gate, GateTicket, InProgress, Once, OnceError};
pub use group::{Group, MemberChange, Members, Membership};
pub use latch::Latch;
pub use leadership::Leadership;
pub use persistent::{PersistentNode, PersistentState};
pub use queue::Queue;
pub use txn::{Committed, Transaction, TxnError};

use crate::session::Session;
use path::RecipePath;

impl Session {
    /// A number that everybody may change. See [`Counter`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn counter(&self, path: &str) -> Result<Counter, RecipeError> {
        Ok(Counter::new(self.clone(), RecipePath::parse(path)?))
    }

    /// A count that goes down to 0 once, and those who wait for it. See [`Latch`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or a count of 0.
    pub fn latch(&self, path: &str, count: u32) -> Result<Latch, RecipeError> {
        Latch::new(self.clone(), RecipePath::parse(path)?, count)
    }

    /// A gate across the way of many, opened by one. See [`Barrier`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn barrier(&self, path: &str) -> Result<Barrier, RecipeError> {
        Ok(Barrier::new(self.clone(), RecipePath::parse(path)?))
    }

    /// First in, first out, with take and acknowledge. See [`Queue`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn queue(&self, path: &str) -> Result<Queue, RecipeError> {
        Ok(Queue::new(self.clone(), RecipePath::parse(path)?))
    }

    /// N parties that meet on the way in and on the way out. See [`DoubleBarrier`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or a number of parties out of bounds.
    pub fn double_barrier(&self, path: &str, parties: u32) -> Result<DoubleBarrier, RecipeError> {
        DoubleBarrier::new(self.clone(), RecipePath::parse(path)?, parties)
    }

    /// Processes that see each other. See [`Group`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn group(&self, path: &str) -> Result<Group, RecipeError> {
        Ok(Group::new(self.clone(), RecipePath::parse(path)?))
    }

    /// One leader at a time. See [`Election`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`] if the name cannot be part of a path.
    pub fn election(&self, name: &str) -> Result<Election, RecipeError> {
        Election::new(self.clone(), name)
    }
}
