//! One history for each distinction that the models must make.

use super::*;
use crate::check::Verdict;
use LockAnswer::{Busy, Done, Granted, NotHeld};

fn read(op: u64, value: Option<(u64, i32)>, from: u64, to: u64) -> OperationOf<RegisterModel> {
    done(op, RegisterAsk::Read, RegisterAnswer::Value(value), from, to)
}

fn write(op: u64, value: u64, from: u64, to: u64) -> OperationOf<RegisterModel> {
    done(op, RegisterAsk::Write(value), RegisterAnswer::Written { version: None }, from, to)
}

#[test]
fn nothing_is_linearizable() {
    assert!(is_good(&RegisterModel::default(), &[]));
}

#[test]
fn reads_during_a_write_see_old_then_new_and_never_back() {
    let register = RegisterModel::default();
    let old_then_new = [write(1, 5, 0, 100), read(2, None, 10, 20), read(3, Some((5, 0)), 30, 40)];
    assert!(is_good(&register, &old_then_new));
    let back = [write(1, 5, 0, 100), read(2, Some((5, 0)), 10, 20), read(3, None, 30, 40)];
    assert!(!is_good(&register, &back));
    let at_once = [write(1, 5, 0, 100), read(2, Some((5, 0)), 10, 30), read(3, None, 30, 40)];
    assert!(is_good(&register, &at_once), "what ends at the moment when another begins is not before it");
}

#[test]
fn a_write_of_unknown_outcome_may_take_effect_late_or_never_but_not_twice() {
    let register = RegisterModel::default();
    let late = [open(1, RegisterAsk::Write(5), 0), read(2, None, 10, 20), read(3, Some((5, 0)), 30, 40)];
    assert!(is_good(&register, &late));
    assert!(is_good(&register, &late[..2]), "never");
    let twice = [
        open(1, RegisterAsk::Write(5), 0),
        write(2, 6, 1, 2),
        read(3, Some((5, 1)), 3, 4),
        write(4, 7, 5, 6),
        read(5, Some((5, 3)), 7, 8),
    ];
    assert!(!is_good(&register, &twice));
    let closed = [late[0].clone().closed_at(25), late[1].clone(), late[2].clone()];
    assert!(is_good(&register, &closed), "before it was closed");
    let too_late = [late[0].clone().closed_at(15), late[1].clone(), late[2].clone(), read(4, None, 16, 17)];
    assert!(!is_good(&register, &too_late));
}

#[test]
fn compare_and_set_succeeds_once_a_version() {
    let register = RegisterModel { init: Some((0, 0)), upsert: false };
    let cas = |op, version, to, answer, from, until| done(op, RegisterAsk::Cas { version, to }, answer, from, until);
    let written = |version| RegisterAnswer::Written { version: Some(version) };
    let refused = RegisterAnswer::OtherVersion;
    assert!(is_good(&register, &[cas(1, 0, 7, written(1), 0, 9), cas(2, 0, 8, refused, 0, 9)]));
    assert!(!is_good(&register, &[cas(1, 0, 7, written(1), 0, 9), cas(2, 0, 8, written(1), 0, 9)]), "twice");
    assert!(!is_good(&register, &[cas(1, 0, 7, refused, 0, 9)]), "refused without reason");
    // A retry that was carried out twice: its version is two on.
    assert!(!is_good(&register, &[cas(1, 0, 7, written(1), 0, 9), read(2, Some((7, 2)), 10, 20)]));
    let gone = done(2, RegisterAsk::Delete(Some(1)), RegisterAnswer::Deleted, 10, 20);
    assert!(is_good(&register, &[cas(1, 0, 7, written(1), 0, 9), gone.clone(), read(3, None, 30, 40)]));
    assert!(!is_good(&register, &[cas(1, 0, 7, written(1), 0, 9), gone, read(3, Some((7, 1)), 30, 40)]));
}

