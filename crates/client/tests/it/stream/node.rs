//! A scripted node: plain HTTP and the session stream on one address. It answers by a test's script and records what
//! it was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use lockkeeper_client::api::{Code, Credential, Problem};
use lockkeeper_client::{Client, Options, PreferredNode, Session, SessionOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

/// Something that happens to a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A request over HTTP: its first line.
    Http(String),
    /// The stream was asked for; the first is number 1.
    Upgrade(usize),
    /// A message on that stream.
    Frame(usize, Value),
}

/// What it does then.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// To an HTTP request: this status and body.
    Json(u16, Value),
    /// Raw bytes, whatever they are.
    Raw(&'static str),
    /// A message.
    Say(Value),
    /// A message that need not be JSON.
    SayText(&'static str),
    /// Close with that code.
    Close(u16),
    /// Cut the connection.
    Cut,
    /// From now on nothing is read from this connection.
    Freeze,
}

pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) seen: watch::Receiver<Vec<Event>>,
    say: Arc<parking_lot::Mutex<Vec<mpsc::UnboundedSender<Do>>>>,
}

type Script = Arc<dyn Fn(&Event) -> Vec<Do> + Send + Sync>;

struct Shared {
    script: Script,
    seen: watch::Sender<Vec<Event>>,
    say: Arc<parking_lot::Mutex<Vec<mpsc::UnboundedSender<Do>>>>,
    streams: AtomicUsize,
}

impl Shared {
    fn see(&self, event: Event) -> Vec<Do> {
        let done = (self.script)(&event);
        self.seen.send_modify(|seen| seen.push(event));
        done
    }
}

impl Node {
    pub(crate) async fn start(script: impl Fn(&Event) -> Vec<Do> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, seen) = watch::channel(Vec::new());
        let say = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let shared =
            Arc::new(Shared { script: Arc::new(script), seen: sender, say: say.clone(), streams: AtomicUsize::new(0) });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move { serve(stream, &shared).await });
            }
        });
        Self { address, seen, say }
    }

    /// Does something on its latest stream, unasked.
    pub(crate) fn now(&self, what: Do) {
        self.say.lock().last().unwrap().send(what).unwrap();
    }

    pub(crate) async fn until(&self, what: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let mut seen = self.seen.clone();
        let waited = tokio::time::timeout(Duration::from_secs(10), seen.wait_for(|seen| what(seen))).await;
        match waited {
            Ok(seen) => seen.unwrap().clone(),
            Err(_) => panic!("not seen within 10 s; seen: {:#?}", self.seen.borrow()),
        }
    }

    /// The messages of one kind that came on its streams: stream and content.
    pub(crate) fn frames(&self, kind: &str) -> Vec<(usize, Value)> {
        frames(&self.seen.borrow(), kind)
    }
}

pub(crate) fn frames(events: &[Event], kind: &str) -> Vec<(usize, Value)> {
    let of_kind = |event: &Event| match event {
        Event::Frame(stream, value) => Some((*stream, value.get(kind)?.clone())),
        _ => None,
    };
    events.iter().filter_map(of_kind).collect()
}

async fn serve(mut stream: TcpStream, shared: &Shared) {
    while let Some(request) = read_request(&mut stream).await {
        let line = request.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
        if let Some(key) = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")) {
            assert!(request.to_lowercase().contains("lockkeeper-session: 7."), "{request}");
            return upgrade(stream, key, shared).await;
        }
        for done in shared.see(Event::Http(line)) {
            let text = match done {
                Do::Json(status, body) => {
                    let body = body.to_string();
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/json");
                    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}")
                }
                Do::Freeze => std::future::pending().await,
                _ => return,
            };
            if stream.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

async fn upgrade(mut stream: TcpStream, key: &str, shared: &Shared) {
    let number = shared.streams.fetch_add(1, Ordering::SeqCst) + 1;
    let (say, mut said) = mpsc::unbounded_channel();
    let first = shared.see(Event::Upgrade(number));
    for done in &first {
        let text = match done {
            Do::Json(status, body) => {
                let body = body.to_string();
                format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            }
            Do::Raw(text) => (*text).to_owned(),
            Do::Freeze => std::future::pending().await,
            Do::Cut => return,
            _ => continue,
        };
        let _ = stream.write_all(text.as_bytes()).await;
        return;
    }
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: {accept}\r\n\r\n"
    );
    if stream.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    for done in first {
        if !act(&mut socket, done).await {
            return;
        }
    }
    shared.say.lock().push(say);
    loop {
        let message = tokio::select! {
            message = socket.next() => message,
            Some(done) = said.recv() => {
                if !act(&mut socket, done).await {
                    return;
                }
                continue;
            }
        };
        let Some(Ok(message)) = message else { return };
        let Message::Text(text) = message else { continue };
        for done in shared.see(Event::Frame(number, serde_json::from_str(text.as_str()).unwrap())) {
            if !act(&mut socket, done).await {
                return;
            }
        }
    }
}

async fn act(socket: &mut WebSocketStream<TcpStream>, what: Do) -> bool {
    let sent = match what {
        Do::Say(value) => socket.send(Message::text(value.to_string())).await,
        Do::SayText(text) => socket.send(Message::text(text)).await,
        Do::Close(code) => {
            let frame = CloseFrame { code: CloseCode::from(code), reason: "as the test wants it".into() };
            let _ = socket.close(Some(frame)).await;
            // The other side's answer.
            let _ = tokio::time::timeout(Duration::from_secs(1), socket.next()).await;
            return false;
        }
        Do::Freeze => std::future::pending().await,
        _ => return false,
    };
    sent.is_ok()
}

