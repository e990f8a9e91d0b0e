//! Schedules against a real cluster: once per tick over all workers, take-over, policies, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_client::api::Data;
use lockkeeper_client::api::nodes::SetData;
use lockkeeper_client::recipes::{
    Missed, Overlap, RecipeError, Schedule, ScheduleSpec, ScheduleState, Tick, TickOutcome, TickTurn,
};
use lockkeeper_client::{Error, Session};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::test_cluster::{SOON, TestCluster, soon};

/// A tick each second.
fn every_second() -> ScheduleSpec {
    ScheduleSpec::new("* * * * * *").unwrap().overlap(Overlap::Queue)
}

/// A new cluster, a session of it and a schedule with a tick each second.
async fn every_second_in_a_new_cluster() -> (TestCluster, Session, Schedule) {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let schedule = session.schedule("a", every_second()).unwrap();
    (setting, session, schedule)
}

/// Ticks each midnight: none becomes due during a test, unless that begins before midnight, which changes nothing.
fn daily() -> ScheduleSpec {
    ScheduleSpec::new("0 0 * * *").unwrap()
}

async fn until_state(schedule: &Schedule, reached: impl Fn(&ScheduleState) -> bool) -> ScheduleState {
    let give_up_at = Instant::now() + SOON;
    loop {
        let state = schedule.state().await.unwrap();
        match state {
            Some(state) if reached(&state) => return state,
            other => assert!(Instant::now() < give_up_at, "{other:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Lets a worker make the schedule's node, and makes it look as if the last decision was so long ago.
async fn made_days_ago(session: &Session, job: &str, spec: &ScheduleSpec, days: u64) -> Schedule {
    let schedule = session.schedule(job, spec.clone()).unwrap();
    let worker = tokio::spawn({
        let schedule = schedule.clone();
        async move { schedule.next().await }
    });
    let state = until_state(&schedule, |_| true).await;
    worker.abort();
    assert!(worker.await.unwrap_err().is_cancelled());
    let mut json = serde_json::to_value(&state).unwrap();
    let now_ms = session.client().cluster_clock().await.unwrap().clock_ms;
    // Noon of an earlier day: so many midnights have passed since.
    let noon_ms = now_ms / 86_400_000 * 86_400_000 - days * 86_400_000 + 43_200_000;
    json["last"] = serde_json::json!(Tick::at_millis(noon_ms));
    let set = SetData { data: Data::Text(json.to_string()) };
    session.client().set(&format!("/cron/{job}"), &set, None).await.unwrap();
    schedule
}

#[tokio::test]
async fn each_tick_is_done_once_over_all_workers_and_none_early() {
    let setting = TestCluster::of(3).await;
    let runs: Arc<Mutex<BTreeMap<Tick, Vec<u64>>>> = Arc::default();
    let mut workers = Vec::new();
    for number in 0..5 {
        let session = setting.session().await;
        let schedule = session.schedule("reports/all", every_second()).unwrap().label(format!("worker {number}"));
        let runs = runs.clone();
        workers.push(tokio::spawn(async move {
            let work = |turn: TickTurn| {
                runs.lock().entry(turn.tick).or_default().push(turn.token);
                async move { Ok::<_, Error>(format!("by {number}")) }
            };
            schedule.run(work).await
        }));
    }
    let session = setting.session().await;
    let schedule = session.schedule("reports/all", every_second()).unwrap();
    let state = until_state(&schedule, |state| state.history.len() >= 5).await;
    workers.iter().for_each(tokio::task::JoinHandle::abort);

    let spec = every_second();
    let mut before: Option<(Tick, u64)> = None;
    for ended in state.history {
        let worker = ended.worker.unwrap();
        assert_eq!((ended.outcome, ended.through, worker.attempt), (TickOutcome::Done, None, 1));
        assert_eq!(ended.message, worker.label.replace("worker", "by"));
        assert!(worker.started_ms >= ended.tick.as_millis() && ended.ended_ms >= worker.started_ms, "{worker:?}");
        assert_eq!(runs.lock()[&ended.tick], [worker.token]);
        if let Some((tick, token)) = before {
            assert_eq!(spec.next_after(tick), Some(ended.tick));
            assert!(worker.token > token);
        }
        before = Some((ended.tick, worker.token));
    }
}

#[tokio::test]
async fn the_result_of_a_tick_is_at_its_gate() {
    let (setting, _session, schedule) = every_second_in_a_new_cluster().await;
    let run = soon(schedule.next()).await.unwrap();
    let (tick, token) = (run.tick(), run.token());
    run.finish_with_exit_code(3).await.unwrap();
    let gate = setting.client.gate(&format!("cron/a/{tick}")).await.unwrap();
    let lockkeeper_client::api::gates::Gate::Done { result, token: of_gate, .. } = gate.gate else {
        panic!("{gate:?}")
    };
    let result: serde_json::Value = serde_json::from_slice(&result.to_bytes().unwrap()).unwrap();
    assert_eq!((result["outcome"].as_str(), result["exit_code"].as_u64(), of_gate), (Some("failed"), Some(3), token));
}

#[tokio::test]
async fn the_next_worker_takes_over_when_one_dies_or_hands_over() {
    let setting = TestCluster::new().await;
    let (dying, other) = (setting.session().await, setting.session().await);
    let run = soon(dying.schedule("a", every_second()).unwrap().next()).await.unwrap();
    let (tick, token) = (run.tick(), run.token());
    let waiting = other.schedule("a", every_second()).unwrap();
    let next = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.next().await }
    });
    until_state(&waiting, |state| state.open.front().is_some_and(|open| open.worker.is_some())).await;
    dying.close().await.unwrap();
    let again = soon(next).await.unwrap().unwrap();
    assert_eq!((again.tick(), again.attempt()), (tick, 2));
    assert!(again.token() > token);
    let late = run.finish("too late").await.unwrap_err();
    assert!(late.is_lost() || matches!(late, RecipeError::Stale { .. }), "{late}");

    again.hand_over().await.unwrap();
    let third = soon(waiting.next()).await.unwrap();
    assert_eq!((third.tick(), third.attempt()), (tick, 3));
    third.finish("").await.unwrap();
    let state = waiting.state().await.unwrap().unwrap();
    let ends = state.history.iter().filter(|ended| ended.tick == tick).count();
    assert_eq!(ends, 1);
}

/// Its work was dropped, such as by a panic, and the session lives on.
#[tokio::test]
async fn a_run_that_was_dropped_is_begun_again_in_the_same_session() {
    let (_setting, _session, schedule) = every_second_in_a_new_cluster().await;
    let run = soon(schedule.next()).await.unwrap();
    let (tick, token) = (run.tick(), run.token());
    drop(run);
    let again = soon(schedule.next()).await.unwrap();
    assert_eq!((again.tick(), again.attempt()), (tick, 2));
    assert!(again.token() > token);
    again.finish("").await.unwrap();
}

/// The gate was begun and the worker never heard of it.
#[tokio::test]
async fn a_tick_whose_beginning_was_not_answered_is_begun_by_the_same_session() {
    let (_setting, session, schedule) = every_second_in_a_new_cluster().await;
    let schedule = schedule.label("worker");
    let first = soon(schedule.next()).await.unwrap();
    let tick = until_state(&schedule, |state| state.open.len() > 1).await.open[1].tick;
    let begin = lockkeeper_client::api::gates::Begin {
        fingerprint: "lockkeeper schedule".into(),
        pending_ms: Some(24 * 3_600 * 1_000),
        label: Some("worker".into()),
        keep: None,
        keep_ms: None,
    };
    session.client().gate_begin(&format!("cron/a/{tick}"), &begin).await.unwrap();
    first.finish("").await.unwrap();
    let next = soon(schedule.next()).await.unwrap();
    assert_eq!((next.tick(), next.attempt()), (tick, 1));
    next.finish("").await.unwrap();
}

#[tokio::test]
async fn two_workers_of_one_session_leave_each_other_their_ticks() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let skip = ScheduleSpec::new("* * * * * *").unwrap();
    let schedule = session.schedule("a", skip).unwrap();
    let run = soon(schedule.next()).await.unwrap();
    let (tick, token) = (run.tick(), run.token());
    let waiting = tokio::spawn({
        let schedule = schedule.clone();
        async move { schedule.next().await }
    });
    // It wakes at each tick, and asks the gate.
    let skipped = |state: &ScheduleState| state.history.back().is_some_and(|ended| ended.through.is_some());
    let state = until_state(&schedule, skipped).await;
    assert_eq!(state.open[0].worker.as_ref().unwrap().token, token);
    run.finish("").await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.tick() > tick && next.attempt() == 1);
    next.finish("").await.unwrap();
}

