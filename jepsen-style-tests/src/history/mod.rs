//! The history of a run: one [`Event`] a line, recorded by the client process as it happened, and the log and the
//! faults beside it.
//!
//! An operation is two events with the same number: its invocation and its completion. A completion is *ok*, *fail*
//! (certainly not carried out) or *info* (unknown); an operation without a completion is *info* too. Stamps are
//! microseconds of the boot clock, which all processes of a machine share. Nothing here judges.

pub mod ops;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_checkers::lives::NodeEvent;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The operation is about to be asked for.
    Invoke,
    /// It was carried out, and this is the answer.
    Ok,
    /// It was certainly not carried out and will not be.
    Fail,
    /// Nobody knows whether it was, or will be, carried out.
    Info,
    /// Not part of an operation: something the client was told or saw (its session is lost, a watch event).
    #[serde(rename = "told")]
    Note,
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in microseconds of the boot clock: an invocation before the request was sent, a completion after the
    /// answer arrived.
    pub at_us: u64,
    /// The client. A client that was killed never comes back under its number.
    pub client: u32,
    /// Number of the operation, unique among those of its client; 0 in a [`EventKind::Note`].
    pub op: u64,
    /// What this event is.
    pub kind: EventKind,
    /// Name of the operation, or of the note.
    pub what: String,
    /// Arguments in an invocation, the answer in an *ok*, the reason in the others. Each workload has types for its
    /// own.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// The point in the replicated order at which it was carried out, or at which the answer is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zxid: Option<u64>,
}

impl Event {
    /// What was told, as the workload's type.
    ///
    /// # Errors
    /// It is of another form: a defect of the suite.
    pub fn told<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.value)
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completion {
    /// Carried out.
    Ok,
    /// Certainly not carried out.
    Fail,
    /// Unknown.
    Info,
}

/// An operation, put together from its events.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Who asked.
    pub client: u32,
    /// Its number at that client.
    pub op: u64,
    /// Its name.
    pub what: String,
    /// When it was asked for.
    pub invoked_us: u64,
    /// When the answer came; none while it is open.
    pub completed_us: Option<u64>,
    /// How it ended.
    pub ended: Completion,
    /// The arguments.
    pub input: Value,
    /// The answer, or the reason.
    pub output: Value,
    /// Its point in the replicated order, where the answer names one.
    pub zxid: Option<u64>,
}

impl Op {
    /// Its arguments as the workload's type.
    pub fn asked<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.input)
    }

    /// Its answer as the workload's type, if it was carried out.
    pub fn answer<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        (self.ended == Completion::Ok).then(|| T::deserialize(&self.output)).transpose()
    }
}

/// The number of waiters for locks that the servers woke before the first fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeUps {
    /// By the servers' own count.
    Counted {
        /// How many.
        counted: u64,
        /// No wake-up in the count was caused by a later transaction than this.
        until: u64,
    },
    /// Not known, and why.
    NotCounted(String),
}

impl Default for WakeUps {
    fn default() -> Self {
        Self::NotCounted("nobody read the servers' count of wake-ups".into())
    }
}

/// All events of the clients, by time.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// Sorts events by time; events of one client at one moment stay in their order.
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.at_us);
        Self { events }
    }

    /// Every event, by time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The operations, by the time of their invocation.
    pub fn ops(&self) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        let mut open: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for event in &self.events {
            let key = (event.client, event.op);
            let ended = match event.kind {
                EventKind::Note => continue,
                EventKind::Invoke => {
                    open.insert(key, ops.len());
                    ops.push(Op {
                        client: event.client,
                        op: event.op,
                        what: event.what.clone(),
                        invoked_us: event.at_us,
                        completed_us: None,
                        ended: Completion::Info,
                        input: event.value.clone(),
                        output: Value::Null,
                        zxid: None,
                    });
                    continue;
                }
                EventKind::Ok => Completion::Ok,
                EventKind::Fail => Completion::Fail,
                EventKind::Info => Completion::Info,
            };
            if let Some(op) = open.remove(&key).and_then(|at| ops.get_mut(at)) {
                (op.completed_us, op.ended, op.output, op.zxid) =
                    (Some(event.at_us), ended, event.value.clone(), event.zxid);
            }
        }
        ops
    }

    /// The notes, which belong to no operation, by time.
    pub fn notes(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.kind == EventKind::Note)
    }

    /// What clients told of their sessions, by number.
    ///
    /// # Errors
    /// It is of another form: a defect of the suite.
    pub fn sessions(&self) -> Result<BTreeMap<u64, SessionLife>, serde_json::Error> {
        let mut sessions: BTreeMap<u64, SessionLife> = BTreeMap::new();
        for event in self.notes() {
            let told = [ops::SURE, ops::SESSION_LOST, ops::CLOSING, ops::ABANDONED].contains(&event.what.as_str());
            if !told {
                continue;
            }
            let life = sessions.entry(event.told::<ops::SessionRef>()?.session).or_default();
            let first_us = match event.what.as_str() {
                ops::SURE => {
                    let until_us = event.told::<ops::AliveUntil>()?.until_ms.saturating_mul(1_000);
                    life.until_us = life.until_us.max(until_us);
                    continue;
                }
                ops::SESSION_LOST => &mut life.lost_us,
                ops::CLOSING => &mut life.closing_us,
                _ => &mut life.abandoned_us,
            };
            first_us.get_or_insert(event.at_us);
        }
        Ok(sessions)
    }
}

