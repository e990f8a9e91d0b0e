//! Where a report of a lost lock arrives: it goes to the guards that watch the grant, and is kept for a guard that is
//! made after the report.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lockkeeper_api::stream::Held;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How many of the latest reports are kept: a report can come before the answer has become a guard.
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
    sender: oneshot::Sender<String>,
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossReports(Arc<Mutex<LossState>>);

/// Removes its listener when the guard stops watching.
struct ListenerGuard {
    grants: LossReports,
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

impl LossReports {
    /// Completes, with the reason, when the grant is lost. Watches from now on, not from the first poll.
    pub(crate) fn watch(&self, lock: &str, token: u64) -> impl Future<Output = String> + Send + use<> {
        let (sender, reason) = oneshot::channel();
        let mut inner = self.0.lock();
        inner.last_listener += 1;
        let id = inner.last_listener;
        match inner.reported.iter().find(|(reported, _)| *reported == token) {
            // The receiver is alive: it is below.
            Some((_, because)) => drop(sender.send(because.clone())),
            None => inner.listeners.entry(token).or_default().push(LossListener { id, lock: lock.to_owned(), sender }),
        }
        drop(inner);
        let listening = ListenerGuard { grants: self.clone(), token, id };
        async move {
            let _listening = listening;
            match reason.await {
                Ok(because) => because,
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Reports that the grant is lost.
    pub(crate) fn lost(&self, token: u64, because: &str) {
        let mut inner = self.0.lock();
        for listener in inner.listeners.remove(&token).unwrap_or_default() {
            // The guard may just have gone.
            let _ = listener.sender.send(because.to_owned());
        }
        if inner.reported.len() == MAX_REMEMBERED {
            inner.reported.pop_front();
        }
        inner.reported.push_back((token, because.to_owned()));
    }

    /// A node has listed the grants of the session, as of a time after every grant that was acknowledged before it was
    /// asked. A grant that was watched by then and is not listed is lost.
    pub(super) fn compare(&self, watched_before: &[(String, u64)], held: &[Held], zxid: u64) {
        for (lock, token) in watched_before {
            if !held.iter().any(|held| held.token == *token && held.lock == *lock) {
                self.lost(*token, &format!("at zxid {zxid} the session no longer holds the lock '{lock}'"));
            }
        }
    }

    /// The watched grants: lock and token.
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
        let grants = LossReports::default();
        let mut early = Box::pin(grants.watch("a", 7));
        assert!((&mut early).now_or_never().is_none());
        grants.lost(7, "broken by force");
        assert_eq!(early.now_or_never().unwrap(), "broken by force");
        assert_eq!(grants.watch("a", 7).now_or_never().unwrap(), "broken by force");
        assert!(grants.watch("a", 8).now_or_never().is_none());
        assert!(grants.watched().is_empty(), "a listener that has gone is forgotten");
    }

    #[test]
    fn what_a_node_does_not_name_is_over() {
        let grants = LossReports::default();
        let (kept, gone) = (grants.watch("a", 7), grants.watch("b", 8));
        let watched = grants.watched();
        let after = grants.watch("c", 9);
        grants.compare(&watched, &[Held { lock: "a".into(), token: 7 }], 10);
        assert!(gone.now_or_never().is_some());
        assert!(kept.now_or_never().is_none() && after.now_or_never().is_none());
    }

    #[test]
    fn a_flood_of_losses_is_bounded() {
        let grants = LossReports::default();
        for token in 0..3_000 {
            grants.lost(token, "");
        }
        assert_eq!(grants.0.lock().reported.len(), MAX_REMEMBERED);
    }
}
