//! Requests: bounds, giving up, refusals, what is left to HTTP.

use std::time::Duration;

use futures::FutureExt;
use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::api::nodes::{Create, SetData};
use lockkeeper_client::api::{Code, Data};
use lockkeeper_client::{Error, Reading};
use serde_json::json;

use super::node::*;

/// Answers nothing but what keeps the session alive.
fn keeps_still(event: &Event) -> Vec<Do> {
    session_only(event, TIMEOUT_MS).unwrap_or_else(|| match event {
        Event::Upgrade(_) => vec![hello(json!([]))],
        _ => vec![],
    })
}

#[tokio::test]
async fn a_refusal_is_the_callers() {
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value.get("request").is_some() => {
            vec![refusal(&value["request"]["id"], Code::NodeExists)]
        }
        _ => good(event),
    })
    .await;
    let session = open(&[&node.address]).await;
    let error = session.client().create("/a", &Create::default()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NodeExists));
    assert_eq!(node.frames("request").len(), 1);
}

#[tokio::test]
async fn open_requests_are_bounded_and_a_keepalive_gets_through() {
    let node = Node::start(keeps_still).await;
    let session = open(&[&node.address]).await;
    let client = session.client().clone();
    let asking: Vec<_> = (0..1_200)
        .map(|at| {
            let client = client.clone();
            tokio::spawn(async move { client.node(&format!("/{at}"), &Reading::default()).await })
        })
        .collect();
    node.until(|seen| frames(seen, "request").len() == 1_000).await;
    let before = node.frames("keepalive").len();
    node.until(|seen| frames(seen, "keepalive").len() > before).await;
    assert_eq!(node.frames("request").len(), 1_000, "the others wait for answers");
    asking.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn waits_leave_room_for_what_ends_them() {
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value["request"]["call"]["acquire_lock"]["name"] == "a" => vec![],
        Event::Http(line) if line.contains("/acquire") => vec![Do::Freeze],
        _ => good(event),
    })
    .await;
    let session = open(&[&node.address]).await;
    // The stream must be there: while it is not, requests queue.
    session.client().create("/a", &Create::default()).await.unwrap();
    let client = session.client().clone();
    let waiting: Vec<_> = (0..800)
        .map(|_| {
            let client = client.clone();
            let acquire = Acquire { wait_ms: 60_000, ..Acquire::default() };
            tokio::spawn(async move { client.acquire("a", &acquire).await })
        })
        .collect();
    let more = |event: &&Event| matches!(event, Event::Http(line) if line.contains("/acquire"));
    node.until(|seen| seen.iter().filter(more).count() == 800 - 768).await;
    session.client().release("a", 50).await.unwrap();
    waiting.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn giving_up_cancels_what_was_sent_and_forgets_what_was_not() {
    let node = Node::start(keeps_still).await;
    let session = open(&[&node.address]).await;
    let acquire = Acquire { wait_ms: 60_000, ..Acquire::default() };
    {
        let never_sent = session.client().acquire("a", &acquire);
        assert!(never_sent.now_or_never().is_none());
    }
    let mut asked = Box::pin(session.client().acquire("b", &acquire));
    tokio::select! {
        _ = &mut asked => panic!("nobody answers"),
        _ = node.until(|seen| !frames(seen, "request").is_empty()) => {}
    }
    drop(asked);
    let seen = node.until(|seen| !frames(seen, "cancel").is_empty()).await;
    let asked = frames(&seen, "request");
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].1["call"]["acquire_lock"]["name"], "b");
    assert_eq!(frames(&seen, "cancel")[0].1, asked[0].1["id"]);
    // The answer to it concerns nobody, and is no defect.
    node.now(refusal(&asked[0].1["id"], Code::Cancelled));
    let before = node.frames("keepalive").len();
    node.until(|seen| frames(seen, "keepalive").len() > before).await;
    assert_eq!(node.seen.borrow().iter().filter(|event| matches!(event, Event::Upgrade(_))).count(), 1);
}

#[tokio::test]
async fn what_cannot_be_repeated_and_what_is_too_long_goes_over_http() {
    let node = Node::start(|event| match event {
        Event::Http(line) if line.starts_with("DELETE /v1/locks") => {
            vec![Do::Json(200, json!({"lock": "a", "token": 50, "zxid": 51}))]
        }
        _ => good(event),
    })
    .await;
    let session = open(&[&node.address]).await;
    session.client().force_release("a", 50).await.unwrap();
    let long = SetData { data: Data::from_bytes(&vec![b'x'; 512 << 10]) };
    session.client().set("/a", &long, None).await.unwrap();
    assert!(node.frames("request").is_empty());
    session.client().set("/a", &SetData { data: Data::from_bytes(b"x") }, None).await.unwrap();
    assert_eq!(node.frames("request").len(), 1);
}

#[tokio::test]
async fn overload_is_waited_out_where_it_is() {
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value["request"]["id"] == 1 => vec![refusal(&json!(1), Code::Overloaded)],
        _ => good(event),
    })
    .await;
    let other = Node::start(good).await;
    let session = open(&[&node.address, &other.address]).await;
    session.client().create("/a", &Create::default()).await.unwrap();
    let requests = node.frames("request");
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].1["request_id"], requests[1].1["request_id"]);
    assert!(other.seen.borrow().is_empty());
}

#[tokio::test]
async fn a_request_that_nobody_answers_ends_with_the_callers_patience() {
    let node = Node::start(keeps_still).await;
    let session = open(&[&node.address]).await;
    let began = std::time::Instant::now();
    let (write, read) =
        tokio::join!(async { session.client().create("/a", &Create::default()).await.unwrap_err() }, async {
            session.client().node("/a", &Reading::default()).await.unwrap_err()
        });
    assert!(matches!(write, Error::UnknownOutcome(_)), "{write}");
    assert!(matches!(read, Error::Unreachable { .. }), "a read leaves nothing open: {read}");
    assert!(began.elapsed() < Duration::from_secs(7));
}
