//! Shrinks a contradiction to the fewest operations.
//!
//! It must never make a contradiction where there was none. So it only cuts off the end of the history, leaves out
//! operations that only read, and forgets the answers of others, which then count as open. Leaving out a write would
//! make every read of it look wrong.

use super::{Budget, Finding, LatestEffect, Model, OperationOf, search};

/// Each trial is short; one that would not be keeps what it tried to do without.
const TRIAL: Budget = Budget { steps: 20_000, bytes: 32 << 20 };
/// And there are only so many of them.
const TRIALS: usize = 400;

/// A smaller history that is not linearizable, of one that is not. What is still `Done` in it is the contradiction.
pub fn shrink<M: Model>(model: &M, operations: &[OperationOf<M>]) -> Vec<OperationOf<M>> {
    let mut trials = TRIALS;
    let mut broken = |candidate: &[OperationOf<M>]| {
        trials = trials.saturating_sub(1);
        trials > 0 && matches!(search(model, candidate, TRIAL), Finding::NotLinearizable(_))
    };
    let small = first_broken_prefix(operations, &mut broken);
    // What only looks first: without it the search is shorter, and what is open makes it longer.
    let small = in_chunks(small, &mut broken, |operation| model.only_looks(&operation.input).then_some(None));
    in_chunks(small, &mut broken, |operation| {
        let open = super::Operation { end: LatestEffect::Open, output: None, ..operation.clone() };
        (operation.end != LatestEffect::Open).then_some(Some(open))
    })
}

/// Tries to make half of the operations less, then the other half, then quarters, down to single ones. `less` gives
/// none for what cannot be made less, and otherwise what is left of it.
fn in_chunks<O: Clone>(
    mut small: Vec<O>,
    broken: &mut impl FnMut(&[O]) -> bool,
    less: impl Fn(&O) -> Option<Option<O>>,
) -> Vec<O> {
    let mut chunk = small.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < small.len() {
            let end = (at + chunk).min(small.len());
            let mut candidate = small[..at].to_vec();
            let mut is_less = false;
            for operation in &small[at..end] {
                let made = less(operation);
                is_less |= made.is_some();
                candidate.extend(made.unwrap_or_else(|| Some(operation.clone())));
            }
            let next = candidate.len();
            candidate.extend_from_slice(&small[end..]);
            if is_less && broken(&candidate) {
                (small, at) = (candidate, next);
            } else {
                at = end;
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
            (operation.end, operation.output) = (LatestEffect::Open, None);
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
