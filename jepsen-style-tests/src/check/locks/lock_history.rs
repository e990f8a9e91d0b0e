//! The history of lock clients, put together: grants with their ends, sessions, and the queries made beside them.

use std::collections::BTreeMap;

use lockkeeper_client::api::locks::Mode;
use serde_json::Error;

use crate::history::ops::{self, AcquireRequest, ClockReading, Granted, KeptPlace, TokenRef};
use crate::history::{Completion, Event, History, Op, SessionLife};

/// A release or a downgrade of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantChange {
    /// When its client was about to ask for it.
    pub asked_us: u64,
    /// How the call ended.
    pub ended: Completion,
    /// Its zxid, where the answer names one.
    pub zxid: Option<u64>,
}

/// One grant, by its client's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub client: u32,
    /// What it asked for.
    pub asks: AcquireRequest,
    /// Under which token.
    pub token: u64,
    /// The zxid at which it was known to hold.
    pub zxid: Option<u64>,
    /// When its client was about to ask.
    pub asked_us: u64,
    /// When its client had the answer.
    pub granted_us: u64,
    /// The first time it was to be given back.
    pub released: Option<GrantChange>,
    /// When a writer was to become a reader.
    pub downgraded: Option<GrantChange>,
}

impl Hold {
    /// For people.
    pub fn line(&self) -> String {
        let let_go = match &self.released {
            None => "was never given back".to_owned(),
            Some(change) => format!("was to be given back from {} us ({:?})", change.asked_us, change.ended),
        };
        format!(
            "{} us: client {} (session {:x}) was granted {} {:?} under token {}, at zxid {}; it {let_go}",
            self.granted_us,
            self.client,
            self.asks.session,
            self.asks.locks.join(" + "),
            self.asks.mode,
            self.token,
            self.zxid.map_or_else(|| "?".to_owned(), |zxid| zxid.to_string()),
        )
    }

    /// Whether somebody else may not hold one of its locks at the same time.
    pub fn is_alone(&self) -> bool {
        matches!(self.asks.mode, Mode::Exclusive | Mode::Write)
    }
}

/// A query about a token, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAnswer {
    /// Who asked.
    pub client: u32,
    /// Which token.
    pub under: TokenRef,
    /// When it was about to ask.
    pub asked_us: u64,
    /// How it ended.
    pub ended: Completion,
    /// Yes or no, if that was the answer.
    pub yes: Option<bool>,
    /// Its zxid, where the answer names one.
    pub zxid: Option<u64>,
}

/// The whole history of a run's lock clients.
#[derive(Clone, Debug, Default)]
pub struct LockHistory {
    /// By the time of the answer.
    pub holds: Vec<Hold>,
    /// By number.
    pub sessions: BTreeMap<u64, SessionLife>,
    /// The guard was asked whether it is lost.
    pub looks: Vec<TokenAnswer>,
    /// The cluster was asked whether a token holds.
    pub verifies: Vec<TokenAnswer>,
    /// The cluster was asked to give back what is another's.
    pub steals: Vec<TokenAnswer>,
    /// The cluster was asked to take a lock from its holder by force.
    pub forced: Vec<TokenAnswer>,
    /// Readings of the replicated clock under a token, with their zxid.
    pub marks: Vec<(TokenRef, ClockReading, u64)>,
    /// Places of dead holders that were seen to be kept.
    pub kept: Vec<KeptPlace>,
    /// Requests that certainly got nothing.
    pub fruitless: usize,
    /// Requests of unknown outcome.
    pub unknown: usize,
}

impl LockHistory {
    /// Reads a history.
    ///
    /// # Errors
    /// Something has another form than [`ops`] says: a defect of the suite.
    pub fn of(history: &History) -> Result<Self, String> {
        Self::parsed(history).map_err(|error| format!("the history cannot be read: {error}"))
    }

    fn parsed(history: &History) -> Result<Self, Error> {
        let mut told = Self::default();
        // A token names one request of a session, whichever of its locks.
        let mut by_token: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for op in history.ops() {
            match op.what.as_str() {
                ops::ACQUIRE => match op.answer::<Granted>()? {
                    Some(Granted { token }) => {
                        by_token.insert((op.client, token), told.holds.len());
                        told.holds.push(hold(&op, token)?);
                    }
                    None if op.ended == Completion::Fail => told.fruitless += 1,
                    None => told.unknown += 1,
                },
                ops::RELEASE | ops::DOWNGRADE => {
                    let under: TokenRef = op.asked()?;
                    let Some(at) = by_token.get(&(op.client, under.token)) else { continue };
                    let change = GrantChange { asked_us: op.invoked_us, ended: op.ended, zxid: op.zxid };
                    let hold = &mut told.holds[*at];
                    let slot = if op.what == ops::RELEASE { &mut hold.released } else { &mut hold.downgraded };
                    slot.get_or_insert(change);
                }
                ops::LOOK => told.looks.push(answered(&op)?),
                ops::VERIFY => told.verifies.push(answered(&op)?),
                ops::FORCE => told.forced.push(answered(&op)?),
                ops::STEAL => told.steals.push(answered(&op)?),
                ops::MARK => {
                    if let (Some(marked), Some(zxid)) = (op.answer::<ClockReading>()?, op.zxid) {
                        told.marks.push((op.asked()?, marked, zxid));
                    }
                }
                _ => {}
            }
        }
        let kept = history.notes().filter(|event| event.what == ops::KEPT);
        told.kept = kept.map(Event::told).collect::<Result<_, _>>()?;
        told.sessions = history.sessions()?;
        told.holds.sort_by_key(|hold| hold.granted_us);
        Ok(told)
    }

