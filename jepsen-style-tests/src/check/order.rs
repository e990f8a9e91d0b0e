//! Compares the zxids of answers with real time, over all operations of a run: an operation invoked after another was
//! answered comes after it in the order that the servers claim. O(n log n), and blind to the meaning of the operations.

use std::collections::BTreeMap;

use super::Check;
use crate::history::ops::{self, Granted};
use crate::history::{Completion, Event, EventKind, History, Op};

/// Whether the history is one: each operation is begun once, and ends at most once, after it was begun and not before.
/// What is not is the suite's own defect, and nothing can be said of such a run.
pub fn is_whole(history: &History) -> Check {
    const NAME: &str = "the history is whole";
    let mut open: BTreeMap<(u32, u64), bool> = BTreeMap::new();
    for event in history.events().iter().filter(|event| event.kind != EventKind::Note) {
        let Event { client, op, at_us, .. } = *event;
        let known = open.get(&(client, op)).copied();
        let wrong = match (event.kind, known) {
            (EventKind::Invoke, Some(_)) => "was begun twice",
            (EventKind::Invoke, None) => {
                open.insert((client, op), true);
                continue;
            }
            (_, None) => "ended before it was begun",
            (_, Some(false)) => "ended twice",
            (_, Some(true)) => {
                open.insert((client, op), false);
                continue;
            }
        };
        let detail = format!("client {client} op {op}: {} {wrong} ({at_us} us)", event.what);
        return Check { at_us: Some(at_us), ..Check::unknown(NAME, "", detail) };
    }
    Check::valid(NAME, "", format!("{} operations", open.len()))
}

/// One answer: where it says that it stands.
#[derive(Clone, Copy, Debug)]
struct Stand<'a> {
    op: &'a Op,
    completed_us: u64,
    zxid: u64,
    /// A change has a point of its own in the order; whatever only looks shares one.
    changes: bool,
}

/// Operations whose zxid is that of a transaction that they made.
const CHANGES: [&str; 10] = [
    "write",
    "compare_and_set",
    "create",
    "delete",
    "append",
    "row",
    ops::RELEASE,
    ops::DOWNGRADE,
    "change",
    // Of a gate, where its answer was to proceed; other answers to it tell no zxid.
    "begin",
];

/// Where an operation was answered before another was asked for, the other's zxid is not smaller; and it is larger if
/// the other changed something. The token of a grant is the zxid of its request, so it counts as a change of its own.
///
/// ```
/// use jepsen_style_tests::check::{Verdict, order};
/// use jepsen_style_tests::history::{Completion, Op};
/// let read = |op, from, to, zxid| Op { client: 1, op, what: "read".into(), invoked_us: from, completed_us: Some(to),
///     ended: Completion::Ok, input: ().into(), output: ().into(), zxid: Some(zxid) };
/// assert_eq!(order::agrees(&[read(1, 0, 10, 7), read(2, 5, 20, 6), read(3, 11, 30, 7)]).verdict, Verdict::Valid);
/// assert_eq!(order::agrees(&[read(1, 0, 10, 7), read(2, 11, 20, 6)]).verdict, Verdict::Invalid);
/// ```
pub fn agrees(ops: &[Op]) -> Check {
    const NAME: &str = "zxids agree with real time";
    const PROMISES: &str = "P1 P7";
    let stands = stands(ops);
    let mut by_call: Vec<&Stand<'_>> = stands.iter().collect();
    by_call.sort_by_key(|stand| stand.op.invoked_us);
    let mut by_end: Vec<&Stand<'_>> = stands.iter().collect();
    by_end.sort_by_key(|stand| stand.completed_us);
    let mut ended = by_end.into_iter().peekable();
    let mut largest: Option<&Stand<'_>> = None;
    for stand in &by_call {
        while let Some(before) = ended.next_if(|before| before.completed_us < stand.op.invoked_us) {
            if largest.is_none_or(|largest| before.zxid > largest.zxid) {
                largest = Some(before);
            }
        }
        let Some(before) = largest else { continue };
        if stand.zxid < before.zxid || (stand.changes && stand.zxid == before.zxid) {
            let detail = format!(
                "an operation was asked for after another was answered at zxid {}, and stands at zxid {}",
                before.zxid, stand.zxid
            );
            let check = Check::invalid(NAME, PROMISES, detail, vec![line(before), line(stand)]);
            return Check { at_us: Some(stand.completed_us), ..check };
        }
    }
    let changes = stands.iter().filter(|stand| stand.changes).count();
    match stands.len() {
        0 => Check::unknown(NAME, PROMISES, "no answer named its zxid"),
        all => Check::valid(NAME, PROMISES, format!("{all} answers, {changes} of them to changes")),
    }
}

