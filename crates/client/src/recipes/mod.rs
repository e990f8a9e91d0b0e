//! The recipes known from Curator, Redisson and etcd's `concurrency` package, built on sessions, nodes, transactions
//! and watches.
//!
//! Each recipe is a handle that costs nothing to make: [`Session::counter`], [`Session::queue`] and so on only check
//! the path. All recipes follow four rules:
//!
//! - **Read, then watch, without a gap.** A wait reads, and watches from the zxid of that read.
//! - **Cancellation.** A future may be dropped at any time. The caller's place in a queue, its claim or its membership
//!   is removed in the background; a change that was under way (an addition, an item put) may take effect or not.
//! - **Loss.** When the session is lost, waits end in [`Error::Lost`](crate::Error::Lost), and all that the session
//!   owned is gone.
//! - **Unknown outcomes are reported.** A change whose outcome is unknown ends in
//!   [`Error::UnknownOutcome`](crate::Error::UnknownOutcome); it is never repeated under another request id.
//!
//! A recipe must never poll, never wake all waiters where one would do (its documentation says which it wakes), and
//! never delete a node that it did not create.

mod barrier;
mod bounded_counter;
mod cache;
mod cache_sync;
mod cas;
mod counter;
mod delivery;
mod double_barrier;
mod election;
mod ephemeral;
mod error;
mod fingerprint;
mod gapless_watch;
mod gate;
mod group;
mod latch;
mod leadership;
mod path;
mod persistent;
mod queue;
mod rate_limit;
mod schedule;
mod stale_participants;
mod txn;
mod until_lost;

pub use barrier::Barrier;
pub use bounded_counter::BoundedCounter;
pub use cache::{CacheChange, CachedNode, Image, MAX_CACHED_NODES, NodeCache, TreeCache};
pub use counter::Counter;
pub use delivery::Delivery;
pub use double_barrier::{DoubleBarrier, Entered};
pub use election::{Election, Leader, LeaderWatch};
pub use error::RecipeError;
pub use fingerprint::{Fingerprint, FingerprintError};
pub use gate::{
    Begun, Done, Gate, GateTicket, IfUnreachable, InProgress, Keep, LONGEST_KEEP, Once, OnceError, UNPROTECTED,
};
pub use group::{Group, MemberChange, Members, Membership};
pub use latch::Latch;
pub use leadership::Leadership;
pub use persistent::{PersistentNode, PersistentState};
pub use queue::Queue;
pub use rate_limit::RateLimit;
pub use schedule::{
    EndedTick, Missed, OpenTick, Overlap, Schedule, ScheduleDefinition, ScheduleSpec, ScheduleState, Tick, TickOutcome,
    TickRun, TickTurn, TickWorker,
};
pub use txn::{Committed, Transaction, TxnError};

use crate::session::Session;
use path::RecipePath;

impl Session {
    /// A number that many processes change. See [`Counter`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn counter(&self, path: &str) -> Result<Counter, RecipeError> {
        Ok(Counter::new(self.clone(), RecipePath::parse(path)?))
    }

    /// A number that many processes change within a range. See [`BoundedCounter`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or an empty range.
    pub fn bounded_counter(
        &self,
        path: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<BoundedCounter, RecipeError> {
        BoundedCounter::new(self.clone(), RecipePath::parse(path)?, range)
    }

    /// A count that goes down to 0 once, and processes that wait for 0. See [`Latch`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or a count of 0.
    pub fn latch(&self, path: &str, count: u32) -> Result<Latch, RecipeError> {
        Latch::new(self.clone(), RecipePath::parse(path)?, count)
    }

    /// A barrier that holds up many processes until one removes it. See [`Barrier`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn barrier(&self, path: &str) -> Result<Barrier, RecipeError> {
        Ok(Barrier::new(self.clone(), RecipePath::parse(path)?))
    }

    /// A first-in, first-out queue with acknowledgements. See [`Queue`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`].
    pub fn queue(&self, path: &str) -> Result<Queue, RecipeError> {
        Ok(Queue::new(self.clone(), RecipePath::parse(path)?))
    }

    /// N parties that wait for each other on the way in and on the way out. See [`DoubleBarrier`].
    ///
    /// # Errors
    /// [`RecipeError::BadPath`], or a number of parties out of bounds.
    pub fn double_barrier(&self, path: &str, parties: u32) -> Result<DoubleBarrier, RecipeError> {
        DoubleBarrier::new(self.clone(), RecipePath::parse(path)?, parties)
    }

    /// Processes that see which others are running. See [`Group`].
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