pub(crate) const TIMEOUT_MS: u32 = 3_000;

pub(crate) fn problem(code: Code) -> Do {
    let problem = Problem::new(code, "as the test wants it");
    Do::Json(problem.status, serde_json::to_value(&problem).unwrap())
}

pub(crate) fn hello(held: Value) -> Do {
    Do::Say(json!({"hello": {"version": 1, "timeout_ms": TIMEOUT_MS, "zxid": 100, "held": held}}))
}

/// A hello that names the leader.
pub(crate) fn hello_of(leader: &str, timeout_ms: u32) -> Do {
    Do::Say(json!({"hello": {"version": 1, "timeout_ms": timeout_ms, "zxid": 100, "held": [], "leader": leader}}))
}

pub(crate) fn answer(id: &Value, body: Value) -> Do {
    Do::Say(json!({"answer": {"id": id, "status": 200, "zxid": 9, "body": body}}))
}

pub(crate) fn refusal(id: &Value, code: Code) -> Do {
    let problem = Problem::new(code, "as the test wants it");
    Do::Say(json!({"answer": {"id": id, "status": problem.status, "body": problem}}))
}

pub(crate) fn alive(number: &Value) -> Do {
    Do::Say(json!({"alive": {"number": number, "timeout_ms": TIMEOUT_MS}}))
}

pub(crate) fn changed() -> Value {
    let stat = json!({"czxid":1,"mzxid":1,"pzxid":1,"ctime_ms":0,"mtime_ms":0,"version":0,"cversion":0,"aversion":0,
        "data_length":0,"num_children":0});
    json!({"path": "/a", "stat": stat, "zxid": 9})
}

pub(crate) fn acquired(lock: &str, token: u64) -> Value {
    json!({"lock": lock, "mode": "exclusive", "token": token, "path": "/locks/x", "session_id": 7,
        "session_timeout_ms": TIMEOUT_MS, "session_remaining_ms": TIMEOUT_MS,
        "request_id": "00000000-0000-0000-0000-000000000000", "zxid": 9})
}

/// Opens, keeps alive and closes the session, over HTTP or the stream; nothing for what is not about that.
pub(crate) fn session_only(event: &Event, timeout_ms: u32) -> Option<Vec<Do>> {
    let kept = json!({"session_id": 7, "timeout_ms": timeout_ms, "zxid": 1});
    match event {
        Event::Http(line) if line == "POST /v1/sessions" => {
            let credential = Credential { session_id: 7, secret: [3; 16] }.to_string();
            let body = json!({"session_id": 7, "credential": credential, "timeout_ms": timeout_ms, "zxid": 1});
            Some(vec![Do::Json(200, body)])
        }
        Event::Http(line) if line.ends_with("/keepalive") => Some(vec![Do::Json(200, kept)]),
        Event::Http(line) if line.starts_with("DELETE /v1/sessions") => Some(vec![Do::Json(200, json!({"zxid": 1}))]),
        Event::Frame(_, value) => {
            let number = value.get("keepalive")?;
            Some(vec![Do::Say(json!({"alive": {"number": number, "timeout_ms": timeout_ms}}))])
        }
        _ => None,
    }
}

/// A node that does all that is asked: creates, grants, releases.
pub(crate) fn good(event: &Event) -> Vec<Do> {
    if let Some(done) = session_only(event, TIMEOUT_MS) {
        return done;
    }
    match event {
        Event::Upgrade(_) => vec![hello(json!([]))],
        Event::Frame(_, value) => match value.get("request") {
            Some(request) => vec![answer(&request["id"], served(operation(&request["call"])))],
            None => vec![],
        },
        Event::Http(line) => vec![Do::Json(200, served(line))],
    }
}

/// The name of a call.
fn operation(call: &Value) -> &str {
    call.as_object().unwrap().keys().next().unwrap()
}

/// For the name of a call, or the line of a request.
fn served(asked: &str) -> Value {
    match asked {
        _ if asked.contains("acquire") => acquired("a", 50),
        _ if asked.contains("release") => json!({"lock": "a", "token": 50, "zxid": 51}),
        _ if asked.contains("session") => json!({"zxid": 1}),
        _ => changed(),
    }
}

fn options() -> Options {
    Options {
        attempt_timeout: Duration::from_millis(500),
        patience: Duration::from_secs(5),
        liveness_interval: Duration::from_millis(300),
        ..Options::default()
    }
}

pub(crate) fn client(nodes: &[&str]) -> Client {
    Client::new(nodes, options()).unwrap()
}

/// As [`open`], with a client that gives up soon.
pub(crate) async fn open_impatient(nodes: &[&str]) -> Session {
    let options = Options { patience: Duration::from_secs(1), ..options() };
    Session::open(&Client::new(nodes, options).unwrap(), &SessionOptions::default()).await.unwrap()
}

/// A session whose client prefers that node.
pub(crate) async fn open_at(nodes: &[&str], prefer: PreferredNode) -> Session {
    let client = Client::new(nodes, Options { prefer, ..options() }).unwrap();
    Session::open(&client, &SessionOptions::default()).await.unwrap()
}

pub(crate) async fn open(nodes: &[&str]) -> Session {
    Session::open(&client(nodes), &SessionOptions::default()).await.unwrap()
}

/// The next request, head and body; none when the client has gone.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            // A client with several endpoints asks each for its cluster first. These name none.
            if head.starts_with("GET /healthz ") {
                let _ = stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
                return None;
            }
            if body.len() >= length {
                return Some(text);
            }
        }
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}
