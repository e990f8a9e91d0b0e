//! Decisions about ticks, with the time handed in.

use proptest::prelude::*;

use super::*;

/// 2026-11-25T00:00:00Z
const BASE: i64 = 1_795_564_800;

fn at(second: i64) -> u64 {
    u64::try_from(BASE + second).unwrap() * 1_000
}

fn tick(second: i64) -> Tick {
    Tick(BASE + second)
}

/// Ticks each ten seconds, missed after five.
fn spec(missed: Missed, overlap: Overlap) -> ScheduleSpec {
    let spec = ScheduleSpec::new("*/10 * * * * *").unwrap().missed(missed).overlap(overlap);
    spec.deadline(Duration::from_secs(5)).unwrap()
}

fn new(spec: &ScheduleSpec) -> ScheduleState {
    ScheduleState::new(spec.definition(), tick(0))
}

fn worker(token: u64) -> TickWorker {
    TickWorker { token, label: format!("worker {token}"), session_id: token, started_ms: 0, attempt: 0 }
}

fn report(second: i64, token: u64) -> TickReport {
    let (failed, exit_code, message) = (false, Some(0), String::new());
    TickReport { tick: tick(second), token, failed, exit_code, message, ended_ms: 7 }
}

fn open(state: &ScheduleState) -> Vec<i64> {
    state.open.iter().map(|open| open.tick.0 - BASE).collect()
}

fn ended(state: &ScheduleState) -> Vec<(i64, Option<i64>, TickOutcome)> {
    let of = |ended: &EndedTick| (ended.tick.0 - BASE, ended.through.map(|it| it.0 - BASE), ended.outcome);
    state.history.iter().map(of).collect()
}

#[test]
fn a_tick_is_decided_once_and_never_early() {
    let spec = spec(Missed::Skip, Overlap::Skip);
    let mut state = new(&spec);
    assert!(!state.advance(&spec, at(10) - 1));
    assert!(state.advance(&spec, at(10)));
    assert_eq!((open(&state), state.last), (vec![10], tick(10)));
    state.begin(tick(10), worker(1)).unwrap();
    // Another worker, whose view of the time is older or the same.
    for now in [at(0), at(10), at(20) - 1] {
        let before = state.clone();
        assert!(!state.advance(&spec, now));
        assert_eq!(state, before);
    }
}

#[test]
fn missed_ticks_go_by_the_policy() {
    let outage = |missed| {
        let spec = spec(missed, Overlap::Skip);
        let mut state = new(&spec);
        // Ticks at 10 … 60; the latest is 6 s old.
        state.advance(&spec, at(66));
        assert_eq!(state.last, tick(60));
        state
    };
    let skip = outage(Missed::Skip);
    assert_eq!((open(&skip), ended(&skip)), (vec![], vec![(10, Some(60), TickOutcome::Missed)]));
    let once = outage(Missed::Once);
    assert_eq!((open(&once), ended(&once)), (vec![60], vec![(10, Some(50), TickOutcome::Missed)]));
    assert!(once.open[0].missed);
    let all = outage(Missed::All);
    assert_eq!((open(&all), ended(&all)), (vec![10, 20, 30, 40, 50, 60], vec![]));
}

/// A worker opened a tick in time and died before it began it; the next look comes after the deadline.
#[test]
fn an_open_tick_that_nobody_began_is_missed_too() {
    let looked_at = |missed, second| {
        let spec = spec(missed, Overlap::Skip);
        let mut state = new(&spec);
        state.advance(&spec, at(10));
        assert!(!state.advance(&spec, at(15)), "in time until the deadline");
        assert!(state.advance(&spec, at(second)));
        state
    };
    // No other tick is due.
    let skip = looked_at(Missed::Skip, 16);
    assert_eq!((open(&skip), ended(&skip)), (vec![], vec![(10, None, TickOutcome::Missed)]));
    for missed in [Missed::Once, Missed::All] {
        let state = looked_at(missed, 16);
        assert_eq!((open(&state), ended(&state)), (vec![10], vec![]));
        assert!(state.open[0].missed);
    }
    // Others are missed with it.
    let skip = looked_at(Missed::Skip, 38);
    assert_eq!((open(&skip), ended(&skip)), (vec![], vec![(10, Some(30), TickOutcome::Missed)]));
    let once = looked_at(Missed::Once, 38);
    assert_eq!((open(&once), ended(&once)), (vec![30], vec![(10, Some(20), TickOutcome::Missed)]));
    let all = looked_at(Missed::All, 38);
    assert_eq!((open(&all), ended(&all)), (vec![10, 20, 30], vec![]));
    assert!(all.open.iter().all(|open| open.missed));
    // One that is due in time stands for it, and is not skipped on its account.
    for missed in [Missed::Skip, Missed::Once] {
        let state = looked_at(missed, 20);
        assert_eq!((open(&state), ended(&state)), (vec![20], vec![(10, None, TickOutcome::Missed)]));
        assert!(!state.open[0].missed);
    }
}

