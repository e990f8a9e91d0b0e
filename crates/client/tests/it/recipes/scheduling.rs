//! Schedules against a real cluster: begun again, taken over, handed over, and what is refused.

use std::time::Duration;

use lockkeeper_client::api::Data;
use lockkeeper_client::recipes::{
    Missed, Overlap, RecipeError, Schedule, ScheduleSpec, ScheduleState, TickOutcome, TickTurn,
};
use lockkeeper_client::{Error, Session};
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
