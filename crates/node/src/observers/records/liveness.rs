//! When each session was last heard of, as this node knows it: from the leader, which replicates every sign of life
//! to a majority before it acknowledges it, and from the log. A new leader collects these tables and begins each
//! timer at the last sign of life.
//!
//! Pure: time comes in as milliseconds of this node's monotonic clock; nodes send each other ages only, so no two
//! clocks are compared. The sender rounds an age down and the receiver counts from its arrival, so a sign of life can
//! only seem younger than it is.
//!
//! This is Paxos without a disk. A leader that collects a table fences it: signs of a lower term are refused from
//! then on. So a sign that the collector does not see is never acknowledged. A restarted node has forgotten what it
//! accepted, and must not count until a leader has given it the whole table; the table is then *whole* for the voters
//! that this leader knew (promise P5).

use std::collections::BTreeMap;
use std::ops::Bound;

use lockkeeper_core::SessionId;

/// The sessions of a message, each with the milliseconds since it was last heard of.
pub(crate) type Ages = Vec<(SessionId, u32)>;

/// The age of a sign of life: rounded down, and never more than has passed.
pub(crate) fn age_ms(alive_ms: u64, now_ms: u64) -> u32 {
    // Both are rounded down to whole milliseconds, so their difference may be a millisecond too long.
    u32::try_from(now_ms.saturating_sub(alive_ms).saturating_sub(1)).unwrap_or(u32::MAX)
}

/// A leader of a higher term has collected the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fenced;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct LivenessTable {
    alive_ms: BTreeMap<SessionId, u64>,
    /// The highest term that has collected this table or written to it.
    fence: u64,
    /// The voters for which this table has every sign of life that it ever accepted.
    whole_for: Option<Vec<u64>>,
    /// The last synchronisation that was begun: the term of the leader that gives this node its whole table, and its
    /// number there.
    begun: (u64, u64),
    syncing: bool,
}

impl LivenessTable {
    /// A sign of life.
    pub(crate) fn note(&mut self, session: SessionId, at_ms: u64) {
        let alive_ms = self.alive_ms.entry(session).or_insert(at_ms);
        *alive_ms = (*alive_ms).max(at_ms);
    }

