//! The sessions of an engine whose lease is a session's timeout: one for each length of lease, shared by all its locks.
//!
//! Never opens a second session of a length while one can be used, and never more than [`MAX_SESSIONS`] at a time.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::EngineError;

/// Most lengths of lease that are in use at a time. A session costs its keepalives.
const MAX_SESSIONS: usize = 16;

type Slot<S> = tokio::sync::Mutex<Option<Arc<S>>>;

/// See the module's text. Locks and waiters hold an [`Arc`] of their session.
pub(crate) struct SessionPool<S>(Mutex<HashMap<Duration, Arc<Slot<S>>>>);

impl<S> Default for SessionPool<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> fmt::Debug for SessionPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionPool").field("lengths", &self.0.lock().len()).finish()
    }
}

impl<S> SessionPool<S> {
    /// The session whose timeout is `length`: the present one if it is usable, otherwise what `open` gives.
    pub(crate) async fn get(
        &self,
        length: Duration,
        usable: impl Fn(&S) -> bool,
        open: impl Future<Output = Result<S, EngineError>>,
    ) -> Result<Arc<S>, EngineError> {
        let slot = self.slot(length)?;
        let mut present = slot.lock().await;
        if let Some(session) = present.as_ref().filter(|session| usable(session)) {
            return Ok(session.clone());
        }
        *present = None;
        let session = Arc::new(open.await?);
        *present = Some(session.clone());
        Ok(session)
    }

    fn slot(&self, length: Duration) -> Result<Arc<Slot<S>>, EngineError> {
        let mut slots = self.0.lock();
        if let Some(slot) = slots.get(&length) {
            return Ok(slot.clone());
        }
        if slots.len() >= MAX_SESSIONS {
            slots.retain(|_, slot| is_in_use(slot));
        }
        if slots.len() >= MAX_SESSIONS {
            let why = format!("locks with {MAX_SESSIONS} different leases are in use; use the same lease for several");
            return Err(EngineError::Refused(why));
        }
        Ok(slots.entry(length).or_default().clone())
    }
}

fn is_in_use<S>(slot: &Arc<Slot<S>>) -> bool {
    match slot.try_lock() {
        Ok(session) => Arc::strong_count(slot) > 1 || session.as_ref().is_some_and(|one| Arc::strong_count(one) > 1),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sessions_are_shared_and_bounded() {
        let pool = SessionPool::<u32>::default();
        let length = |n: u64| Duration::from_secs(n);
        let first = pool.get(length(1), |_| true, async { Ok(1) }).await.unwrap();
        let again = pool.get(length(1), |_| true, async { Ok(2) }).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again), "one session for one length");
        assert_eq!(*pool.get(length(1), |_| false, async { Ok(3) }).await.unwrap(), 3, "an unusable one is replaced");
        let mut held = Vec::new();
        for n in 2..=16 {
            held.push(pool.get(length(n), |_| true, async { Ok(0) }).await.unwrap());
        }
        let current = pool.get(length(1), |_| true, async { Ok(0) }).await.unwrap();
        let refused = pool.get(length(17), |_| true, async { Ok(0) }).await.unwrap_err();
        assert!(matches!(refused, EngineError::Refused(_)), "{refused}");
        drop(current);
        pool.get(length(17), |_| true, async { Ok(0) }).await.unwrap();
        drop(held);
    }
}
