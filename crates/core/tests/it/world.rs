//! A state and its log, for tests that apply one command after the other.

use lockkeeper_core::*;

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap()
}

pub(crate) fn snapshot(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.write_snapshot(&mut bytes).unwrap();
    bytes
}

/// The state that its own snapshot gives, which must be the same.
pub(crate) fn through_a_snapshot(state: &State) -> State {
    let read = State::read_snapshot(&snapshot(state)[..]).unwrap();
    assert_eq!((&read, read.checksum()), (state, state.checksum()));
    read
}

pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) clock_ms: u64,
    sequence: u64,
    /// Each batch is read from its bytes, as from the log.
    is_encoded: bool,
}

impl World {
    pub(crate) const START_MS: u64 = 1_000_000;

    pub(crate) fn new() -> Self {
        Self { state: State::new(), clock_ms: Self::START_MS, sequence: 0, is_encoded: false }
    }

    pub(crate) fn encoded() -> Self {
        Self { is_encoded: true, ..Self::new() }
    }

    pub(crate) fn apply(&mut self, command: Command) -> Outcome {
        self.sequence += 1;
        let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
        let batch = Batch::consecutive(origin, self.clock_ms, vec![command]);
        let batch = if self.is_encoded { Batch::decode(&batch.encode()).unwrap() } else { batch };
        let outcome = self.state.apply(Term(1), &batch).remove(0);
        self.state.validate().unwrap();
        outcome
    }

    pub(crate) fn act(&mut self, actor: Actor, op: impl Into<Op>) -> Result<Reply, Refusal> {
        self.apply(Command::Do { actor, op: op.into() }).reply
    }
}
