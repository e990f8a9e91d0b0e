//! Sessions over HTTP: open, keep alive, show, list, close, expire; no session manages another one.

use lockkeeper_api::Code;
use lockkeeper_api::gates::{Gate, GateView, Gates};
use lockkeeper_api::locks::{Acquired, Lock};
use lockkeeper_api::sessions::{KeptAlive, Session, SessionOpened, Sessions};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{Cluster, eventually};

#[tokio::test]
async fn a_session_from_beginning_to_end() {
    let node = Cluster::start(1).await;
    let opened = node.session(5_000).await;
    assert_eq!(opened.timeout_ms, 5_000);
    let path = format!("/v1/sessions/{}", opened.session_id);

    let kept = node.call(Method::POST, &format!("{path}/keepalive"), Some(&opened.credential), None).await;
    assert!(kept.zxid.is_some());
    let kept: KeptAlive = kept.json();
    assert_eq!((kept.session_id, kept.timeout_ms), (opened.session_id, 5_000));

    let create = json!({ "kind": "ephemeral", "data": { "text": "here" } });
    assert_eq!(node.post("/v1/nodes/mine", Some(&opened.credential), create).await.status, StatusCode::CREATED);
    let shown: Session = node.get(&path).await.json();
    assert_eq!((shown.label.as_str(), shown.ephemeral_count), ("test", 1));
    assert_eq!(shown.ephemerals, ["/mine"]);
    let stale: Session = node.get(&format!("{path}?consistency=stale")).await.json();
    let timeless = |session: Session| Session { silent_ms: None, remaining_ms: None, ..session };
    assert_eq!(timeless(stale), timeless(shown));

    let closed = node.call(Method::DELETE, &path, Some(&opened.credential), None).await;
    assert_eq!(closed.status, StatusCode::OK);
    node.get(&path).await.problem(Code::NotFound);
    node.get("/v1/nodes/mine").await.problem(Code::NoNode);
    let late = node.call(Method::POST, &format!("{path}/keepalive"), Some(&opened.credential), None).await;
    late.problem(Code::SessionExpired);
    node.call(Method::DELETE, &path, Some(&opened.credential), None).await.problem(Code::SessionExpired);
}

/// Who gives no label is known by its address, in sessions, queues and gates.
#[tokio::test]
async fn nobody_is_without_a_label() {
    let node = Cluster::start(1).await;
    let opened: SessionOpened = node.post("/v1/sessions", None, json!({})).await.json();
    let nameless = "http client at 127.0.0.1";
    let shown: Session = node.get(&format!("/v1/sessions/{}", opened.session_id)).await.json();
    assert_eq!(shown.label, nameless);
    let held: Acquired = node.post("/v1/locks/py/2/acquire", None, json!({ "ttl_ms": 30_000 })).await.json();
    assert_eq!(node.get("/v1/locks/py/2").await.json::<Lock>().holders[0].label, nameless);
    let busy = node.post("/v1/locks/py/2/acquire", Some(&opened.credential), json!({})).await.problem(Code::LockBusy);
    assert!(busy.holders[0].label == nameless && busy.detail.contains(nameless), "{busy}");
    let credential = held.credential.unwrap();
    let begin = json!({ "fingerprint": "f" });
    node.post("/v1/gates/g/begin", Some(&credential), begin.clone()).await.json::<GateView>();
    let in_progress: GateView = node.post("/v1/gates/g/begin", Some(&opened.credential), begin).await.json();
    assert!(matches!(&in_progress.gate, Gate::InProgress { label, .. } if label == nameless), "{in_progress:?}");
    assert_eq!(node.get("/v1/gates").await.json::<Gates>().gates[0].label, nameless);

    let labelled: SessionOpened = node.post("/v1/sessions", None, json!({ "label": "billing" })).await.json();
    node.post("/v1/locks/l/acquire", Some(&labelled.credential), json!({})).await.json::<Acquired>();
    let queue: Lock = node.get("/v1/locks/l").await.json();
    assert_eq!(queue.holders[0].label, "billing", "a request without a label has that of its session");
}

