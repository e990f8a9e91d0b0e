//! The end of a session: which sessions end, and what an end does. A session is closed by its client, expires when it
//! was silent for too long, ends with its right to be there, or with its cluster.
//!
//! All ways lead to one function, which deletes what the session owned before the event of its end (promise P6), and
//! keeps its locks closed for their delay if it expired.

use lockkeeper_mutants::{invariant, mutant};

use super::State;
use super::session::Session;
use super::size;
use super::transaction::Transaction;
use crate::event::{Event, SessionEnd};
use crate::ids::{SessionId, Zxid};
use crate::limits::MAX_EXPIRED_EPHEMERALS;
use crate::reply::{Outcome, Refusal, Reply};

impl State {
    /// Closes a session at its client's wish.
    pub(super) fn close_session(&mut self, session: SessionId) -> Outcome {
        self.end_one(session, SessionEnd::Closed)
    }

    /// Ends the sessions that have lost the right to be there, each in its own transaction.
    pub(super) fn end_unauthorised(&mut self, candidates: &[SessionId]) -> Outcome {
        if let Some(refused) = self.refuse_bulk(candidates.len()) {
            return refused;
        }
        self.end_each(candidates, |state, session| {
            let owns_nothing = session.ephemerals.is_empty();
            !state.access.session_may_live(session.identity.as_ref(), owns_nothing, state.clock_ms)
        })
    }

    /// Expires the silent sessions that are still there, each in its own transaction.
    pub(super) fn expire(&mut self, term_is_current: bool, seen: Zxid, silent: &[SessionId]) -> Outcome {
        if let Some(refused) = self.refuse_bulk(silent.len()) {
            return refused;
        }
        self.end_each(silent, |_, session| term_is_current && session.acted <= seen)
    }

    /// Expires those of these sessions that are there and are to end, each in its own transaction.
    fn end_each(&mut self, candidates: &[SessionId], to_end: impl Fn(&Self, &Session) -> bool) -> Outcome {
        let mut ended = Vec::new();
        let mut events = Vec::new();
        let mut removed = 0;
        for &session in candidates {
            let Some(known) = self.sessions.get(&session).filter(|known| to_end(self, known)) else { continue };
            removed += known.ephemerals.len();
            if removed > MAX_EXPIRED_EPHEMERALS && !ended.is_empty() {
                // Other commands wait for this entry, so the rest is left to the next.
                break;
            }
            if mutant!(EphemeralsOneByOne) {
                events.extend(self.remove_one_by_one(session));
            }
            let outcome = self.end_one(session, SessionEnd::Expired);
            if outcome.reply.is_ok() {
                ended.push(session);
                events.extend(outcome.events);
            }
        }
        let changed = !ended.is_empty();
        Outcome { zxid: self.zxid, reply: Ok(Reply::SessionsExpired(ended)), changed, events }
    }

    fn end_one(&mut self, session: SessionId, cause: SessionEnd) -> Outcome {
        self.transact(|t| {
            t.end_session(session, cause)?;
            Ok(Reply::SessionClosed)
        })
    }

    /// What the mutant EphemeralsOneByOne does before a session ends.
    fn remove_one_by_one(&mut self, session: SessionId) -> Vec<Event> {
        let Some(session) = self.sessions.get(&session).cloned() else { return Vec::new() };
        let remove = |path| {
            self.transact(|t| {
                t.remove(path);
                Ok(Reply::Deleted)
            })
        };
        session.ephemerals().map(remove).flat_map(|outcome| outcome.events).collect()
    }

    /// Ends all sessions in one transaction. Who holds is determined before any request goes, so that nobody gets a
    /// lock delay who never held.
    pub(super) fn end_all_sessions(&mut self) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        self.transact(|t| {
            let held: Vec<_> = sessions
                .iter()
                .filter_map(|id| t.sessions.get(id).map(|session| (*id, t.to_be_delayed(session))))
                .collect();
            for session in &sessions {
                t.end_session(*session, SessionEnd::Closed)?;
            }
            for (session, held) in held {
                held.iter().for_each(|held| t.delay(session, held));
            }
            Ok(Reply::SessionClosed)
        });
    }
}

impl Transaction<'_> {
    /// Ends a session and deletes everything it owned. The deletions come before the event of the end (promise P6).
    fn end_session(&mut self, id: SessionId, cause: SessionEnd) -> Result<(), Refusal> {
        let session = self.sessions.remove(&id).ok_or(Refusal::SessionExpired(id))?;
        self.changed = true;
        let (bytes, remembered) = (size::of_session(&session), session.memory.bytes());
        invariant!(bytes <= *self.session_bytes, "the bytes of the sessions include those of each");
        invariant!(remembered <= *self.remembered_bytes, "the remembered bytes include those of each session");
        *self.session_bytes -= bytes;
        *self.remembered_bytes -= remembered;
        let delayed = match cause {
            SessionEnd::Expired if !mutant!(NoLockDelay) => self.to_be_delayed(&session),
            SessionEnd::Expired | SessionEnd::Closed => Vec::new(),
        };
        self.remove_all(&session);
        self.tree.namespaces.remove_session(session.namespace.as_deref(), id);
        for held in delayed {
            self.delay(id, &held);
        }
        self.events.push(Event::SessionEnded { zxid: self.zxid, session: id, cause });
        Ok(())
    }
}