fn acquire(op: u64, owner: u64, answer: LockAnswer, from: u64, to: u64) -> OperationOf<LockModel> {
    done(op, LockAsk::Acquire { owner, shared: false }, answer, from, to)
}

fn release(op: u64, owner: u64, token: u64, from: u64, to: u64) -> OperationOf<LockModel> {
    done(op, LockAsk::Release { owner, token }, Done, from, to)
}

#[test]
fn a_lock_has_one_owner_and_rising_tokens() {
    let granted = |token| Granted { token };
    let turn = [acquire(1, 1, granted(5), 0, 10), release(2, 1, 5, 20, 30), acquire(3, 2, granted(6), 5, 28)];
    assert!(is_good(&LockModel::default(), &turn));
    let two_holders = [acquire(1, 1, granted(5), 0, 10), acquire(3, 2, granted(6), 5, 18), release(2, 1, 5, 20, 30)];
    assert!(!is_good(&LockModel::default(), &two_holders));
    let tokens_back = [acquire(1, 1, granted(6), 0, 10), release(2, 1, 6, 20, 30), acquire(3, 2, granted(5), 40, 50)];
    assert!(!is_good(&LockModel::default(), &tokens_back));
    let anothers = [acquire(1, 1, granted(5), 0, 10), release(2, 2, 5, 20, 30)];
    assert!(!is_good(&LockModel::default(), &anothers), "somebody freed another's lock");
    let refused = done(2, LockAsk::Release { owner: 2, token: 5 }, NotHeld, 20, 30);
    assert!(is_good(&LockModel::default(), &[turn[0].clone(), refused]));
    assert!(!is_good(&LockModel::default(), &[acquire(1, 1, Busy, 0, 10)]), "busy with nobody there");
    let held = |answer| done(4, LockAsk::Verify { token: 5 }, LockAnswer::Held(answer), 12, 14);
    assert!(
        is_good(&LockModel::default(), &[turn[0].clone(), held(true)])
            && !is_good(&LockModel::default(), &[turn[0].clone(), held(false)])
    );
}

#[test]
fn a_holder_that_vanished_frees_the_lock_when_its_session_ends() {
    let granted = |token| Granted { token };
    let ends = |from, to| done(9, LockAsk::SessionEnds { owner: 1 }, Done, from, to);
    let held = acquire(1, 1, granted(5), 0, 10);
    assert!(is_good(&LockModel::default(), &[held.clone(), ends(10, 50), acquire(2, 2, granted(6), 0, 40)]));
    assert!(
        !is_good(&LockModel::default(), &[held.clone(), ends(45, 50), acquire(2, 2, granted(6), 0, 40)]),
        "before it could end"
    );
    assert!(!is_good(&LockModel::default(), &[held, acquire(2, 2, granted(6), 0, 40)]), "it never ended");
    // An acquire that nobody heard of may hold in between, if its session may have ended since.
    let lost = open(1, LockAsk::Acquire { owner: 1, shared: false }, 0);
    let busy = acquire(3, 3, Busy, 20, 30);
    let later = acquire(4, 4, granted(8), 60, 70);
    let end = ends(31, 50);
    assert!(is_good(&LockModel::default(), &[lost.clone().closed_at(50), busy.clone(), later.clone(), end]));
    assert!(
        !is_good(&LockModel::default(), &[lost.closed_at(50), busy, later]),
        "busy, so it held, and nothing freed it"
    );
}

#[test]
fn a_session_that_is_over_is_granted_nothing() {
    let granted = |token| Granted { token };
    let ends = done(9, LockAsk::SessionEnds { owner: 1 }, Done, 10, 20);
    let later = |owner| acquire(2, owner, granted(6), 30, 40);
    assert!(is_good(&LockModel::default(), &[ends.clone(), later(2)]));
    assert!(!is_good(&LockModel::default(), &[ends, later(1)]));
}