/// A worker that is to go on in a library goes on after a reset of its gate.
#[tokio::test]
async fn a_worker_goes_on_after_a_tick_was_taken_from_it() {
    let (setting, _session, schedule) = every_second_in_a_new_cluster().await;
    let worker = tokio::spawn({
        let schedule = schedule.clone();
        async move {
            let work = |turn: TickTurn| async move {
                if turn.attempt == 1 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Error>("again".into())
            };
            schedule.run(work).await
        }
    });
    let state = until_state(&schedule, |state| state.open.front().is_some_and(|open| open.worker.is_some())).await;
    let tick = state.open[0].tick;
    setting.client.gate_reset(&format!("cron/a/{tick}"), None).await.unwrap();
    let state = until_state(&schedule, |state| !state.history.is_empty()).await;
    assert_eq!((state.history[0].tick, state.history[0].message.as_str()), (tick, "again"));
    assert!(!worker.is_finished());
    worker.abort();
}

#[tokio::test]
async fn a_worker_that_was_replaced_reports_nothing() {
    let setting = TestCluster::new().await;
    let (late, other) = (setting.session().await, setting.session().await);
    let run = soon(late.schedule("a", every_second()).unwrap().next()).await.unwrap();
    // As an operator would free a gate whose worker hangs.
    setting.client.delete(&format!("/gates/cron/a/{}", run.tick()), None).await.unwrap();
    let waiting = other.schedule("a", every_second()).unwrap();
    let again = soon(waiting.next()).await.unwrap();
    assert_eq!(again.tick(), run.tick());
    let (tick, token) = (again.tick(), again.token());
    assert!(matches!(run.finish("done").await, Err(RecipeError::Stale { .. })));
    again.finish("done again").await.unwrap();
    let state = waiting.state().await.unwrap().unwrap();
    let ended = state.history.iter().find(|ended| ended.tick == tick).unwrap();
    assert_eq!((ended.worker.as_ref().unwrap().token, ended.message.as_str()), (token, "done again"));
}

