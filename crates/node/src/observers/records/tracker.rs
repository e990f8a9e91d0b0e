//! The leader's record of when it last heard from each session, and of the sessions to expire (`ARCHITECTURE.md`,
//! Sessions).
//!
//! Pure: time comes in as milliseconds of a monotonic clock. It must never name a session as silent before a full
//! timeout has passed since the last sign of life that it knows, and must never confirm a session that it has named,
//! unless it has been decided that the session lives on (promise P5).
//!
//! A sign of life only notes a time. Each session has one deadline in an ordered set, and is moved there only when that
//! deadline comes up and is stale: about once per timeout, however often the session is heard from.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use lockkeeper_core::SessionId;
use lockkeeper_mutants::{invariant, mutant};

/// The leader's record of one session.
#[derive(Clone, Copy, Debug)]
struct Entry {
    timeout_ms: u32,
    alive_ms: u64,
    /// Its deadline in `deadlines`; `None` once it is named.
    stands_at_ms: Option<u64>,
}

impl Entry {
    /// The last millisecond at which it may still be alive. Times are rounded down to whole milliseconds, so a
    /// session is silent for its full timeout only when this has *passed*.
    fn deadline_ms(&self) -> u64 {
        self.alive_ms.saturating_add(u64::from(self.timeout_ms))
    }

    /// Whether its deadline has passed, and the grace after it.
    fn is_silent(&self, now_ms: u64, grace_ms: u64) -> bool {
        self.deadline_ms() < now_ms.saturating_sub(grace_ms)
    }
}

/// Whether a keepalive may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Alive, with this timeout.
    Alive(u32),
    /// Named as silent: its expiry is proposed or about to be, so nothing may be promised to it.
    Expiring,
    /// Not in the state as applied here.
    Unknown,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct SessionTracker {
    entries: HashMap<SessionId, Entry>,
    deadlines: BTreeSet<(u64, SessionId)>,
    /// Named as silent, and to be proposed for expiry, perhaps again.
    to_expire: VecDeque<SessionId>,
    /// No session is named before this: the leader was not running, and keepalives may lie unread in its sockets.
    no_expiry_before_ms: u64,
    /// How long after its deadline a session is named: a sign of life may take so long from the node that heard it.
    grace_ms: u64,
}

impl SessionTracker {
    /// A new leader's record: each timer starts when the session was last heard of.
    pub(crate) fn restart(sessions: impl Iterator<Item = (SessionId, u32, u64)>, grace_ms: u64) -> Self {
        let mut tracker = Self { grace_ms, ..Self::default() };
        for (session, timeout_ms, alive_ms) in sessions {
            let alive_ms = if mutant!(NoGraceForNewLeader) { 0 } else { alive_ms };
            tracker.opened(session, timeout_ms, alive_ms);
        }
        tracker
    }

    /// A session opened.
    pub(crate) fn opened(&mut self, session: SessionId, timeout_ms: u32, now_ms: u64) {
        let mut entry = Entry { timeout_ms, alive_ms: now_ms, stands_at_ms: None };
        entry.stands_at_ms = Some(entry.deadline_ms());
        if let Some(Entry { stands_at_ms: Some(at), .. }) = self.entries.insert(session, entry) {
            self.deadlines.remove(&(at, session));
        }
        self.deadlines.insert((entry.deadline_ms(), session));
        invariant!(self.deadlines.len() <= self.entries.len(), "a session has one deadline at most");
    }

    /// A session ended, in the state as applied here.
    pub(crate) fn ended(&mut self, session: SessionId) {
        if let Some(Entry { stands_at_ms: Some(at), .. }) = self.entries.remove(&session) {
            self.deadlines.remove(&(at, session));
        }
    }

    /// A sign of life that was given at `alive_ms`. It is too late for a session that is named already.
    pub(crate) fn note_alive(&mut self, session: SessionId, alive_ms: u64) {
        if let Some(entry) = self.entries.get_mut(&session) {
            entry.alive_ms = entry.alive_ms.max(alive_ms);
        }
    }

    /// When a session was last heard of.
    pub(crate) fn alive_ms(&self, session: SessionId) -> Option<u64> {
        self.entries.get(&session).map(|entry| entry.alive_ms)
    }

