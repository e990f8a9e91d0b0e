//! An idempotency gate, by the rule that the simulation checks it by too.

use lockkeeper_checkers::gate::Gate;
pub use lockkeeper_checkers::gate::{GateAnswer, GateAsk};

use super::Model;

/// A gate, open at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateModel;

impl Model for GateModel {
    type State = Gate;
    type Input = GateAsk;
    type Output = GateAnswer;

    fn init(&self) -> Gate {
        Gate::default()
    }

    fn step(&self, state: &Gate, input: &GateAsk, output: Option<&GateAnswer>) -> Option<Gate> {
        state.step(*input, output.copied())
    }
}
