//! The waiters of this process by the locks that they wait for: a release wakes one of them, not all.
//!
//! Only a hint: a waiter that nobody wakes looks by itself after a while.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

type Queues = HashMap<String, VecDeque<Arc<Notify>>>;

#[derive(Debug, Default)]
pub(crate) struct Wakeups(Arc<Mutex<Queues>>);

/// One waiter; no longer registered when dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    queues: Arc<Mutex<Queues>>,
    locks: Vec<String>,
    notify: Arc<Notify>,
}

impl Wakeups {
    pub(crate) fn register(&self, locks: &[String]) -> Waiter {
        let notify = Arc::new(Notify::new());
        let mut queues = self.0.lock();
        for lock in locks {
            queues.entry(lock.clone()).or_default().push_back(notify.clone());
        }
        Waiter { queues: self.0.clone(), locks: locks.to_vec(), notify }
    }

    /// Wakes the oldest waiter of the lock.
    pub(crate) fn wake(&self, lock: &str) {
        if let Some(oldest) = self.0.lock().get(lock).and_then(VecDeque::front) {
            oldest.notify_one();
        }
    }
}

impl Waiter {
    /// Completes when one of the locks may be free, also if that was between two calls.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        for lock in &self.locks {
            let Some(queue) = queues.get_mut(lock) else { continue };
            queue.retain(|waiting| !Arc::ptr_eq(waiting, &self.notify));
            match queue.front() {
                None => drop(queues.remove(lock)),
                // It may have been woken and cancelled, and the lock may still be free.
                Some(next) => next.notify_one(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn one_waiter_is_woken_and_passes_it_on() {
        let wakeups = Wakeups::default();
        let locks = ["a".to_owned(), "b".to_owned()];
        let first = wakeups.register(&locks);
        let second = wakeups.register(&locks[1..]);
        wakeups.wake("a");
        first.woken().await;
        wakeups.wake("b");
        tokio::select! {
            biased;
            () = second.woken() => panic!("the older one was woken"),
            () = ready(()) => {}
        }
        drop(first);
        second.woken().await;
        drop(second);
        assert!(wakeups.0.lock().is_empty());
        wakeups.wake("b");
    }
}
