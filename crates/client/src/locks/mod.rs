//! Locks as guards: mutex, reentrant lock, read-write lock, semaphore, several locks at once.
//!
//! Every guard is built on a grant of the cluster, which is released exactly once, and on one way of waiting for it,
//! which may be cancelled anywhere. Nothing here may return a grant of a session that is lost, or leave a request or a
//! grant behind in a session that lives on.
//!
//! Every guard has a fencing token. A guard tells you that you may act; only the check of the token at the resource
//! makes it safe.

mod acquire;
mod cleanup;
mod grant;
mod guard;
mod handle;
mod local_queue;
mod lock_loss;
mod multi;
mod mutex;
mod owners;
mod reentrant;
mod request;
mod rwlock;
mod semaphore;
mod shared_queue;
mod spin;

pub use guard::{Guard, kind};
pub use local_queue::Sharing;
pub use multi::{MultiGuard, MultiLock};
pub use mutex::Lock;
pub use reentrant::{ReentrantGuard, ReentrantLock};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use spin::{Backoff, SpinLock};

use crate::session::Session;

impl Session {
    /// The lock of that name, such as `orders/42`.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self, name)
    }

    /// The lock of that name, which its owner may take again while holding it.
    pub fn reentrant(&self, name: impl Into<String>) -> ReentrantLock {
        ReentrantLock::new(self, name)
    }

    /// The read-write lock of that name.
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(self, name)
    }

    /// The semaphore of that name, with that number of permits (1 to 1,000).
    pub fn semaphore(&self, name: impl Into<String>, permits: u16) -> Semaphore {
        Semaphore::new(self, name, permits)
    }

    /// The locks of these names, held together (1 to 32). Order and repetition do not matter.
    pub fn multi_lock(&self, names: impl IntoIterator<Item = impl Into<String>>) -> MultiLock {
        MultiLock::new(self, names)
    }

    /// The lock of that name, acquired by repeated attempts instead of queueing.
    pub fn spin_lock(&self, name: impl Into<String>, backoff: Backoff) -> SpinLock {
        SpinLock::new(self, name, backoff)
    }
}