    /// The session ended.
    pub(crate) fn ended(&mut self, session: SessionId) {
        self.alive_ms.remove(&session);
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<u64> {
        self.alive_ms.get(&session).copied()
    }

    /// The last sign of life, where this table certainly has it.
    pub(crate) fn last_alive_ms(&self, session: SessionId) -> Option<u64> {
        self.whole_for.as_ref().and(self.get(session))
    }

    pub(crate) fn len(&self) -> usize {
        self.alive_ms.len()
    }

    /// Forgets the sessions that have ended.
    pub(crate) fn keep_only(&mut self, alive: impl Fn(SessionId) -> bool) {
        self.alive_ms.retain(|session, _| alive(*session));
    }

    /// The state has skipped part of the log, and with it signs of life.
    pub(crate) fn skipped(&mut self) {
        (self.whole_for, self.syncing) = (None, false);
    }

    /// From here on only this term, or a higher one, is accepted.
    pub(crate) fn fence(&mut self, term: u64) -> Result<(), Fenced> {
        if term < self.fence {
            return Err(Fenced);
        }
        self.fence = term;
        Ok(())
    }

    /// Accepts signs of life from the leader of this term. Returns whether the table is whole.
    pub(crate) fn accept(&mut self, term: u64, voters: &[u64], ages: &Ages, now_ms: u64) -> Result<bool, Fenced> {
        self.fence(term)?;
        for (session, age_ms) in ages {
            self.note(*session, now_ms.saturating_sub(u64::from(*age_ms)));
        }
        // From now on a majority of these voters acknowledges.
        if self.whole_for.as_deref().is_some_and(|whole| whole != voters) {
            self.whole_for = None;
        }
        Ok(self.whole_for.is_some())
    }

    /// The leader of this term begins to send this node its whole table; `number` counts these attempts.
    pub(crate) fn begin_sync(&mut self, term: u64, number: u64) -> Result<(), Fenced> {
        self.fence(term)?;
        // A message that comes late, or twice, must not discard signs that came since.
        if (term, number) > self.begun {
            if self.whole_for.is_none() {
                // Signs noted while an old log was applied again have the wrong time.
                self.alive_ms.clear();
            }
            (self.begun, self.syncing) = ((term, number), true);
        }
        Ok(())
    }

    /// The leader of this term has sent the whole table. Returns whether this node has all of it.
    pub(crate) fn finish_sync(&mut self, term: u64, number: u64, voters: &[u64]) -> Result<bool, Fenced> {
        self.fence(term)?;
        if self.syncing && self.begun == (term, number) {
            (self.whole_for, self.syncing) = (Some(voters.to_vec()), false);
        }
        Ok(self.is_whole_for(voters))
    }

    /// This node leads, and knows every sign of life that was acknowledged before.
    pub(crate) fn lead(&mut self, voters: &[u64]) {
        self.whole_for = Some(voters.to_vec());
    }

    pub(crate) fn is_whole_for(&self, voters: &[u64]) -> bool {
        self.whole_for.as_deref() == Some(voters)
    }

    /// At most `limit` sessions after `after`, with their ages; and whether there are more.
    pub(crate) fn page(&self, after: Option<SessionId>, limit: usize, now_ms: u64) -> (Ages, bool) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.alive_ms.range((from, Bound::Unbounded));
        let page = rest.by_ref().take(limit).map(|(session, alive_ms)| (*session, age_ms(*alive_ms, now_ms))).collect();
        (page, rest.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);
    const VOTERS: &[u64] = &[1, 2, 3];

    #[test]
    fn a_sign_never_seems_older_than_it_is() {
        // Heard at 10.0 to 10.999 ms, told at 20.0 to 20.999 ms: at least 9 ms ago.
        assert_eq!((age_ms(10, 20), age_ms(20, 20), age_ms(21, 20)), (9, 0, 0));
        assert_eq!(age_ms(0, u64::MAX), u32::MAX);
        let mut table = LivenessTable::default();
        table.accept(1, VOTERS, &vec![(ONE, 9), (TWO, 5)], 1_000).unwrap();
        table.accept(1, VOTERS, &vec![(ONE, 500)], 1_001).unwrap();
        assert_eq!((table.get(ONE), table.get(TWO)), (Some(991), Some(995)), "the latest sign counts");
    }

    #[test]
    fn what_comes_behind_the_fence_is_refused() {
        let mut table = LivenessTable::default();
        table.accept(3, VOTERS, &vec![(ONE, 0)], 10).unwrap();
        table.fence(4).unwrap();
        assert_eq!(table.accept(3, VOTERS, &vec![(ONE, 0)], 20), Err(Fenced));
        assert_eq!(table.begin_sync(3, 1), Err(Fenced));
        assert_eq!(table.finish_sync(3, 1, VOTERS), Err(Fenced));
        assert_eq!(table.fence(3), Err(Fenced));
        assert_eq!(table.get(ONE), Some(10));
        table.accept(4, VOTERS, &vec![(ONE, 0)], 30).unwrap();
        assert_eq!(table.get(ONE), Some(30));
    }

    #[test]
    fn a_table_is_whole_only_after_a_whole_synchronisation() {
        let mut table = LivenessTable::default();
        table.note(ONE, 5);
        assert_eq!(table.accept(2, VOTERS, &vec![], 10), Ok(false));
        assert_eq!(table.finish_sync(2, 1, VOTERS), Ok(false), "it has not begun: the node restarted in between");
        table.begin_sync(2, 1).unwrap();
        assert_eq!(table.get(ONE), None, "an old log that was applied again");
        table.accept(2, VOTERS, &vec![(TWO, 0)], 20).unwrap();
        table.begin_sync(2, 1).unwrap();
        assert_eq!(table.get(TWO), Some(20), "the same message once more");
        assert_eq!(table.finish_sync(3, 1, VOTERS), Ok(false), "another term began it");
        table.begin_sync(3, 2).unwrap();
        table.accept(3, VOTERS, &vec![(TWO, 0)], 20).unwrap();
        assert_eq!(table.finish_sync(3, 1, VOTERS), Ok(false), "an earlier one");
        assert_eq!(table.finish_sync(3, 2, VOTERS), Ok(true));
        assert_eq!((table.accept(3, VOTERS, &vec![], 20), table.get(TWO)), (Ok(true), Some(20)));
        // Among other voters, others may have acknowledged.
        assert_eq!(table.accept(3, &[1, 2, 3, 4], &vec![], 20), Ok(false));
        assert!(!table.is_whole_for(VOTERS));
        table.lead(VOTERS);
        assert!(table.is_whole_for(VOTERS));
        table.begin_sync(3, 3).unwrap();
        assert_eq!(table.get(TWO), Some(20), "what a whole table holds is kept");
        table.skipped();
        assert!(!table.is_whole_for(VOTERS));
    }

    #[test]
    fn a_large_table_comes_in_pages() {
        let mut table = LivenessTable::default();
        (0..25).for_each(|id| table.note(SessionId(id), id));
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let (page, more) = table.page(after, 10, 100);
            assert!(page.len() <= 10);
            seen.extend(page.iter().map(|(session, _)| session.0));
            after = page.last().map(|(session, _)| *session);
            if !more {
                break;
            }
        }
        assert_eq!(seen, (0..25).collect::<Vec<_>>());
        table.keep_only(|session| session.0 < 3);
        table.ended(SessionId(0));
        assert_eq!(table.len(), 2);
    }
}
