use lockkeeper_core::{Actor, LockMode, LockOp, NodeKind, NodeOp, NodePath, Outcome, Sequential};

use super::super::test_history::{History, change, create, lock};
use super::*;

fn fed(history: &mut History) -> Locks {
    let mut locks = Locks::default();
    history.each(|each| locks.change(each).unwrap());
    locks
}

fn names(name: &str) -> Vec<LockName> {
    vec![lock(name)]
}

#[test]
fn exclusive_holders_follow_each_other() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    let first = history.acquire(a, "l", LockMode::Exclusive, 0);
    let second = history.acquire(b, "l", LockMode::Exclusive, 0);
    let released = history.release(a, "l", first);
    let mut locks = fed(&mut history);
    locks.granted(&names("l"), first, first).unwrap();
    locks.granted(&names("l"), first, second).unwrap();
    locks.granted(&names("l"), second, released).unwrap();
    // Before its turn; beside another; after its end; never.
    locks.granted(&names("l"), second, second).unwrap_err();
    locks.granted(&names("l"), first, released).unwrap_err();
    locks.granted(&names("l"), 99, released).unwrap_err();
    locks.verified("l", second, released, true).unwrap();
    locks.verified("l", first, released, true).unwrap_err();
    locks.verified("l", second, released, false).unwrap_err();
    assert_eq!(locks.grants(), 2);
}

#[test]
fn readers_hold_together_and_permits_up_to_their_number() {
    let mut history = History::default();
    let session = history.open();
    let one = history.acquire(session, "rw", LockMode::Shared, 0);
    let two = history.acquire(session, "rw", LockMode::Shared, 0);
    let writer = history.acquire(session, "rw", LockMode::Write, 0);
    let late = history.acquire(session, "rw", LockMode::Shared, 0);
    let permits: Vec<u64> = (0..3).map(|_| history.acquire(session, "s", LockMode::Permit(2), 0)).collect();
    let mut locks = fed(&mut history);
    locks.granted(&names("rw"), one, late).unwrap();
    locks.granted(&names("rw"), two, late).unwrap();
    locks.granted(&names("rw"), writer, late).unwrap_err();
    locks.granted(&names("rw"), late, late).unwrap_err();
    locks.granted(&names("s"), permits[1], permits[2]).unwrap();
    locks.granted(&names("s"), permits[2], permits[2]).unwrap_err();
}

#[test]
fn joint_requests_are_had_as_a_whole() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    let held = history.acquire(a, "y", LockMode::Exclusive, 0);
    let op = LockOp::Acquire {
        locks: vec![lock("x"), lock("y")],
        mode: LockMode::Exclusive,
        delay_ms: 500,
        uuid: lockkeeper_core::RequestId(9),
        label: "".into(),
    };
    let both = history.run(Some(b), op);
    // It holds nothing as a whole, so no delay is due.
    let expired = history.expire(b);
    let mut locks = fed(&mut history);
    locks.granted(&[lock("x"), lock("y")], both, both).unwrap_err();
    locks.granted(&names("y"), held, expired).unwrap();
    assert_eq!(locks.standing().count(), 1);
}

#[test]
fn a_downgraded_writer_keeps_its_token_and_lets_readers_in() {
    let mut history = History::default();
    let session = history.open();
    let writer = history.acquire(session, "rw", LockMode::Write, 0);
    let reader = history.acquire(session, "rw", LockMode::Shared, 0);
    let at = history.run(Some(session), LockOp::Downgrade { lock: lock("rw"), token: FencingToken(writer) });
    let mut locks = fed(&mut history);
    locks.granted(&names("rw"), reader, reader).unwrap_err();
    locks.granted(&names("rw"), reader, at).unwrap();
    locks.granted(&names("rw"), writer, at).unwrap();
}

#[test]
fn a_held_answer_beside_a_holder_is_refused() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    history.acquire(a, "l", LockMode::Exclusive, 0);
    history.acquire(b, "l", LockMode::Exclusive, 0);
    let (command, mut outcome) = history.last();
    let mut locks = fed(&mut history);
    if let Ok(Reply::Queued { held, .. }) = &mut outcome.reply {
        *held = true;
    }
    locks.change(&change(&command, &outcome, 9)).unwrap_err();
}