    /// When each session was last heard of, ordered by session: a simulation must send the same for the same seed.
    pub(crate) fn all_alive_ms(&self) -> BTreeMap<SessionId, u64> {
        self.entries.iter().map(|(session, entry)| (*session, entry.alive_ms)).collect()
    }

    /// Whether a keepalive of this session may be acknowledged now.
    pub(crate) fn liveness(&self, session: SessionId) -> Liveness {
        match self.entries.get(&session) {
            Some(Entry { stands_at_ms: Some(_), timeout_ms, .. }) => Liveness::Alive(*timeout_ms),
            Some(_) => Liveness::Expiring,
            None => Liveness::Unknown,
        }
    }

    /// Whether nothing was heard of the session for its timeout until now; a named session may have been heard since.
    pub(crate) fn is_silent(&self, session: SessionId, now_ms: u64) -> bool {
        self.entries.get(&session).is_some_and(|entry| entry.is_silent(now_ms, self.grace_ms))
    }

    /// Milliseconds that the session has left if it stays silent; `None` if it is unknown or named.
    pub(crate) fn remaining_ms(&self, session: SessionId, now_ms: u64) -> Option<u64> {
        let entry = self.entries.get(&session).filter(|entry| entry.stands_at_ms.is_some())?;
        Some(entry.deadline_ms().saturating_sub(now_ms))
    }

    /// The leader was not running for `stalled_ms` until `now_ms`: allows as long again for reading what was sent
    /// meanwhile.
    pub(crate) fn stalled(&mut self, stalled_ms: u64, now_ms: u64) {
        self.no_expiry_before_ms = self.no_expiry_before_ms.max(now_ms.saturating_add(stalled_ms.min(MAX_GRACE_MS)));
    }

    /// At most `limit` sessions that have been silent for their timeout. They are named from here on.
    pub(crate) fn take_silent(&mut self, now_ms: u64, limit: usize) -> Vec<SessionId> {
        if now_ms >= self.no_expiry_before_ms {
            self.name_silent(now_ms);
        }
        let mut silent = Vec::new();
        while silent.len() < limit {
            let Some(session) = self.to_expire.pop_front() else { break };
            if self.liveness(session) == Liveness::Expiring {
                silent.push(session);
            }
        }
        silent
    }

    fn name_silent(&mut self, now_ms: u64) {
        let due_ms = now_ms.saturating_sub(self.grace_ms);
        while let Some(&(at, session)) = self.deadlines.first().filter(|(at, _)| *at < due_ms) {
            self.deadlines.remove(&(at, session));
            let Some(entry) = self.entries.get_mut(&session) else { continue };
            invariant!(entry.stands_at_ms == Some(at), "a session stands at its deadline");
            if entry.is_silent(now_ms, self.grace_ms) {
                entry.stands_at_ms = None;
                self.to_expire.push_back(session);
            } else {
                let deadline_ms = entry.deadline_ms();
                entry.stands_at_ms = Some(deadline_ms);
                self.deadlines.insert((deadline_ms, session));
            }
        }
    }

    /// It has been decided that these sessions live on, if they still exist: no proposal that names them has an
    /// effect any more. Returns how many live by a sign of life since they were named; the others stay named.
    pub(crate) fn spared(&mut self, sessions: &[SessionId], now_ms: u64) -> usize {
        let mut spared = 0;
        for session in sessions {
            let Some(entry) = self.entries.get_mut(session).filter(|entry| entry.stands_at_ms.is_none()) else {
                continue;
            };
            if !entry.is_silent(now_ms, self.grace_ms) {
                let deadline_ms = entry.deadline_ms();
                entry.stands_at_ms = Some(deadline_ms);
                self.deadlines.insert((deadline_ms, *session));
                spared += 1;
            }
        }
        spared
    }

    /// The proposal that named these sessions failed, or its outcome is unknown: they are proposed again, and stay
    /// named.
    pub(crate) fn propose_again(&mut self, sessions: Vec<SessionId>) {
        self.to_expire.extend(sessions);
    }

    /// Sessions in the record.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Longest time for which a stall of the leader puts off expiry: sockets are read within it, however long the stall
/// was.
const MAX_GRACE_MS: u64 = 2_000;

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