/// Many wait long, each is granted the lock and vanishes with it, and the sessions end in whatever order.
#[test]
fn many_sessions_that_end_beside_each_other_are_decided_in_few_steps() {
    const COUNT: u64 = 24;
    let mut operations = Vec::new();
    for owner in 1..=COUNT {
        operations.push(acquire(owner, owner, Granted { token: owner }, 0, 1_000 + 10 * owner));
        let until = 2_000 - owner;
        operations.push(done(100 + owner, LockAsk::SessionEnds { owner }, Done, 0, until));
        operations.push(open(200 + owner, LockAsk::Acquire { owner, shared: false }, 0).closed_at(until));
    }
    let few = Budget { steps: 2_000, bytes: 1 << 20 };
    assert!(matches!(search(&LockModel::default(), &operations, few), Finding::Linearizable { .. }));
    // One of them was seen to live after the next had been told.
    operations[1].invoked_us = 1_500;
    assert!(matches!(search(&LockModel::default(), &operations, few), Finding::NotLinearizable(_)));
}

#[test]
fn readers_share_and_writers_do_not() {
    let acquire =
        |op, owner, shared, token, from, to| done(op, LockAsk::Acquire { owner, shared }, Granted { token }, from, to);
    let release = |op, owner, token, from, to| done(op, LockAsk::Release { owner, token }, Done, from, to);
    let readers = [acquire(1, 1, true, 5, 0, 10), acquire(2, 2, true, 6, 0, 10)];
    assert!(is_good(&LockModel::default(), &readers));
    let and_writer = [readers[0].clone(), readers[1].clone(), acquire(3, 3, false, 7, 0, 40), release(4, 1, 5, 20, 30)];
    assert!(!is_good(&LockModel::default(), &and_writer), "one reader is still there");
    let all_gone = [and_writer.as_slice(), &[release(5, 2, 6, 20, 35)]].concat();
    assert!(is_good(&LockModel::default(), &all_gone));
    let down = done(2, LockAsk::Downgrade { owner: 1, token: 5 }, Done, 20, 30);
    let beside = [acquire(1, 1, false, 5, 0, 10), down, acquire(3, 2, true, 6, 0, 40)];
    assert!(is_good(&LockModel::default(), &beside));
    assert!(!is_good(&LockModel::default(), &[beside[0].clone(), beside[2].clone()]));
}

#[test]
fn permits_are_counted() {
    let acquire =
        |op, owner, token, from, to| done(op, LockAsk::Acquire { owner, shared: false }, Granted { token }, from, to);
    let two = [acquire(1, 1, 5, 0, 10), acquire(2, 2, 6, 0, 10)];
    assert!(is_good(&LockModel::of(2), &two) && !is_good(&LockModel::of(1), &two));
    let third = [two.as_slice(), &[acquire(3, 3, 7, 11, 20)]].concat();
    assert!(!is_good(&LockModel::of(2), &third));
    let freed = done(4, LockAsk::Release { owner: 2, token: 6 }, Done, 10, 30);
    assert!(is_good(&LockModel::of(2), &[third.as_slice(), &[freed]].concat()));
}