#[test]
fn a_place_or_a_token_that_was_given_before_is_refused() {
    let mut history = History::default();
    let session = history.open();
    let token = history.acquire(session, "l", LockMode::Exclusive, 0);
    let (command, outcome) = history.last();
    let mut locks = fed(&mut history);
    locks.change(&change(&command, &outcome, 9)).unwrap();
    history.release(session, "l", token);
    let (release, released) = history.last();
    locks.change(&change(&release, &released, 9)).unwrap();
    locks.change(&change(&command, &outcome, 9)).unwrap_err();
}

#[test]
fn a_withdrawn_request_that_stays_is_refused() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    history.acquire(a, "l", LockMode::Exclusive, 0);
    let waits = history.acquire(b, "l", LockMode::Exclusive, 0);
    let op = LockOp::Withdraw { locks: names("l"), token: FencingToken(waits), if_holding: IfHolding::Keep };
    history.run(Some(b), op);
    let (command, outcome) = history.last();
    let mut locks = fed(&mut history);
    let stays = Outcome { events: Vec::new(), ..outcome.clone() };
    locks.change(&change(&command, &stays, 9)).unwrap_err();
    let pretends = Outcome { changed: false, ..stays };
    locks.change(&change(&command, &pretends, 9)).unwrap_err();
    locks.change(&change(&command, &outcome, 9)).unwrap();
    assert_eq!(locks.woken_and_due(), (0, 0));
}

#[test]
fn a_place_that_is_not_kept_or_not_long_enough_is_refused() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    history.acquire(a, "l", LockMode::Exclusive, 500);
    history.acquire(b, "l", LockMode::Exclusive, 0);
    history.expire(a);
    let (command, outcome) = history.last();
    let delay = |event: &Event| matches!(event, Event::Node { path, .. } if path.name().starts_with("delay-"));
    let without = Outcome { events: outcome.events.iter().filter(|e| !delay(e)).cloned().collect(), ..outcome.clone() };
    let mut locks = fed(&mut history);
    let mut spoilt = Locks { queues: locks.queues.clone(), wholes: locks.wholes.clone(), ..Locks::default() };
    spoilt.change(&change(&command, &without, 10)).unwrap_err();
    locks.change(&change(&command, &outcome, 10)).unwrap();
    let path: NodePath = history.state.lock(&lock("l")).unwrap().requests().next().unwrap().path;
    history.clock_ms = 600;
    history.apply(Command::Reap { paths: vec![path] });
    let (reap, reaped) = history.last();
    locks.change(&change(&reap, &reaped, 509)).unwrap_err();
}

#[test]
fn one_waiter_is_woken_for_each_that_goes_and_a_herd_is_refused() {
    let mut history = History::default();
    let session = history.open();
    let tokens: Vec<u64> = (0..4).map(|_| history.acquire(session, "l", LockMode::Exclusive, 0)).collect();
    let mut locks = fed(&mut history);
    history.release(session, "l", tokens[0]);
    history.each(|each| locks.change(each).unwrap());
    locks.counted(1).unwrap();
    locks.counted(2).unwrap_err();
    // Whoever waits in two calls is woken in both.
    let waiting = locks.queues["l"].request(tokens[2]).unwrap().name.uuid.clone().unwrap();
    locks.requested(&waiting);
    locks.requested(&waiting);
    history.release(session, "l", tokens[1]);
    history.each(|each| locks.change(each).unwrap());
    locks.counted(3).unwrap();
    locks.counted(4).unwrap_err();
}

