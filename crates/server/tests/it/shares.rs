//! No client starves another (promise P13): a greedy client leaves room for others, and cannot keep anyone from keeping
//! or giving back something.

use std::net::IpAddr;

use lockkeeper_api::locks::{Acquired, Lock};
use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_api::{Code, Problem};
use reqwest::{Client, Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::harness::{Caller, Cluster, Got, PATIENCE, Running, eventually};
use crate::stream_client::StreamClient;

/// Calls from another address of this machine.
fn from_address(node: &Running, last: u8) -> Caller {
    Caller::new(Client::builder().local_address(IpAddr::from([127, 0, 0, last])), node.base.clone())
}

/// The holder of a lock, and the calls that must always succeed.
struct Holder {
    session: SessionOpened,
    token: u64,
}

impl Holder {
    async fn of(node: &Running, lock: &str) -> Self {
        let session = node.session(10_000).await;
        let held: Acquired =
            node.post(&format!("/v1/locks/{lock}/acquire"), Some(&session.credential), json!({})).await.json();
        Self { session, token: held.token }
    }

    async fn keeps_and_gives_back(&self, node: &Running, lock: &str) {
        let (id, credential) = (self.session.session_id, Some(self.session.credential.as_str()));
        let token = json!({ "token": self.token });
        for (path, body) in [
            (format!("/v1/sessions/{id}/keepalive"), json!({})),
            (format!("/v1/locks/{lock}/verify"), token.clone()),
            (format!("/v1/locks/{lock}/release"), token),
        ] {
            let got = node.post(&path, credential, body).await;
            assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.text);
        }
        let closed = node.call(Method::DELETE, &format!("/v1/sessions/{id}"), credential, None).await;
        assert_eq!(closed.status, StatusCode::OK, "{}", closed.text);
        assert!(node.get("/healthz").await.status.is_success());
    }
}

/// Waits for a lock in a task, until it is dropped.
fn wait_for(node: &Running, lock: &str, credential: &str) -> JoinHandle<Got> {
    let (http, url) = (node.http.clone(), format!("{}/v1/locks/{lock}/acquire", node.base));
    let credential = credential.to_owned();
    tokio::spawn(async move {
        let request = http.post(url).header("lockkeeper-session", credential).json(&json!({ "wait_ms": 30_000 }));
        Got::of(request.send().await.unwrap()).await
    })
}

