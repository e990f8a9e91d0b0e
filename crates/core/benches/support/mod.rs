//! A state and its log, which benchmarks fill, and what they fill it with.
#![allow(dead_code)] // each benchmark uses a part

use std::time::Duration;

use lockkeeper_core::*;

#[derive(Clone)]
pub(crate) struct MeasuredLog {
    pub(crate) state: State,
    sequence: u64,
    rules: Rules,
}

impl MeasuredLog {
    pub(crate) fn new(max_state_bytes: u64) -> Self {
        let rules = Rules { max_ephemerals_per_session: 100_000, max_state_bytes, ..Rules::default() };
        Self { state: State::new(), sequence: 0, rules }
    }

    /// Applies a command as the only one of its batch.
    pub(crate) fn apply(&mut self, command: Command) -> Outcome {
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let batch = Batch { rules: self.rules, ..Batch::consecutive(origin, self.sequence, vec![command]) };
        let outcome = self.state.apply(Term(1), &batch).remove(0);
        assert!(outcome.reply.is_ok(), "{:?}", outcome.reply);
        outcome
    }

    pub(crate) fn open(&mut self) -> SessionId {
        let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 10_000, label: "bench".into() };
        match self.apply(open).reply {
            Ok(Reply::SessionOpened { session, .. }) => session,
            other => panic!("{other:?}"),
        }
    }

    /// Carries out an operation for a session.
    pub(crate) fn act(&mut self, session: SessionId, op: impl Into<Op>) -> Outcome {
        self.apply(Command::Do { actor: Actor::of(session), op: op.into() })
    }

    /// Makes so many nodes, 1,000 to a directory.
    pub(crate) fn make_nodes(&mut self, count: u32) {
        let mut make = |path: String| {
            self.apply(Command::Do { actor: Actor::default(), op: create(&path, NodeKind::Persistent) });
        };
        for directory in 0..count / 1_000 {
            make(format!("/d{directory}"));
            (1..1_000).for_each(|node| make(format!("/d{directory}/node-{node}")));
        }
    }
}

/// A node with 32 bytes.
pub(crate) fn create(path: &str, kind: NodeKind) -> Op {
    let path = NodePath::parse(path).unwrap_or_else(|e| panic!("{e}"));
    let (data, acl) = ([b'x'; 32].into(), vec![AclEntry::open()]);
    NodeOp::Create { path, data, kind, sequential: Sequential::No, acl }.into()
}

pub(crate) fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn acquire(locks: Vec<LockName>, mode: LockMode, uuid: u128) -> Op {
    LockOp::Acquire { locks, mode, delay_ms: 0, uuid: RequestId(uuid), label: "worker".into() }.into()
}

/// The same, of one lock, by a request whose name is in no order, as real ones are.
pub(crate) fn acquire_one(name: &str, number: u32) -> Op {
    let uuid = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    acquire(vec![lock(name)], LockMode::Exclusive, uuid)
}

pub(crate) fn token(outcome: &Outcome) -> FencingToken {
    match &outcome.reply {
        Ok(Reply::Queued { token, .. }) => *token,
        other => panic!("{other:?}"),
    }
}

/// Time that this process has had a processor: others use the machine too.
pub(crate) fn on_cpu() -> Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    Duration::from(now.unwrap_or_else(|error| panic!("{error}")))
}