#[tokio::test]
async fn a_late_worker_that_gets_the_gate_of_an_ended_tick_does_nothing() {
    let (setting, _session, schedule) = every_second_in_a_new_cluster().await;
    let run = soon(schedule.next()).await.unwrap();
    let tick = run.tick();
    run.finish("").await.unwrap();
    // The result of the gate is gone, as after its time.
    setting.client.delete(&format!("/gates/cron/a/{tick}"), None).await.unwrap();
    let next = soon(schedule.next()).await.unwrap();
    assert!(next.tick() > tick);
}

#[tokio::test]
async fn ticks_that_become_due_meanwhile_are_skipped_or_wait() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let skip = ScheduleSpec::new("* * * * * *").unwrap();
    for (job, spec) in [("skip", skip), ("queue", every_second())] {
        let schedule = session.schedule(job, spec.clone()).unwrap();
        let run = soon(schedule.next()).await.unwrap();
        let first = run.tick();
        // This worker is the only one: it decides while it works.
        if job == "queue" {
            until_state(&schedule, |state| state.open.len() == 3).await;
            run.finish("").await.unwrap();
            let second = soon(schedule.next()).await.unwrap();
            assert_eq!(Some(second.tick()), spec.next_after(first));
        } else {
            let skipped = |state: &ScheduleState| {
                state.history.back().is_some_and(|ended| ended.outcome == TickOutcome::Overlapped)
            };
            let state = until_state(&schedule, |state| skipped(state) && state.history[0].through.is_some()).await;
            assert_eq!(Some(state.history[0].tick), spec.next_after(first));
            assert_eq!(state.open.len(), 1);
            run.finish("").await.unwrap();
            let second = soon(schedule.next()).await.unwrap();
            assert!(second.tick() > state.history[0].through.unwrap());
        }
    }
}

#[tokio::test]
async fn ticks_without_any_worker_go_by_the_policy() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let all = daily().missed(Missed::All);
    let schedule = made_days_ago(&session, "all", &all, 3).await;
    let mut ticks = Vec::new();
    for _ in 0..3 {
        let run = soon(schedule.next()).await.unwrap();
        ticks.push(run.tick());
        run.finish("caught up").await.unwrap();
    }
    assert_eq!((all.next_after(ticks[0]), all.next_after(ticks[1])), (Some(ticks[1]), Some(ticks[2])));

    let once = daily().missed(Missed::Once);
    let schedule = made_days_ago(&session, "once", &once, 3).await;
    let run = soon(schedule.next()).await.unwrap();
    assert_eq!(run.tick(), ticks[2]);
    run.finish("for all").await.unwrap();
    let state = schedule.state().await.unwrap().unwrap();
    let missed = &state.history[0];
    assert_eq!((missed.outcome, missed.tick, missed.through), (TickOutcome::Missed, ticks[0], Some(ticks[1])));

    let schedule = made_days_ago(&session, "skip", &daily(), 3).await;
    let waiting = tokio::spawn({
        let schedule = schedule.clone();
        async move { schedule.next().await }
    });
    let state = until_state(&schedule, |state| state.last == ticks[2]).await;
    assert_eq!((state.open.len(), state.history[0].outcome), (0, TickOutcome::Missed));
    assert!(!waiting.is_finished());
    waiting.abort();
}

