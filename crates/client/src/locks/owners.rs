//! The owners of reentrant locks in this process: which owner already holds which lock. Knows nothing of the cluster.
//!
//! A hold is counted by its references: this table keeps a weak one, each guard a strong one. The drop of the last
//! guard cannot race with the next one: either the weak reference still leads to the hold, and the hold lives on, or
//! it does not, and the owner asks the cluster again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use parking_lot::Mutex;

/// The owner of a reentrant lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// An owner that the caller named.
    Named(Arc<str>),
    /// A tokio task.
    Task(tokio::task::Id),
    /// A thread, for code outside of tasks: a future given to `block_on` stays on its thread.
    Thread(ThreadId),
}

impl Owner {
    pub(super) fn current() -> Self {
        tokio::task::try_id().map_or_else(|| Self::Thread(std::thread::current().id()), Self::Task)
    }
}

/// An owner's hold of a lock. Locked while the owner asks the cluster, so that it sends one request at a time.
pub(super) type Slot<G> = tokio::sync::Mutex<Weak<G>>;

#[derive(Debug)]
struct Slots<G> {
    by_owner: HashMap<(String, Owner), Arc<Slot<G>>>,
    /// Unused slots are removed when there are this many slots.
    clear_at: usize,
}

const FEWEST_BEFORE_CLEARING: usize = 16;

/// See the module's text.
pub(super) struct Owners<G>(Mutex<Slots<G>>);

impl<G> Default for Owners<G> {
    fn default() -> Self {
        Self(Mutex::new(Slots { by_owner: HashMap::new(), clear_at: FEWEST_BEFORE_CLEARING }))
    }
}

impl<G> fmt::Debug for Owners<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owners").field("slots", &self.0.lock().by_owner.len()).finish()
    }
}

impl<G> Owners<G> {
    /// The slot of that owner and lock.
    pub(super) fn slot(&self, lock: &str, owner: &Owner) -> Arc<Slot<G>> {
        let mut slots = self.0.lock();
        if slots.by_owner.len() >= slots.clear_at {
            slots.by_owner.retain(|_, slot| is_used(slot));
            slots.clear_at = (slots.by_owner.len() * 2).max(FEWEST_BEFORE_CLEARING);
        }
        slots.by_owner.entry((lock.to_owned(), owner.clone())).or_default().clone()
    }
}

fn is_used<G>(slot: &Arc<Slot<G>>) -> bool {
    // A caller that has the slot may be about to fill it.
    Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |hold| hold.strong_count() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Owner {
        Owner::Named(name.into())
    }

    #[test]
    fn a_hold_is_found_by_its_owner_until_the_last_share_goes() {
        let owners = Owners::<u64>::default();
        assert!(owners.slot("a", &named("me")).try_lock().unwrap().upgrade().is_none());
        let hold = Arc::new(7);
        *owners.slot("a", &named("me")).try_lock().unwrap() = Arc::downgrade(&hold);
        let again = owners.slot("a", &named("me")).try_lock().unwrap().upgrade().unwrap();
        assert_eq!((*again, Arc::strong_count(&hold)), (7, 2));
        assert!(owners.slot("a", &named("you")).try_lock().unwrap().upgrade().is_none(), "another owner");
        assert!(owners.slot("b", &named("me")).try_lock().unwrap().upgrade().is_none(), "another lock");
        drop(hold);
        assert!(owners.slot("a", &named("me")).try_lock().unwrap().upgrade().is_some());
        assert_eq!(Arc::into_inner(again), Some(7), "the last share gives back");
        assert!(owners.slot("a", &named("me")).try_lock().unwrap().upgrade().is_none());
    }

    #[test]
    fn what_is_not_used_is_cleared_away_and_nothing_else() {
        let owners = Owners::<u64>::default();
        let hold = Arc::new(7);
        *owners.slot("kept", &named("me")).try_lock().unwrap() = Arc::downgrade(&hold);
        let asking = owners.slot("asking", &named("me"));
        for n in 0..1_000 {
            owners.slot("a", &named(&n.to_string()));
        }
        assert!(owners.0.lock().by_owner.len() <= 2 * FEWEST_BEFORE_CLEARING);
        assert!(Arc::ptr_eq(&asking, &owners.slot("asking", &named("me"))));
        assert!(owners.slot("kept", &named("me")).try_lock().unwrap().upgrade().is_some());
    }

    #[tokio::test]
    async fn tasks_are_told_apart() {
        let one = tokio::spawn(async { (Owner::current(), Owner::current()) });
        let other = tokio::spawn(async { Owner::current() });
        let ((a, b), c) = (one.await.unwrap(), other.await.unwrap());
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert!(matches!(Owner::current(), Owner::Thread(_)));
    }
}