/// Nobody could write a decision for longer than the deadline, and a worker did a tick all the while.
#[test]
fn ticks_that_fall_due_during_another_one_are_not_missed() {
    let (token, other) = (7, 8);
    let later = |missed, overlap, token| {
        let spec = spec(missed, overlap);
        let mut state = new(&spec);
        state.advance(&spec, at(10));
        state.begin(state.open[0].tick, worker(7)).unwrap();
        assert!(state.advance_for(&spec, at(64), token));
        assert!(!state.advance_for(&spec, at(64), token));
        state
    };
    for missed in [Missed::Skip, Missed::Once, Missed::All] {
        let skip = later(missed, Overlap::Skip, token);
        assert_eq!((open(&skip), ended(&skip)), (vec![10], vec![(20, Some(60), TickOutcome::Overlapped)]));
        let queue = later(missed, Overlap::Queue, token);
        assert_eq!((open(&queue), ended(&queue)), (vec![10, 20, 30, 40, 50, 60], vec![]));
        assert!(queue.open.iter().all(|open| !open.missed));
    }
    // A worker that does another tick knows nothing of the first.
    let dead = later(Missed::Skip, Overlap::Queue, other);
    assert_eq!((open(&dead), ended(&dead)), (vec![10, 60], vec![(20, Some(50), TickOutcome::Missed)]));
}

/// Those that are caught up with come before one whose time to begin had started.
#[test]
fn the_time_to_begin_counts_anew_behind_ticks_that_are_caught_up_with() {
    let all = spec(Missed::All, Overlap::Queue).deadline(Duration::from_secs(60)).unwrap();
    let mut state = new(&all);
    state.advance(&all, at(10));
    state.advance(&all, at(20));
    assert_eq!(open(&state), [10, 20]);
    state.advance(&all, at(71));
    let ready: Vec<_> = state.open.iter().map(|open| (open.missed, open.ready_ms)).collect();
    assert_eq!(ready[..3], [(true, Some(at(71))), (false, None), (false, None)], "{state:?}");
}

#[test]
fn a_tick_that_was_to_be_caught_up_with_goes_into_the_next_ones() {
    let once = spec(Missed::Once, Overlap::Skip);
    let mut state = new(&once);
    state.advance(&once, at(66));
    assert_eq!(open(&state), [60]);
    // Nobody began it.
    state.advance(&once, at(96));
    assert_eq!((open(&state), ended(&state)), (vec![90], vec![(10, Some(80), TickOutcome::Missed)]));
}

/// The deadline of a tick that waits for an earlier one counts from that one's end.
#[test]
fn a_tick_that_waits_for_an_earlier_one_is_not_missed() {
    let queue = spec(Missed::Skip, Overlap::Queue);
    let mut state = new(&queue);
    state.advance(&queue, at(10));
    state.begin(tick(10), worker(1)).unwrap();
    for second in [20, 30] {
        state.advance(&queue, at(second));
    }
    state.advance(&queue, at(38));
    state.end(TickReport { ended_ms: at(38), ..report(10, 1) }).unwrap();
    assert!(!state.advance(&queue, at(39)));
    assert_eq!(open(&state), [20, 30]);
    state.begin(tick(20), worker(2)).unwrap();
    state.end(TickReport { ended_ms: at(39), ..report(20, 2) }).unwrap();
    // From here on nobody begins the next one.
    state.advance(&queue, at(48));
    assert_eq!((open(&state), ended(&state).last()), (vec![], Some(&(30, Some(40), TickOutcome::Missed))));
    // A tick that was begun is not missed, however long it takes.
    state.advance(&queue, at(50));
    state.begin(tick(50), worker(3)).unwrap();
    state.advance(&queue, at(500));
    assert_eq!(open(&state)[0], 50);
}

#[test]
fn a_tick_in_time_stands_for_the_missed_ones() {
    let spec = spec(Missed::Once, Overlap::Skip);
    let mut state = new(&spec);
    state.advance(&spec, at(63));
    assert_eq!((open(&state), ended(&state)), (vec![60], vec![(10, Some(50), TickOutcome::Missed)]));
    assert!(!state.open[0].missed);
}

