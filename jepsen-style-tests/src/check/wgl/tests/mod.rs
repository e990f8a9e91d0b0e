//! Histories made by hand, good and bad, and histories made by chance that are judged by the naive search as well.

mod by_chance;
mod by_hand;

use super::*;

/// An operation that is done.
fn done<I, O>(op: u64, input: I, output: O, from: u64, to: u64) -> Operation<I, O> {
    Operation { client: 1, op, input, output: Some(output), invoked_us: from, end: LatestEffect::Done(to) }
}

/// One of which nobody knows.
fn open<I, O>(op: u64, input: I, from: u64) -> Operation<I, O> {
    Operation { client: 2, op, input, output: None, invoked_us: from, end: LatestEffect::Open }
}

fn is_good<M: Model>(model: &M, operations: &[OperationOf<M>]) -> bool {
    match search(model, operations, Budget::default()) {
        Finding::Linearizable { order } => {
            assert_eq!(replayed(model, operations, &order), Ok(()));
            true
        }
        Finding::NotLinearizable(_) => false,
        Finding::Unknown { why } => panic!("{why}"),
    }
}

/// The order that was found is one: the witness is checked, not believed.
fn replayed<M: Model>(model: &M, operations: &[OperationOf<M>], order: &[usize]) -> Result<(), String> {
    let mut state = model.init();
    for (place, at) in order.iter().enumerate() {
        let operation = &operations[*at];
        state =
            model.step(&state, &operation.input, operation.output.as_ref()).ok_or("an answer is not the model's")?;
        let overtaken = order[place + 1..]
            .iter()
            .any(|later| operations[*later].ends_us().is_some_and(|end| end < operation.invoked_us));
        if overtaken || order[..place].contains(at) {
            return Err(format!("{at} stands at a wrong place of {order:?}"));
        }
    }
    let missing = (0..operations.len()).find(|at| operations[*at].must_take_place() && !order.contains(at));
    missing.map_or(Ok(()), |at| Err(format!("{at} is not in {order:?}")))
}