/// A request whose body does not come.
async fn stalled(node: &Running, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    let head = format!(
        "POST /v1/nodes/stalled HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: \
         {bytes}\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Waits until a call is refused with `overloaded`; returns the refusal.
async fn refused(what: &str, mut call: impl AsyncFnMut() -> Got) -> Problem {
    let mut told = None;
    eventually(what, async || {
        let got = call().await;
        told = (!got.status.is_success()).then(|| got.problem(Code::Overloaded));
        told.is_some()
    })
    .await;
    told.unwrap()
}

#[track_caller]
fn names(problem: &Problem, words: &[&str]) {
    for word in words {
        assert!(problem.detail.contains(word), "{word:?} is not in: {problem}");
    }
}

#[tokio::test]
async fn waiters_keep_nobody_from_work() {
    let node = Cluster::start_with(1, |config| {
        config.limits.in_flight_requests = 4;
        config.limits.waiting_requests = 16;
    })
    .await;
    let holder = Holder::of(&node, "a").await;
    let mut waiting = Vec::new();
    let one_too_many = loop {
        let session = node.session(10_000).await;
        let mut one = wait_for(&node, "a", &session.credential);
        let queued = async {
            eventually("it waits", async || {
                node.get("/v1/locks/a").await.json::<Lock>().waiting > waiting.len() as u64
            })
            .await;
        };
        tokio::select! {
            got = &mut one => break got.unwrap(),
            () = queued => waiting.push(one),
        }
        assert!(waiting.len() < 16, "one address has all of it");
    };
    names(&one_too_many.problem(Code::Overloaded), &["limits.waiting_requests", "address"]);
    assert_eq!(waiting.len(), 12, "of so many sessions as these, three quarters");
    // Far more requests wait than may be at work, and work goes on.
    assert!(node.get("/v1/sessions").await.status.is_success());
    let neighbour = from_address(&node, 2);
    let body = Some(json!({ "wait_ms": 50, "ttl_ms": 5_000 }));
    neighbour.call(Method::POST, "/v1/locks/a/acquire", None, body).await.problem(Code::LockBusy);
    waiting.drain(..).for_each(|one| one.abort());
    eventually("nobody waits", async || node.get("/v1/locks/a").await.json::<Lock>().waiting == 0).await;
    let metrics = node.get("/metrics").await.text;
    for budget in ["in_flight_requests", "waiting_requests", "watches"] {
        assert!(metrics.contains(&format!("lockkeeper_budget_used{{budget=\"{budget}\"}}")), "{budget}: {metrics}");
    }
    holder.keeps_and_gives_back(&node, "a").await;
}

/// A request that may not wait has no session opened for it: a client that retries would have each one replicated.
#[tokio::test]
async fn a_refused_waiter_changes_nothing() {
    let node = Cluster::start_with(1, |config| config.limits.waiting_requests = 4).await;
    let _holder = Holder::of(&node, "a").await;
    let ask = json!({ "wait_ms": 600_000, "ttl_ms": 60_000 });
    let mut waiting = JoinSet::new();
    for count in 1..=3 {
        let (http, url, body) = (node.http.clone(), format!("{}/v1/locks/a/acquire", node.base), ask.clone());
        waiting.spawn(async move { http.post(url).json(&body).send().await });
        eventually("it waits", async || node.get("/v1/locks/a").await.json::<Lock>().waiting == count).await;
    }
    let before = node.zxid().await;
    for _ in 0..10 {
        let told = node.post("/v1/locks/a/acquire", None, ask.clone()).await.problem(Code::Overloaded);
        names(&told, &["limits.waiting_requests", "address"]);
    }
    assert_eq!(node.zxid().await, before);
}

#[tokio::test]
async fn what_somebody_has_is_kept_and_given_back_however_much_is_at_work() {
    let node = Cluster::start_with(1, |config| config.limits.in_flight_requests = 4).await;
    let holder = Holder::of(&node, "a").await;
    let _stalled = [stalled(&node, 100).await, stalled(&node, 100).await];
    let told = refused("both are at work", async || node.get("/v1/sessions").await).await;
    names(&told, &["limits.in_flight_requests", "address"]);
    let neighbour = from_address(&node, 2);
    assert!(neighbour.call(Method::GET, "/v1/sessions", None, None).await.status.is_success(), "it has room");
    holder.keeps_and_gives_back(&node, "a").await;
}

#[tokio::test]
async fn watches_have_shares() {
    let node = Cluster::start_with(1, |config| config.limits.watches = 4).await;
    let path = "/v1/watch?path=/&recursive=true";
    let mut watching = Vec::new();
    for _ in 0..2 {
        watching.push(node.request(Method::GET, path).send().await.unwrap());
    }
    names(&node.get(path).await.problem(Code::Overloaded), &["limits.watches", "address"]);
    let neighbour = from_address(&node, 2);
    let theirs = neighbour.http.get(format!("{}{path}", neighbour.base)).send().await.unwrap();
    assert_eq!(theirs.status(), StatusCode::OK);
    drop(watching);
    eventually("room again", async || node.request(Method::GET, path).send().await.unwrap().status().is_success())
        .await;
}

#[tokio::test]
async fn what_is_asked_on_a_stream_has_the_same_shares() {
    let node = Cluster::start_with(1, |config| config.limits.in_flight_requests = 4).await;
    let holder = Holder::of(&node, "a").await;
    let (mut wire, _) = StreamClient::greeted(&node, &holder.session.credential).await;
    let _stalled = [stalled(&node, 100).await, stalled(&node, 100).await];
    refused("both are at work", async || node.get("/v1/sessions").await).await;
    let id = wire.ask(json!({ "list_sessions": {} })).await;
    let told = wire.answer(id).await;
    assert!(told["body"]["detail"].as_str().unwrap().contains("limits.in_flight_requests"), "{told}");
    wire.send(json!({ "keepalive": 7 })).await;
    wire.kind("alive").await;
    let body = json!({ "token": holder.token });
    for name in ["verify_lock", "release_lock"] {
        let id = wire.ask(json!({ name: { "name": "a", "body": body } })).await;
        assert_eq!(wire.answer(id).await["status"], 200, "{name}");
    }
}

/// A connection that is used once, then idle.
async fn idle(node: &Running) -> TcpStream {
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut reply = [0; 1024];
    let bytes = timeout(PATIENCE, stream.read(&mut reply)).await.unwrap().unwrap();
    assert!(reply[..bytes].starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&reply[..bytes]));
    stream
}

async fn ends(stream: &mut TcpStream) -> bool {
    matches!(timeout(PATIENCE, stream.read(&mut [0; 16])).await, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn the_oldest_idle_connection_makes_way() {
    let node = Cluster::start_with(1, |config| {
        config.limits.connections = 8;
        config.limits.connections_per_address = 8;
    })
    .await;
    let mut open = Vec::new();
    // The client of this test keeps one in use.
    for _ in 0..7 {
        open.push(idle(&node).await);
    }
    let neighbour = from_address(&node, 2);
    eventually("a newcomer is let in", async || {
        let got = node.http.get(format!("{}/v1/sessions", node.base)).send().await.unwrap();
        assert!(got.status().is_success());
        neighbour.call(Method::GET, "/v1/sessions", None, None).await.status.is_success()
    })
    .await;
    assert!(ends(&mut open[0]).await, "the oldest has made way");
}

#[tokio::test]
async fn an_address_has_its_share_of_connections_and_health_is_told_in_any_case() {
    let node = Cluster::start_with(1, |config| {
        config.limits.connections = 6;
        config.limits.connections_per_address = 4;
    })
    .await;
    let path = "/v1/watch?path=/&recursive=true";
    let fresh = || Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let ask = async |http: &Client, path: &str| http.get(format!("{}{path}", node.base)).send().await.unwrap();
    let ours = fresh();
    let opened = ours.post(format!("{}/v1/sessions", node.base)).json(&json!({ "timeout_ms": 60_000 })).send().await;
    let session: SessionOpened = Got::of(opened.unwrap()).await.json();
    let mut watching = Vec::new();
    eventually("four watch", async || {
        let got = ask(&ours, path).await;
        watching.extend(got.status().is_success().then_some(got));
        watching.len() == 4
    })
    .await;
    let told = refused("the share is used up", async || Got::of(ask(&ours, "/v1/sessions").await).await).await;
    names(&told, &["limits.connections_per_address", "address"]);
    assert_eq!(told.status, 503);
    let neighbour = from_address(&node, 2);
    for _ in 0..2 {
        watching.push(ask(&neighbour.http, path).await);
    }
    let neighbour = from_address(&node, 3);
    let told = refused("all are taken", async || Got::of(ask(&neighbour.http, "/v1/sessions").await).await).await;
    names(&told, &["limits.connections)"]);
    assert!(told.retry_after_ms.is_some());
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(node.client).await.unwrap());
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let got = ask(&ours, path).await;
        assert_eq!(got.status(), StatusCode::OK, "{path}");
    }
    let end = ours.delete(format!("{}/v1/sessions/{}", node.base, session.session_id));
    let got = end.header("Lockkeeper-Session", &session.credential).send().await.unwrap();
    assert_eq!(got.status(), StatusCode::OK, "what gives back is done all the same");
    drop(watching);
    eventually("room again", async || ask(&ours, "/v1/sessions").await.status().is_success()).await;
}

#[tokio::test]
async fn idle_connections_at_the_peer_listener_keep_no_member_out() {
    let cluster = Cluster::start_with(3, |config| config.limits.peer_connections = 16).await;
    let mut idle = Vec::new();
    for node in &cluster.nodes {
        for _ in 0..100 {
            idle.push(TcpStream::connect(node.peer).await.unwrap());
        }
    }
    for round in 0..20 {
        for node in &cluster.nodes {
            let ready = node.get("/readyz").await;
            assert_eq!(ready.status, StatusCode::OK, "{}", ready.text);
        }
        let made = cluster.nodes[round % 3].post(&format!("/v1/nodes/n{round}"), None, json!({})).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    }
}

/// A missing body for which there is no room is not waited for.
#[tokio::test]
async fn a_stalled_body_without_room_is_told_why_and_soon() {
    let node = Cluster::start_with(1, |config| {
        config.limits.body_bytes = 1 << 20;
        config.limits.request_bytes_in_flight = 1 << 20;
    })
    .await;
    let _has_all = stalled(&node, 1 << 20).await;
    eventually("the room is taken", async || {
        node.get("/metrics").await.text.contains("lockkeeper_budget_used{budget=\"request_bytes_in_flight\"} 10")
    })
    .await;
    let began = std::time::Instant::now();
    let mut second = stalled(&node, 1 << 20).await;
    let mut reply = [0; 4096];
    let bytes = timeout(PATIENCE, second.read(&mut reply)).await.unwrap().unwrap();
    let reply = String::from_utf8_lossy(&reply[..bytes]);
    assert!(reply.starts_with("HTTP/1.1 429 ") && reply.contains("limits.request_bytes_in_flight"), "{reply}");
    assert!(began.elapsed().as_secs() < 15, "limits.body_read_timeout_ms is 30 s");
}

#[tokio::test]
async fn stalled_bodies_have_a_budget() {
    let node = Cluster::start_with(1, |config| {
        config.limits.body_bytes = 1 << 20;
        config.limits.request_bytes_in_flight = 4 << 20;
    })
    .await;
    let holder = Holder::of(&node, "a").await;
    let mut stuck = Vec::new();
    let body = json!({ "data": { "text": "x".repeat(900_000) } });
    let told = refused("the share is used up", async || {
        stuck.push(stalled(&node, 1 << 20).await);
        // Some of them before the budget is full: each takes its path.
        node.post(&format!("/v1/nodes/n{}", stuck.len()), None, body.clone()).await
    });
    names(&told.await, &["limits.request_bytes_in_flight", "address"]);
    assert!(stuck.len() <= 4, "{} bodies of a megabyte were let in", stuck.len());
    let neighbour = from_address(&node, 2);
    let theirs = neighbour.call(Method::POST, "/v1/nodes/theirs", None, Some(body.clone())).await;
    assert_eq!(theirs.status, StatusCode::CREATED, "{}", theirs.text);
    holder.keeps_and_gives_back(&node, "a").await;
    drop(stuck);
    eventually("room again", async || {
        let path = format!("/v1/nodes/again-{}", node.zxid().await);
        node.post(&path, None, body.clone()).await.status == StatusCode::CREATED
    })
    .await;
}

#[tokio::test]
async fn replies_that_nobody_reads_have_a_budget() {
    let node = Cluster::start_with(1, |config| config.limits.reply_bytes_in_flight = 8 << 20).await;
    let body = json!({ "data": { "text": "x".repeat(1_000_000) } });
    assert_eq!(node.post("/v1/nodes/large", None, body).await.status, StatusCode::CREATED);
    let mut silent = Vec::new();
    let told = refused("the share is used up", async || {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(node.client).await.unwrap();
        // The system's buffers take some of them.
        let ask = b"GET /v1/nodes/large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(8);
        stream.write_all(&ask).await.unwrap();
        silent.push(stream);
        node.get("/v1/nodes/large").await
    });
    names(&told.await, &["limits.reply_bytes_in_flight", "address"]);
    assert!(node.get("/v1/sessions").await.status.is_success(), "what is small needs no room");
    let theirs = from_address(&node, 2).call(Method::GET, "/v1/nodes/large", None, None).await;
    assert!(theirs.status == StatusCode::OK && theirs.text.len() > 1_000_000, "{}", theirs.status);
    drop(silent);
    eventually("room again", async || node.get("/v1/nodes/large").await.status.is_success()).await;
}

#[tokio::test]
async fn half_a_message_on_a_stream_counts_as_half_a_body() {
    let node = Cluster::start_with(1, |config| {
        config.limits.body_bytes = 1 << 20;
        config.limits.request_bytes_in_flight = 1 << 20;
    })
    .await;
    let holder = Holder::of(&node, "a").await;
    let mut first = stream_of(&node, &holder).await;
    let mut second = stream_of(&node, &holder).await;
    let mut half = vec![0x81, 0x80 | 127];
    half.extend_from_slice(&1_000_000_u64.to_be_bytes());
    half.extend_from_slice(&[0; 400_000]);
    first.write_all(&half).await.unwrap();
    // It is cut off while it sends, or just after.
    let _ = second.write_all(&half).await;
    let mut third = stream_of(&node, &holder).await;
    let _ = third.write_all(&half).await;
    let any_ends = async {
        tokio::select! {
            () = hear(&mut first, "limits.request_bytes_in_flight") => {}
            () = hear(&mut second, "limits.request_bytes_in_flight") => {}
            () = hear(&mut third, "limits.request_bytes_in_flight") => {}
        }
    };
    timeout(PATIENCE, any_ends).await.unwrap();
}

/// Opens a session stream.
async fn stream_of(node: &Running, holder: &Holder) -> TcpStream {
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    let open = format!(
        "GET /v1/sessions/{}/stream HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nlockkeeper-session: {}\r\n\r\n",
        holder.session.session_id, holder.session.credential
    );
    stream.write_all(open.as_bytes()).await.unwrap();
    hear(&mut stream, "\"hello\"").await;
    stream
}

/// Reads until this has come.
async fn hear(stream: &mut TcpStream, wanted: &str) {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(wanted) {
        let mut some = [0; 4096];
        let bytes = timeout(PATIENCE, stream.read(&mut some)).await.expect(wanted).unwrap();
        assert!(bytes > 0, "it ended before {wanted}: {}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&some[..bytes]);
    }
}
