//! Copies of the state as of a zxid, for callers that compare replicas.
//!
//! A copy is made right after the entry that reaches the zxid. Every replica applies the same entries, so all copies of
//! one zxid are of one state, however fast the state goes on.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_core::{State, Zxid};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Most callers that wait for a copy.
const MOST: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Copies {
    waiting: Mutex<Vec<(Zxid, oneshot::Sender<State>)>>,
    /// The lowest zxid that a caller waits for, so that an entry nobody waits for costs one read.
    lowest: AtomicU64,
}

impl Default for Copies {
    fn default() -> Self {
        Self { waiting: Mutex::default(), lowest: AtomicU64::new(u64::MAX) }
    }
}

impl Copies {
    /// Asks for a copy of the first state with at least this zxid; `None` if too many wait. The caller holds the
    /// state's lock and has seen that the state is not that far.
    pub(crate) fn request(&self, zxid: Zxid) -> Option<oneshot::Receiver<State>> {
        let mut waiting = self.waiting.lock();
        // Of callers that have given up.
        waiting.retain(|(_, copy)| !copy.is_closed());
        if waiting.len() >= MOST {
            return None;
        }
        let (copy, copied) = oneshot::channel();
        waiting.push((zxid, copy));
        self.set_lowest(&waiting);
        Some(copied)
    }

    /// Gives a copy to everyone who waits for this state. Called under the state's lock.
    pub(crate) fn give(&self, state: &State) {
        if state.zxid().0 < self.lowest.load(Ordering::Relaxed) {
            return;
        }
        let mut waiting = self.waiting.lock();
        let (due, later) = std::mem::take(&mut *waiting).into_iter().partition(|(zxid, _)| *zxid <= state.zxid());
        *waiting = later;
        self.set_lowest(&waiting);
        let due: Vec<(Zxid, oneshot::Sender<State>)> = due;
        for (_, copy) in due {
            // The caller may have given up.
            let _ = copy.send(state.clone());
        }
    }

    fn set_lowest(&self, waiting: &[(Zxid, oneshot::Sender<State>)]) {
        let lowest = waiting.iter().map(|(zxid, _)| zxid.0).min().unwrap_or(u64::MAX);
        self.lowest.store(lowest, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Batch, Command, NodeId, Origin, Term};

    use super::*;

    fn state_at(zxid: u64) -> State {
        let mut state = State::new();
        for sequence in 1..=zxid {
            let origin = Origin { node: NodeId(1), incarnation: 1, sequence };
            let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
            state.apply(Term(1), &Batch::consecutive(origin, 1, vec![open]));
        }
        state
    }

    #[test]
    fn a_copy_is_of_the_first_state_that_is_far_enough() {
        let copies = Copies::default();
        let (mut third, mut fifth) = (copies.request(Zxid(3)).unwrap(), copies.request(Zxid(5)).unwrap());
        copies.give(&state_at(2));
        assert!(third.try_recv().is_err());
        copies.give(&state_at(4));
        assert_eq!(third.try_recv().unwrap().zxid(), Zxid(4));
        assert!(fifth.try_recv().is_err());
        copies.give(&state_at(5));
        copies.give(&state_at(6));
        assert_eq!(fifth.try_recv().unwrap().zxid(), Zxid(5));
    }

    #[test]
    fn who_gives_up_takes_no_place() {
        let copies = Copies::default();
        let waiting: Vec<_> = (0..MOST).map(|_| copies.request(Zxid(9)).unwrap()).collect();
        assert!(copies.request(Zxid(9)).is_none());
        drop(waiting);
        assert!(copies.request(Zxid(9)).is_some());
    }
}
