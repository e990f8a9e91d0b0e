//! Promise P5 against a virtual clock.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ONE: SessionId = SessionId(1);

#[test]
fn silent_only_after_the_whole_timeout() {
    let mut tracker = SessionTracker::default();
    tracker.opened(ONE, 1_000, 5);
    assert!(tracker.take_silent(1_005, 10).is_empty(), "the last millisecond belongs to the session");
    tracker.note_alive(ONE, 1_005);
    assert!(tracker.take_silent(2_005, 10).is_empty());
    assert_eq!(tracker.take_silent(2_006, 10), [ONE]);
    assert!(tracker.take_silent(9_999, 10).is_empty(), "handed out once");
}

#[test]
fn a_named_session_is_never_confirmed() {
    let mut tracker = SessionTracker::default();
    tracker.opened(ONE, 1_000, 0);
    assert_eq!(tracker.liveness(ONE), Liveness::Alive(1_000));
    assert_eq!(tracker.take_silent(1_001, 10), [ONE]);
    tracker.note_alive(ONE, 1_002);
    assert_eq!(tracker.liveness(ONE), Liveness::Expiring);
    assert_eq!(tracker.remaining_ms(ONE, 1_002), None);
    tracker.propose_again(vec![ONE]);
    assert_eq!(tracker.liveness(ONE), Liveness::Expiring);
    assert_eq!(tracker.take_silent(1_003, 10), [ONE], "proposed again until it is gone");
    tracker.ended(ONE);
    assert_eq!(tracker.liveness(ONE), Liveness::Unknown);
    tracker.propose_again(vec![ONE]);
    assert!(tracker.take_silent(9_999, 10).is_empty(), "gone is gone");
}

#[test]
fn a_session_that_was_spared_lives_by_what_was_heard() {
    let mut tracker = SessionTracker::restart([(ONE, 1_000, 0), (SessionId(2), 1_000, 0)].into_iter(), 0);
    let named = tracker.take_silent(1_001, 10);
    assert_eq!(named.len(), 2);
    tracker.note_alive(ONE, 1_500);
    assert_eq!(tracker.liveness(ONE), Liveness::Expiring, "not before it is decided");
    assert_eq!(tracker.spared(&named, 1_600), 1);
    tracker.propose_again(named);
    assert_eq!((tracker.liveness(ONE), tracker.liveness(SessionId(2))), (Liveness::Alive(1_000), Liveness::Expiring));
    assert_eq!(tracker.take_silent(2_500, 10), [SessionId(2)], "that one gave no sign of life");
    assert_eq!(tracker.take_silent(2_501, 10), [ONE]);
}

#[test]
fn a_new_leader_begins_each_timer_where_it_is_told() {
    let tracker = SessionTracker::restart([(ONE, 1_000, 69_500), (SessionId(2), 500, 70_000)].into_iter(), 0);
    assert_eq!(tracker.remaining_ms(ONE, 70_000), Some(500));
    assert_eq!(tracker.remaining_ms(SessionId(2), 70_100), Some(400));
    assert_eq!(tracker.len(), 2);
}

#[test]
fn a_sign_on_its_way_is_waited_for_and_promises_nothing() {
    let mut tracker = SessionTracker::restart([(ONE, 1_000, 0)].into_iter(), 250);
    assert_eq!(tracker.remaining_ms(ONE, 1_000), Some(0));
    assert!(tracker.take_silent(1_250, 10).is_empty());
    // It was given in time, and is older than a full timeout would show.
    tracker.note_alive(ONE, 900);
    assert!(tracker.take_silent(2_150, 10).is_empty());
    let named = tracker.take_silent(2_151, 10);
    assert_eq!(named, [ONE]);
    tracker.note_alive(ONE, 1_000);
    assert_eq!(tracker.spared(&named, 2_250), 1, "as if it had come before");
}

#[test]
fn bounded_batches_name_everyone_in_the_end() {
    let mut tracker = SessionTracker::restart((1..=2_500).map(|id| (SessionId(id), 1_000, 0)), 0);
    let taken: Vec<usize> = (0..4).map(|_| tracker.take_silent(1_001, 1_024).len()).collect();
    assert_eq!(taken, [1_024, 1_024, 452, 0]);
}

