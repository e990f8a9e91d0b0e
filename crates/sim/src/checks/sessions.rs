//! Promises P5 and P11: a session does not end before the time promised to its client, and the client knows of the
//! end before another can have what it held. And a dead session is gone within its timeout and a second after its
//! last sign of life; time in which something was wrong with the world, and a while to recover, does not count. When no
//! majority of the nodes was up, the next leader may remember no sign of life, and every timer starts anew.
//!
//! A promise is kept by the clock of the node that made it. A clock that runs fast by a factor keeps it shorter by
//! that factor in true time: the check allows for that factor and no more. The holder allows a margin of a tenth of
//! the timeout (`lockkeeper_client`), so the promise to the holder tolerates that difference in the rates of two
//! clocks; within it the check allows nothing.

use std::collections::BTreeMap;

use lockkeeper_core::{Actor, Command, Event, SessionEnd};

use super::Checked;
use super::change::Change;

/// What a dead session may outlive its timeout by.
const GONE_WITHIN_US: u64 = 1_000_000;
/// After the end of a fault, connections are made anew, logs catch up, and leaders are elected.
const RECOVERY_US: u64 = 2_500_000;

#[derive(Debug)]
struct Life {
    timeout_ms: u32,
    /// Requests of it that a node serves.
    served: u32,
    /// True time of its last sign of life, and how much time was lost until then.
    last_us: u64,
    lost_us: u64,
    /// True time before which it must not expire, by what its client was promised.
    promised_us: u64,
    /// Why.
    promise: String,
    /// True time at which its client stops to rely on it.
    relied_on_us: u64,
}

#[derive(Debug)]
struct End {
    zxid: u64,
    at_us: u64,
    cause: SessionEnd,
}

/// See the module's text.
#[derive(Debug)]
pub struct Sessions {
    /// How fast the fastest clock of a node goes in this run. The slowest is as much slower.
    fastest: f64,
    /// How much time was lost to faults, until when that is known, and until when the last one is felt.
    lost_us: u64,
    looked_us: u64,
    felt_until_us: u64,
    live: BTreeMap<u64, Life>,
    ended: BTreeMap<u64, End>,
}

