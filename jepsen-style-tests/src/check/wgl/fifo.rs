//! A queue: first in, first out.

use std::collections::VecDeque;

use super::Model;

/// What is asked of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FifoAsk {
    /// To take this in at the end.
    Put(u64),
    /// To hand out the first.
    Take,
    /// To show the first.
    Peek,
}

/// What a queue answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FifoAnswer {
    /// It was taken in.
    Put,
    /// The first, or that there is none.
    First(Option<u64>),
}

/// A queue, empty at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Model for Fifo {
    type State = VecDeque<u64>;
    type Input = FifoAsk;
    type Output = FifoAnswer;

    fn init(&self) -> VecDeque<u64> {
        VecDeque::new()
    }

    fn step(&self, state: &VecDeque<u64>, input: &FifoAsk, output: Option<&FifoAnswer>) -> Option<VecDeque<u64>> {
        let first = state.front().copied();
        match (input, output) {
            (FifoAsk::Put(value), Some(FifoAnswer::Put) | None) => {
                let mut next = state.clone();
                next.push_back(*value);
                Some(next)
            }
            (FifoAsk::Take, Some(FifoAnswer::First(told))) if *told != first => None,
            (FifoAsk::Take, Some(FifoAnswer::First(_)) | None) => {
                let mut next = state.clone();
                next.pop_front();
                Some(next)
            }
            (FifoAsk::Peek, Some(FifoAnswer::First(told))) => (*told == first).then(|| state.clone()),
            (FifoAsk::Peek, None) => Some(state.clone()),
            _ => None,
        }
    }

    fn only_looks(&self, input: &FifoAsk) -> bool {
        matches!(input, FifoAsk::Peek)
    }

    fn weight(&self, state: &VecDeque<u64>) -> usize {
        size_of_val(state) + 8 * state.len()
    }
}
