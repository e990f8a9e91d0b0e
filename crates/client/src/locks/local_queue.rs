//! The rules of in-process sharing: which waiter of this process has the lock next, and when the grant must be
//! released. Knows no cluster, no clock and no tasks; the time is an argument.
//!
//! One grant of the cluster serves several waiters of this process one after the other; each service is a *turn*. Two
//! turns must never overlap, no waiter may be left without a task that asks the cluster for it, and a grant must not
//! be passed on that is lost, or that was passed on often or long enough.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_mutants::invariant;

use crate::clock::Moment;

/// How long one process may pass a lock among its waiters while other processes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// How often a grant of the cluster is passed on at most; 0 never passes it on.
    pub max_passes: u32,
    /// A grant that is older than this is not passed on.
    pub max_time: Duration,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { max_passes: 64, max_time: Duration::from_millis(100) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No waiter.
    Idle,
    /// A task asks the cluster.
    Asking,
    /// A turn is under way, or the grant is being released.
    Held { since: Moment, passes: u32 },
}

/// See the module's text. `W` is the handle of a waiter.
#[derive(Debug)]
pub(super) struct LocalQueue<W> {
    sharing: Sharing,
    stage: Stage,
    /// Numbers the grants, so that a turn of an earlier grant has no effect.
    grant: u64,
    last_waiter: u64,
    waiters: VecDeque<(u64, W)>,
}

/// What follows the end of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterTurn<W> {
    /// This waiter has the next turn.
    Pass(W),
    /// Release the grant to the cluster, then call [`LocalQueue::over`].
    Release,
    /// Nothing: the grant of that turn is already over.
    GrantOver,
}

impl<W> LocalQueue<W> {
    pub(super) fn new(sharing: Sharing) -> Self {
        Self { sharing, stage: Stage::Idle, grant: 0, last_waiter: 0, waiters: VecDeque::new() }
    }

    /// Adds a waiter. Returns its number, and whether a task must start to ask the cluster.
    pub(super) fn join(&mut self, waiter: W) -> (u64, bool) {
        self.last_waiter += 1;
        self.waiters.push_back((self.last_waiter, waiter));
        let begin = self.stage == Stage::Idle;
        if begin {
            self.stage = Stage::Asking;
        }
        (self.last_waiter, begin)
    }

    /// As [`join`](Self::join), for a waiter that does not want to wait for others in this process.
    pub(super) fn join_if_idle(&mut self, waiter: impl FnOnce() -> W) -> Option<u64> {
        (self.stage == Stage::Idle).then(|| self.join(waiter()).0)
    }

    /// Removes a waiter. Returns it unless its turn has come, and whether the cluster is now asked for no waiter.
    pub(super) fn leave(&mut self, number: u64) -> (Option<W>, bool) {
        let Some(at) = self.waiters.iter().position(|(waiter, _)| *waiter == number) else { return (None, false) };
        let gone = self.waiters.remove(at).map(|(_, waiter)| waiter);
        (gone, self.waiters.is_empty() && self.stage == Stage::Asking)
    }

    /// Stops asking if there is no waiter any more.
    pub(super) fn stop_asking(&mut self) -> bool {
        let stops = self.waiters.is_empty() && self.stage == Stage::Asking;
        if stops {
            self.stage = Stage::Idle;
        }
        stops
    }

    /// The cluster has granted the lock. Returns the number of the grant and the first waiter. Without a waiter,
    /// release the grant, then call [`over`](Self::over).
    pub(super) fn granted(&mut self, now: Moment) -> (u64, Option<W>) {
        invariant!(self.stage == Stage::Asking, "a grant comes only where it was asked for, and none is held");
        self.grant += 1;
        self.stage = Stage::Held { since: now, passes: 0 };
        (self.grant, self.waiters.pop_front().map(|(_, waiter)| waiter))
    }

    /// A turn has ended.
    pub(super) fn turn_ended(&mut self, grant: u64, now: Moment, lost: bool) -> AfterTurn<W> {
        let Stage::Held { since, passes } = &mut self.stage else { return AfterTurn::GrantOver };
        if grant != self.grant {
            return AfterTurn::GrantOver;
        }
        let may_pass = !lost && *passes < self.sharing.max_passes && now < *since + self.sharing.max_time;
        match self.waiters.pop_front() {
            Some((_, waiter)) if may_pass => {
                *passes += 1;
                AfterTurn::Pass(waiter)
            }
            Some(stays) => {
                self.waiters.push_front(stays);
                AfterTurn::Release
            }
            None => AfterTurn::Release,
        }
    }

    /// The grant was released or lost. Returns whether to ask again, for the waiters that remain.
    pub(super) fn over(&mut self) -> bool {
        self.stage = if self.waiters.is_empty() { Stage::Idle } else { Stage::Asking };
        self.stage == Stage::Asking
    }

    /// The request to the cluster failed. Returns all waiters, which are to get the error.
    pub(super) fn failed(&mut self) -> Vec<W> {
        self.stage = Stage::Idle;
        self.waiters.drain(..).map(|(_, waiter)| waiter).collect()
    }
}

#[cfg(test)]
#[path = "local_queue_tests.rs"]
mod tests;
