//! Keepalives that this node sends to the leader on behalf of its callers: a session with a request waiting here is
//! kept alive, and each sign of life is passed on with its age (`ARCHITECTURE.md`, Sessions).
//!
//! Pure: time comes in as milliseconds of a monotonic clock. A sign of life may be passed on late, if that is well
//! before the leader would miss it: the leader counts from when it was given here, so the delay neither lengthens nor
//! shortens the session.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::SessionId;

/// The share of its timeout after which a session that goes on giving signs of life is reported again.
const ACTIVE_SHARE: u64 = 8;
/// The same for a session that is alive only because a request of it waits: the age is zero each time.
const WAITING_SHARE: u64 = 3;

#[derive(Debug)]
struct Delegated {
    waiting: usize,
    timeout_ms: u32,
    alive_ms: u64,
    due_ms: Option<u64>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct DelegatedKeepalives {
    entries: BTreeMap<SessionId, Delegated>,
    due: BTreeSet<(u64, SessionId)>,
    /// When the last sign of life that the leader acknowledged was given here.
    acknowledged_ms: BTreeMap<SessionId, u64>,
}

impl DelegatedKeepalives {
    /// The leader acknowledged a sign of life that was given at `alive_ms`.
    pub(crate) fn acknowledged(&mut self, session: SessionId, alive_ms: u64) {
        let last = self.acknowledged_ms.entry(session).or_insert(alive_ms);
        *last = (*last).max(alive_ms);
        let done = |entry: &Delegated| entry.waiting == 0 && entry.alive_ms <= alive_ms;
        if self.entries.get(&session).is_some_and(done)
            && let Some(Delegated { due_ms: Some(at), .. }) = self.entries.remove(&session)
        {
            self.due.remove(&(at, session));
        }
    }

    /// When the last acknowledged sign of life was given here; `None` if there was none.
    pub(crate) fn acknowledged_ms(&self, session: SessionId) -> Option<u64> {
        self.acknowledged_ms.get(&session).copied()
    }

    /// A request of the session begins to wait here.
    pub(crate) fn begin_wait(&mut self, session: SessionId, timeout_ms: u32, now_ms: u64) {
        self.touch(session, timeout_ms, now_ms);
        if let Some(entry) = self.entries.get_mut(&session) {
            entry.waiting += 1;
        }
    }

    /// A request of the session stops waiting: it is answered, or its caller has disconnected. That was its last sign
    /// of life.
    pub(crate) fn end_wait(&mut self, session: SessionId, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(&session).filter(|entry| entry.waiting > 0) else { return };
        entry.waiting -= 1;
        let timeout_ms = entry.timeout_ms;
        self.touch(session, timeout_ms, now_ms);
    }

    /// The session gave a sign of life.
    pub(crate) fn touch(&mut self, session: SessionId, timeout_ms: u32, now_ms: u64) {
        let entry =
            self.entries.entry(session).or_insert(Delegated { waiting: 0, timeout_ms, alive_ms: now_ms, due_ms: None });
        entry.alive_ms = entry.alive_ms.max(now_ms);
        let acknowledged_ms = self.acknowledged_ms.get(&session);
        // At once after a silence, for the leader may be about to miss it.
        let due_ms = acknowledged_ms
            .map_or(now_ms, |acknowledged_ms| now_ms.max(acknowledged_ms + u64::from(timeout_ms) / ACTIVE_SHARE));
        if entry.due_ms.is_none_or(|at| at > due_ms) {
            if let Some(at) = entry.due_ms.replace(due_ms) {
                self.due.remove(&(at, session));
            }
            self.due.insert((due_ms, session));
        }
    }

    /// When the session last gave a sign of life here that may not have reached the leader: now, while a request of it
    /// waits.
    pub(crate) fn alive_ms(&self, session: SessionId, now_ms: u64) -> Option<u64> {
        let entry = self.entries.get(&session)?;
        Some(if entry.waiting > 0 { now_ms } else { entry.alive_ms })
    }

    /// The same for all sessions.
    pub(crate) fn all_alive_ms(&self, now_ms: u64) -> impl Iterator<Item = (SessionId, u64)> {
        let alive_ms = move |entry: &Delegated| if entry.waiting > 0 { now_ms } else { entry.alive_ms };
        self.entries.iter().map(move |(session, entry)| (*session, alive_ms(entry)))
    }

    /// The session ended.
    pub(crate) fn ended(&mut self, session: SessionId) {
        self.acknowledged_ms.remove(&session);
        if let Some(Delegated { due_ms: Some(at), .. }) = self.entries.remove(&session) {
            self.due.remove(&(at, session));
        }
    }

    /// About how many sessions are known here.
    pub(crate) fn known(&self) -> usize {
        self.entries.len().max(self.acknowledged_ms.len())
    }

