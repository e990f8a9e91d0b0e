//! What clients of locks told, put together: grants with what became of them, sessions, and what was asked beside.

use std::collections::BTreeMap;

use lockkeeper_client::api::locks::Mode;
use serde_json::{Error, from_value};

use crate::history::{Ended, History, Op};
use crate::workload::tells::{self, Asks, Granted, Kept, Marked, OfSession, Sure, Under};

/// One way of ending a grant, or of changing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When its client was about to ask for it.
    pub asked_us: u64,
    /// How the call ended.
    pub ended: Ended,
    /// Its point in the order, where the answer tells.
    pub zxid: Option<u64>,
}

/// One grant, as its client told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub client: u32,
    /// What it asked for.
    pub asks: Asks,
    /// Under which token.
    pub token: u64,
    /// The point of the order at which it was known to hold.
    pub zxid: Option<u64>,
    /// When its client was about to ask.
    pub asked_us: u64,
    /// When its client was told.
    pub granted_us: u64,
    /// The first time it was to be given back.
    pub released: Option<Change>,
    /// When a writer was to become a reader.
    pub downgraded: Option<Change>,
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

/// One session, as its client told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionLife {
    /// The last moment before which the cluster was not to end it, in microseconds of the boot clock.
    pub until_us: u64,
    /// When its client was told that it is lost.
    pub lost_us: Option<u64>,
    /// When its client was about to close it.
    pub closing_us: Option<u64>,
    /// When its client stopped renewing it.
    pub abandoned_us: Option<u64>,
}

/// Something that was asked about a token, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Who asked.
    pub client: u32,
    /// About what.
    pub under: Under,
    /// When it was about to ask.
    pub asked_us: u64,
    /// How it ended.
    pub ended: Ended,
    /// Yes or no, if that was the answer.
    pub yes: Option<bool>,
    /// Its point in the order, where the answer tells.
    pub zxid: Option<u64>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// By the time at which their clients were told.
    pub holds: Vec<Hold>,
    /// By number.
    pub sessions: BTreeMap<u64, SessionLife>,
    /// The guard was asked whether it is lost.
    pub looks: Vec<Answered>,
    /// The cluster was asked whether a token holds.
    pub verifies: Vec<Answered>,
    /// The cluster was asked to give back what is another's.
    pub steals: Vec<Answered>,
    /// What the replicated clock showed under a token, at which zxid.
    pub marks: Vec<(Under, Marked, u64)>,
    /// Places of dead holders that were seen to be kept.
    pub kept: Vec<Kept>,
    /// Requests that got nothing, for certain.
    pub fruitless: usize,
    /// Requests of unknown outcome.
    pub unknown: usize,
}

impl Told {
    /// Sorts what was told.
    ///
    /// # Errors
    /// Something has another form than [`tells`] says: a defect of the suite.
    pub fn of(history: &History) -> Result<Self, String> {
        Self::parsed(history).map_err(|error| format!("the history cannot be read: {error}"))
    }

    fn parsed(history: &History) -> Result<Self, Error> {
        let mut told = Self::default();
        // A token names one request of a session, whichever of its locks.
        let mut by_token: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for op in history.ops() {
            match op.what.as_str() {
                tells::ACQUIRE => match op.answer::<Granted>()? {
                    Some(Granted { token }) => {
                        by_token.insert((op.client, token), told.holds.len());
                        told.holds.push(hold(&op, token)?);
                    }
                    None if op.ended == Ended::Fail => told.fruitless += 1,
                    None => told.unknown += 1,
                },
                tells::RELEASE | tells::DOWNGRADE => {
                    let under: Under = op.asked()?;
                    let Some(at) = by_token.get(&(op.client, under.token)) else { continue };
                    let change = Change { asked_us: op.invoked_us, ended: op.ended, zxid: op.zxid };
                    let hold = &mut told.holds[*at];
                    let slot = if op.what == tells::RELEASE { &mut hold.released } else { &mut hold.downgraded };
                    slot.get_or_insert(change);
                }
                tells::LOOK => told.looks.push(answered(&op)?),
                tells::VERIFY => told.verifies.push(answered(&op)?),
                tells::STEAL => told.steals.push(answered(&op)?),
                tells::MARK => {
                    if let (Some(marked), Some(zxid)) = (op.answer::<Marked>()?, op.zxid) {
                        told.marks.push((op.asked()?, marked, zxid));
                    }
                }
                _ => {}
            }
        }
        for event in history.told() {
            let value = event.value.clone();
            match event.what.as_str() {
                tells::SURE => {
                    let sure: Sure = from_value(value)?;
                    let life = told.sessions.entry(sure.session).or_default();
                    life.until_us = life.until_us.max(sure.until_ms.saturating_mul(1_000));
                }
                tells::SESSION_LOST => {
                    let session = from_value::<OfSession>(value)?.session;
                    told.sessions.entry(session).or_default().lost_us.get_or_insert(event.at_us);
                }
                tells::CLOSING => {
                    let session = from_value::<OfSession>(value)?.session;
                    told.sessions.entry(session).or_default().closing_us.get_or_insert(event.at_us);
                }
                tells::KEPT => told.kept.push(from_value(value)?),
                tells::ABANDONED => {
                    let session = from_value::<OfSession>(value)?.session;
                    told.sessions.entry(session).or_default().abandoned_us.get_or_insert(event.at_us);
                }
                _ => {}
            }
        }
        told.holds.sort_by_key(|hold| hold.granted_us);
        Ok(told)
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

fn answered(op: &Op) -> Result<Answered, Error> {
    Ok(Answered {
        client: op.client,
        under: op.asked()?,
        asked_us: op.invoked_us,
        ended: op.ended,
        yes: if op.ended == Ended::Ok { op.output.as_bool() } else { None },
        zxid: op.zxid,
    })
}
