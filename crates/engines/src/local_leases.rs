//! Ends leases that nobody renews any more, for engines whose session or connection lives on.
//!
//! Such an engine would hold a lock for as long as its process lives, even if the holder has forgotten its lease. Here
//! each grant has a deadline of its own. What is in the table is dropped at the deadline, and the drop of a grant must
//! release it. Never keeps a grant past its deadline.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_client::Moment;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::error::EngineError;

/// The clock is read at least this often: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// The grants of an engine by the owners of their leases.
pub(crate) struct LocalLeases<G>(Arc<Mutex<HashMap<Uuid, Entry<G>>>>);

struct Entry<G> {
    grant: G,
    length: Duration,
    ends_at: Moment,
    expiry: AbortOnDrop,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<G> Default for LocalLeases<G> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<G> fmt::Debug for LocalLeases<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLeases").field("held", &self.0.lock().len()).finish_non_exhaustive()
    }
}

impl<G: Send + 'static> LocalLeases<G> {
    /// Keeps a grant for `length`. Returns the end of the lease. Must be called on a runtime.
    pub(crate) fn insert(&self, owner: Uuid, grant: G, length: Duration) -> Moment {
        let ends_at = Moment::now() + length;
        let mut held = self.0.lock();
        let expiry = AbortOnDrop(tokio::spawn(expire(Arc::downgrade(&self.0), owner)).abort_handle());
        held.insert(owner, Entry { grant, length, ends_at, expiry });
        ends_at
    }

    /// Renews a lease for its full length, and returns its new end.
    pub(crate) fn renew(&self, owner: Uuid) -> Result<Moment, EngineError> {
        let mut held = self.0.lock();
        let entry = held.get_mut(&owner).filter(|entry| entry.ends_at > Moment::now()).ok_or_else(over)?;
        entry.ends_at = Moment::now() + entry.length;
        Ok(entry.ends_at)
    }

    /// The result of `look` at the grant.
    pub(crate) fn with<T>(&self, owner: Uuid, look: impl FnOnce(&G) -> T) -> Result<T, EngineError> {
        let held = self.0.lock();
        let entry = held.get(&owner).filter(|entry| entry.ends_at > Moment::now()).ok_or_else(over)?;
        Ok(look(&entry.grant))
    }

    /// Removes a grant for its release.
    pub(crate) fn take(&self, owner: Uuid) -> Result<G, EngineError> {
        let entry = self.0.lock().remove(&owner).ok_or_else(over)?;
        drop(entry.expiry);
        Ok(entry.grant)
    }
}

fn over() -> EngineError {
    EngineError::Lost("its lease was released, or has ended without a renewal".into())
}

async fn expire<G>(leases: Weak<Mutex<HashMap<Uuid, Entry<G>>>>, owner: Uuid) {
    loop {
        let left = {
            let Some(leases) = leases.upgrade() else { return };
            let held = leases.lock();
            let Some(entry) = held.get(&owner) else { return };
            Moment::now().until(entry.ends_at)
        };
        if left.is_zero() {
            let expired = leases.upgrade().and_then(|leases| {
                let mut held = leases.lock();
                // It may have been renewed just now.
                let over = held.get(&owner).is_some_and(|entry| entry.ends_at <= Moment::now());
                if over { held.remove(&owner) } else { None }
            });
            // Outside of the lock: the drop of a grant may do anything.
            if let Some(entry) = expired {
                tracing::debug!(%owner, length = ?entry.length, "lease ended without a renewal");
                return;
            }
        }
        sleep(left.min(LONGEST_NAP)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Tells when it is dropped.
    struct Told(Option<oneshot::Sender<()>>);

    impl Drop for Told {
        fn drop(&mut self) {
            if let Some(sender) = self.0.take() {
                let _ = sender.send(());
            }
        }
    }

    fn grant() -> (Told, oneshot::Receiver<()>) {
        let (sender, dropped) = oneshot::channel();
        (Told(Some(sender)), dropped)
    }

    #[tokio::test]
    async fn a_lease_that_nobody_renews_ends_and_one_that_is_renewed_does_not() {
        let leases = LocalLeases::default();
        let (short, long) = (Uuid::new_v4(), Uuid::new_v4());
        let (first, first_dropped) = grant();
        let (second, mut second_dropped) = grant();
        leases.insert(short, first, Duration::from_millis(20));
        let end = leases.insert(long, second, Duration::from_secs(60));
        first_dropped.await.unwrap();
        assert!(matches!(leases.renew(short), Err(EngineError::Lost(_))));
        assert!(leases.renew(long).unwrap() >= end);
        assert!(second_dropped.try_recv().is_err());
        drop(leases.take(long).unwrap());
        second_dropped.await.unwrap();
        assert!(leases.take(long).is_err() && leases.with(long, |_| ()).is_err());
    }

    #[tokio::test]
    async fn the_end_of_the_engine_drops_its_grants() {
        let leases = LocalLeases::default();
        let (held, dropped) = grant();
        leases.insert(Uuid::new_v4(), held, Duration::from_secs(60));
        drop(leases);
        dropped.await.unwrap();
    }
}
