//! A run put together event by event, for the tests of what judges it.

use lockkeeper_checkers::lives::NodeEvent;

use crate::check::Verdict;
use crate::history::{Event, EventKind, History};
use crate::workload::prelude::*;

/// A note of client 1.
pub(super) fn told(at_us: u64, what: &str, value: Value, zxid: Option<u64>) -> Event {
    Event { at_us, client: 1, op: 0, kind: EventKind::Note, what: what.into(), value, zxid }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Bench {
    pub(super) run: Recorded,
    events: Vec<Event>,
    ops: u64,
    /// How long each operation takes.
    pub(super) took_us: u64,
}

impl Bench {
    /// Of operations that take so long.
    pub(super) fn of_ops(took_us: u64) -> Self {
        Self { took_us, ..Self::default() }
    }

    pub(super) fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(super) fn tell(&mut self, at_us: u64, what: &str, value: Value) {
        self.event(told(at_us, what, value, None));
    }

    /// An operation, begun then, and how it ended.
    pub(super) fn ended(&mut self, at_us: u64, client: u32, what: &str, asked: Value, end: (EventKind, Value)) {
        self.ops += 1;
        let (op, what, (ended, answer)) = (self.ops, what.to_owned(), end);
        let begun = Event { at_us, client, op, kind: EventKind::Invoke, what, value: asked, zxid: None };
        let end = Event { at_us: at_us + self.took_us, kind: ended, value: answer, ..begun.clone() };
        self.events.extend([begun, end]);
    }

    /// The same of one that was carried out.
    pub(super) fn op(&mut self, at_us: u64, client: u32, what: &str, asked: Value, answer: Value) {
        self.ended(at_us, client, what, asked, (EventKind::Ok, answer));
    }

    /// The same, at a zxid.
    pub(super) fn op_at(&mut self, zxid: Option<u64>, at_us: u64, what: &str, asked: Value, answer: Value) {
        self.op(at_us, 1, what, asked, answer);
        if let Some(end) = self.events.last_mut() {
            end.zxid = zxid;
        }
    }

    pub(super) fn log(&mut self, zxid: u64, created: bool, path: &str) {
        self.run.log.insert(NodeEvent { zxid, created, path: path.into() });
    }

    pub(super) fn recorded(mut self) -> Recorded {
        self.run.history = History::new(self.events);
        self.run
    }

    /// What the checks come to. One that finds something says when.
    pub(super) fn verdicts(self, checks: impl Fn(&Recorded) -> Vec<Check>) -> Vec<Verdict> {
        let checks = checks(&self.recorded());
        for check in &checks {
            assert_eq!(check.verdict == Verdict::Invalid, check.at_us.is_some(), "{check:?}");
        }
        checks.iter().map(|check| check.verdict).collect()
    }

    /// Which of them find something.
    pub(super) fn found(self, checks: impl Fn(&Recorded) -> Vec<Check>) -> Vec<usize> {
        let verdicts = self.verdicts(checks);
        (0..verdicts.len()).filter(|at| verdicts[*at] == Verdict::Invalid).collect()
    }
}
