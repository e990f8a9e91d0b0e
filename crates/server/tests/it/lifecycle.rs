//! Processes and connections: strangers, silent clients, too many connections, shutdown.

use std::time::{Duration, Instant};

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquired, Lock};
use lockkeeper_api::sessions::Sessions;
use lockkeeper_consensus::{PEER_PATH, PEER_PROTOCOL};
use lockkeeper_server::Server;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

use crate::harness::{Cluster, Got, PATIENCE, config_of, eventually, spawn};

async fn read_all(stream: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut reply)).await.expect("the server closes").unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn strangers_at_the_peer_door() {
    let node = Cluster::start(3).await;
    let before = node.zxid().await;
    let upgrade = [("connection", "upgrade"), ("upgrade", PEER_PROTOCOL)];
    let call = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = node.http.get(format!("http://{}{path}", node.peer));
        for (name, value) in headers.iter().chain(&upgrade) {
            request = request.header(*name, *value);
        }
        let got = Got::of(request.send().await.unwrap()).await;
        let code = got.headers.get("lockkeeper-code").map(|code| code.to_str().unwrap().to_owned());
        (got.status.as_u16(), code.unwrap_or_default(), got.text)
    };
    let directory = "00000000000000000000000000000007";
    let of = |cluster: &'static str, from: &'static str| {
        [
            ("lockkeeper-cluster", cluster),
            ("lockkeeper-from", from),
            ("lockkeeper-directory", directory),
            ("lockkeeper-start", "1.7"),
        ]
    };
    let (status, code, text) = call(PEER_PATH, &of("theirs", "2")).await;
    assert_eq!((status, code.as_str()), (421, "wrong_cluster"), "{text}");
    assert!(text.contains("theirs") && text.contains("test"), "{text}");
    assert_eq!(call(PEER_PATH, &[]).await.1, "bad_identity");
    assert_eq!(call(PEER_PATH, &of("test", "9")).await.1, "unknown_node");
    assert_eq!(call(PEER_PATH, &of("test", "1")).await.1, "bad_identity", "says that it is me");
    assert_eq!(call(PEER_PATH, &of("test", "2")).await.1, "directory_changed", "a wiped voter");
    assert_eq!(call("/peer/v1/explode", &of("test", "2")).await.0, 404);
    assert_eq!(call("/v1/sessions", &[]).await.0, 404, "clients have a listener of their own");
    assert_eq!(node.http.post(format!("http://{}{PEER_PATH}", node.peer)).send().await.unwrap().status().as_u16(), 405);
    assert_eq!(node.zxid().await, before, "nothing changed");
}