    /// From when on a grant may have been ended by force.
    pub fn forced_us(&self, token: u64) -> Option<u64> {
        let may_have = self.forced.iter().filter(|force| force.under.token == token && force.ended != Completion::Fail);
        may_have.filter(|force| force.yes != Some(false)).map(|force| force.asked_us).min()
    }

    /// The session of a hold.
    pub fn session_of(&self, hold: &Hold) -> SessionLife {
        self.sessions.get(&hold.asks.session).copied().unwrap_or_default()
    }
}

fn hold(op: &Op, token: u64) -> Result<Hold, Error> {
    Ok(Hold {
        client: op.client,
        asks: op.asked()?,
        token,
        zxid: op.zxid,
        asked_us: op.invoked_us,
        granted_us: op.completed_us.unwrap_or(u64::MAX),
        released: None,
        downgraded: None,
    })
}

fn answered(op: &Op) -> Result<TokenAnswer, Error> {
    Ok(TokenAnswer {
        client: op.client,
        under: op.asked()?,
        asked_us: op.invoked_us,
        ended: op.ended,
        yes: if op.ended == Completion::Ok { op.output.as_bool() } else { None },
        zxid: op.zxid,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::history::EventKind;
    use crate::history::ops::AliveUntil;

    #[test]
    fn events_become_grants_and_sessions() {
        let event = |at_us, op, kind, what: &str, value: Value| {
            let zxid = (kind == EventKind::Ok).then_some(at_us);
            Event { at_us, client: 3, op, kind, what: what.into(), value, zxid }
        };
        let locks = vec!["l".to_owned()];
        let asks = AcquireRequest {
            locks: locks.clone(),
            mode: Mode::Write,
            wait_ms: 5,
            session: 7,
            permits: None,
            delay_ms: 0,
        };
        let under = TokenRef { locks, token: 4, session: 7 };
        let told = |at_us, what: &str, value| event(at_us, 0, EventKind::Note, what, value);
        let history = History::new(vec![
            told(1, ops::SURE, json!(AliveUntil { session: 7, until_ms: 2 })),
            event(2, 1, EventKind::Invoke, ops::ACQUIRE, json!(asks)),
            event(5, 1, EventKind::Ok, ops::ACQUIRE, json!(Granted { token: 4 })),
            event(6, 2, EventKind::Invoke, ops::LOOK, json!(under)),
            event(7, 2, EventKind::Ok, ops::LOOK, json!(false)),
            told(8, ops::SURE, json!(AliveUntil { session: 7, until_ms: 3 })),
            event(9, 3, EventKind::Invoke, ops::DOWNGRADE, json!(under)),
            event(10, 3, EventKind::Ok, ops::DOWNGRADE, json!(null)),
            event(11, 4, EventKind::Invoke, ops::RELEASE, json!(under)),
            event(12, 4, EventKind::Info, ops::RELEASE, json!("lost")),
            event(13, 5, EventKind::Invoke, ops::ACQUIRE, json!(asks)),
            event(14, 5, EventKind::Fail, ops::ACQUIRE, json!("busy")),
            event(15, 6, EventKind::Invoke, ops::ACQUIRE, json!(asks)),
            told(16, ops::SESSION_LOST, json!({ "session": 7, "why": "late" })),
        ]);
        let told = LockHistory::of(&history).unwrap();
        let hold = &told.holds[0];
        assert_eq!((told.holds.len(), hold.token, hold.zxid, hold.asked_us, hold.granted_us), (1, 4, Some(5), 2, 5));
        assert_eq!(hold.released, Some(GrantChange { asked_us: 11, ended: Completion::Info, zxid: None }));
        assert_eq!(hold.downgraded.map(|change| change.ended), Some(Completion::Ok));
        assert_eq!((told.looks.len(), told.looks[0].yes, told.looks[0].asked_us), (1, Some(false), 6));
        assert_eq!((told.fruitless, told.unknown), (1, 1));
        let session = told.session_of(hold);
        assert_eq!((session.until_us, session.lost_us, session.closing_us), (3_000, Some(16), None));
        let broken = History::new(vec![
            event(1, 1, EventKind::Invoke, ops::ACQUIRE, json!("x")),
            event(2, 1, EventKind::Ok, ops::ACQUIRE, json!(1)),
        ]);
        assert!(LockHistory::of(&broken).is_err());
    }
}