/// Every voter knows when a session was last heard of, and how long it lives without another sign of life.
#[tokio::test]
async fn the_last_sign_of_life_is_shown_at_every_voter() {
    let cluster = Cluster::start(3).await;
    let opened = cluster.session(30_000).await;
    for node in &cluster.nodes {
        eventually("the node knows the last sign of life", async || {
            let path = format!("/v1/sessions/{}?consistency=stale", opened.session_id);
            let got = node.get(&path).await;
            if got.status != StatusCode::OK {
                return false;
            }
            let shown: Session = got.json();
            let Some(silent_ms) = shown.silent_ms else { return false };
            assert_eq!(shown.remaining_ms, Some(30_000_u64.saturating_sub(silent_ms)), "{shown:?}");
            silent_ms < 30_000
        })
        .await;
    }
    // The silence grows, and a keepalive ends it.
    let path = format!("/v1/sessions/{}", opened.session_id);
    let silence = async || cluster.get(&path).await.json::<Session>().silent_ms.unwrap();
    let keepalive = format!("{path}/keepalive");
    eventually("a keepalive ends a silence", async || {
        let before = silence().await;
        cluster.call(Method::POST, &keepalive, Some(&opened.credential), None).await.json::<KeptAlive>();
        silence().await < before
    })
    .await;
}

#[tokio::test]
async fn timeouts_are_clamped_and_silent_sessions_expire() {
    let node = Cluster::start(1).await;
    let brief = node.session(1).await;
    assert_eq!(brief.timeout_ms, 500, "raised to the minimum");
    assert_eq!(node.session(u32::MAX).await.timeout_ms, 3_600_000, "cut to the maximum");
    let path = format!("/v1/sessions/{}", brief.session_id);
    eventually("the silent session expires", async || node.get(&path).await.status == StatusCode::NOT_FOUND).await;
    let acquire = node.post("/v1/locks/a/acquire", Some(&brief.credential), json!({})).await;
    acquire.problem(Code::SessionExpired);
}

#[tokio::test]
async fn pages_cover_all_sessions_once() {
    let node = Cluster::start(1).await;
    let mut opened = Vec::new();
    for _ in 0..7 {
        opened.push(node.session(60_000).await.session_id);
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page: Sessions = node.get(&format!("/v1/sessions?limit=3{after}")).await.json();
        assert!(page.sessions.len() <= 3);
        seen.extend(page.sessions.iter().map(|session| session.session_id));
        let Some(next) = page.next else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, opened);
}

#[tokio::test]
async fn nobody_manages_anothers_session() {
    let node = Cluster::start(1).await;
    let (mine, other) = (node.session(10_000).await, node.session(10_000).await);
    let path = format!("/v1/sessions/{}", other.session_id);
    let before = node.zxid().await;
    node.call(Method::DELETE, &path, None, None).await.problem(Code::SessionRequired);
    node.call(Method::DELETE, &path, Some(&mine.credential), None).await.problem(Code::Forbidden);
    let forged = format!("{}.{:032x}", other.session_id, 7);
    node.call(Method::DELETE, &path, Some(&forged), None).await.problem(Code::WrongSecret);
    node.call(Method::POST, &format!("{path}/keepalive"), Some(&forged), None).await.problem(Code::WrongSecret);
    let create = json!({ "kind": "ephemeral" });
    node.post("/v1/nodes/theirs", Some(&forged), create).await.problem(Code::WrongSecret);
    for malformed in ["", "7", "7.", "x.y", "7.zz", "-1.00000000000000000000000000000000"] {
        node.call(Method::DELETE, &path, Some(malformed), None).await.problem(Code::BadRequest);
    }
    assert_eq!(node.zxid().await, before, "nothing changed");
}

/// Reads need no session; a read that names one is a sign of life.
#[tokio::test]
async fn reads_that_name_their_session_keep_it_alive() {
    let node = Cluster::start(1).await;
    let (reads, silent) = (node.session(1_000).await, node.session(1_000).await);
    let path = |id: u64| format!("/v1/sessions/{id}");
    eventually("the silent one is gone", async || {
        let read = node.call(Method::GET, "/v1/nodes/?children=true", Some(&reads.credential), None).await;
        assert_eq!(read.status, StatusCode::OK);
        node.get(&path(silent.session_id)).await.status == StatusCode::NOT_FOUND
    })
    .await;
    assert_eq!(node.get(&path(reads.session_id)).await.status, StatusCode::OK);
    eventually("it is gone as well when it reads no more", async || {
        node.get(&path(reads.session_id)).await.status == StatusCode::NOT_FOUND
    })
    .await;
}
