//! A list to which things are appended, and which is read whole: each read tells the whole past.

use super::{Model, OperationOf};

/// What is asked of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListAsk {
    /// To append this.
    Append(u64),
    /// To show all.
    Read,
}

/// What a list answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListAnswer {
    /// It was appended.
    Appended,
    /// All of it.
    All(Vec<u64>),
}

/// A list, empty at first.
#[derive(Clone, Debug, Default)]
pub struct AppendList {
    /// The longest that will be read. What is appended before that read is what it shows, in its order.
    longest: Vec<u64>,
}

impl Model for AppendList {
    type State = Vec<u64>;
    type Input = ListAsk;
    type Output = ListAnswer;

    fn init(&self) -> Vec<u64> {
        Vec::new()
    }

    fn step(&self, state: &Vec<u64>, input: &ListAsk, output: Option<&ListAnswer>) -> Option<Vec<u64>> {
        match (input, output) {
            (ListAsk::Append(value), Some(ListAnswer::Appended) | None) => {
                if self.longest.get(state.len()).is_some_and(|shown| shown != value) {
                    return None;
                }
                let mut next = Vec::with_capacity(state.len() + 1);
                next.extend_from_slice(state);
                next.push(*value);
                Some(next)
            }
            (ListAsk::Read, Some(ListAnswer::All(all))) => (all == state).then(|| state.clone()),
            (ListAsk::Read, None) => Some(state.clone()),
            _ => None,
        }
    }

    fn only_looks(&self, input: &ListAsk) -> bool {
        matches!(input, ListAsk::Read)
    }

    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self> {
        let reads = operations.iter().filter_map(|operation| match &operation.output {
            Some(ListAnswer::All(all)) => Some(all),
            _ => None,
        });
        Some(Self { longest: reads.max_by_key(|all| all.len())?.clone() })
    }

    fn weight(&self, state: &Vec<u64>) -> usize {
        size_of_val(state) + 8 * state.len()
    }
}