#[test]
fn a_gate_lets_one_in_at_a_time_and_none_after_a_result() {
    let begin = |op, owner, answer, from, to| done(op, GateAsk::Begin { owner }, answer, from, to);
    let proceed = |token| GateAnswer::Proceed { token };
    let busy = |token| GateAnswer::InProgress { token };
    let finished = |token| GateAnswer::Finished { token };
    let finish = |op, token, from, to| done(op, GateAsk::Finish { token }, GateAnswer::Settled, from, to);
    let good = |operations: &[OperationOf<GateModel>]| is_good(&GateModel, operations);
    let one = begin(1, 1, proceed(5), 0, 10);
    let turn = [one.clone(), begin(2, 2, busy(5), 5, 15), finish(3, 5, 20, 30), begin(4, 2, finished(5), 25, 40)];
    assert!(good(&turn));
    assert!(!good(&[one.clone(), begin(2, 2, proceed(6), 11, 20)]), "two at it");
    assert!(!good(&[turn[0].clone(), turn[2].clone(), begin(5, 2, proceed(6), 31, 40)]), "again after the result");
    assert!(!good(&[turn[0].clone(), turn[2].clone(), begin(5, 2, busy(5), 31, 40)]), "done, and in progress again");
    assert!(!good(&[one.clone(), begin(2, 2, finished(5), 11, 20)]), "a result that nobody has made");
    assert!(!good(&[turn[0].clone(), turn[2].clone(), begin(5, 2, finished(6), 31, 40)]), "another result");
    let failed = done(2, GateAsk::Fail { token: 5 }, GateAnswer::Settled, 12, 20);
    let next = |token| begin(3, 2, proceed(token), 15, 30);
    assert!(good(&[one.clone(), failed.clone(), next(6)]));
    assert!(!good(&[one.clone(), failed, next(4)]), "tokens rise");
    let ends = |from, to| done(4, GateAsk::SessionEnds { owner: 1 }, GateAnswer::Settled, from, to);
    assert!(good(&[one.clone(), ends(10, 25), next(6)]));
    assert!(!good(&[one, ends(40, 50), next(6)]), "before its session could end");
    // Let in without being told; what another is told of it must be so from then on.
    let lost = open(1, GateAsk::Begin { owner: 1 }, 0);
    assert!(good(&[lost.clone(), begin(2, 2, busy(5), 10, 20), begin(3, 3, busy(5), 30, 40)]));
    assert!(!good(&[lost.clone(), begin(2, 2, busy(5), 10, 20), begin(3, 3, busy(6), 30, 40)]));
    assert!(!good(&[lost.closed_at(15), begin(2, 2, proceed(5), 16, 20), begin(3, 3, busy(6), 30, 40)]));
}

#[test]
fn an_item_is_in_one_pair_of_hands_and_done_once() {
    let put = done(1, ItemAsk::Put, ItemDone, 0, 10);
    let take = |op, owner, attempt, from, to| done(op, ItemAsk::Take { owner, attempt }, ItemDone, from, to);
    let ack = |op, attempt, from, to| done(op, ItemAsk::Acknowledge { attempt }, ItemDone, from, to);
    let back = |op, attempt, from, to| done(op, ItemAsk::GiveBack { attempt }, ItemDone, from, to);
    let good = |then: &[OperationOf<ItemModel>]| is_good(&ItemModel, &[std::slice::from_ref(&put), then].concat());
    let first = take(2, 1, 1, 5, 20);
    assert!(good(&[first.clone(), back(3, 1, 30, 40), take(4, 2, 2, 35, 50), ack(5, 2, 60, 70)]));
    assert!(good(&[first.clone(), back(3, 1, 30, 40), take(4, 2, 3, 35, 50)]), "the second was told nobody");
    assert!(!good(&[first.clone(), take(4, 2, 2, 35, 50)]), "in two pairs of hands");
    assert!(!good(&[first.clone(), back(3, 1, 60, 70), take(4, 2, 2, 35, 50)]), "before it was given back");
    assert!(!good(&[first.clone(), ack(3, 1, 30, 40), take(4, 2, 2, 45, 50)]), "given out after it was done");
    assert!(!good(&[first.clone(), ack(3, 1, 30, 40), ack(4, 1, 50, 60)]), "done twice");
    assert!(!good(&[first.clone(), back(3, 1, 30, 40), take(4, 2, 1, 45, 50)]), "one number for two");
    assert!(!good(&[first.clone(), back(3, 1, 30, 40), take(4, 2, 2, 45, 50), ack(5, 1, 60, 70)]), "not its any more");
    let ends = |from, to| done(6, ItemAsk::SessionEnds { owner: 1 }, ItemDone, from, to);
    assert!(good(&[first.clone(), ends(20, 40), take(4, 2, 2, 45, 50)]));
    assert!(!good(&[first, ends(60, 70), take(4, 2, 2, 45, 50)]), "before its session could end");
    assert!(!is_good(&ItemModel, &[take(2, 1, 1, 5, 20)]), "out of nothing");
    let late_put = done(1, ItemAsk::Put, ItemDone, 30, 40);
    assert!(!is_good(&ItemModel, &[late_put, take(2, 1, 1, 5, 20)]), "before it was put");
}