impl Sessions {
    /// `fastest` is the highest rate at which any node's clock may go.
    pub fn new(fastest: f64) -> Self {
        Self {
            fastest: fastest.max(1.0),
            lost_us: 0,
            looked_us: 0,
            felt_until_us: 0,
            live: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    /// When a promise made at this time ends at the earliest.
    fn kept_until_us(&self, from_us: u64, for_ms: u64) -> u64 {
        // Rounded down: a microsecond less is no proof of anything.
        from_us + (for_ms as f64 * 1_000.0 / self.fastest) as u64
    }

    /// A node begins to serve a request of the session.
    pub fn served(&mut self, session: u64, now_us: u64) {
        self.alive(session, now_us);
        if let Some(life) = self.live.get_mut(&session) {
            life.served += 1;
        }
    }

    /// It has answered, or has noticed that its caller is gone, or has gone down.
    pub fn left(&mut self, session: u64, now_us: u64) {
        self.alive(session, now_us);
        if let Some(life) = self.live.get_mut(&session) {
            life.served = life.served.saturating_sub(1);
        }
    }

    /// A sign of life.
    fn alive(&mut self, session: u64, now_us: u64) {
        let lost_us = self.lost_us;
        if let Some(life) = self.live.get_mut(&session) {
            (life.last_us, life.lost_us) = (now_us.max(life.last_us), lost_us);
        }
    }

    /// Time goes on; `right` if nothing is wrong with the world.
    ///
    /// # Errors
    /// If a session is still there that should be gone.
    pub fn pass(&mut self, now_us: u64, right: bool) -> Checked {
        if !right {
            self.felt_until_us = now_us + RECOVERY_US;
        }
        if now_us <= self.felt_until_us {
            self.lost_us += now_us.saturating_sub(self.looked_us);
        }
        self.looked_us = now_us;
        match self.live.iter().find(|(_, life)| now_us > self.due_us(life)) {
            Some((session, life)) => Err(format!(
                "session {session} with a timeout of {} ms is still there at {now_us} us; its last sign of life was \
                 at {} us, and {} us were lost",
                life.timeout_ms,
                life.last_us,
                self.lost_us - life.lost_us
            )),
            None => Ok(()),
        }
    }

    /// No majority of the nodes is up: the next leader may not know when a session was last heard of.
    pub fn no_majority_up(&mut self, now_us: u64) {
        let lost_us = self.lost_us;
        for life in self.live.values_mut() {
            (life.last_us, life.lost_us) = (now_us.max(life.last_us), lost_us);
        }
    }

    /// When it must be gone at the latest.
    fn due_us(&self, life: &Life) -> u64 {
        if life.served > 0 {
            return u64::MAX;
        }
        let timeout_us = f64::from(life.timeout_ms) * 1_000.0 / (2.0 - self.fastest);
        life.last_us + timeout_us as u64 + GONE_WITHIN_US + self.lost_us - life.lost_us
    }

    /// A client was told that the session lives for `for_ms` from `from_us` on.
    ///
    /// # Errors
    /// If it has expired before that.
    pub fn promised(&mut self, session: u64, what: &str, from_us: u64, for_ms: u64) -> Checked {
        if for_ms == 0 {
            // A lock may be granted to a session whose time is up, or that has just ended: the answer says so and
            // promises nothing.
            return Ok(());
        }
        let until_us = self.kept_until_us(from_us, for_ms);
        if let Some(end) = self.ended.get(&session) {
            let promise = format!("{what} at {from_us} us promised {for_ms} ms");
            return early(session, end.zxid, end.at_us, end.cause, &promise, until_us);
        }
        if let Some(life) = self.live.get_mut(&session).filter(|life| life.promised_us < until_us) {
            life.promised_us = until_us;
            life.promise = format!("{what} at {from_us} us promised {for_ms} ms");
        }
        Ok(())
    }

    /// The session's client relies on it until then, by its own clock.
    ///
    /// # Errors
    /// If it has expired before that.
    pub fn relied_on(&mut self, session: u64, until_us: u64) -> Checked {
        if let Some(end) = self.ended.get(&session) {
            return untold(session, end.zxid, end.at_us, end.cause, until_us);
        }
        if let Some(life) = self.live.get_mut(&session) {
            life.relied_on_us = life.relied_on_us.max(until_us);
        }
        Ok(())
    }

    /// The session's client has been told at `at_us`, by whatever way, that it is lost: it relies on it no longer.
    pub fn reported_lost(&mut self, session: u64, at_us: u64) {
        if let Some(life) = self.live.get_mut(&session) {
            life.relied_on_us = life.relied_on_us.min(at_us);
        }
    }

    /// Takes in a command of the log: first whether its outcome may be at all, then who opened and who ended.
    ///
    /// # Errors
    /// The first broken promise, and whose.
    pub fn change(&mut self, change: &Change<'_>) -> (Checked, Checked) {
        let (mut early_so_far, mut untold_so_far) = (self.by_the_right_leader(change), Ok(()));
        if let Command::Do { actor: Actor { session: Some(session), .. }, .. } = change.command {
            self.alive(session.0, change.at_us);
        }
        for event in &change.outcome.events {
            match event {
                Event::SessionOpened { session, timeout_ms, .. } => {
                    let life = Life {
                        timeout_ms: *timeout_ms,
                        served: 0,
                        last_us: change.at_us,
                        lost_us: self.lost_us,
                        promised_us: 0,
                        promise: String::new(),
                        relied_on_us: 0,
                    };
                    self.live.insert(session.0, life);
                }
                Event::SessionEnded { zxid, session, cause } => {
                    // Nothing is promised to those whose rights are taken away.
                    let is_withdrawn = matches!(change.command, Command::EndUnauthorised { .. });
                    let cause = if is_withdrawn { &SessionEnd::Closed } else { cause };
                    let end = End { zxid: zxid.0, at_us: change.at_us, cause: *cause };
                    if let Some(life) = self.live.remove(&session.0) {
                        let (id, zxid, at_us) = (session.0, zxid.0, end.at_us);
                        early_so_far =
                            early_so_far.and(early(id, zxid, at_us, *cause, &life.promise, life.promised_us));
                        untold_so_far = untold_so_far.and(untold(id, zxid, at_us, *cause, life.relied_on_us));
                    }
                    self.ended.insert(session.0, end);
                }
                Event::Node { .. } | Event::ForcedDeletion { .. } | Event::SessionAttached { .. } => {}
            }
        }
        (early_so_far, untold_so_far)
    }

    /// An expiry has an effect only in the term whose leader has noticed the silence.
    fn by_the_right_leader(&self, change: &Change<'_>) -> Checked {
        match change.command {
            Command::ExpireSessions { term, sessions, .. } if term.0 != change.term && change.outcome.changed => {
                Err(format!(
                    "sessions among {sessions:?} were expired by an entry of term {}, by the word of a leader of \
                     term {term}",
                    change.term
                ))
            }
            _ => Ok(()),
        }
    }

    /// How many have expired.
    pub fn expired(&self) -> usize {
        self.ended.values().filter(|end| end.cause == SessionEnd::Expired).count()
    }
}

fn early(session: u64, zxid: u64, at_us: u64, cause: SessionEnd, promise: &str, until_us: u64) -> Checked {
    if cause == SessionEnd::Closed || at_us >= until_us {
        return Ok(());
    }
    let early_us = until_us - at_us;
    Err(format!("session {session} expired at {zxid}, {at_us} us: {early_us} us too early, for {promise}"))
}

fn untold(session: u64, zxid: u64, at_us: u64, cause: SessionEnd, until_us: u64) -> Checked {
    if cause == SessionEnd::Closed || at_us >= until_us {
        return Ok(());
    }
    Err(format!(
        "session {session} expired at {zxid}, {at_us} us, while its client relied on it for another {} us by its own \
         clock",
        until_us - at_us
    ))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Outcome, Term};

    use super::super::test_history::{History, change};
    use super::*;

    /// A session that opens at 1 ms and expires at `at_ms`.
    fn expiring(at_ms: u64) -> (History, u64) {
        let mut history = History::default();
        let session = history.open();
        history.clock_ms = at_ms - 1;
        history.expire(session);
        (history, session)
    }

    fn renewal(sessions: &mut Sessions, history: &History, number: usize, at_ms: u64) -> (Checked, Checked) {
        let (command, outcome) = &history.pending[number];
        sessions.change(&change(command, outcome, at_ms))
    }

    #[test]
    fn an_expiry_before_the_promised_time_is_refused() {
        let (history, session) = expiring(3_000);
        for (acknowledged_ms, good) in [(900, true), (1_000, true), (1_001, false)] {
            let mut sessions = Sessions::new(1.0);
            renewal(&mut sessions, &history, 0, 1).0.unwrap();
            sessions.promised(session, "a keepalive", acknowledged_ms * 1_000, 2_000).unwrap();
            assert_eq!(renewal(&mut sessions, &history, 1, 3_000).0.is_ok(), good);
            assert_eq!(sessions.expired(), 1);
            // The acknowledgement may reach its client later than the end.
            assert_eq!(sessions.promised(session, "late", acknowledged_ms * 1_000, 2_000).is_ok(), good);
            sessions.promised(session, "none", 9_000_000, 0).unwrap();
        }
    }

    #[test]
    fn a_fast_clock_shortens_a_promise_by_its_rate_and_no_more() {
        let (history, session) = expiring(3_000);
        for (acknowledged_ms, good) in [(1_090, true), (1_100, false)] {
            let mut sessions = Sessions::new(1.05);
            renewal(&mut sessions, &history, 0, 1).0.unwrap();
            sessions.promised(session, "a keepalive", acknowledged_ms * 1_000, 2_000).unwrap();
            assert_eq!(renewal(&mut sessions, &history, 1, 3_000).0.is_ok(), good, "{acknowledged_ms}");
        }
    }

    #[test]
    fn a_holder_that_was_not_told_is_noticed() {
        let (history, session) = expiring(3_000);
        for (until_ms, good) in [(3_000, true), (3_001, false)] {
            let mut sessions = Sessions::new(1.0);
            renewal(&mut sessions, &history, 0, 1).1.unwrap();
            sessions.relied_on(session, until_ms * 1_000).unwrap();
            assert_eq!(renewal(&mut sessions, &history, 1, 3_000).1.is_ok(), good);
            assert_eq!(sessions.relied_on(session, until_ms * 1_000).is_ok(), good);
        }
        let mut sessions = Sessions::new(1.0);
        renewal(&mut sessions, &history, 0, 1).1.unwrap();
        sessions.relied_on(session, 4_000_000).unwrap();
        sessions.reported_lost(session, 2_000_000);
        renewal(&mut sessions, &history, 1, 3_000).1.unwrap();
    }

    #[test]
    fn a_dead_session_that_stays_is_noticed() {
        let mut history = History::default();
        let session = history.open();
        let timeout_us = match &history.pending[0].1.events[..] {
            [Event::SessionOpened { timeout_ms, .. }] => u64::from(*timeout_ms) * 1_000,
            other => panic!("{other:?}"),
        };
        let begin = || {
            let mut sessions = Sessions::new(1.0);
            renewal(&mut sessions, &history, 0, 1).0.unwrap();
            sessions.pass(RECOVERY_US + 1, true).unwrap();
            sessions
        };
        let from_us = 5_000_000;
        let mut sessions = begin();
        sessions.served(session, from_us - 1_000);
        sessions.pass(from_us, true).unwrap();
        sessions.left(session, from_us);
        sessions.pass(from_us + timeout_us + GONE_WITHIN_US, true).unwrap();
        sessions.pass(from_us + timeout_us + GONE_WITHIN_US + 1, true).unwrap_err();
        // As long as a node serves it, it lives.
        let mut sessions = begin();
        sessions.served(session, from_us);
        sessions.pass(from_us + 100 * timeout_us, true).unwrap();
        // A second of trouble, and the time to recover, are granted beside.
        let mut sessions = begin();
        sessions.served(session, from_us);
        sessions.left(session, from_us);
        sessions.pass(from_us, true).unwrap();
        sessions.pass(from_us + 1_000_000, false).unwrap();
        sessions.pass(from_us + 1_000_000 + RECOVERY_US, true).unwrap();
        let due_us = from_us + timeout_us + GONE_WITHIN_US + 1_000_000 + RECOVERY_US;
        sessions.pass(due_us, true).unwrap();
        sessions.pass(due_us + 1, true).unwrap_err();
        // The timer starts anew when no majority was up, also after quiet time.
        let mut sessions = begin();
        sessions.served(session, from_us);
        sessions.left(session, from_us);
        let down_us = from_us + timeout_us;
        sessions.pass(down_us - 1, true).unwrap();
        sessions.pass(down_us, false).unwrap();
        sessions.no_majority_up(down_us);
        let due_us = down_us + RECOVERY_US + timeout_us + GONE_WITHIN_US;
        sessions.pass(down_us + RECOVERY_US, true).unwrap();
        sessions.pass(due_us, true).unwrap();
        sessions.pass(due_us + 1, true).unwrap_err();
    }

    #[test]
    fn an_expiry_of_another_term_is_refused() {
        let (mut history, _) = expiring(3_000);
        let (mut command, outcome) = history.last();
        if let Command::ExpireSessions { term, .. } = &mut command {
            *term = Term(9);
        }
        let mut sessions = Sessions::new(1.0);
        sessions.change(&change(&command, &outcome, 3_000)).0.unwrap_err();
        let without = Outcome { changed: false, events: Vec::new(), ..outcome };
        sessions.change(&change(&command, &without, 3_000)).0.unwrap();
    }
}
