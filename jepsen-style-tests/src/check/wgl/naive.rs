//! The same question, answered by trying every order: for checking the checker. No use beyond ten operations.

use super::{LatestEffect, Model, OperationOf};

/// Whether some order explains the operations.
pub fn search<M: Model>(model: &M, operations: &[OperationOf<M>]) -> bool {
    let mut left: Vec<&OperationOf<M>> = operations.iter().collect();
    try_all(model, &model.init(), &mut left)
}

fn try_all<M: Model>(model: &M, state: &M::State, left: &mut Vec<&OperationOf<M>>) -> bool {
    if left.iter().all(|operation| !matches!(operation.end, LatestEffect::Done(_))) {
        return true;
    }
    for at in 0..left.len() {
        let first = left.remove(at);
        // It may come next if none of the others was over before it began.
        let may = !left.iter().any(|other| matches!(other.end, LatestEffect::Done(over) if over < first.invoked_us));
        // One that ended without a sure effect before something that was placed cannot be told here, as what is placed
        // has gone: it is given up instead, at the moment when something begins after its end.
        let late: Vec<_> = left
            .iter()
            .copied()
            .filter(|other| matches!(other.end, LatestEffect::Until(over) if over < first.invoked_us))
            .collect();
        let mut rest: Vec<_> =
            left.iter().copied().filter(|other| !late.iter().any(|l| std::ptr::eq(*l, *other))).collect();
        if may
            && let Some(next) = model.step(state, &first.input, first.output.as_ref())
            && try_all(model, &next, &mut rest)
        {
            return true;
        }
        left.insert(at, first);
    }
    false
}