/// One session, by its client's record.
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

impl SessionLife {
    /// Whether its client had begun to close it when its end was seen. A client may close a session later because it is
    /// over.
    pub fn closed_by(&self, seen_us: u64) -> bool {
        self.closing_us.is_some_and(|closing_us| closing_us <= seen_us)
    }

    /// Whether it may be over by then, as far as its client knows.
    pub fn may_be_over(&self, at_us: u64) -> bool {
        self.closed_by(at_us) || self.until_us <= at_us
    }
}

/// A node's data was set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataSet {
    /// When, in the replicated order.
    pub zxid: u64,
    /// Where.
    pub path: String,
}

/// One fault: its effect, its time, and the evidence that it took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// Which nemesis.
    pub nemesis: String,
    /// A description for people: "node 2 (the leader) cut off".
    pub what: String,
    /// When it began, in microseconds of the boot clock.
    pub began_us: u64,
    /// When it was lifted: from then on nothing is in the way of healing.
    pub ended_us: u64,
    /// The evidence: "the leader changed from 2 to 3", "node 2 held back 18,312 bytes".
    pub evidence: Vec<String>,
    /// Whether it took effect. A fault that did not makes the run unknown.
    pub bit: bool,
    /// Whether it stops clients that hold something for longer than their session lives.
    pub stops_holders: bool,
}

/// Everything that a run left behind, for the checks.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The clients' events.
    pub history: History,
    /// Creations and deletions of nodes, from the watches of all nodes, in the replicated order.
    pub log: BTreeSet<NodeEvent>,
    /// Changes of data, from the same watches.
    pub data: BTreeSet<DataSet>,
    /// When the first node reported each transaction: by zxid, on the boot clock.
    pub seen_us: BTreeMap<u64, u64>,
    /// The servers' wake-ups before the first fault.
    pub wake_ups: WakeUps,
    /// The faults of the cluster and of its clients.
    pub faults: Vec<FaultRecord>,
    /// The directory that the clients shared.
    pub shared: PathBuf,
    /// The timeout of the sessions.
    pub ttl: Duration,
    /// How many clients there were at a time.
    pub clients: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_us: u64, op: u64, kind: EventKind) -> Event {
        Event { at_us, client: 1, op, kind, what: "acquire".into(), value: Value::from(at_us), zxid: Some(at_us) }
    }

    #[test]
    fn invocations_and_completions_find_each_other() {
        let told = Event { op: 0, ..event(25, 0, EventKind::Note) };
        let events =
            vec![event(30, 1, EventKind::Ok), event(10, 1, EventKind::Invoke), event(20, 2, EventKind::Invoke), told];
        let history = History::new(events);
        let ops = history.ops();
        assert_eq!(
            ops.iter().map(|op| (op.op, op.ended)).collect::<Vec<_>>(),
            [(1, Completion::Ok), (2, Completion::Info)]
        );
        assert_eq!((ops[0].asked::<u64>().unwrap(), ops[0].answer::<u64>().unwrap()), (10, Some(30)));
        assert_eq!((ops[1].completed_us, ops[1].answer::<u64>().unwrap()), (None, None));
        assert_eq!(history.notes().count(), 1);
    }
}
