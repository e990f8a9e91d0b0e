//! How long the session may be relied on, by what comes over the stream (promise P11).

use std::time::{Duration, Instant};

use lockkeeper_client::{Moment, SessionState};
use serde_json::json;

use super::node::*;

#[tokio::test]
async fn keepalives_over_the_stream_renew_from_their_sending() {
    let node = Node::start(good).await;
    let session = open(&[&node.address]).await;
    let mut renewals = session.renewals();
    renewals.borrow_and_update();
    for _ in 0..3 {
        let before = session.lost_at();
        renewals.changed().await.unwrap();
        assert!(session.lost_at() > before);
        let timeout = Duration::from_millis(TIMEOUT_MS.into());
        assert!(session.expires_at() <= Moment::now() + timeout, "from the sending, which is in the past");
    }
    assert!(node.frames("keepalive").len() >= 2);
    let over_http = |event: &Event| matches!(event, Event::Http(line) if line.contains("keepalive"));
    assert!(!node.seen.borrow().iter().any(over_http), "the stream has answered in time");
}

#[tokio::test]
async fn a_stream_that_answers_no_keepalive_loses_the_session_in_time() {
    const TIMEOUT: Duration = Duration::from_millis(1_000);
    let node = Node::start(|event| match event {
        Event::Http(line) if line == "POST /v1/sessions" => session_only(event, 1_000).unwrap(),
        // It says that it is there, again and again, but not that the session is kept.
        Event::Frame(_, value) if value.get("keepalive").is_some() => {
            vec![Do::Say(json!({"fanfare": {}}))]
        }
        _ => vec![],
    })
    .await;
    let before = Instant::now();
    let session = open(&[&node.address]).await;
    let because = session.lost().await;
    assert!(before.elapsed() < TIMEOUT, "told after {:?}", before.elapsed());
    assert!(session.left().is_zero());
    assert!(because.contains("no keepalive"), "{because}");
    // What comes now is too late: the holder has been told.
    for (_, number) in node.frames("keepalive") {
        node.now(alive(&number));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(session.left().is_zero() && matches!(*session.state().borrow(), SessionState::Lost { .. }));
}

#[tokio::test]
async fn an_answer_after_its_round_still_counts_and_only_from_its_own_sending() {
    let node = Node::start(|event| match event {
        Event::Http(line) if line == "POST /v1/sessions" => session_only(event, 3_000).unwrap(),
        // Not dead, but slow.
        Event::Frame(_, value) if value.get("keepalive").is_some() => vec![Do::Say(json!({"fanfare": {}}))],
        _ => vec![],
    })
    .await;
    let session = open(&[&node.address]).await;
    let first_end = session.expires_at();
    let mut state = session.state();
    state.wait_for(|state| matches!(state, SessionState::RenewalFailing { .. })).await.unwrap();
    let asked = node.frames("keepalive");
    let now = Moment::now();
    node.now(alive(&asked[0].1));
    let after = state.wait_for(|state| !matches!(state, SessionState::RenewalFailing { .. })).await.unwrap().clone();
    assert_eq!(after, SessionState::Connected);
    assert!(session.expires_at() > first_end);
    assert!(session.expires_at() < now + Duration::from_millis(3_000), "from when it was sent, not when it came");
}

#[tokio::test]
async fn the_handshake_is_a_sign_of_life() {
    // Every keepalive goes astray, but each new stream says that the session lives.
    let node = Node::start(|event| match event {
        Event::Upgrade(_) => vec![Do::Say(json!({"hello": {"version": 1, "timeout_ms": 900, "zxid": 1, "held": []}}))],
        Event::Http(line) if line == "POST /v1/sessions" => session_only(event, 900).unwrap(),
        Event::Frame(_, value) if value.get("keepalive").is_some() => vec![Do::Cut],
        _ => vec![Do::Freeze],
    })
    .await;
    let session = open(&[&node.address]).await;
    node.until(|seen| frames(seen, "keepalive").len() >= 8).await;
    assert_ne!(session.left(), Duration::ZERO);
}
