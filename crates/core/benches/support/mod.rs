//! A state and its log, which benchmarks fill.

use lockkeeper_core::*;

#[derive(Clone)]
pub(crate) struct MeasuredLog {
    pub(crate) state: State,
    sequence: u64,
    rules: Rules,
}

impl MeasuredLog {
    pub(crate) fn new(rules: Rules) -> Self {
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
}