#[tokio::test]
async fn a_wait_that_is_dropped_at_any_moment_leaves_the_tick_to_others() {
    let setting = TestCluster::new().await;
    let (hasty, other) = (setting.session().await, setting.session().await);
    let schedule = hasty.schedule("a", every_second()).unwrap();
    for round in 0..200 {
        let wait = Duration::from_micros(150 * round);
        if let Ok(run) = tokio::time::timeout(wait, schedule.next()).await {
            run.unwrap().hand_over().await.unwrap();
        }
    }
    let run = soon(other.schedule("a", every_second()).unwrap().next()).await.unwrap();
    run.finish("").await.unwrap();
    // Its end would have opened the gates.
    assert!(!hasty.left().is_zero());
}

#[tokio::test]
async fn another_specification_is_refused_unless_it_replaces_the_former_one() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    let former = session.schedule("a", every_second()).unwrap();
    soon(former.next()).await.unwrap().finish("").await.unwrap();
    for other in [
        ScheduleSpec::new("*/2 * * * * *").unwrap().overlap(Overlap::Queue),
        every_second().zone("CET-1").unwrap(),
        every_second().missed(Missed::All),
        every_second().overlap(Overlap::Skip),
        every_second().deadline(Duration::from_secs(2)).unwrap(),
    ] {
        let refused = soon(session.schedule("a", other).unwrap().next()).await.unwrap_err();
        let RecipeError::Mismatch { asked, found, .. } = &refused else { panic!("{refused}") };
        assert!(found.starts_with("'* * * * * *' in UTC, missed skip, overlap queue") && asked != found, "{refused}");
    }
    let new = session.schedule("a", every_second().missed(Missed::All)).unwrap();
    new.replace().await.unwrap();
    soon(new.next()).await.unwrap().finish("").await.unwrap();
    let refused = soon(former.next()).await.unwrap_err();
    assert!(matches!(refused, RecipeError::Mismatch { .. }), "{refused}");
    assert!(new.state().await.unwrap().unwrap().history.len() >= 2);
}

#[tokio::test]
async fn names_and_foreign_nodes_are_refused() {
    let setting = TestCluster::new().await;
    let session = setting.session().await;
    for bad in ["", "/", "a//b", "..", "a/"] {
        assert!(matches!(session.schedule(bad, daily()), Err(RecipeError::BadPath { .. })), "{bad}");
    }
    for bad in ["", "a/b", "locks", "gates"] {
        let schedule = session.schedule("a", daily()).unwrap();
        assert!(matches!(schedule.namespace(bad), Err(RecipeError::BadPath { .. })), "{bad}");
    }
    assert!(setting.client.schedule_state("cron", "a").await.unwrap().is_none());
    let create = lockkeeper_client::api::nodes::Create { data: Data::Text("x".into()), ..Default::default() };
    setting.client.create("/shop", &create).await.unwrap();
    setting.client.create("/shop/a", &create).await.unwrap();
    let schedule = session.schedule("a", daily()).unwrap().namespace("shop").unwrap();
    assert!(matches!(soon(schedule.next()).await, Err(RecipeError::Foreign { .. })));
}

#[tokio::test]
async fn failed_work_is_in_the_history_and_not_tried_again() {
    let (_setting, session, schedule) = every_second_in_a_new_cluster().await;
    let worker = tokio::spawn({
        let schedule = schedule.clone();
        async move { schedule.run(|_| async { Err::<String, _>("no paper") }).await }
    });
    let state = until_state(&schedule, |state| state.history.len() >= 2).await;
    for ended in &state.history {
        assert_eq!((ended.outcome, ended.message.as_str()), (TickOutcome::Failed, "no paper"));
    }
    session.close().await.unwrap();
    assert!(soon(worker).await.unwrap().unwrap_err().is_lost());
}

#[tokio::test]
async fn the_clock_is_the_same_at_all_nodes_and_goes_on() {
    let setting = TestCluster::of(3).await;
    let mut before = 0;
    for endpoint in setting.cluster.endpoints() {
        let client = lockkeeper_client::Client::new([endpoint], Default::default()).unwrap();
        let clock = client.cluster_clock().await.unwrap();
        // A node's view is behind by the delay of a message, and these calls come one after the other.
        assert!(clock.clock_ms + 1_000 > before, "{} after {before}", clock.clock_ms);
        before = clock.clock_ms;
    }
}