    /// Forgets the sessions that have ended.
    pub(crate) fn keep_only(&mut self, alive: impl Fn(SessionId) -> bool) {
        let known: BTreeSet<SessionId> = self.entries.keys().chain(self.acknowledged_ms.keys()).copied().collect();
        for session in known.into_iter().filter(|session| !alive(*session)) {
            self.ended(session);
        }
    }

    /// At most `limit` sessions whose sign of life is due. Sessions that wait fall due again, and so does a sign that
    /// is not acknowledged.
    pub(crate) fn take_due(&mut self, now_ms: u64, limit: usize) -> Vec<SessionId> {
        let mut taken = Vec::new();
        while taken.len() < limit {
            let Some(&(at, session)) = self.due.first().filter(|(at, _)| *at <= now_ms) else { break };
            self.due.remove(&(at, session));
            taken.push(session);
            let Some(entry) = self.entries.get_mut(&session) else { continue };
            let again_ms = now_ms.saturating_add((u64::from(entry.timeout_ms) / WAITING_SHARE).max(1));
            entry.due_ms = Some(again_ms);
            self.due.insert((again_ms, session));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);

    #[test]
    fn a_waiting_session_is_kept_alive_until_it_leaves() {
        let mut delegated = DelegatedKeepalives::default();
        delegated.begin_wait(ONE, 3_000, 0);
        delegated.begin_wait(ONE, 3_000, 10);
        assert_eq!(delegated.take_due(10, 10), [ONE]);
        delegated.acknowledged(ONE, 10);
        assert!(delegated.take_due(1_009, 10).is_empty());
        assert_eq!(delegated.take_due(1_010, 10), [ONE]);
        assert_eq!(delegated.alive_ms(ONE, 1_010), Some(1_010), "it waits, so it lives");
        delegated.acknowledged(ONE, 1_010);
        delegated.end_wait(ONE, 1_100);
        assert_eq!(delegated.alive_ms(ONE, 1_500), Some(1_500), "the other request still waits");
        delegated.end_wait(ONE, 2_000);
        assert_eq!(delegated.alive_ms(ONE, 2_500), Some(2_000), "not alive since");
        assert_eq!(delegated.take_due(2_000, 10), [ONE]);
        delegated.acknowledged(ONE, 2_000);
        assert!(delegated.take_due(u64::MAX, 10).is_empty());
        assert!(delegated.entries.is_empty() && delegated.due.is_empty());
    }

    #[test]
    fn a_sign_after_a_silence_is_passed_on_at_once_and_then_now_and_then() {
        let mut delegated = DelegatedKeepalives::default();
        delegated.touch(ONE, 8_000, 0);
        assert_eq!(delegated.take_due(0, 10), [ONE]);
        delegated.acknowledged(ONE, 0);
        for now_ms in [100, 500, 999] {
            delegated.touch(ONE, 8_000, now_ms);
            assert!(delegated.take_due(now_ms, 10).is_empty());
        }
        delegated.touch(TWO, 8_000, 1_000);
        assert_eq!(delegated.take_due(1_000, 10), [ONE, TWO]);
        assert_eq!(delegated.alive_ms(ONE, 1_000), Some(999), "as old as it is");
        assert_eq!(delegated.all_alive_ms(1_000).collect::<Vec<_>>(), [(ONE, 999), (TWO, 1_000)]);
        // What the leader has not acknowledged is passed on again.
        delegated.acknowledged(ONE, 999);
        assert_eq!(delegated.take_due(5_000, 10), [TWO]);
        assert_eq!(delegated.alive_ms(TWO, 5_000), Some(1_000));
        delegated.acknowledged(TWO, 1_000);
        assert!(delegated.entries.is_empty() && delegated.due.is_empty());
    }

    #[test]
    fn a_sign_while_an_older_one_is_under_way_is_not_forgotten() {
        let mut delegated = DelegatedKeepalives::default();
        delegated.touch(ONE, 8_000, 0);
        delegated.take_due(0, 10);
        delegated.touch(ONE, 8_000, 5);
        delegated.acknowledged(ONE, 0);
        assert_eq!(delegated.take_due(1_000, 10), [ONE]);
        assert_eq!(delegated.alive_ms(ONE, 1_000), Some(5));
    }

    #[test]
    fn what_ended_is_forgotten() {
        let mut delegated = DelegatedKeepalives::default();
        delegated.begin_wait(ONE, 3_000, 0);
        delegated.acknowledged(ONE, 7);
        assert_eq!(delegated.acknowledged_ms(ONE), Some(7));
        delegated.keep_only(|_| false);
        assert_eq!(delegated.acknowledged_ms(ONE), None);
        delegated.end_wait(ONE, 10);
        assert!(delegated.take_due(u64::MAX, 10).is_empty());
        assert!(delegated.entries.is_empty());
    }
}
