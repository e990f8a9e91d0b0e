//! The items of a queue as seen from outside: each is one object that is put, delivered, given back and acknowledged.
//! Of the servers' own order only the end of a session is believed. A delivery whose answer was lost may be of any
//! item, so it shows only in the attempt number of the next one.

use super::{ACK, BACK, PUT, QueueItem, TAKE, Taken, Taker};
use crate::check::locks;
use crate::check::wgl::{self, ItemAsk, ItemDone, Operation, OperationOf};
use crate::workload::prelude::*;

const NAME: &str = "linearizable items, as a black box";
const PROMISES: &str = "P1 P7 P9";

pub(super) fn linearizable(run: &Recorded, ops: &[Op]) -> Check {
    let seen = locks::ends_us(run)
        .and_then(|ends_us| operations(ops, &ends_us).map_err(|error| format!("the history cannot be read: {error}")));
    match seen {
        Ok(operations) => wgl::judge(NAME, PROMISES, &wgl::ItemModel, operations, wgl::Budget::default()),
        Err(why) => Check::unknown(NAME, PROMISES, why),
    }
}

/// By what was put, which is in one item.
type OfItems = Vec<(String, OperationOf<wgl::ItemModel>)>;

fn operations(ops: &[Op], ends_us: &BTreeMap<u64, u64>) -> Result<OfItems, serde_json::Error> {
    let mut all = OfItems::new();
    // Whose each giving out is, and when its session was last known to live.
    let mut hands: BTreeMap<(String, u32), (u64, u64)> = BTreeMap::new();
    for op in ops.iter().filter(|op| op.what == TAKE) {
        let (Taker { session }, Some(Taken { payload, attempt, .. })) = (op.asked()?, op.answer()?) else {
            continue;
        };
        hands.insert((payload.clone(), attempt), (session, op.invoked_us));
        let taken = Operation::of(op, ItemAsk::Take { owner: session, attempt }, Some(ItemDone));
        all.extend(taken.map(|taken| (payload, taken)));
    }
    let mut left = hands.clone();
    for op in ops {
        let done = (op.ended == Completion::Ok).then_some(ItemDone);
        let (payload, operation) = match op.what.as_str() {
            PUT => (op.asked::<QueueItem>()?.payload, Operation::of(op, ItemAsk::Put, done)),
            ACK | BACK => {
                let Taken { payload, attempt, .. } = op.asked()?;
                let of = (payload, attempt);
                if done.is_some() {
                    left.remove(&of);
                }
                let ask = if op.what == ACK { ItemAsk::Acknowledge { attempt } } else { ItemAsk::GiveBack { attempt } };
                let end_us = hands.get(&of).and_then(|(session, _)| ends_us.get(session)).copied();
                (of.0, Operation::of(op, ask, done).map(|operation| operation.closed_at(end_us)))
            }
            _ => continue,
        };
        all.extend(operation.map(|operation| (payload, operation)));
    }
    for (op, ((payload, _), (owner, alive_us))) in (1..).zip(left) {
        let (ask, end_us) = (ItemAsk::SessionEnds { owner }, ends_us.get(&owner).copied());
        all.push((payload, Operation::session_end(op, ask, ItemDone, alive_us, end_us)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Verdict;

    fn op(at_us: u64, what: &str, input: Value, ended: Completion, output: Value) -> Op {
        let (completed_us, what) = (Some(at_us + 5), what.to_owned());
        Op { client: 1, op: at_us, what, invoked_us: at_us, completed_us, ended, input, output, zxid: None }
    }

    fn given(attempt: u32) -> Value {
        json!({ "name": "i-0", "payload": "a", "attempt": attempt })
    }

    fn put() -> Op {
        op(10, PUT, json!({ "payload": "a" }), Completion::Ok, json!({ "name": "i-0" }))
    }

    fn take(at_us: u64, session: u64, attempt: u32) -> Op {
        op(at_us, TAKE, json!({ "session": session }), Completion::Ok, given(attempt))
    }

    fn letting(at_us: u64, what: &str, attempt: u32, ended: Completion) -> Op {
        op(at_us, what, given(attempt), ended, Value::Null)
    }

    /// Session 1 was seen to end then.
    fn judged(ops: &[Op], end_us: u64) -> Verdict {
        let operations = operations(ops, &BTreeMap::from([(1, end_us)])).unwrap();
        let check = wgl::judge(NAME, PROMISES, &wgl::ItemModel, operations, wgl::Budget::default());
        assert_eq!(check.verdict == Verdict::Invalid, check.at_us.is_some(), "{check:?}");
        check.verdict
    }

    #[test]
    fn an_item_goes_from_hand_to_hand() {
        let turn = [put(), take(20, 1, 1), letting(30, BACK, 1, Completion::Ok), take(40, 2, 2)];
        let done = [turn.as_slice(), &[letting(50, ACK, 2, Completion::Ok)]].concat();
        assert_eq!(judged(&done, 90), Verdict::Valid);
        assert_eq!(judged(&[done.as_slice(), &[take(60, 1, 3)]].concat(), 90), Verdict::Invalid, "done, and given out");
        assert_eq!(judged(&done[1..], 90), Verdict::Invalid, "what nobody put");
        assert_eq!(judged(&[put(), take(20, 1, 1), take(40, 2, 2)], 90), Verdict::Valid, "its session may have ended");
        assert_eq!(judged(&[put(), take(20, 1, 1), take(40, 2, 1)], 90), Verdict::Invalid, "one number for two");
        let open = [put(), take(20, 1, 1), letting(30, ACK, 1, Completion::Info), take(40, 2, 2)];
        assert_eq!(judged(&open, 90), Verdict::Valid, "not acknowledged, as it turns out");
        let kept = [put(), take(20, 1, 1), letting(60, ACK, 1, Completion::Ok), take(40, 2, 2)];
        assert_eq!(judged(&kept, 90), Verdict::Invalid, "in two pairs of hands");
        assert_eq!(judged(&[], 90), Verdict::Unknown);
    }
}