#[test]
fn a_lock_that_is_taken_back_from_one_who_was_told_is_refused() {
    let abandoned = || {
        let mut history = History::default();
        let session = history.open();
        let token = history.acquire(session, "l", LockMode::Exclusive, 0);
        let op = LockOp::Abandon { locks: names("l"), token: FencingToken(token), versions: vec![0] };
        history.run(None, op);
        let (command, outcome) = history.last();
        (fed(&mut history), token, command, outcome)
    };
    // Nobody was told: right, and nobody may be told afterwards.
    let (mut locks, token, command, outcome) = abandoned();
    locks.change(&change(&command, &outcome, 9)).unwrap();
    locks.granted(&names("l"), token, token).unwrap_err();
    // Told first.
    let (mut locks, token, command, outcome) = abandoned();
    locks.granted(&names("l"), token, token).unwrap();
    locks.change(&change(&command, &outcome, 9)).unwrap_err();
}

#[test]
fn a_place_that_another_takes_away_is_refused() {
    let released = || {
        let mut history = History::default();
        let (a, b) = (history.open(), history.open());
        let token = history.acquire(a, "l", LockMode::Exclusive, 0);
        history.release(a, "l", token);
        let (command, outcome) = history.last();
        (fed(&mut history), b, token, command, outcome)
    };
    let (mut locks, _, _, command, outcome) = released();
    locks.change(&change(&command, &outcome, 9)).unwrap();
    let by = |session, op| Command::Do { actor: Actor::maybe(session), op };
    for number in 0..4 {
        let (mut locks, b, token, command, outcome) = released();
        let Command::Do { op, .. } = command else { unreachable!() };
        let other_token = LockOp::Release { locks: names("l"), token: FencingToken(token + 1) };
        let look = NodeOp::CheckLock { lock: lock("l"), token: FencingToken(token) };
        let b = Some(lockkeeper_core::SessionId(b));
        let spoilt = [by(b, op), by(b, other_token.into()), by(None, look.into()), Command::Reap { paths: Vec::new() }];
        let refused = locks.change(&change(&spoilt[number], &outcome, 9)).unwrap_err();
        assert!(refused.contains("left the queue"), "{refused}");
    }
}

#[test]
fn a_request_of_which_its_client_was_told_that_it_is_no_more_is_gone_and_stays_away() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    history.acquire(a, "l", LockMode::Exclusive, 0);
    let waits = history.acquire(b, "l", LockMode::Exclusive, 0);
    let entered = history.pending.last().cloned().unwrap();
    let uuid = |of: &Command| match of {
        Command::Do { op: Op::Lock(LockOp::Acquire { uuid, .. }), .. } => uuid.to_string(),
        _ => unreachable!(),
    };
    let (second, first) = (uuid(&entered.0), uuid(&history.pending[2].0));
    let mut locks = fed(&mut history);
    assert_eq!((locks.stands(&first), locks.stands(&second)), (Stands::Holds, Stands::Waits));
    locks.left_queue(&first, "busy").unwrap_err();
    locks.left_queue(&second, "busy").unwrap_err();
    let op = LockOp::Withdraw { locks: names("l"), token: FencingToken(waits), if_holding: IfHolding::Keep };
    history.run(Some(b), op);
    history.each(|each| locks.change(each).unwrap());
    assert_eq!(locks.stands(&second), Stands::Not);
    locks.left_queue(&second, "busy").unwrap();
    let mut late = entered.1.clone();
    for event in &mut late.events {
        if let Event::Node { zxid, .. } = event {
            zxid.0 += 100;
        }
    }
    let refused = locks.change(&change(&entered.0, &late, 9)).unwrap_err();
    assert!(refused.contains("is no more"), "{refused}");
}

