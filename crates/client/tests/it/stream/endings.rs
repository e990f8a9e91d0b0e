//! How streams end: the session's end, the last handle's, the runtime's; and what is told of grants.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_client::api::locks::Acquire;
use lockkeeper_client::api::nodes::Create;
use lockkeeper_client::api::{Code, Problem};
use lockkeeper_client::{Error, Reading, SessionState};
use serde_json::json;

use super::node::*;

/// Leaves acquires unanswered.
fn never_grants(event: &Event) -> Vec<Do> {
    match event {
        Event::Frame(_, value) if value["request"]["call"]["acquire_lock"]["name"] == "a" => vec![],
        Event::Http(line) if line.contains("/acquire") => vec![problem(Code::LockBusy)],
        _ => good(event),
    }
}

fn endless() -> Acquire {
    Acquire { wait_ms: 60_000, ..Acquire::default() }
}

#[tokio::test]
async fn the_clusters_word_on_the_stream_ends_the_session_at_once() {
    for close_only in [true, false] {
        let node = Node::start(never_grants).await;
        let session = open(&[&node.address]).await;
        let client = session.client().clone();
        let waiting = tokio::spawn(async move { client.acquire("a", &endless()).await });
        node.until(|seen| !frames(seen, "request").is_empty()).await;
        let began = Instant::now();
        if !close_only {
            node.now(Do::Say(json!({"goodbye": Problem::new(Code::SessionExpired, "it has expired")})));
        }
        node.now(Do::Close(if close_only { 4001 } else { 1000 }));
        session.lost().await;
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        let error = session.client().create("/a", &Create::default()).await.unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
        assert!(session.close().await.is_ok(), "that it was gone already is no error");
    }
}

#[tokio::test]
async fn an_upgrade_refused_for_the_sessions_sake_ends_it() {
    // The last two: the client's token does not count any more, and the session belongs to another principal.
    for code in [Code::SessionExpired, Code::Unauthenticated, Code::Forbidden] {
        let node = Node::start(move |event| match event {
            Event::Upgrade(_) => vec![problem(code)],
            _ => good(event),
        })
        .await;
        let session = open(&[&node.address]).await;
        session.lost().await;
    }
}

#[tokio::test]
async fn closing_is_for_all_clones() {
    let node = Node::start(good).await;
    let session = open(&[&node.address]).await;
    let other = session.clone();
    session.close().await.unwrap();
    assert!(matches!(*other.state().borrow(), SessionState::Lost { .. }));
    assert!(other.left().is_zero());
    let deleted = |event: &Event| match event {
        Event::Frame(_, value) => value["request"]["call"]["close_session"].is_object(),
        Event::Http(line) => line.starts_with("DELETE /v1/sessions"),
        Event::Upgrade(_) => false,
    };
    assert_eq!(node.seen.borrow().iter().filter(|event| deleted(event)).count(), 1);
}

#[tokio::test]
async fn a_guard_is_told_that_its_lock_was_taken() {
    let node = Node::start(good).await;
    let session = open(&[&node.address]).await;
    let guard = session.lock("a").lock().await.unwrap();
    assert!(!guard.is_lost());
    node.now(Do::Say(json!({"lock_lost": {"lock": "a", "token": 50, "zxid": 60}})));
    guard.lost().await;
    assert!(guard.is_lost());
}

#[tokio::test]
async fn a_guard_is_told_what_happened_while_the_stream_was_broken() {
    for (held, lost) in [(json!([{"lock": "a", "token": 50}]), false), (json!([]), true)] {
        let node = Node::start(move |event| match event {
            Event::Upgrade(number) if *number > 1 => vec![hello(held.clone())],
            _ => good(event),
        })
        .await;
        let session = open(&[&node.address]).await;
        let guard = session.lock("a").lock().await.unwrap();
        node.now(Do::Cut);
        session.client().create("/a", &Create::default()).await.unwrap();
        node.until(|seen| seen.contains(&Event::Upgrade(2))).await;
        assert_eq!(guard.is_lost(), lost);
    }
}

/// Of the lock `a`, over the stream or HTTP.
fn is_release(event: &Event) -> bool {
    match event {
        Event::Frame(_, value) => value["request"]["call"]["release_lock"]["name"] == "a",
        Event::Http(line) => line.contains("/release"),
        Event::Upgrade(_) => false,
    }
}

#[tokio::test]
async fn what_was_dropped_last_is_still_said() {
    let node = Node::start(good).await;
    let session = open(&[&node.address]).await;
    let guard = session.lock("a").lock().await.unwrap();
    drop(session);
    drop(guard);
    node.until(|seen| seen.iter().any(is_release)).await;
}

