//! A queue: first in, first out.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{End, Model, OperationOf};

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
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    /// When each will be taken, as far as somebody is told.
    taken: HashMap<u64, Taken>,
}

/// When something is taken: between these two moments.
#[derive(Clone, Copy, Debug)]
struct Taken {
    from_us: u64,
    to_us: u64,
}

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
                if self.must_be_before(*value, state) {
                    return None;
                }
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

    fn knowing(&self, operations: &[OperationOf<Self>]) -> Option<Self> {
        let mut taken: HashMap<u64, Taken> = HashMap::new();
        let (mut put, mut open) = (HashSet::new(), false);
        for operation in operations {
            match (&operation.input, operation.output, operation.end) {
                (FifoAsk::Take, Some(FifoAnswer::First(Some(value))), End::Done(to_us)) => {
                    taken.insert(value, Taken { from_us: operation.invoked_us, to_us });
                }
                (FifoAsk::Take, None, _) => open = true,
                // What is put in twice cannot be told apart.
                (FifoAsk::Put(value), ..) if !put.insert(*value) => return None,
                _ => {}
            }
        }
        if !open {
            // What nobody was handed stays in for ever.
            for value in put {
                taken.entry(value).or_insert(Taken { from_us: u64::MAX, to_us: u64::MAX });
            }
        }
        Some(Self { taken })
    }

    fn weight(&self, state: &VecDeque<u64>) -> usize {
        size_of_val(state) + 8 * state.len()
    }
}

impl Fifo {
    /// Whether something in the queue will be taken after this, and so cannot stand before it.
    fn must_be_before(&self, value: u64, queue: &VecDeque<u64>) -> bool {
        let Some(this) = self.taken.get(&value) else { return false };
        queue.iter().filter_map(|other| self.taken.get(other)).any(|other| other.from_us > this.to_us)
    }
}
