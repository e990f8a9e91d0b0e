//! Signs of life that a node owes the leader on behalf of its callers: a session with a request waiting here is kept alive, and
//! one that was merely read for is mentioned once (DESIGN section 6).
//!
//! Pure: time comes in as milliseconds of a monotonic clock. A sign is sent within a third of the session's timeout after it was
//! given, never earlier than given, so that it can only ever lengthen a life.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::SessionId;

#[derive(Debug)]
struct Charge {
    waiting: usize,
    timeout_ms: u32,
    due_ms: Option<u64>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Custody {
    charges: BTreeMap<SessionId, Charge>,
    due: BTreeSet<(u64, SessionId)>,
    /// When the last sign of life that the leader acknowledged was sent from here.
    acknowledged_ms: BTreeMap<SessionId, u64>,
}

impl Custody {
    /// The leader acknowledged a sign of life that was sent at `sent_ms`.
    pub(crate) fn acknowledged(&mut self, session: SessionId, sent_ms: u64) {
        let last = self.acknowledged_ms.entry(session).or_insert(sent_ms);
        *last = (*last).max(sent_ms);
    }

    /// When the last acknowledged sign of life was sent from here; none if this node has seen none.
    pub(crate) fn acknowledged_ms(&self, session: SessionId) -> Option<u64> {
        self.acknowledged_ms.get(&session).copied()
    }

    /// A request of the session begins to wait here.
    pub(crate) fn enter(&mut self, session: SessionId, timeout_ms: u32, now_ms: u64) {
        self.touch(session, timeout_ms, now_ms);
        if let Some(charge) = self.charges.get_mut(&session) {
            charge.waiting += 1;
        }
    }

    /// A request of the session waits no more.
    pub(crate) fn leave(&mut self, session: SessionId) {
        if let Some(charge) = self.charges.get_mut(&session) {
            charge.waiting = charge.waiting.saturating_sub(1);
            if charge.waiting == 0 && charge.due_ms.is_none() {
                self.charges.remove(&session);
            }
        }
    }

    /// The session gave a sign of life.
    pub(crate) fn touch(&mut self, session: SessionId, timeout_ms: u32, now_ms: u64) {
        let charge = self.charges.entry(session).or_insert(Charge { waiting: 0, timeout_ms, due_ms: None });
        if charge.due_ms.is_none() {
            let due_ms = now_ms.saturating_add(u64::from(timeout_ms) / 3);
            charge.due_ms = Some(due_ms);
            self.due.insert((due_ms, session));
        }
    }

    /// The session ended.
    pub(crate) fn ended(&mut self, session: SessionId) {
        self.acknowledged_ms.remove(&session);
        if let Some(Charge { due_ms: Some(at), .. }) = self.charges.remove(&session) {
            self.due.remove(&(at, session));
        }
    }

    /// How many sessions anything is known about, about.
    pub(crate) fn known(&self) -> usize {
        self.charges.len().max(self.acknowledged_ms.len())
    }

    /// Forgets everyone who is not there any more: the state has jumped.
    pub(crate) fn keep_only(&mut self, alive: impl Fn(SessionId) -> bool) {
        let known: BTreeSet<SessionId> = self.charges.keys().chain(self.acknowledged_ms.keys()).copied().collect();
        for session in known.into_iter().filter(|session| !alive(*session)) {
            self.ended(session);
        }
    }

    /// At most `limit` sessions whose sign is due. Those that wait fall due again.
    pub(crate) fn take_due(&mut self, now_ms: u64, limit: usize) -> Vec<SessionId> {
        let mut taken = Vec::new();
        while taken.len() < limit {
            let Some(&(at, session)) = self.due.first().filter(|(at, _)| *at <= now_ms) else { break };
            self.due.remove(&(at, session));
            taken.push(session);
            let Some(charge) = self.charges.get_mut(&session) else { continue };
            charge.due_ms = None;
            if charge.waiting > 0 {
                let timeout_ms = charge.timeout_ms;
                self.touch(session, timeout_ms, now_ms);
            } else {
                self.charges.remove(&session);
            }
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
        let mut custody = Custody::default();
        custody.enter(ONE, 3_000, 0);
        custody.enter(ONE, 3_000, 10);
        assert!(custody.take_due(999, 10).is_empty());
        assert_eq!(custody.take_due(1_000, 10), [ONE]);
        assert_eq!(custody.take_due(2_000, 10), [ONE]);
        custody.leave(ONE);
        assert_eq!(custody.take_due(3_000, 10), [ONE], "the other request still waits");
        custody.leave(ONE);
        assert_eq!(custody.take_due(4_000, 10), [ONE], "the sign that was given already");
        assert!(custody.take_due(u64::MAX, 10).is_empty());
        assert!(custody.charges.is_empty() && custody.due.is_empty());
    }

    #[test]
    fn a_touch_is_passed_on_once() {
        let mut custody = Custody::default();
        custody.touch(ONE, 3_000, 0);
        custody.touch(ONE, 3_000, 500);
        custody.touch(TWO, 600, 0);
        assert_eq!(custody.take_due(200, 10), [TWO]);
        assert_eq!(custody.take_due(5_000, 10), [ONE]);
        assert!(custody.charges.is_empty());
    }

    #[test]
    fn what_ended_is_forgotten() {
        let mut custody = Custody::default();
        custody.enter(ONE, 3_000, 0);
        custody.acknowledged(ONE, 7);
        assert_eq!(custody.acknowledged_ms(ONE), Some(7));
        custody.keep_only(|_| false);
        assert_eq!(custody.acknowledged_ms(ONE), None);
        custody.leave(ONE);
        assert!(custody.take_due(u64::MAX, 10).is_empty());
        assert!(custody.charges.is_empty());
    }
}
