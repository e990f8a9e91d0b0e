//! The fewest operations that contradict each other.
//!
//! Only what cannot make a contradiction where there was none: the end of the history is cut off, operations that only look are left
//! out, and of others it is forgotten that they were carried out, and how (they become open). Leaving out a write would make every read of it look wrong.

use super::{Budget, End, Finding, Model, OperationOf, search};

/// Each trial is short; one that would not be keeps what it tried to do without.
const TRIAL: Budget = Budget { steps: 100_000, bytes: 64 << 20 };
/// And there are only so many of them.
const TRIALS: usize = 2_000;

/// A smaller history that is not linearizable, of one that is not. What is still `Done` in it is the contradiction.
pub fn shrink<M: Model>(model: &M, operations: &[OperationOf<M>]) -> Vec<OperationOf<M>> {
    let mut trials = TRIALS;
    let mut broken = |candidate: &[OperationOf<M>]| {
        trials = trials.saturating_sub(1);
        trials > 0 && matches!(search(model, candidate, TRIAL), Finding::NotLinearizable(_))
    };
    let mut small = first_broken_prefix(operations, &mut broken);
    let mut chunk = small.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < small.len() {
            let weaker = weakened(model, &small, at, chunk);
            if weaker.1 && broken(&weaker.0) {
                at += chunk - (small.len() - weaker.0.len()).min(chunk);
                small = weaker.0;
            } else {
                at += chunk;
            }
        }
        if chunk == 1 {
            return small;
        }
        chunk = chunk.div_ceil(2);
    }
}

/// The operations as they stood at a moment: later ones not begun, later answers not there.
fn until<I: Clone, O: Clone>(operations: &[super::Operation<I, O>], at_us: u64) -> Vec<super::Operation<I, O>> {
    let begun = operations.iter().filter(|operation| operation.invoked_us <= at_us);
    let as_it_stood = |operation: &super::Operation<I, O>| {
        let mut operation = operation.clone();
        if operation.ends_us().is_some_and(|end| end > at_us) {
            (operation.end, operation.output) = (End::Open, None);
        }
        operation
    };
    begun.map(as_it_stood).collect()
}

/// A prefix of a linearizable history is linearizable, so the shortest broken one is found by halving.
fn first_broken_prefix<I: Clone, O: Clone>(
    operations: &[super::Operation<I, O>],
    broken: &mut impl FnMut(&[super::Operation<I, O>]) -> bool,
) -> Vec<super::Operation<I, O>> {
    let mut ends: Vec<u64> = operations.iter().filter_map(super::Operation::ends_us).collect();
    ends.sort_unstable();
    ends.dedup();
    let (mut from, mut to) = (0, ends.len());
    while from < to {
        let middle = from.midpoint(to);
        if broken(&until(operations, ends[middle])) {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    ends.get(to).map_or_else(|| operations.to_vec(), |end| until(operations, *end))
}

/// Without what only looks and without the outcome of the rest, among so many from there on; and whether that is less than before.
fn weakened<M: Model>(
    model: &M,
    operations: &[OperationOf<M>],
    from: usize,
    count: usize,
) -> (Vec<OperationOf<M>>, bool) {
    let mut less = false;
    let mut weaker = Vec::with_capacity(operations.len());
    for (at, operation) in operations.iter().enumerate() {
        let mut operation = operation.clone();
        if (from..from + count).contains(&at) {
            if model.only_looks(&operation.input) {
                less = true;
                continue;
            }
            less |= operation.end != End::Open;
            (operation.end, operation.output) = (End::Open, None);
        }
        weaker.push(operation);
    }
    (weaker, less)
}
