//! How a client reacts when an endpoint fails, against scripted endpoints: which failure leads where, what is repeated
//! and what is not, and when a session counts as lost. The real cluster's part is in `locks/trouble`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper_client::api::access::AccessChange;
use lockkeeper_client::api::nodes::{Create, SetData};
use lockkeeper_client::api::{Code, Credential, Data, Problem};
use lockkeeper_client::{
    AccessToken, Client, Error, Options, Session, SessionOptions, SessionState, Transport, WatchItem, WatchOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::stream::node::read_request;
use crate::test_cluster::soon;

/// What an endpoint does with a request.
#[derive(Clone)]
enum Answer {
    Json(u16, String),
    /// Takes the request and closes the connection.
    Close,
    /// Takes the request and says nothing.
    Silence,
    /// A piece of an event stream, then the end.
    Events(&'static str),
}

/// An endpoint that answers as told and remembers what it was asked.
struct Scripted {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    async fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (noted, answer) = (asked.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, noted.clone(), answer.clone()));
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    asked: Arc<Mutex<Vec<String>>>,
    answer: Arc<impl Fn(&str) -> Answer + Send + Sync + 'static>,
) {
    while let Some(request) = read_request(&mut stream).await {
        asked.lock().unwrap().push(request.clone());
        let text = match answer(&request) {
            Answer::Json(status, body) => {
                format!(
                    "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
            Answer::Close => return,
            Answer::Silence => {
                let mut nothing = [0];
                let _ = stream.read(&mut nothing).await;
                return;
            }
            Answer::Events(events) => {
                let _ = stream
                    .write_all(
                        format!("HTTP/1.1 200 x\r\nlockkeeper-zxid: 5\r\nconnection: close\r\n\r\n{events}").as_bytes(),
                    )
                    .await;
                return;
            }
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn problem(code: Code) -> Answer {
    let problem = Problem::new(code, "as the test wants it");
    Answer::Json(problem.status, serde_json::to_string(&problem).unwrap())
}

fn changed() -> Answer {
    let stat = r#"{"czxid":1,"mzxid":1,"pzxid":1,"ctime_ms":0,"mtime_ms":0,"version":0,"cversion":0,"aversion":0,
        "data_length":0,"num_children":0}"#;
    Answer::Json(200, format!(r#"{{"path":"/a","stat":{stat},"zxid":9}}"#))
}

fn kept_alive(timeout_ms: u32) -> Answer {
    Answer::Json(200, format!(r#"{{"session_id":7,"timeout_ms":{timeout_ms},"zxid":1}}"#))
}

fn opened(timeout_ms: u32) -> Answer {
    let credential = Credential { session_id: 7, secret: [3; 16] };
    let body = format!(r#"{{"session_id":7,"credential":"{credential}","timeout_ms":{timeout_ms},"zxid":1}}"#);
    Answer::Json(200, body)
}

fn client(endpoints: &[&str]) -> Client {
    let options =
        Options { attempt_timeout: Duration::from_millis(300), patience: Duration::from_secs(2), ..Options::default() };
    Client::new(endpoints, options).unwrap()
}

fn over_http() -> SessionOptions {
    SessionOptions { transport: Transport::Http, ..SessionOptions::default() }
}

async fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn the_token_goes_with_calls_streams_and_watches() {
    let node = Scripted::start(|request| match request {
        _ if request.starts_with("POST /v1/sessions ") => opened(10_000),
        _ if request.contains("/keepalive ") => kept_alive(10_000),
        _ if request.contains("/stream ") => problem(Code::NotFound),
        _ if request.starts_with("GET /v1/watch") => problem(Code::Compacted),
        _ => changed(),
    })
    .await;
    let token = "lk_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN-_0";
    let options = Options { token: Some(token.parse().unwrap()), ..Options::default() };
    let client = Client::new([&node.address], options).unwrap();
    let session = Session::open(&client, &SessionOptions::default()).await.unwrap();
    session.client().create("/a", &Create::default()).await.unwrap();
    let watched = client.watch(WatchOptions::new("/a")).next().await.unwrap();
    assert_eq!(watched.unwrap_err().code(), Some(Code::Compacted));
    let asked = node.asked();
    let shown = format!("authorization: bearer {}", token.to_lowercase());
    for part in ["POST /v1/sessions ", "/stream ", "POST /v1/nodes/a ", "GET /v1/watch"] {
        let request = asked.iter().find(|request| request.contains(part)).expect(part);
        assert!(request.to_lowercase().contains(&shown), "{request}");
    }
}

#[tokio::test]
async fn a_caller_without_the_right_is_refused_by_the_first_endpoint() {
    for code in [Code::Unauthenticated, Code::Forbidden] {
        let refusing = Scripted::start(move |_| problem(code)).await;
        let other = Scripted::start(|_| changed()).await;
        let client = client(&[&refusing.address, &other.address]);
        let error = client.create("/a", &Create::default()).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        let watched = client.watch(WatchOptions::new("/a")).next().await.unwrap();
        assert_eq!(watched.unwrap_err().code(), Some(code));
        let error = Session::open(&client, &SessionOptions::default()).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert_eq!((refusing.asked().len(), other.asked().len()), (3, 0));
    }
}

#[tokio::test]
async fn a_session_whose_keepalives_are_refused_for_their_token_is_lost() {
    let node = Scripted::start(|request| match request {
        _ if request.starts_with("POST /v1/sessions ") => opened(3_000),
        _ => problem(Code::Unauthenticated),
    })
    .await;
    let session = Session::open(&client(&[&node.address]), &over_http()).await.unwrap();
    // By the first keepalive's refusal, not by the end of the session's time.
    let why = session.lost().await;
    assert!(why.contains("unauthenticated"), "{why}");
}

#[tokio::test]
async fn failures_that_changed_nothing_lead_to_the_next_endpoint() {
    let (absent, good) = (nobody().await, Scripted::start(|_| changed()).await);
    for code in [Code::NoLeader, Code::ShuttingDown, Code::Overloaded] {
        let unable = Scripted::start(move |_| problem(code)).await;
        let client = client(&[&absent, &unable.address, &good.address]);
        let done = client.create("/a", &Create::default()).await.unwrap();
        assert_eq!(done.zxid, 9);
        assert_eq!(unable.asked().len(), 1);
        assert!(client.preferred().as_str().ends_with(&good.address), "it stays with the one that served");
    }
    assert_eq!(good.asked().len(), 3);
}

/// Nothing can be held by a session whose credential nobody has. Each endpoint is asked, although one of them says
/// nothing and the caller's patience is no longer than an attempt.
#[tokio::test]
async fn an_opening_without_an_answer_is_nothing_done_and_each_endpoint_says_why() {
    let silent = Scripted::start(|_| Answer::Silence).await;
    let broken = Scripted::start(|_| Answer::Close).await;
    let unsure = Scripted::start(|_| problem(Code::UnknownOutcome)).await;
    let (unable, absent) = (Scripted::start(|_| problem(Code::NoLeader)).await, nobody().await);
    let patience = Duration::from_secs(2);
    let options = Options { attempt_timeout: patience, patience, ..Options::default() };
    let endpoints = [&silent.address, &broken.address, &unsure.address, &unable.address, &absent];
    let error = Session::open(&Client::new(endpoints, options).unwrap(), &over_http()).await.unwrap_err();
    let Error::Unreachable { tried } = &error else { panic!("{error}") };
    assert_eq!(tried.len(), 5, "{error}");
    let said = error.to_string();
    assert!(said.starts_with(&format!("no majority: {}: no answer within ", silent.address)), "{said}");
    let (unsure, unable) = (&unsure.address, &unable.address);
    let end = format!("{unsure} waits for a majority, {unable} has no leader, {absent} refuses connections");
    assert!(said.ends_with(&end), "{said}");
    // Each node is told how long it may look for the leader: less than the client waits for its answer.
    let told = header(&silent.asked()[0], "lockkeeper-timeout-ms").unwrap().parse::<u64>().unwrap();
    assert!((1..1_500).contains(&told), "{told}");
}

#[tokio::test]
async fn without_a_session_an_open_outcome_is_unknown_and_nothing_is_repeated() {
    let other = Scripted::start(|_| changed()).await;
    for answer in [Answer::Close, Answer::Silence, problem(Code::UnknownOutcome)] {
        let open = Scripted::start(move |_| answer.clone()).await;
        let client = client(&[&open.address, &other.address]);
        let set = SetData { data: Data::from_bytes(b"x") };
        let error = client.set("/a", &set, None).await.unwrap_err();
        assert!(matches!(error, Error::UnknownOutcome(_)), "{error}");
        assert_eq!(open.asked().len(), 1);
    }
    assert_eq!(other.asked().len(), 0);
}

#[tokio::test]
async fn with_a_session_it_is_repeated_under_the_same_request_id() {
    let (open, other) = (Scripted::start(|_| Answer::Close).await, Scripted::start(|_| changed()).await);
    let credential = Credential { session_id: 7, secret: [3; 16] };
    let client = client(&[&open.address, &other.address]).as_session(credential);
    client.create("/a", &Create::default()).await.unwrap();
    let id = |request: &String| header(request, "lockkeeper-request-id").unwrap().to_owned();
    let (first, second) = (open.asked(), other.asked());
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(id(&first[0]), id(&second[0]));
    assert_eq!(header(&second[0], "lockkeeper-session"), Some(credential.to_string().as_str()));

    client.create("/a", &Create::default()).await.unwrap();
    let third = &other.asked()[1];
    assert_ne!(id(third), id(&second[0]), "another request has another id");
    assert_eq!(header(third, "lockkeeper-acknowledge"), None, "its first try may still reach the cluster");
    client.create("/a", &Create::default()).await.unwrap();
    let fourth = &other.asked()[2];
    assert_eq!(header(fourth, "lockkeeper-acknowledge"), Some(id(third).as_str()), "one try, and its answer has come");
}

/// Its hash identifies the change, so that it takes place once. Without a hash each attempt would make a token.
#[tokio::test]
async fn a_token_is_asked_for_again_only_if_the_caller_has_drawn_it() {
    let other = Scripted::start(|_| Answer::Json(200, "{}".into())).await;
    let open = Scripted::start(|_| Answer::Close).await;
    let hash = Some(AccessToken::draw().hash());
    for (change, is_repeated) in [
        (AccessChange::Enable { token_hash: hash.clone() }, true),
        (AccessChange::CreateToken { principal: "a".into(), ttl_s: None, token_hash: hash }, true),
        (AccessChange::Enable { token_hash: None }, false),
        (AccessChange::CreateToken { principal: "a".into(), ttl_s: None, token_hash: None }, false),
    ] {
        let (before, client) = (other.asked().len(), client(&[&open.address, &other.address]));
        let changed = client.change_access(&change).await;
        assert_eq!(changed.is_ok(), is_repeated, "{change:?}: {changed:?}");
        assert!(is_repeated || matches!(changed, Err(Error::UnknownOutcome(_))), "{changed:?}");
        assert_eq!(other.asked().len() - before, usize::from(is_repeated), "{change:?}");
    }
}

#[tokio::test]
async fn a_watch_whose_right_is_gone_ends_and_does_not_connect_again() {
    let events = "event: ended\ndata: {\"type\":\"about:blank\",\"title\":\"unauthenticated\",\"status\":401,\
                  \"code\":\"unauthenticated\",\"detail\":\"the token is unknown, expired or revoked\"}\n\n";
    let node = Scripted::start(|_| Answer::Events(events)).await;
    let mut watch = client(&[&node.address]).watch(WatchOptions::new("/a"));
    let last = soon(watch.next()).await.unwrap().unwrap_err();
    assert_eq!(last.code(), Some(Code::Unauthenticated), "{last}");
    assert!(watch.next().await.is_none());
    assert_eq!(node.asked().len(), 1);
}

#[tokio::test]
async fn an_open_outcome_stays_unknown_when_nobody_can_tell() {
    let (open, absent) = (Scripted::start(|_| Answer::Close).await, nobody().await);
    let client = client(&[&open.address, &absent]).as_session(Credential { session_id: 7, secret: [3; 16] });
    let error = client.delete("/a", None).await.unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome(_)), "{error}");
    // A read leaves nothing open.
    let error = client.lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { ref tried } if tried.len() == 2), "{error}");
}

#[tokio::test]
async fn what_is_not_lockkeeper_is_said_to_be_so() {
    let web = Scripted::start(|_| Answer::Json(404, "<html>".into())).await;
    let error = client(&[&web.address]).lock("a").await.unwrap_err();
    assert!(matches!(error, Error::NotLockkeeper { .. }), "{error}");
}

#[tokio::test]
async fn a_session_is_lost_before_the_cluster_can_expire_it() {
    const TIMEOUT: Duration = Duration::from_millis(1_000);
    let node = Scripted::start(|request| match request.starts_with("POST /v1/sessions ") {
        true => opened(1_000),
        false => Answer::Silence,
    })
    .await;
    let before = Instant::now();
    let session = Session::open(&client(&[&node.address]), &over_http()).await.unwrap();
    let mut state = session.state();
    assert_eq!(*state.borrow_and_update(), SessionState::Connected);
    state.changed().await.unwrap();
    assert!(matches!(&*state.borrow_and_update(), SessionState::RenewalFailing { left } if *left > Duration::ZERO));
    session.lost().await;
    assert!(before.elapsed() < TIMEOUT, "told after {:?}", before.elapsed());
    assert!(session.left().is_zero());
}

#[tokio::test]
async fn a_frozen_endpoint_does_not_cost_the_session() {
    let frozen = Scripted::start(|request| match request.starts_with("POST /v1/sessions ") {
        true => opened(600),
        false => Answer::Silence,
    })
    .await;
    let good = Scripted::start(|_| kept_alive(600)).await;
    let session = Session::open(&client(&[&frozen.address, &good.address]), &over_http()).await.unwrap();
    let state = session.state();
    let mut renewals = session.renewals();
    for _ in 0..6 {
        renewals.changed().await.unwrap();
    }
    assert_eq!(*state.borrow(), SessionState::Connected);
    let asked_first = session.client().preferred().to_string();
    assert!(asked_first.contains(&good.address), "after a slow answer the other endpoint is asked first");
    assert!(frozen.asked().len() < 1 + 6, "the frozen one was asked for every renewal");
}

#[tokio::test]
async fn the_clusters_word_ends_a_session_at_once() {
    let node = Scripted::start(|request| match request.starts_with("POST /v1/sessions ") {
        true => opened(1_500),
        false => problem(Code::SessionExpired),
    })
    .await;
    let client = client(&[&node.address]);
    let session = Session::open(&client, &over_http()).await.unwrap();
    let because = session.lost().await;
    assert!(because.contains("as the test wants it"), "not by its own clock: {because}");
    let error = session.client().keepalive().await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_watch_resumes_where_it_broke_off_and_ends_when_history_is_gone() {
    const EVENTS: &str = concat!(
        "id: 6\nevent: change\ndata: {\"zxid\":6,\"kind\":\"created\",\"path\":\"/a\"}\n\n",
        "id: 8\nevent: bookmark\ndata: {\"zxid\":8}\n\n",
    );
    let first = Scripted::start(|_| Answer::Events(EVENTS)).await;
    let second = Scripted::start(|_| problem(Code::Compacted)).await;
    let mut watch = client(&[&first.address, &second.address]).watch(WatchOptions::new("/a"));
    assert!(matches!(watch.next().await, Some(Ok(WatchItem::Change(change))) if change.zxid == 6));
    assert_eq!(watch.next().await.unwrap().unwrap(), WatchItem::Bookmark(8));
    assert_eq!(watch.next().await.unwrap().unwrap_err().code(), Some(Code::Compacted));
    assert!(watch.next().await.is_none());
    assert!(second.asked()[0].contains("from=8"));
}

#[tokio::test]
async fn a_watch_that_breaks_in_the_middle_of_a_transaction_gives_each_change_once() {
    const WHOLE: &str = concat!(
        "event: change\ndata: {\"zxid\":6,\"kind\":\"created\",\"path\":\"/a\"}\n\n",
        "event: change\ndata: {\"zxid\":6,\"kind\":\"created\",\"path\":\"/b\"}\n\n",
        "id: 6\nevent: change\ndata: {\"zxid\":6,\"kind\":\"created\",\"path\":\"/c\"}\n\n",
    );
    let first_end = WHOLE.find("\n\n").unwrap() + 2;
    let first = Scripted::start(move |_| Answer::Events(&WHOLE[..first_end])).await;
    let second = Scripted::start(|_| Answer::Events(WHOLE)).await;
    let mut watch = client(&[&first.address, &second.address]).watch(WatchOptions::new("/"));
    for expected in ["/a", "/b", "/c"] {
        let Some(Ok(WatchItem::Change(change))) = watch.next().await else { panic!("a change") };
        assert_eq!(change.path, expected);
    }
    assert!(second.asked()[0].contains("from=5"), "before the transaction that broke off: {}", second.asked()[0]);
    assert_eq!(watch.position(), Some(6));
}

#[tokio::test]
async fn a_watch_that_breaks_before_its_first_event_leaves_no_gap() {
    let first = Scripted::start(|_| Answer::Events("")).await;
    let second = Scripted::start(|_| problem(Code::Compacted)).await;
    let mut watch = client(&[&first.address, &second.address]).watch(WatchOptions::new("/a"));
    assert!(watch.next().await.unwrap().is_err());
    assert!(second.asked()[0].contains("from=5"), "from where the first stream began: {}", second.asked()[0]);
}