#[test]
fn a_lock_that_its_session_holds_twice_is_free_after_two_releases() {
    let mut history = History::default();
    let (a, b) = (history.open(), history.open());
    let reenter = |uuid| LockOp::AcquireReentrant {
        lock: lock("l"),
        delay_ms: 0,
        uuid: lockkeeper_core::RequestId(uuid),
        label: "".into(),
    };
    let token = history.run(Some(a), reenter(1));
    history.run(Some(a), reenter(2));
    let waiting = history.acquire(b, "l", LockMode::Exclusive, 0);
    let once = history.release(a, "l", token);
    let (command, outcome) = history.last();
    let mut locks = fed(&mut history);
    locks.granted(&names("l"), token, once).unwrap();
    locks.granted(&names("l"), waiting, once).unwrap_err();

    let check_reply = |locks: &mut Locks, reply| {
        let outcome = Outcome { reply: Ok(reply), ..outcome.clone() };
        locks.change(&change(&command, &outcome, 1))
    };
    check_reply(&mut locks, Reply::Released).unwrap_err();
    check_reply(&mut locks, Reply::StillHeld { holds: 2 }).unwrap_err();
    check_reply(&mut locks, Reply::StillHeld { holds: 1 }).unwrap();
    check_reply(&mut locks, Reply::StillHeld { holds: 0 }).unwrap_err();

    let entered = Command::Do { actor: Actor::of(lockkeeper_core::SessionId(a)), op: reenter(3).into() };
    let token = FencingToken(token);
    let path = lock("l").directory();
    let enters = |locks: &mut Locks, token, holds| {
        let reply = Ok(Reply::Reentered { path: path.clone(), token, holds });
        let outcome = Outcome { reply, changed: true, ..outcome.clone() };
        locks.change(&change(&entered, &outcome, 1))
    };
    enters(&mut locks, token, 3).unwrap_err();
    enters(&mut locks, FencingToken(waiting), 2).unwrap_err();
    enters(&mut locks, token, 2).unwrap();
    enters(&mut locks, token, 2).unwrap_err();

    // The release of one hold that frees the lock although there are two.
    history.release(a, "l", token.0);
    history.each(|each| drop(locks.change(each).unwrap_err()));
}

/// A held lock: its session, and where the request stands.
fn held(history: &mut History) -> (u64, NodePath) {
    let session = history.open();
    history.acquire(session, "l", LockMode::Exclusive, 0);
    (session, history.state.lock(&lock("l")).unwrap().requests().next().unwrap().path)
}

#[test]
fn what_others_do_to_a_request_takes_the_right_to_force() {
    let mut history = History::default();
    let (_, at) = held(&mut history);
    let stranger = lockkeeper_core::SessionId(history.open());
    let standing = fed(&mut history);
    let actor = Actor { may_force: true, ..Actor::of(stranger) };
    history.apply(Command::Do { actor, op: NodeOp::Delete { path: at.clone(), version: None }.into() });
    let (mut command, outcome) = history.last();
    let again = || Locks { queues: standing.queues.clone(), ..Locks::default() };
    again().change(&change(&command, &outcome, 1)).unwrap();
    if let Command::Do { actor, .. } = &mut command {
        actor.may_force = false;
    }
    let refused = again().change(&change(&command, &outcome, 1)).unwrap_err();
    assert!(refused.contains("without the right to force"), "{refused}");

    let written =
        Event::Node { zxid: outcome.zxid, kind: NodeEventKind::DataChanged, path: at.clone(), acl: [].into() };
    let outcome = Outcome { events: vec![written], ..outcome };
    let op = Op::from(NodeOp::SetData { path: at, data: [].into(), version: None });
    let write = |actor| again().change(&change(&Command::Do { actor, op: op.clone() }, &outcome, 1));
    assert!(write(Actor::of(stranger)).unwrap_err().contains("was written by"));
    write(Actor::of(lockkeeper_core::SessionId(1))).unwrap();
}

#[test]
fn its_own_session_may_delete_a_request() {
    let mut history = History::default();
    let (session, at) = held(&mut history);
    history.run(Some(session), NodeOp::Delete { path: at, version: None });
    fed(&mut history);
}

#[test]
fn names_that_do_not_see_each_other_do_not_meet() {
    let (mut ours, mut theirs) = (History::default(), History::default());
    held(&mut ours);
    let session = theirs.open();
    theirs.create("/locks", "");
    theirs.create("/locks/l", "");
    let mut made = create("/locks/l/8f14__lock__", "", NodeKind::Ephemeral);
    if let NodeOp::Create { sequential, .. } = &mut made {
        *sequential = Sequential::Suffix;
    }
    theirs.run(Some(session), made);
    let mut locks = fed(&mut theirs);
    let mut met = Ok(());
    ours.each(|change| met = met.clone().and(locks.change(change)));
    assert!(met.unwrap_err().contains("do not see each other"));
}
