//! Locks as guards: mutex, reentrant lock, read-write lock, semaphore, several locks at once.
//!
//! All stand on one grant of the cluster, which is given back exactly once, and on one way of waiting for it, which
//! may be broken off anywhere. Nothing here may give out a grant of a session that is lost, or leave a request or a grant
//! behind in a session that lives on.
//!
//! Every guard has a fencing token. Holding a guard is a good reason to act; that the resource checks the token is what makes
//! acting safe.

mod grant;
mod guard;
mod mutex;
mod registry;
mod request;
mod settle;
mod wait;

pub use guard::{Guard, kind};
pub use mutex::Lock;
pub(crate) use registry::Registry;

use crate::session::Session;

/// The options that every handle has.
macro_rules! asking_options {
    ($request:ident) => {
        /// Who asks, for people who look at the queue.
        #[must_use]
        pub fn label(mut self, label: impl Into<String>) -> Self {
            self.$request.label = label.into();
            self
        }

        /// Should the session *expire* while it holds, nobody is granted the lock for so long (Chubby's lock-delay): time for
        /// what the holder had sent to arrive. A release and a closed session have no delay. At most 10 minutes.
        #[must_use]
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            self.$request.delayed_by(delay);
            self
        }
    };
}
use asking_options;

impl Session {
    /// The lock of that name, such as `orders/42`.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self, name)
    }
}
