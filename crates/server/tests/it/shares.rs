//! No client starves another (promise P13): whoever takes all that it gets leaves room for others, and nobody is kept from keeping or giving
//! back what they have.

use std::net::IpAddr;

use lockkeeper_api::locks::{Acquired, Lock};
use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_api::{Code, Problem};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::harness::{Cluster, Got, PATIENCE, Running, eventually};

/// Calls from another address of this machine.
struct Neighbour {
    http: Client,
    base: String,
}

impl Neighbour {
    fn of(node: &Running, last: u8) -> Self {
        let http = Client::builder().no_proxy().local_address(IpAddr::from([127, 0, 0, last])).build().unwrap();
        Self { http, base: node.base.clone() }
    }

    async fn call(&self, method: Method, path: &str, credential: Option<&str>, body: Option<Value>) -> Got {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(credential) = credential {
            request = request.header("lockkeeper-session", credential);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        Got::of(request.send().await.unwrap()).await
    }
}

/// The holder of a lock, and what it must be able to do whatever others do.
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
        "POST /v1/nodes/stalled HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Waits until a call is refused for want of room, and gives the refusal.
async fn refused(what: &str, call: impl AsyncFn() -> Got) -> Problem {
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
    // Far more wait than may be at work, and work goes on.
    assert!(node.get("/v1/sessions").await.status.is_success());
    let neighbour = Neighbour::of(&node, 2);
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

#[tokio::test]
async fn what_somebody_has_is_kept_and_given_back_however_much_is_at_work() {
    let node = Cluster::start_with(1, |config| config.limits.in_flight_requests = 4).await;
    let holder = Holder::of(&node, "a").await;
    let _stalled = [stalled(&node, 100).await, stalled(&node, 100).await];
    let told = refused("both are at work", async || node.get("/v1/sessions").await).await;
    names(&told, &["limits.in_flight_requests", "address"]);
    let neighbour = Neighbour::of(&node, 2);
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
    let neighbour = Neighbour::of(&node, 2);
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
    let mut stream = TcpStream::connect(node.client).await.unwrap();
    let open = format!(
        "GET /v1/sessions/{}/stream HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nlockkeeper-session: {}\r\n\r\n",
        holder.session.session_id, holder.session.credential
    );
    stream.write_all(open.as_bytes()).await.unwrap();
    hear(&mut stream, "\"hello\"").await;
    let _stalled = [stalled(&node, 100).await, stalled(&node, 100).await];
    refused("both are at work", async || node.get("/v1/sessions").await).await;
    say(&mut stream, &json!({ "request": { "id": 1, "method": "GET", "path": "/v1/sessions" } })).await;
    hear(&mut stream, "limits.in_flight_requests").await;
    say(&mut stream, &json!({ "keepalive": 7 })).await;
    hear(&mut stream, "\"alive\"").await;
    let body = json!({ "token": holder.token });
    for (id, verb) in [(2, "verify"), (3, "release")] {
        let request = json!({ "id": id, "method": "POST", "path": format!("/v1/locks/a/{verb}"), "body": body });
        say(&mut stream, &json!({ "request": request })).await;
        hear(&mut stream, &format!("\"id\":{id},\"status\":200")).await;
    }
}

/// Sends a text frame, masked with zeroes.
async fn say(stream: &mut TcpStream, message: &Value) {
    let text = message.to_string();
    let length = u8::try_from(text.len()).ok();
    let mut frame = vec![0x81];
    match length.filter(|length| *length < 126) {
        Some(length) => frame.push(0x80 | length),
        None => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(text.as_bytes());
    stream.write_all(&frame).await.unwrap();
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
