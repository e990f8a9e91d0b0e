//! Where a lost lock is noticed: grants that the server reported as over, for guards that wait for that, and for guards made after the report.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lockkeeper_api::stream::Held;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The word can come before the guard has been made of the answer; it is kept for so many of the latest.
const MAX_REMEMBERED: usize = 1_024;

#[derive(Debug, Default)]
struct LossState {
    last_listener: u64,
    /// By token.
    listeners: HashMap<u64, Vec<LossListener>>,
    reported: VecDeque<(u64, String)>,
}

#[derive(Debug)]
struct LossListener {
    id: u64,
    lock: String,
    tell: oneshot::Sender<String>,
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct LockLoss(Arc<Mutex<LossState>>);

/// Removes its listener when the guard stops to listen.
struct ListenerGuard {
    grants: LockLoss,
    token: u64,
    id: u64,
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        let mut inner = self.grants.0.lock();
        if let Some(listeners) = inner.listeners.get_mut(&self.token) {
            listeners.retain(|listener| listener.id != self.id);
            if listeners.is_empty() {
                inner.listeners.remove(&self.token);
            }
        }
    }
}

impl LockLoss {
    /// Completes with the reason when the grant is over. Listens from now on, not from the first poll.
    pub(crate) fn watch(&self, lock: &str, token: u64) -> impl Future<Output = String> + Send + use<> {
        let (tell, told) = oneshot::channel();
        let mut inner = self.0.lock();
        inner.last_listener += 1;
        let id = inner.last_listener;
        match inner.reported.iter().find(|(reported, _)| *reported == token) {
            // The receiver is right here.
            Some((_, because)) => drop(tell.send(because.clone())),
            None => inner.listeners.entry(token).or_default().push(LossListener { id, lock: lock.to_owned(), tell }),
        }
        drop(inner);
        let listening = ListenerGuard { grants: self.clone(), token, id };
        async move {
            let _listening = listening;
            match told.await {
                Ok(because) => because,
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// The grant is over.
    pub(crate) fn lost(&self, token: u64, because: &str) {
        let mut inner = self.0.lock();
        for listener in inner.listeners.remove(&token).unwrap_or_default() {
            // A guard that has just gone does not mind.
            let _ = listener.tell.send(because.to_owned());
        }
        if inner.reported.len() == MAX_REMEMBERED {
            inner.reported.pop_front();
        }
        inner.reported.push_back((token, because.to_owned()));
    }

    /// A node has said what the session holds, having seen all that was acknowledged before it was asked. What somebody listened for by
    /// then, and is not among that, is over.
    pub(super) fn compare(&self, watched_before: &[(String, u64)], held: &[Held], zxid: u64) {
        for (lock, token) in watched_before {
            if !held.iter().any(|held| held.token == *token && held.lock == *lock) {
                self.lost(*token, &format!("at zxid {zxid} the session no longer holds the lock '{lock}'"));
            }
        }
    }

    /// The grants that somebody listens for: lock and token.
    pub(super) fn watched(&self) -> Vec<(String, u64)> {
        let inner = self.0.lock();
        inner
            .listeners
            .iter()
            .flat_map(|(token, listeners)| listeners.iter().map(|listener| (listener.lock.clone(), *token)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn told_whether_it_was_said_before_or_after() {
        let grants = LockLoss::default();
        let mut early = Box::pin(grants.watch("a", 7));
        assert!((&mut early).now_or_never().is_none());
        grants.lost(7, "broken by force");
        assert_eq!(early.now_or_never().unwrap(), "broken by force");
        assert_eq!(grants.watch("a", 7).now_or_never().unwrap(), "broken by force");
        assert!(grants.watch("a", 8).now_or_never().is_none());
        assert!(grants.watched().is_empty(), "who stops to listen is forgotten");
    }

    #[test]
    fn what_a_node_does_not_name_is_over() {
        let grants = LockLoss::default();
        let (kept, gone) = (grants.watch("a", 7), grants.watch("b", 8));
        let watched = grants.watched();
        let after = grants.watch("c", 9);
        grants.compare(&watched, &[Held { lock: "a".into(), token: 7 }], 10);
        assert!(gone.now_or_never().is_some());
        assert!(kept.now_or_never().is_none() && after.now_or_never().is_none());
    }

    #[test]
    fn a_flood_of_losses_is_bounded() {
        let grants = LockLoss::default();
        for token in 0..3_000 {
            grants.lost(token, "");
        }
        assert_eq!(grants.0.lock().reported.len(), MAX_REMEMBERED);
    }
}