/// A page that something between the client and the cluster shows now and then.
#[tokio::test]
async fn a_page_that_is_not_lockkeepers_does_not_end_what_was_dropped() {
    for has_streams in [true, false] {
        let pages = AtomicUsize::new(0);
        let node = Node::start(move |event| match event {
            Event::Upgrade(_) if !has_streams => vec![problem(Code::NotFound)],
            event if is_release(event) && pages.fetch_add(1, Ordering::SeqCst) < 2 => match event {
                Event::Frame(_, value) => {
                    let id = &value["request"]["id"];
                    vec![Do::Say(json!({"answer": {"id": id, "status": 502, "body": "<html>Bad Gateway</html>"}}))]
                }
                _ => vec![Do::Json(502, json!("<html>Bad Gateway</html>"))],
            },
            _ => good(event),
        })
        .await;
        let session = open(&[&node.address]).await;
        drop(session.lock("a").lock().await.unwrap());
        node.until(|seen| seen.iter().filter(|event| is_release(event)).count() == 3).await;
    }
}

#[tokio::test]
async fn a_client_that_outlives_its_session_goes_on_over_http() {
    let node = Node::start(never_grants).await;
    let session = open(&[&node.address]).await;
    let client = session.client().clone();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("a", &endless()).await }
    });
    node.until(|seen| !frames(seen, "request").is_empty()).await;
    drop(session);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::LockBusy), "the answer of HTTP: {error}");
    client.create("/a", &Create::default()).await.unwrap();
    assert!(node.seen.borrow().contains(&Event::Http("POST /v1/nodes/a".into())));
}

#[tokio::test]
async fn what_was_sent_before_the_stream_ended_may_have_taken_place() {
    // It takes the request; after that it takes nothing, over the stream or HTTP.
    let node = Node::start(|event| match event {
        Event::Frame(_, value) if value["request"]["call"]["create_node"]["path"] == "/a" => vec![],
        Event::Http(line) if line.contains("/v1/nodes") => vec![problem(Code::NoLeader)],
        _ => good(event),
    })
    .await;
    let session = open_impatient(&[&node.address]).await;
    let client = session.client().clone();
    let asking = tokio::spawn({
        let client = client.clone();
        async move { (client.create("/a", &Create::default()).await, client.node("/a", &Reading::default()).await) }
    });
    node.until(|seen| !frames(seen, "request").is_empty()).await;
    drop(session);
    let (sent, read) = asking.await.unwrap();
    assert!(matches!(sent, Err(Error::UnknownOutcome(_))), "{sent:?}");
    assert!(matches!(read, Err(Error::Unreachable { .. })), "a read leaves nothing open: {read:?}");
    let never_sent = client.create("/a", &Create::default()).await;
    assert!(matches!(never_sent, Err(Error::Unreachable { .. })), "{never_sent:?}");
}

#[test]
fn a_runtime_may_end_while_requests_and_guards_are_about() {
    let outside = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outside.block_on(Node::start(good));
    for _ in 0..5 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (session, guard) = runtime.block_on(async {
            let session = open(&[&node.address]).await;
            let guard = session.lock("a").lock().await.unwrap();
            let client = session.client().clone();
            tokio::spawn(async move { client.create("/a", &Create::default()).await });
            (session, guard)
        });
        drop(runtime);
        drop(guard);
        assert!(session.left().is_zero(), "nobody renews it any more");
        // A call from another runtime finds that nobody drives the stream any more.
        outside.block_on(async { session.client().create("/b", &Create::default()).await }).unwrap();
        drop(session);
    }
}

#[test]
fn the_end_of_the_sessions_runtime_stops_work_on_another() {
    let outside = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = outside.block_on(Node::start(good));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (session, guard) = runtime.block_on(async {
        let session = open(&[&node.address]).await;
        let guard = session.lock("a").lock().await.unwrap();
        (session, guard)
    });
    let (begin, begun) = tokio::sync::oneshot::channel();
    let working = outside.spawn(async move {
        let work = async {
            begin.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        guard.run(work).await
    });
    outside.block_on(begun).unwrap();
    drop(runtime);
    let ended = outside.block_on(async { tokio::time::timeout(Duration::from_secs(10), working).await });
    let error = ended.expect("stopped").unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(outside.block_on(session.lost()).contains("runtime"));
    assert!(matches!(*session.state().borrow(), SessionState::Lost { .. }));
}
