//! When a follower learns that entries are committed.
//!
//! Each append carries the leader's commit index. Without entries to send, openraft sends a *commit notice*: an append
//! without entries, which the follower answers. A lone client would cause one for each entry and follower, a moment
//! before the next entry carries the same index. So a notice is held back until there are entries to send, for
//! [`LONGEST_HOLD`] at most. It goes at once to a follower where somebody waits for it ([`Waits`]).
//!
//! Holding back is safe. Raft lets a commit index be late by any time. And nothing that openraft made is kept here:
//! openraft is not asked for the append, so its queue of appends in flight has none that was not sent, and an answer
//! never confirms one (see [`super::append_pipeline`]). What a notice says comes from openraft alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::raft::log::log_store::LogStore;

/// How long a notice is held back at most. The entries of a lone client follow each other in about a millisecond.
const LONGEST_HOLD: Duration = Duration::from_millis(5);

/// What somebody at a follower waits for, as far as this node knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// Its proposals under way at this node: their outcome comes from its own replica.
    proposals: usize,
    /// A call of it that this node answered may wait there until this index is applied.
    index: u64,
    /// It has requests that wait or watches, which any entry may concern. So counts a follower that has not said.
    observes: bool,
}

impl Waits {
    /// Whether a follower waits for a commit, if it was told of all up to `told`.
    fn are_for_more_than(&self, told: u64) -> bool {
        self.proposals > 0 || self.observes || self.index > told
    }
}

/// The [`Waits`] of each follower. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct CommitWaits(Arc<Mutex<BTreeMap<u64, watch::Sender<Waits>>>>);

impl CommitWaits {
    fn of(&self, follower: u64) -> watch::Sender<Waits> {
        let new = || watch::Sender::new(Waits { proposals: 0, index: 0, observes: true });
        self.0.lock().entry(follower).or_insert_with(new).clone()
    }

    /// A proposal of this follower is under way until the guard is dropped.
    pub(crate) fn begin_proposal(&self, follower: u64) -> ProposalGuard {
        let waits = self.of(follower);
        waits.send_if_modified(|waits| {
            waits.proposals += 1;
            waits.proposals == 1
        });
        ProposalGuard(waits)
    }

    /// A call of this follower is answered, and may wait there until this index, which is committed, is applied.
    pub(crate) fn await_index(&self, follower: u64, index: u64) {
        self.of(follower).send_if_modified(|waits| {
            let is_later = index > waits.index;
            waits.index = waits.index.max(index);
            is_later
        });
    }

    /// This follower says whether it has requests that wait or watches.
    pub(crate) fn set_observes(&self, follower: u64, observes: bool) {
        self.of(follower).send_if_modified(|waits| std::mem::replace(&mut waits.observes, observes) != observes);
    }
}

/// See [`CommitWaits::begin_proposal`].
pub(crate) struct ProposalGuard(watch::Sender<Waits>);

impl Drop for ProposalGuard {
    fn drop(&mut self) {
        // Nobody waits for the end of a wait.
        self.0.send_if_modified(|waits| {
            waits.proposals -= 1;
            false
        });
    }
}

/// The longest time that a notice is held back, from its call on.
type Pause = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// What decides about the notices of this node. Clones share it.
#[derive(Clone)]
pub(crate) struct CommitNotices {
    /// The last index that is committed, as this node knows; never ahead of what openraft tells for long.
    committed: Arc<AtomicU64>,
    /// The last index of the log.
    appended: watch::Receiver<u64>,
    pub(crate) waits: CommitWaits,
    pause: Pause,
}

impl CommitNotices {
    /// Of the node with this log.
    pub(crate) fn of(log: &LogStore) -> CommitNotices {
        let pause = Arc::new(|| tokio::time::sleep(LONGEST_HOLD).boxed());
        CommitNotices { committed: log.committed(), appended: log.appended(), waits: CommitWaits::default(), pause }
    }

    /// For a new stream of appends to this follower.
    pub(crate) fn to(&self, follower: u64) -> FollowerNotices {
        let waits = self.waits.of(follower).subscribe();
        FollowerNotices { all: self.clone(), waits, told: 0, held: None, was_held: false }
    }
}

/// The notices in one stream of appends.
pub(crate) struct FollowerNotices {
    all: CommitNotices,
    waits: watch::Receiver<Waits>,
    /// The commit index of the last append; or a later one of which openraft does not tell yet.
    told: u64,
    /// Completes when the notice that is held back is due.
    held: Option<BoxFuture<'static, ()>>,
    /// A notice was held back since the last append.
    was_held: bool,
}

impl FollowerNotices {
    /// The commit index, before openraft is asked for an append.
    pub(crate) fn committed(&self) -> u64 {
        self.all.committed.load(Ordering::Acquire)
    }

    /// Whether the next append after the entry `sent` would be a notice that has to wait. If so, the task is woken when
    /// that may have changed.
    pub(crate) fn hold_next(&mut self, sent: u64, context: &mut Context<'_>) -> bool {
        if self.committed() <= self.told {
            self.held = None;
            return false;
        }
        if self.held.is_none() {
            self.held = self.hold(sent);
            self.was_held |= self.held.is_some();
        }
        let is_held = self.held.as_mut().is_some_and(|held| held.poll_unpin(context).is_pending());
        if !is_held {
            self.held = None;
        }
        is_held
    }

    /// Completes when entries follow the one that was sent, somebody at the follower waits, or the time is over; `None`
    /// if that is so now.
    fn hold(&self, sent: u64) -> Option<BoxFuture<'static, ()>> {
        let told = self.told;
        let has_entries = move |last: &u64| *last > sent;
        let is_awaited = move |waits: &Waits| waits.are_for_more_than(told);
        if has_entries(&self.all.appended.borrow()) || is_awaited(&self.waits.borrow()) {
            return None;
        }
        let (mut appended, mut waits, pause) = (self.all.appended.clone(), self.waits.clone(), (self.all.pause)());
        let due = async move {
            tokio::select! {
                biased;
                () = appended.wait_for(has_entries).map(drop) => {}
                () = waits.wait_for(is_awaited).map(drop) => {}
                () = pause => {}
            }
        };
        Some(due.boxed())
    }

    /// openraft had no append, when this was the commit index.
    pub(crate) fn nothing_to_send(&mut self, committed: u64) {
        self.told = self.told.max(committed);
    }

    /// An append with this commit index is sent.
    pub(crate) fn sent(&mut self, commit: u64, has_entries: bool) {
        let was_held = std::mem::take(&mut self.was_held);
        self.held = None;
        if commit <= self.told {
            return;
        }
        self.told = commit;
        if !has_entries {
            metrics::counter!("lockkeeper_commit_notices_total", "sent" => "alone").increment(1);
        } else if was_held {
            metrics::counter!("lockkeeper_commit_notices_total", "sent" => "with_entries").increment(1);
        }
    }
}

#[cfg(test)]
#[path = "commit_notices_tests.rs"]
pub(crate) mod tests;
