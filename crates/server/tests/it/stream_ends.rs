//! Refused handshakes, ends of streams, and clients that break the protocol.

use std::time::{Duration, Instant};

use futures::SinkExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::harness::{Cluster, Got, eventually};
use crate::stream_client::{Ended, StreamClient};

async fn after(node: &Cluster, message: Message) -> Ended {
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(node, &session.credential).await;
    wire.socket.send(message).await.unwrap();
    wire.ended().await
}

fn told(ended: &Ended) -> (Option<u16>, &str) {
    let code = ended.goodbye.as_ref().and_then(|goodbye| goodbye["code"].as_str());
    (ended.code, code.unwrap_or_else(|| panic!("no goodbye: {ended:?}")))
}

#[tokio::test]
async fn what_is_no_message_ends_the_stream_and_says_why() {
    let node = Cluster::start(1).await;
    for (message, wanted) in [
        ("", "EOF"),
        ("not json", "expected"),
        ("[]", "not one of"),
        ("{}", "not one of"),
        (r#"{"surprise":1}"#, "unknown variant `surprise`"),
        (r#"{"keepalive":1,"cancel":2}"#, "not one of"),
        (r#"{"keepalive":-1}"#, "invalid value"),
        (r#"{"keepalive":"1"}"#, "invalid type"),
        (r#"{"request":{"id":1,"call":{"get_cluster":{}},"surprise":1}}"#, "unknown field `surprise`"),
        (r#"{"request":{"id":1}}"#, "missing field `call`"),
        (r#"{"request":{"id":1,"call":{"get_cluster":{}},"request_id":"7"}}"#, "UUID"),
        (r#"{"request":{"id":1,"method":"GET","path":"/v1/cluster"}}"#, "version 1 of the protocol"),
        (r#"{"watch":{"id":1,"path":"/","from":"x"}}"#, "invalid type"),
    ] {
        let ended = after(&node, Message::text(message)).await;
        assert_eq!(told(&ended), (Some(1008), "bad_request"), "{message}: {ended:?}");
        let detail = ended.goodbye.as_ref().unwrap()["detail"].to_string();
        assert!(detail.contains(wanted), "{message}: {detail}");
    }
    let ended = after(&node, Message::binary(&b"{\"keepalive\":1}"[..])).await;
    assert_eq!(told(&ended), (Some(1008), "bad_request"));
    let ended = after(&node, Message::text("x".repeat(4 << 20))).await;
    assert_eq!(told(&ended), (Some(1009), "too_large"));
    assert!(node.get("/healthz").await.status.is_success());
}

#[tokio::test]
async fn ids_in_use_are_not_given_twice() {
    let node = Cluster::start(1).await;
    let (holder, session) = (node.session(20_000).await, node.session(20_000).await);
    node.post("/v1/locks/a/acquire", Some(&holder.credential), json!({})).await;
    let call = json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } });
    let ask = json!({ "request": { "id": 1, "call": call } });
    let watch = json!({ "watch": { "id": 1, "path": "/" } });
    for message in [ask, watch] {
        let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
        wire.send(message.clone()).await;
        wire.send(message).await;
        let ended = wire.ended().await;
        assert_eq!(told(&ended), (Some(1008), "bad_request"), "{ended:?}");
        assert!(ended.goodbye.unwrap()["detail"].as_str().unwrap().contains("id 1"));
    }
}

#[tokio::test]
async fn what_does_not_belong_on_a_stream_is_refused_and_the_stream_goes_on() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    for call in [
        json!({ "get_metrics": {} }),
        json!({ "get_health": {} }),
        json!({ "get_description": {} }),
        json!({ "watch_nodes": { "query": { "path": "/" } } }),
        json!({ "stream_session": { "id": session.session_id } }),
        json!({ "brew_coffee": {} }),
        json!({}),
        json!([]),
        json!(null),
        json!("get_cluster"),
        json!({ "get_cluster": [] }),
        json!({ "get_cluster": null }),
        json!({ "get_cluster": {}, "get_node": { "path": "/" } }),
        json!({ "get_cluster": { "surprise": 1 } }),
        json!({ "acquire_lock": ["a"] }),
        json!({ "acquire_lock": {} }),
        json!({ "acquire_lock": { "name": 7 } }),
        json!({ "acquire_lock": { "name": "a", "body": [] } }),
        json!({ "acquire_lock": { "name": "a", "body": { "ttl_ms": 1000 } } }),
    ] {
        assert_eq!(wire.code(call.clone()).await, "bad_request", "{call}");
    }
    for call in [
        json!({ "acquire_lock": { "name": "" } }),
        json!({ "acquire_lock": { "name": "a//b" } }),
        json!({ "get_node": { "path": "a" } }),
        json!({ "get_node": { "path": "/a/" } }),
        json!({ "begin_gate": { "key": "", "body": { "fingerprint": "f" } } }),
    ] {
        assert_eq!(wire.code(call.clone()).await, "bad_path", "{call}");
    }
    wire.send(json!({ "unwatch": 7 })).await;
    wire.socket.send(Message::Ping(b"x".to_vec().into())).await.unwrap();
    wire.get(json!({ "get_cluster": {} })).await;
}

#[tokio::test]
async fn a_handshake_that_is_not_in_order_gets_a_problem_document() {
    let node = Cluster::start(1).await;
    let (session, other) = (node.session(20_000).await, node.session(20_000).await);
    let id = session.session_id;
    let refused =
        async |session: u64, credential: Option<&str>| match StreamClient::open(&node, session, credential).await {
            Ok(_) => panic!("a stream for {session} with {credential:?}"),
            Err((status, problem)) => (status, problem["code"].as_str().unwrap_or_default().to_owned()),
        };
    let forged = format!("{id}.{:032x}", 7);
    assert_eq!(refused(id, None).await, (401, "session_required".into()));
    assert_eq!(refused(id, Some(&other.credential)).await, (403, "forbidden".into()));
    assert_eq!(refused(id, Some(&forged)).await, (403, "wrong_secret".into()));
    assert_eq!(refused(id, Some("nonsense")).await, (400, "bad_request".into()));
    node.call(Method::DELETE, &format!("/v1/sessions/{id}"), Some(&session.credential), None).await;
    assert_eq!(refused(id, Some(&session.credential)).await, (410, "session_expired".into()));

    let path = format!("/v1/sessions/{}/stream", other.session_id);
    node.call(Method::GET, &path, Some(&other.credential), None).await.problem(lockkeeper_api::Code::BadRequest);
    let whole = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for (missing, _) in &whole {
        let mut request = node.request(Method::GET, &path).header("lockkeeper-session", &other.credential);
        for (name, value) in whole.iter().filter(|(name, _)| name != missing) {
            request = request.header(*name, *value);
        }
        let got = Got::of(request.send().await.unwrap()).await;
        assert!(got.problem(lockkeeper_api::Code::BadRequest).detail.contains("header"), "without {missing}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_with_a_reason_and_resumes() {
    let node = Cluster::start_with(1, |config| config.limits.stream_write_timeout_ms = 200).await;
    let session = node.session(60_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    wire.get(json!({ "create_node": { "path": "/large", "body": { "data": { "text": "x".repeat(1_000_000) } } } }))
        .await;
    for _ in 0..40 {
        wire.ask(json!({ "get_node": { "path": "/large" } })).await;
    }
    eventually("it is cut off", async || {
        node.get("/metrics").await.text.contains("lockkeeper_streams_ended_total{why=\"too_slow\"}")
    })
    .await;
    let ended = wire.ended().await;
    assert_eq!(told(&ended), (Some(4002), "too_slow"), "{:?} {}", ended.code, ended.reason);
    let answers = wire.seen.iter().filter(|message| message.get("answer").is_some()).count();
    assert!(answers < 40, "all of it was written");
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    wire.get(json!({ "get_node": { "path": "/large" } })).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_session() {
    let node = Cluster::start(1).await;
    // Closed on the stream itself: the answer comes first.
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    wire.get(json!({ "acquire_lock": { "name": "a" } })).await;
    wire.get(json!({ "close_session": { "id": session.session_id } })).await;
    assert_eq!(told(&wire.ended().await), (Some(4001), "session_expired"));
    // Closed elsewhere, while it waits.
    let (holder, session) = (node.session(20_000).await, node.session(20_000).await);
    node.post("/v1/locks/a/acquire", Some(&holder.credential), json!({})).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let id = wire.ask(json!({ "acquire_lock": { "name": "a", "body": { "wait_ms": 60_000 } } })).await;
    wire.get(json!({ "get_cluster": {} })).await;
    node.call(Method::DELETE, &format!("/v1/sessions/{}", session.session_id), Some(&session.credential), None).await;
    let ended = wire.ended().await;
    assert_eq!(told(&ended), (Some(4001), "session_expired"));
    let answer = wire.seen.iter().find(|message| message["answer"]["id"] == id).expect("an answer before the end");
    assert_eq!(answer["answer"]["body"]["code"], "session_expired");
}

#[tokio::test]
async fn a_silent_stream_is_closed() {
    let node = Cluster::start(1).await;
    let session = node.session(700).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let path = format!("/v1/sessions/{}/keepalive", session.session_id);
    let alive = async {
        loop {
            assert!(node.post(&path, Some(&session.credential), json!({})).await.status.is_success());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // Messages of the client extend it.
    let began = Instant::now();
    for number in 0..4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        wire.send(json!({ "keepalive": number })).await;
    }
    let spoken = began.elapsed();
    let ended = tokio::select! {
        () = alive => panic!("ends never"),
        ended = wire.ended() => ended,
    };
    assert_eq!(told(&ended), (Some(4003), "too_slow"), "{ended:?}");
    assert!(began.elapsed() >= spoken + Duration::from_millis(690), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_node_that_goes_answers_its_streams_and_says_so() {
    let Cluster { mut nodes, directory } = Cluster::start(3).await;
    let (holder, session) = (nodes[0].session(20_000).await, nodes[0].session(20_000).await);
    nodes[1].post("/v1/locks/a/acquire", Some(&holder.credential), json!({})).await;
    let (mut wire, _) = StreamClient::greeted(&nodes[0], &session.credential).await;
    let request_id = uuid::Uuid::new_v4();
    let ask = |body: Value| json!({ "acquire_lock": { "name": "a", "body": body } });
    let id = wire.ask(ask(json!({ "wait_ms": 60_000, "request_id": request_id }))).await;
    let without_id = wire.ask(ask(json!({ "wait_ms": 60_000 }))).await;
    wire.get(json!({ "get_cluster": {} })).await;
    let stopping = tokio::spawn(nodes.remove(0).stop());
    let ended = wire.ended().await;
    assert_eq!(told(&ended), (Some(1001), "shutting_down"));
    let answer = |id| wire.seen.iter().find(|message| message["answer"]["id"] == id).expect("an answer before the end");
    assert_eq!(answer(id)["answer"]["body"]["code"], "unknown_outcome");
    assert_eq!(answer(without_id)["answer"]["body"]["code"], "shutting_down");
    stopping.await.unwrap().unwrap();
    // The request that can be asked for again keeps its place, and is found at another node.
    let shown: lockkeeper_api::locks::Lock = nodes[0].get("/v1/locks/a").await.json();
    assert_eq!(shown.waiting, 1);
    drop(directory);
}

/// As many waiting lock requests as a stream takes, in a session that needs keepalives.
#[tokio::test]
async fn a_stream_full_of_waiting_requests_is_kept_alive_and_takes_cancels() {
    let node = Cluster::start(1).await;
    let (holder, session) = (node.session(60_000).await, node.session(1_500).await);
    node.post("/v1/locks/a/acquire", Some(&holder.credential), json!({})).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let wait = json!({ "wait_ms": 60_000 });
    let mut ids = Vec::new();
    for number in 0..1_024 {
        ids.push(wire.ask(json!({ "acquire_lock": { "name": "a", "body": wait.clone() } })).await);
        if number % 256 == 0 {
            wire.send(json!({ "keepalive": number })).await;
        }
    }
    let refused = wire.ask(json!({ "acquire_lock": { "name": "a", "body": wait.clone() } })).await;
    let answer = wire.answer(refused).await;
    assert_eq!((&answer["status"], &answer["body"]["code"]), (&json!(429), &json!("overloaded")));
    // Longer than the session's timeout.
    for number in 5_000..5_010 {
        wire.send(json!({ "keepalive": number })).await;
        while wire.kind("alive").await["number"] != number {}
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    wire.send(json!({ "cancel": ids[7] })).await;
    assert_eq!(wire.answer(ids[7]).await["body"]["code"], "cancelled");
    // There is room for one more, and only one.
    let again = wire.ask(json!({ "acquire_lock": { "name": "a", "body": wait.clone() } })).await;
    let refused = wire.ask(json!({ "acquire_lock": { "name": "a", "body": wait } })).await;
    assert_eq!(wire.answer(refused).await["status"], 429);
    assert!(!wire.seen.iter().any(|message| message["answer"]["id"] == again), "{:?}", wire.seen);
    assert!(!wire.seen.iter().any(|message| message.get("answer").is_some()), "a place was lost");
    eventually("all of them wait", async || {
        node.get("/v1/locks/a").await.json::<lockkeeper_api::locks::Lock>().waiting == 1_024
    })
    .await;
}

#[tokio::test]
async fn more_than_a_stream_takes_is_refused_and_so_are_too_many_watches() {
    let node = Cluster::start(1).await;
    let session = node.session(20_000).await;
    let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
    let mut ids = Vec::new();
    for _ in 0..1_500 {
        ids.push(wire.ask(json!({ "get_node": { "path": "/" } })).await);
    }
    let mut done = 0;
    for id in ids {
        let answer = wire.answer(id).await;
        match answer["status"].as_u64() {
            Some(200) => done += 1,
            _ => assert_eq!(answer["body"]["code"], "overloaded", "{answer}"),
        }
    }
    assert!(done >= 1_024, "{done}");
    for id in 0..1_025 {
        wire.send(json!({ "watch": { "id": id, "path": format!("/{id}") } })).await;
    }
    let ended = wire.kind("watch_ended").await;
    assert_eq!((&ended["id"], &ended["problem"]["code"]), (&json!(1_024), &json!("overloaded")));
    wire.send(json!({ "unwatch": 0 })).await;
    wire.send(json!({ "watch": { "id": 2_000, "path": "/" } })).await;
    wire.send(json!({ "keepalive": 1 })).await;
    wire.kind("alive").await;
    assert!(wire.seen.iter().any(|message| message["watching"]["id"] == 2_000));
}

/// Requests and the end of the stream go out in one write, so that they arrive together.
#[tokio::test]
async fn what_arrived_before_the_end_is_carried_out_in_order() {
    let node = Cluster::start(1).await;
    for (name, close) in [("left", Some(1000)), ("moved", Some(1001)), ("cut", None)] {
        let session = node.session(60_000).await;
        let (mut wire, _) = StreamClient::greeted(&node, &session.credential).await;
        let token = wire.get(json!({ "acquire_lock": { "name": name } })).await["token"].clone();
        let ask = |id: u64, call: Value| {
            let request = json!({ "id": id, "call": call });
            Message::text(json!({ "request": request }).to_string())
        };
        let (lock, node_path) = (format!("/v1/locks/{name}"), format!("/v1/nodes/{name}"));
        let (path, first, second) = (format!("/{name}"), json!({ "text": "first" }), json!({ "text": "second" }));
        for message in [
            ask(100, json!({ "create_node": { "path": path, "body": { "data": first } } })),
            ask(101, json!({ "set_node": { "path": path, "body": { "data": second } } })),
            ask(102, json!({ "release_lock": { "name": name, "body": { "token": token } } })),
            // A request that would wait for ever blocks nothing.
            ask(103, json!({ "acquire_lock": { "name": name, "body": { "wait_ms": 60_000 } } })),
        ] {
            wire.socket.feed(message).await.unwrap();
        }
        if let Some(code) = close {
            let frame = CloseFrame { code: code.into(), reason: "".into() };
            wire.socket.send(Message::Close(Some(frame))).await.unwrap();
            wire.ended().await;
        } else {
            wire.socket.flush().await.unwrap();
            wire.socket.get_mut().shutdown().await.unwrap();
        }
        let done = async || {
            let text = node.get(&node_path).await.text;
            let holders = node.get(&lock).await.json::<Value>()["holders"].clone();
            let mine = holders.as_array().is_some_and(|holders| holders.iter().any(|holder| holder["token"] == token));
            text.contains("second") && !mine
        };
        // The node answers a close when all is done; a client that cuts the connection cannot know.
        match close {
            Some(_) => assert!(done().await, "{name}"),
            None => eventually("it is carried out", done).await,
        }
    }
}