#[test]
fn a_list_loses_nothing_and_keeps_its_order() {
    let append = |op, value, from, to| done(op, ListAsk::Append(value), ListAnswer::Appended, from, to);
    let all = |op, all: &[u64], from, to| done(op, ListAsk::Read, ListAnswer::All(all.to_vec()), from, to);
    let appends = [append(1, 1, 0, 10), append(2, 2, 5, 15)];
    let then =
        |reads: &[OperationOf<AppendList>]| is_good(&AppendList::default(), &[appends.as_slice(), reads].concat());
    assert!(then(&[all(3, &[1, 2], 20, 30)]) && then(&[all(3, &[2, 1], 20, 30), all(4, &[2, 1], 20, 30)]));
    assert!(!then(&[all(3, &[1], 20, 30)]), "lost");
    assert!(!then(&[all(3, &[1, 2], 20, 30), all(4, &[2, 1], 40, 50)]), "turned round");
    assert!(!then(&[all(3, &[1, 2, 2], 20, 30)]), "twice");
}

#[test]
fn the_budget_is_kept_and_unknown_is_no_pass() {
    // So many concurrent writes, and a read of what nobody wrote.
    let mut operations: Vec<_> = (0..40).map(|op| write(op, op + 1, 0, 100)).collect();
    operations.push(read(50, Some((1000, 39)), 101, 102));
    for budget in [Budget { steps: 5_000, bytes: 1 << 30 }, Budget { steps: u64::MAX, bytes: 1 << 16 }] {
        assert!(matches!(search(&RegisterModel::default(), &operations, budget), Finding::Unknown { .. }));
        let keyed = operations.iter().cloned().map(|operation| ("k", operation));
        assert_eq!(judge("r", "P7", &RegisterModel::default(), keyed, budget).verdict, Verdict::Unknown);
    }
    let nothing: [(&str, OperationOf<RegisterModel>); 0] = [];
    assert_eq!(judge("r", "P7", &RegisterModel::default(), nothing, Budget::default()).verdict, Verdict::Unknown);
}

#[test]
fn a_long_history_with_open_operations_is_fast() {
    let mut operations = Vec::new();
    for at in 0..10_000 {
        operations.push(write(3 * at, at, 100 * at, 100 * at + 250));
        if at % 1_000 == 7 {
            operations.push(open(3 * at + 1, RegisterAsk::Cas { version: i32::MAX, to: 1 }, 100 * at));
        }
    }
    assert!(is_good(&RegisterModel::default(), &operations));
}

#[test]
fn a_counterexample_is_small_and_says_what_has_no_place() {
    let mut operations: Vec<_> = (0..200).map(|at| ("a", write(2 * at, at, 100 * at, 100 * at + 50))).collect();
    operations.extend((0..200).map(|at| ("a", read(2 * at + 1, Some((at, at as i32)), 100 * at + 60, 100 * at + 70))));
    let register = RegisterModel::default();
    let good = judge("r", "P7", &register, operations.clone(), Budget::default());
    assert_eq!(good.verdict, Verdict::Valid, "{}", good.detail);
    // A stale read in the middle.
    operations.push(("a", read(777, Some((119, 119)), 12_110, 12_120)));
    let bad = judge("r", "P7", &register, operations, Budget::default());
    let lines = bad.counterexample.join("\n");
    assert_eq!((bad.verdict, bad.at_us), (Verdict::Invalid, Some(12_120)), "{lines}");
    assert!(bad.detail.contains("a: 401 operations"), "{}", bad.detail);
    assert!(lines.contains("no place: client 1 op 777"), "{lines}");
    assert!(bad.counterexample.len() <= 24, "{lines}");
}