#[test]
fn another_definition_decides_about_the_time_from_now_on() {
    let former = spec(Missed::Skip, Overlap::Queue);
    // By this one alone, all seconds of the past would be caught up with.
    let every_second = ScheduleSpec::new("* * * * * *").unwrap().missed(Missed::All).overlap(Overlap::Queue);
    let mut state = new(&former);
    state.replace(every_second.definition(), at(33));
    assert_eq!(state.schedule, every_second.definition());
    assert_eq!((open(&state), ended(&state)), (vec![30], vec![(10, Some(20), TickOutcome::Missed)]));
    assert_eq!(state.last, tick(33));
    state.advance(&every_second, at(35));
    assert_eq!(open(&state), [30, 34, 35]);

    // A view of the time that is older than the last decision brings no tick back.
    state.replace(former.definition(), at(20));
    assert_eq!((open(&state), state.last), (vec![30, 34, 35], tick(35)));

    // The former one cannot be read on this machine.
    state.schedule.zone = "Nowhere/At_all".into();
    state.replace(every_second.definition(), at(50));
    assert_eq!((open(&state), state.last), (vec![30, 34, 35], tick(50)));
}

#[test]
fn overlapping_ticks_go_by_the_policy() {
    let skip = spec(Missed::Skip, Overlap::Skip);
    let mut state = new(&skip);
    state.advance(&skip, at(10));
    state.begin(tick(10), worker(4)).unwrap();
    for second in [20, 30] {
        state.advance(&skip, at(second));
    }
    assert_eq!((open(&state), ended(&state)), (vec![10], vec![(20, Some(30), TickOutcome::Overlapped)]));

    let queue = spec(Missed::Skip, Overlap::Queue);
    let mut state = new(&queue);
    state.advance(&queue, at(10));
    state.begin(tick(10), worker(4)).unwrap();
    for second in [20, 30] {
        state.advance(&queue, at(second));
    }
    assert_eq!((open(&state), ended(&state)), (vec![10, 20, 30], vec![]));
    // Only the first can be begun.
    assert_eq!(state.begin(tick(20), worker(5)), Err(NotOpen::NotFirst));
    state.begin(tick(10), worker(5)).unwrap();
    state.end(report(10, 5)).unwrap();
    state.begin(tick(20), worker(6)).unwrap();
}

#[test]
fn ticks_wait_while_missed_ones_are_caught_up_with() {
    let spec = spec(Missed::All, Overlap::Skip);
    let mut state = new(&spec);
    state.advance(&spec, at(26));
    state.advance(&spec, at(30));
    assert_eq!(open(&state), [10, 20, 30]);
    for (token, second) in [(1, 10), (2, 20)] {
        state.begin(tick(second), worker(token)).unwrap();
        state.end(report(second, token)).unwrap();
    }
    // 30 was in time: again one at a time.
    state.begin(tick(30), worker(3)).unwrap();
    state.advance(&spec, at(40));
    assert_eq!(open(&state), [30]);
    assert_eq!(ended(&state).last().unwrap(), &(40, None, TickOutcome::Overlapped));
}

#[test]
fn the_end_counts_only_under_the_token_of_the_latest_worker() {
    let spec = spec(Missed::Skip, Overlap::Skip);
    let mut state = new(&spec);
    state.advance(&spec, at(10));
    assert_eq!(state.end(report(10, 5)), Err(NotOpen::NotFirst));
    assert_eq!(state.begin(tick(10), worker(5)).unwrap().attempt, 1);
    // The outcome of its request was unknown, and it asks again.
    assert_eq!(state.begin(tick(10), worker(5)).unwrap().attempt, 1);
    assert_eq!(state.begin(tick(10), worker(8)).unwrap().attempt, 2);
    assert_eq!(state.begin(tick(10), worker(5)), Err(NotOpen::Replaced { token: 8 }));
    assert_eq!(state.end(report(10, 5)), Err(NotOpen::Replaced { token: 8 }));
    state.end(report(10, 8)).unwrap();
    let after = state.clone();
    state.end(report(10, 8)).unwrap();
    assert_eq!(state, after);
    assert_eq!(state.end(report(10, 5)), Err(NotOpen::Ended));
    assert_eq!(state.begin(tick(10), worker(9)), Err(NotOpen::Ended));
    assert_eq!(ended(&state), [(10, None, TickOutcome::Done)]);
}