#[tokio::test]
async fn the_slow_and_the_silent_are_cut_off() {
    let node = Cluster::start_with(1, |config| {
        config.limits.header_read_timeout_ms = 150;
        config.limits.body_read_timeout_ms = 150;
        config.limits.idle_timeout_ms = 2_000;
    })
    .await;
    // A header that never ends.
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost:").await.unwrap();
    let began = Instant::now();
    assert_eq!(read_all(&mut stream).await, "");
    assert!(
        began.elapsed() < Duration::from_millis(1_900),
        "as a header, not as an idle connection: {:?}",
        began.elapsed()
    );

    // A body that never comes.
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    let head =
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let reply = read_all(&mut stream).await;
    assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains("too_slow"), "{reply}");

    // A silent connection.
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    assert_eq!(read_all(&mut stream).await, "");

    // A connection that is used from time to time stays open, and a request may take longer than the timeouts.
    let session = node.session(10_000).await;
    node.post("/v1/locks/a/acquire", Some(&session.credential), json!({})).await.json::<Acquired>();
    let other = node.session(10_000).await;
    let waited = node.post("/v1/locks/a/acquire", Some(&other.credential), json!({ "wait_ms": 2_500 })).await;
    waited.problem(Code::LockBusy);
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    for _ in 0..6 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut some = [0u8; 1024];
        let bytes = timeout(PATIENCE, stream.read(&mut some)).await.unwrap().unwrap();
        assert!(some[..bytes].starts_with(b"HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn who_takes_nothing_is_cut_off() {
    let node = Cluster::start_with(1, |config| config.limits.write_timeout_ms = 300).await;
    let large = json!({ "data": { "text": "x".repeat(1024 * 1024) } });
    assert_eq!(node.post("/v1/nodes/large", None, large).await.status, StatusCode::CREATED);
    // Sends requests and reads nothing, until the server stops reading.
    let mut stuck = TcpStream::connect(node.client).await.unwrap();
    let ask = b"GET /v1/nodes/large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    stuck.write_all(&ask).await.unwrap();
    eventually("the stuck connection is cut off", async || stuck.write_all(b"\r\n").await.is_err()).await;
}

#[tokio::test]
async fn ten_thousand_idle_connections_hurt_nobody() {
    let node = Cluster::start_with(1, |config| config.limits.connections_per_address = config.limits.connections).await;
    // Both ends of each connection are in this process, where other tests run too.
    let (limit, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let wanted = 10_000.min((limit as usize).saturating_sub(3_000) / 2);
    assert!(wanted >= 100, "the limit on open files ({limit}) is too low to try; raise it with ulimit -n");
    let mut open = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        open.push(TcpStream::connect(node.client).await.unwrap());
    }
    let session = node.session(10_000).await;
    let began = Instant::now();
    for round in 0..50 {
        let path = format!("/v1/locks/{round}");
        let held: Acquired = node.post(&format!("{path}/acquire"), Some(&session.credential), json!({})).await.json();
        let released =
            node.post(&format!("{path}/release"), Some(&session.credential), json!({ "token": held.token })).await;
        assert_eq!(released.status, StatusCode::OK);
    }
    println!("{wanted} idle connections; 50 acquires and releases in {:?}", began.elapsed());
    // They are not dead: the last of them is served.
    let mut last = open.pop().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(read_all(&mut last).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn going_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let node = spawn(Server::bind(config_of(1, directory.path())).unwrap());
    node.ready().await;
    let (holder, waiter) = (node.session(60_000).await, node.session(60_000).await);
    let held: Acquired = node.post("/v1/locks/a/acquire", Some(&holder.credential), json!({})).await.json();
    let wait = |credential: Option<&str>, more: Value| {
        let mut body = json!({ "wait_ms": 60_000 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut request = node.request(Method::POST, "/v1/locks/a/acquire").json(&body);
        if let Some(credential) = credential {
            request = request.header("lockkeeper-session", credential);
        }
        tokio::spawn(async move { Got::of(request.send().await.unwrap()).await })
    };
    let (id, own) = (Uuid::new_v4(), Some(waiter.credential.as_str()));
    let repeatable = wait(own, json!({ "request_id": id }));
    // Nobody can ask for these again: the caller knows no id, or not the session.
    let mut lost = vec![wait(own, json!({})), wait(None, json!({ "ttl_ms": 60_000, "request_id": Uuid::new_v4() }))];
    eventually("they wait", async || node.get("/v1/locks/a").await.json::<Lock>().waiting == 3).await;
    lost.push(wait(None, json!({ "ttl_ms": 60_000, "unfair": true })));
    eventually("all have sessions", async || node.get("/v1/sessions").await.json::<Sessions>().sessions.len() == 4)
        .await;
    let began = Instant::now();
    node.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "took {:?}", began.elapsed());
    let told = repeatable.await.unwrap().problem(Code::UnknownOutcome);
    assert!(told.detail.contains(&id.to_string()), "{}", told.detail);
    for waiting in lost {
        waiting.await.unwrap().problem(Code::ShuttingDown);
    }

    let again = spawn(Server::bind(config_of(1, directory.path())).unwrap());
    again.ready().await;
    let shown: Lock = again.get("/v1/locks/a").await.json();
    assert_eq!((shown.holders.len(), shown.holders[0].token), (1, held.token), "nothing acknowledged is lost");
    assert_eq!(shown.waiting, 1, "the place of the request that has an id is kept, and no other");
    let sessions: Sessions = again.get("/v1/sessions").await.json();
    let mut ids: Vec<u64> = sessions.sessions.iter().map(|session| session.session_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [holder.session_id, waiter.session_id], "a session that was made for a request goes with it");
    let released = json!({ "token": held.token });
    again.post("/v1/locks/a/release", Some(&holder.credential), released).await.json::<Value>();
    let claimed = again.post("/v1/locks/a/acquire", own, json!({ "request_id": id })).await.json::<Acquired>();
    assert_eq!(claimed.session_id, waiter.session_id);
    again.stop().await.unwrap();
}

#[tokio::test]
async fn sessions_are_bounded() {
    let node = Cluster::start_with(1, |config| config.limits.sessions = 2).await;
    for _ in 0..2 {
        assert!(node.post("/v1/sessions", None, json!({})).await.status.is_success());
    }
    let refused = node.post("/v1/sessions", None, json!({})).await;
    refused.problem(Code::Overloaded);
}
