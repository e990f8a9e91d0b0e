//! A node that is created, read, written, compared and set by its version, and deleted.

use super::Model;

/// What is asked of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAsk {
    /// Its value.
    Read,
    /// That it be there with this value, where it was not.
    Create(u64),
    /// This value, whatever it was; it must be there unless [`RegisterModel::upsert`].
    Write(u64),
    /// This value, if its version is still this one.
    Cas {
        /// The version.
        version: i32,
        /// The value.
        to: u64,
    },
    /// That it be gone, if its version is this one (any, where none is said).
    Delete(Option<i32>),
}

/// What a register answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAnswer {
    /// A read: value and version, or that it is not there.
    Value(Option<(u64, i32)>),
    /// A creation, a write or a compare-and-set was carried out.
    Written {
        /// Its version now, where the answer tells it.
        version: Option<i32>,
    },
    /// Refused: it has another version.
    OtherVersion,
    /// Refused: it is not there.
    Missing,
    /// Refused: it is there.
    Exists,
    /// A deletion was carried out.
    Deleted,
}

/// A register with versions: 0 when it is created, one more with each write.
#[derive(Clone, Copy, Debug)]
pub struct RegisterModel {
    /// What it is at first: value and version.
    pub init: Option<(u64, i32)>,
    /// Whether a write creates it.
    pub upsert: bool,
}

impl Default for RegisterModel {
    /// Not there; a write creates it.
    fn default() -> Self {
        Self { init: None, upsert: true }
    }
}

impl Model for RegisterModel {
    type State = Option<(u64, i32)>;
    type Input = RegisterAsk;
    type Output = RegisterAnswer;

    fn init(&self) -> Self::State {
        self.init
    }

    fn step(&self, state: &Self::State, input: &RegisterAsk, output: Option<&RegisterAnswer>) -> Option<Self::State> {
        let (answer, next) = self.run(*state, *input);
        match (output, answer) {
            (None, RegisterAnswer::Written { .. } | RegisterAnswer::Deleted | RegisterAnswer::Value(_)) => Some(next),
            // It took effect, so it was not refused.
            (None, _) => None,
            (Some(RegisterAnswer::Written { version: None }), RegisterAnswer::Written { .. }) => Some(next),
            (Some(told), answer) => (*told == answer).then_some(next),
        }
    }

    fn only_looks(&self, input: &RegisterAsk) -> bool {
        matches!(input, RegisterAsk::Read)
    }
}

impl RegisterModel {
    /// What it answers, and what it is then.
    pub(super) fn run(&self, state: Option<(u64, i32)>, ask: RegisterAsk) -> (RegisterAnswer, Option<(u64, i32)>) {
        let written =
            |version: i32, value| (RegisterAnswer::Written { version: Some(version) }, Some((value, version)));
        match (ask, state) {
            (RegisterAsk::Read, state) => (RegisterAnswer::Value(state), state),
            (RegisterAsk::Create(_), Some(_)) => (RegisterAnswer::Exists, state),
            (RegisterAsk::Create(value), None) => written(0, value),
            (RegisterAsk::Write(value), None) if self.upsert => written(0, value),
            (RegisterAsk::Write(value), Some((_, version))) => written(version + 1, value),
            (RegisterAsk::Cas { version, to }, Some((_, now))) if version == now => written(now + 1, to),
            (RegisterAsk::Delete(version), Some((_, now))) if version.is_none_or(|version| version == now) => {
                (RegisterAnswer::Deleted, None)
            }
            (_, None) => (RegisterAnswer::Missing, state),
            (_, Some(_)) => (RegisterAnswer::OtherVersion, state),
        }
    }
}