#[test]
fn a_stalled_leader_reads_its_mail_first() {
    let mut tracker = SessionTracker::default();
    tracker.opened(ONE, 1_000, 0);
    tracker.stalled(1_500, 3_100);
    assert!(tracker.take_silent(3_100, 10).is_empty());
    tracker.note_alive(ONE, 3_150);
    assert!(tracker.take_silent(4_599, 10).is_empty());
    assert_eq!(tracker.take_silent(4_600, 10), [ONE]);
    tracker.opened(SessionId(2), 1_000, 4_600);
    tracker.stalled(30_000, 40_000);
    assert!(tracker.take_silent(40_000 + MAX_GRACE_MS - 1, 10).is_empty());
    assert_eq!(tracker.take_silent(40_000 + MAX_GRACE_MS, 10), [SessionId(2)], "however long the stall was");
}

#[test]
fn a_hundred_thousand_sessions_cost_little() {
    // Ten seconds of a leader with 100,000 sessions of 10 s, each heard from three times: counted in moves within the
    // ordered set, which is what costs, and not in time, which depends on the machine.
    let mut tracker = SessionTracker::restart((0..100_000).map(|id| (SessionId(id), 10_000, 0)), 0);
    for step in 1..=100_u64 {
        let now_ms = step * 100;
        for id in (0..100_000).filter(|id| id % 33 == step % 33) {
            tracker.note_alive(SessionId(id), now_ms);
        }
        assert!(tracker.take_silent(now_ms, 1_024).is_empty());
    }
    assert_eq!(tracker.deadlines.len(), 100_000);
    let stale = tracker.deadlines.iter().filter(|(at, _)| *at == 10_000).count();
    assert_eq!(stale, 100_000, "hearing from a session moves nothing");
}

#[derive(Clone, Debug)]
enum Action {
    Open(u64, u32),
    Heard(u64),
    End(u64),
    Tick,
    Restart,
    Again,
}

fn step() -> impl Strategy<Value = (u64, Action)> {
    let kind = prop_oneof![
        2 => (0..8_u64, 1..2_000_u32).prop_map(|(id, timeout_ms)| Action::Open(id, timeout_ms)),
        6 => (0..8_u64).prop_map(Action::Heard),
        1 => (0..8_u64).prop_map(Action::End),
        6 => Just(Action::Tick),
        1 => Just(Action::Restart),
        1 => Just(Action::Again),
    ];
    (0..700_u64, kind)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Against a record that remembers everything: never early, never confirmed once named, named by the first tick
    /// after the deadline.
    #[test]
    fn never_early_never_late(steps in prop::collection::vec(step(), 1..200)) {
        let mut tracker = SessionTracker::default();
        // session -> (timeout, last sign of life, named)
        let mut model: BTreeMap<SessionId, (u64, u64, bool)> = BTreeMap::new();
        let mut now_ms = 0;
        let mut last_taken = Vec::new();
        for (pass_ms, step) in steps {
            now_ms += pass_ms;
            match step {
                Action::Open(id, timeout_ms) => {
                    let id = SessionId(id);
                    model.entry(id).or_insert_with(|| {
                        tracker.opened(id, timeout_ms, now_ms);
                        (u64::from(timeout_ms), now_ms, false)
                    });
                }
                Action::Heard(id) => {
                    tracker.note_alive(SessionId(id), now_ms);
                    if let Some(entry) = model.get_mut(&SessionId(id)) {
                        entry.1 = now_ms;
                    }
                }
                Action::End(id) => {
                    tracker.ended(SessionId(id));
                    model.remove(&SessionId(id));
                }
                Action::Restart => {
                    tracker = SessionTracker::restart(model.iter().map(|(id, e)| (*id, e.0 as u32, now_ms)), 0);
                    model.values_mut().for_each(|entry| *entry = (entry.0, now_ms, false));
                    last_taken.clear();
                }
                Action::Again => tracker.propose_again(std::mem::take(&mut last_taken)),
                Action::Tick => {
                    let taken = tracker.take_silent(now_ms, usize::MAX);
                    for id in &taken {
                        let entry = model.get_mut(id).expect("only what is there is named");
                        prop_assert!(entry.2 || now_ms > entry.1 + entry.0, "{id:?} was named early");
                        entry.2 = true;
                    }
                    for (id, entry) in &model {
                        prop_assert!(entry.2 || now_ms <= entry.1 + entry.0, "{id:?} was named late");
                    }
                    last_taken = taken;
                }
            }
            for (id, (timeout_ms, alive_ms, named)) in &model {
                match tracker.liveness(*id) {
                    Liveness::Alive(_) => prop_assert!(!named),
                    Liveness::Expiring => prop_assert!(*named),
                    Liveness::Unknown => prop_assert!(false, "{id:?} is lost"),
                }
                if !named {
                    let left = tracker.remaining_ms(*id, now_ms).expect("alive");
                    prop_assert_eq!(left, (alive_ms + timeout_ms).saturating_sub(now_ms));
                }
            }
        }
    }
}
