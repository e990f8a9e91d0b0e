//! Who of a process's waiters has the lock next, and when it is the turn of others: the rules of sharing. Knows no cluster, no clock
//! and no tasks; time is handed in.
//!
//! One grant of the cluster serves several waiters of this process one after the other, each a *turn*. It must never let two turns
//! overlap, never leave a waiter behind with nobody asking for it, and never pass a grant on that is lost or that has been passed on
//! often or long enough.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// How long the waiters of one process may keep a lock among themselves, while other processes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// A grant of the cluster is passed on so often at most; 0 never passes it on.
    pub max_passes: u32,
    /// A grant is not passed on any more when it is older than this.
    pub max_time: Duration,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { max_passes: 64, max_time: Duration::from_millis(100) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody wants it.
    Idle,
    /// The cluster is being asked.
    Asking,
    /// A turn is under way, or the grant is being given back.
    Held { since: Moment, passes: u32 },
}

/// See the module's text. `W` is how to reach a waiter.
#[derive(Debug)]
pub(super) struct LocalQueue<W> {
    sharing: Sharing,
    stage: Stage,
    /// Counts the grants, so that a turn of an earlier one has no say.
    grant: u64,
    last_waiter: u64,
    waiters: VecDeque<(u64, W)>,
}

/// What to do when a turn has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterTurn<W> {
    /// The next turn is this waiter's.
    Pass(W),
    /// Release the grant to the cluster, then call [`LocalQueue::over`].
    Release,
    /// The grant of that turn is over already.
    GrantOver,
}

impl<W> LocalQueue<W> {
    pub(super) fn new(sharing: Sharing) -> Self {
        Self { sharing, stage: Stage::Idle, grant: 0, last_waiter: 0, waiters: VecDeque::new() }
    }

    /// A waiter comes; its number, and whether somebody must begin to ask the cluster.
    pub(super) fn join(&mut self, waiter: W) -> (u64, bool) {
        self.last_waiter += 1;
        self.waiters.push_back((self.last_waiter, waiter));
        let begin = self.stage == Stage::Idle;
        if begin {
            self.stage = Stage::Asking;
        }
        (self.last_waiter, begin)
    }

    /// As [`join`](Self::join), for one who does not want to wait for anybody here.
    pub(super) fn join_if_idle(&mut self, waiter: impl FnOnce() -> W) -> Option<u64> {
        (self.stage == Stage::Idle).then(|| self.join(waiter()).0)
    }

    /// A waiter goes; gives it back unless its turn has come, and tells whether the cluster is now asked for nobody.
    pub(super) fn leave(&mut self, number: u64) -> (Option<W>, bool) {
        let Some(at) = self.waiters.iter().position(|(waiter, _)| *waiter == number) else { return (None, false) };
        let gone = self.waiters.remove(at).map(|(_, waiter)| waiter);
        (gone, self.waiters.is_empty() && self.stage == Stage::Asking)
    }

    /// Stops asking if nobody waits any more.
    pub(super) fn stop_asking(&mut self) -> bool {
        let stops = self.waiters.is_empty() && self.stage == Stage::Asking;
        if stops {
            self.stage = Stage::Idle;
        }
        stops
    }

    /// The cluster has granted it: the number of the grant and whose turn is first. Nobody's: it goes back, then [`over`](Self::over).
    pub(super) fn granted(&mut self, now: Moment) -> (u64, Option<W>) {
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

    /// The grant was given back, or was lost: whether to ask anew, for those who wait.
    pub(super) fn over(&mut self) -> bool {
        self.stage = if self.waiters.is_empty() { Stage::Idle } else { Stage::Asking };
        self.stage == Stage::Asking
    }

    /// The cluster was asked in vain: all who are to be told so, for whom nobody asks any more.
    pub(super) fn failed(&mut self) -> Vec<W> {
        self.stage = Stage::Idle;
        self.waiters.drain(..).map(|(_, waiter)| waiter).collect()
    }
}

#[cfg(test)]
#[path = "local_queue_tests.rs"]
mod tests;