fn stands(ops: &[Op]) -> Vec<Stand<'_>> {
    let mut stands = Vec::new();
    for op in ops.iter().filter(|op| op.ended == Completion::Ok) {
        let Some(completed_us) = op.completed_us else { continue };
        if let Some(zxid) = op.zxid {
            stands.push(Stand { op, completed_us, zxid, changes: CHANGES.contains(&op.what.as_str()) });
        }
        if op.what == ops::ACQUIRE
            && let Ok(Some(Granted { token })) = op.answer()
        {
            stands.push(Stand { op, completed_us, zxid: token, changes: true });
        }
    }
    stands
}

fn line(stand: &Stand<'_>) -> String {
    let Op { client, op, what, invoked_us, input, output, .. } = stand.op;
    let zxid = stand.zxid;
    format!(
        "client {client} op {op}: {what} {input} -> {output} at {zxid} [{invoked_us} us, {} us]",
        stand.completed_us
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::check::Verdict;

    fn op(what: &str, from: u64, to: u64, zxid: u64, output: Value) -> Op {
        Op {
            client: 1,
            op: from,
            what: what.into(),
            invoked_us: from,
            completed_us: Some(to),
            ended: Completion::Ok,
            input: Value::Null,
            output,
            zxid: Some(zxid),
        }
    }

    fn judged(ops: &[Op]) -> Verdict {
        agrees(ops).verdict
    }

    #[test]
    fn changes_need_points_of_their_own() {
        let write = |from, to, zxid| op("write", from, to, zxid, Value::Null);
        let read = |from, to, zxid| op("read", from, to, zxid, Value::Null);
        assert_eq!(judged(&[write(0, 10, 5), read(11, 20, 5), write(21, 30, 6)]), Verdict::Valid);
        assert_eq!(judged(&[write(0, 10, 5), read(11, 20, 4)]), Verdict::Invalid, "a stale read");
        assert_eq!(judged(&[read(0, 10, 5), write(11, 20, 5)]), Verdict::Invalid, "was there before it was asked for");
        assert_eq!(judged(&[write(0, 10, 6), write(5, 20, 5)]), Verdict::Valid, "at the same time");
        assert_eq!(judged(&[write(0, 10, 6), read(10, 20, 5)]), Verdict::Valid, "a tie of the clock is no order");
        // The one that it fell behind is not its neighbour.
        assert_eq!(judged(&[write(0, 10, 9), write(1, 50, 12), read(20, 60, 13), read(25, 30, 8)]), Verdict::Invalid);
        let unknown = Op { ended: Completion::Info, ..write(11, 20, 1) };
        assert_eq!(judged(&[write(0, 10, 5), unknown]), Verdict::Valid);
        assert_eq!(judged(&[]), Verdict::Unknown);
    }

    #[test]
    fn what_ends_was_begun() {
        let event =
            |at_us, kind| Event { at_us, client: 1, op: 4, kind, what: "read".into(), value: Value::Null, zxid: None };
        let whole =
            |kinds: &[EventKind]| is_whole(&History::new(kinds.iter().map(|kind| event(1, *kind)).collect())).verdict;
        assert_eq!(whole(&[EventKind::Note, EventKind::Invoke, EventKind::Ok, EventKind::Note]), Verdict::Valid);
        for wrong in [&[EventKind::Ok, EventKind::Invoke], &[EventKind::Invoke, EventKind::Invoke]] {
            assert_eq!(whole(wrong), Verdict::Unknown);
        }
        assert_eq!(whole(&[EventKind::Invoke, EventKind::Ok, EventKind::Info]), Verdict::Unknown);
    }

    #[test]
    fn a_token_is_newer_than_all_that_was_answered_before_it_was_asked_for() {
        let acquire = |from, to, zxid, token: u64| op("acquire", from, to, zxid, json!({ "token": token }));
        let release = |from, to, zxid| op("release", from, to, zxid, Value::Null);
        assert_eq!(judged(&[acquire(0, 10, 5, 5), release(11, 20, 6), acquire(21, 30, 7, 7)]), Verdict::Valid);
        // Waited for: the token is of the request, the zxid of the grant.
        assert_eq!(judged(&[acquire(0, 10, 5, 5), acquire(1, 30, 8, 6), release(11, 20, 8)]), Verdict::Valid);
        assert_eq!(judged(&[acquire(0, 10, 5, 5), release(11, 20, 6), acquire(21, 30, 7, 4)]), Verdict::Invalid);
    }
}
