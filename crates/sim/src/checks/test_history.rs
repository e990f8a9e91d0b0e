//! Histories for the unit tests of the checks: made by the real state, and then damaged by hand.

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::{
    AclEntry, Actor, Batch, Command, LockMode, LockName, LockOp, NodeId, NodeKind, NodeOp, NodePath, Op, Origin,
    Outcome, RequestId, RequestKey, Sequential, SessionId, State, Term,
};
use lockkeeper_store::{LogPosition, Record};

use super::change::Change;

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap()
}

pub(crate) fn data(text: &str) -> Arc<[u8]> {
    Arc::from(text.as_bytes())
}

pub(crate) fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap()
}

/// A state, and the commands since it was last looked at.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) state: State,
    pub(crate) clock_ms: u64,
    pub(crate) pending: Vec<(Command, Outcome)>,
    clocks: Vec<u64>,
    sequence: u64,
}

impl History {
    /// Gives the zxid after it.
    pub(crate) fn apply(&mut self, command: Command) -> u64 {
        self.sequence += 1;
        self.clock_ms += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let batch = Batch::consecutive(origin, self.clock_ms, vec![command.clone()]);
        let outcome = self.state.apply(Term(1), &batch).remove(0);
        let zxid = outcome.zxid.0;
        self.pending.push((command, outcome));
        self.clocks.push(self.clock_ms);
        zxid
    }

    /// Hands out what has happened since the last time.
    pub(crate) fn each(&mut self, mut with: impl FnMut(&Change<'_>)) {
        let clocks = std::mem::take(&mut self.clocks);
        for ((command, outcome), clock_ms) in std::mem::take(&mut self.pending).into_iter().zip(clocks) {
            with(&change(&command, &outcome, clock_ms));
        }
    }

    /// Hands out the last command with its outcome, which may be spoilt before it is shown.
    pub(crate) fn last(&mut self) -> (Command, Outcome) {
        self.clocks.pop();
        self.pending.pop().unwrap()
    }

    pub(crate) fn open(&mut self) -> u64 {
        self.apply(Command::OpenSession { secret_hash: [0; 32], timeout_ms: 2_000, label: "test".into() })
    }

    pub(crate) fn run(&mut self, session: Option<u64>, op: impl Into<Op>) -> u64 {
        self.apply(Command::Do { actor: Actor::maybe(session.map(SessionId)), op: op.into() })
    }

    pub(crate) fn keyed(&mut self, session: u64, id: u128, op: impl Into<Op>) -> u64 {
        let request = Some(RequestKey { id: RequestId(id), acknowledged: Vec::new() });
        self.apply(Command::Do { actor: Actor::of(SessionId(session)).asking(request), op: op.into() })
    }

    pub(crate) fn create(&mut self, at: &str, text: &str) -> u64 {
        self.run(None, create(at, text, NodeKind::Persistent))
    }

    pub(crate) fn acquire(&mut self, session: u64, name: &str, mode: LockMode, delay_ms: u32) -> u64 {
        let uuid = RequestId(u128::from(self.sequence) + 1);
        let op = LockOp::Acquire { locks: vec![lock(name)], mode, delay_ms, uuid, label: "test".into() };
        self.run(Some(session), op)
    }

    pub(crate) fn release(&mut self, session: u64, name: &str, token: u64) -> u64 {
        let op = LockOp::Release { locks: vec![lock(name)], token: lockkeeper_core::FencingToken(token) };
        self.run(Some(session), op)
    }

    pub(crate) fn expire(&mut self, session: u64) -> u64 {
        let seen = self.state.zxid();
        self.apply(Command::ExpireSessions { term: Term(1), seen, sessions: vec![SessionId(session)] })
    }
}

pub(crate) fn change<'a>(command: &'a Command, outcome: &'a Outcome, clock_ms: u64) -> Change<'a> {
    Change { index: 1, term: 1, clock_ms, at_us: clock_ms * 1_000, command, outcome }
}

pub(crate) fn create(at: &str, text: &str, kind: NodeKind) -> NodeOp {
    NodeOp::Create {
        path: path(at),
        data: data(text).into(),
        kind,
        sequential: Sequential::No,
        acl: vec![AclEntry::open()],
    }
}

/// A log of one node, entry by entry, and the state that it gives.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<Record>,
    pub(crate) state: State,
}

impl Log {
    /// Gives the index of the entry, and the state after it.
    pub(crate) fn entry(&mut self, sequence: u64, commands: Vec<Command>) -> (u64, State) {
        let index = self.records.len() as u64 + 1;
        let batch = Batch::consecutive(Origin { node: NodeId(1), incarnation: 1, sequence }, index, commands);
        self.state.apply(Term(1), &batch);
        self.records.push(record(index, batch.encode().into()));
        (index, self.state.clone())
    }

    pub(crate) fn append(&mut self, commands: Vec<Command>) -> (u64, State) {
        self.entry(self.records.len() as u64 + 1, commands)
    }

    pub(crate) fn make(&mut self, at: &str) -> (u64, State) {
        self.append(vec![made(at)])
    }
}

/// What an entry at the index puts into the log, its clock being its index.
pub(crate) fn record(index: u64, payload: Bytes) -> Record {
    let position = LogPosition { term: 1, index };
    lockkeeper_consensus::record_of_proposal(&lockkeeper_consensus::Committed { position, clock_ms: index, payload })
}

pub(crate) fn made(at: &str) -> Command {
    Command::Do { actor: Actor::default(), op: create(at, "one", NodeKind::Persistent).into() }
}