#[test]
fn open_ticks_and_history_are_bounded() {
    let queue = spec(Missed::Skip, Overlap::Queue);
    let mut state = new(&queue);
    for round in 1..=150 {
        state.advance(&queue, at(round * 10));
        if round == 1 {
            state.begin(tick(10), worker(1)).unwrap();
        }
    }
    assert_eq!(state.open.len(), MAX_OPEN_TICKS);
    assert_eq!(ended(&state), [(1_010, Some(1_500), TickOutcome::Dropped)]);
    for token in 1..=100 {
        let due = state.open[0].tick;
        state.begin(due, worker(token)).unwrap();
        let long = TickReport { message: "ü".repeat(1_000), ..report(due.0 - BASE, token) };
        state.end(long).unwrap();
    }
    assert_eq!(state.history.len(), MAX_HISTORY);
    assert_eq!(state.history[0].message.len(), MAX_MESSAGE_BYTES);
    assert!(state.encode().len() < 64 << 10, "{}", state.encode().len());

    // A year without a worker: the latest hundred, and one entry for the rest.
    let all = spec(Missed::All, Overlap::Queue);
    let mut state = new(&all);
    state.advance(&all, at(365 * 86_400 + 6));
    assert_eq!(state.open.len(), MAX_OPEN_TICKS);
    assert_eq!(ended(&state), [(10, Some(365 * 86_400 - 1_000), TickOutcome::Dropped)]);
}

#[test]
fn the_record_is_read_as_it_was_written_and_a_foreign_one_is_refused() {
    let spec = spec(Missed::Once, Overlap::Queue);
    let mut state = new(&spec);
    state.advance(&spec, at(66));
    state.begin(tick(60), worker(3)).unwrap();
    let written = state.encode();
    assert!(written.contains(r#""tick":"2026-11-25T00:01:00Z""#), "{written}");
    assert_eq!(ScheduleState::read("/cron/a", written.as_bytes()).unwrap(), state);
    assert_eq!(state.schedule.spec().unwrap().definition(), state.schedule);
    for foreign in ["", "{}", "5", &written.replace("\"format\":1", "\"format\":2")] {
        let refused = ScheduleState::read("/cron/a", foreign.as_bytes());
        assert!(matches!(refused, Err(RecipeError::Foreign { .. })), "{foreign}");
    }
    assert!(spec.deadline(Duration::from_millis(999)).is_err());
}

#[derive(Clone, Debug)]
enum WorkerStep {
    Pass(i64),
    Begin,
    End,
}

proptest! {
    /// Whatever workers do, and however late: each tick is decided once, in order, and done at most once.
    #[test]
    fn every_tick_has_one_end(
        missed in prop_oneof![Just(Missed::Skip), Just(Missed::Once), Just(Missed::All)],
        overlap in prop_oneof![Just(Overlap::Skip), Just(Overlap::Queue)],
        steps in proptest::collection::vec(
            prop_oneof![(0_i64..40).prop_map(WorkerStep::Pass), Just(WorkerStep::Begin), Just(WorkerStep::End)], 1..60
        ),
    ) {
        let spec = spec(missed, overlap);
        let mut state = new(&spec);
        let (mut now, mut token) = (0, 0);
        let mut done = Vec::new();
        for step in steps {
            let last = state.last;
            match step {
                WorkerStep::Pass(seconds) => {
                    now += seconds;
                    state.advance(&spec, at(now));
                }
                WorkerStep::Begin => {
                    token += 1;
                    if let Some(open) = state.open.front().cloned() {
                        let first = open.tick;
                        prop_assert!(first.as_millis() <= at(now));
                        let in_time = open.ready_ms.is_some_and(|ready_ms| at(now) - ready_ms <= 5_000);
                        prop_assert!(open.worker.is_some() || in_time, "{:?} at {}", open, now);
                        state.begin(first, worker(token)).unwrap();
                    }
                }
                WorkerStep::End => {
                    let begun = state.open.front().and_then(|open| Some((open.tick, open.worker.clone()?.token)));
                    if let Some((first, token)) = begun {
                        state.end(TickReport { ended_ms: at(now), ..report(first.0 - BASE, token) }).unwrap();
                        prop_assert!(!done.contains(&first));
                        prop_assert!(done.last().is_none_or(|before| *before < first), "in order");
                        done.push(first);
                    }
                }
            }
            prop_assert!(state.last >= last);
            prop_assert!(state.last.0 - BASE > now - 10, "all that is due is decided");
            let ticks: Vec<Tick> = state.open.iter().map(|open| open.tick).collect();
            prop_assert!(ticks.is_sorted() && ticks.iter().all(|tick| !done.contains(tick)));
        }
        // Each tick is open, done, or skipped for a reason, and only one of them.
        for second in (10..=now).step_by(10) {
            let due = tick(second);
            let skipped = state.history.iter().filter(|ended| {
                let through = ended.through.unwrap_or(ended.tick);
                !matches!(ended.outcome, TickOutcome::Done) && ended.tick <= due && due <= through
            }).count();
            let is_done = usize::from(done.contains(&due));
            let is_open = state.open.iter().filter(|open| open.tick == due).count();
            if state.history.len() < MAX_HISTORY {
                prop_assert_eq!(skipped + is_done + is_open, 1, "{}", due);
            }
        }
    }
}
