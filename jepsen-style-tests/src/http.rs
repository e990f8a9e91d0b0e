//! An HTTP client for one endpoint that makes one attempt. It gives the moments of sending and of the answer, and says
//! what the answer makes certain.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper_api::access::{Access, AccessChange, AccessChanged, Namespaces};
use lockkeeper_api::cluster::{AddMember, Status, Transfer, Transferred};
use lockkeeper_api::locks::{Acquire, Acquired, Lock, Released, Token, Verified};
use lockkeeper_api::nodes::{Changed, Create, Node};
use lockkeeper_api::sessions::{KeptAlive, OpenSession, Session, SessionOpened, Sessions};
use lockkeeper_api::{Code, Problem, REQUEST_ID_HEADER, SESSION_HEADER, ZXID_HEADER};
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

/// How long a call may take where its caller does not say.
pub const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Longer than a change of the membership may take at the leader.
const MEMBERS_WITHIN: Duration = Duration::from_secs(15);

/// An acknowledged answer.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The answer.
    pub value: T,
    /// Just before the request went out.
    pub sent: Instant,
    /// Just after the answer arrived.
    pub received: Instant,
    /// The zxid it is true at, where the header was there.
    pub zxid: Option<u64>,
}

/// A failed call, by what is certain about it.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The cluster refused: it did not take place.
    Refused(Box<Problem>),
    /// It certainly did not take place, and may be tried again (no leader, overloaded, no connection).
    NotDone(String),
    /// It may or may not have taken place.
    Unknown(String),
}

impl Failure {
    /// The code of a refusal.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            Self::NotDone(_) | Self::Unknown(_) => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(problem) => write!(f, "refused: {problem}"),
            Self::NotDone(why) => write!(f, "not carried out: {why}"),
            Self::Unknown(why) => write!(f, "outcome unknown: {why}"),
        }
    }
}

/// The result of a call.
pub type Called<T> = Result<Answer<T>, Failure>;

/// One node's HTTP API.
#[derive(Clone, Debug)]
pub struct Api {
    client: reqwest::Client,
    base: String,
}

/// The settings of every client here.
pub fn client_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).connect_timeout(Duration::from_secs(2))
}

/// A client with connections of its own.
pub fn new_client() -> std::io::Result<reqwest::Client> {
    client_builder().build().map_err(std::io::Error::other)
}

/// A client that shows a token with every request.
pub fn client_with_token(builder: reqwest::ClientBuilder, token: &str) -> std::io::Result<reqwest::Client> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(std::io::Error::other)?;
    value.set_sensitive(true);
    let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
    builder.default_headers(headers).build().map_err(std::io::Error::other)
}

struct HttpCall<'a> {
    method: Method,
    path: String,
    session: Option<&'a str>,
    request_id: Option<Uuid>,
    within: Duration,
}

fn call(method: Method, path: String) -> HttpCall<'static> {
    HttpCall { method, path, session: None, request_id: None, within: CALL_WITHIN }
}

/// A change that a caller may request more than once, at several nodes: the same session and the same request id make
/// it one.
#[derive(Clone, Debug)]
pub struct RepeatableChange<B> {
    /// POST, PUT or DELETE.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// The session's credential.
    pub credential: Option<String>,
    /// The request id.
    pub request_id: Option<Uuid>,
    /// How long to wait for the answer.
    pub within: Duration,
    /// The body.
    pub body: Option<B>,
}

impl<'a> HttpCall<'a> {
    fn by(self, session: &'a str) -> Self {
        Self { session: Some(session), ..self }
    }

    fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }
}

const NO_BODY: Option<&()> = None;

impl Api {
    /// The API at `127.0.0.1:port`.
    pub fn new(client: reqwest::Client, port: u16) -> Self {
        Self::at_address(client, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// The API at that address.
    pub fn at_address(client: reqwest::Client, address: SocketAddr) -> Self {
        Self { client, base: format!("http://{address}") }
    }

    /// The API at a base URL, such as `http://127.0.0.1:7400`.
    pub fn at(client: reqwest::Client, base: &str) -> Self {
        Self { client, base: base.trim_end_matches('/').to_owned() }
    }

    /// Requests a change once, at this node.
    pub async fn change<B: Serialize, T: DeserializeOwned>(&self, change: &RepeatableChange<B>) -> Called<T> {
        let call = HttpCall {
            method: change.method.clone(),
            path: change.target.clone(),
            session: change.credential.as_deref(),
            request_id: change.request_id,
            within: change.within,
        };
        self.send(call, change.body.as_ref()).await
    }

    /// Its base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The client below, for streams.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    async fn send<B: Serialize, T: DeserializeOwned>(&self, call: HttpCall<'_>, body: Option<&B>) -> Called<T> {
        let mut request = self.client.request(call.method, format!("{}{}", self.base, call.path)).timeout(call.within);
        if let Some(session) = call.session {
            request = request.header(SESSION_HEADER, session);
        }
        if let Some(id) = call.request_id {
            request = request.header(REQUEST_ID_HEADER, id.to_string());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let sent = Instant::now();
        let response = request.send().await.map_err(|error| not_answered(&error))?;
        let status = response.status();
        let zxid = response.headers().get(ZXID_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = response.bytes().await.map_err(|error| Failure::Unknown(chain(&error)))?;
        let received = Instant::now();
        if status.is_success() {
            let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
            let value = serde_json::from_slice(bytes)
                .map_err(|error| Failure::Unknown(format!("answer not understood: {error}")))?;
            return Ok(Answer { value, sent, received, zxid });
        }
        Err(classify(status.as_u16(), &bytes))
    }

    /// `GET /v1/cluster`.
    pub async fn status(&self, checksum: bool) -> Called<Status> {
        self.send(call(Method::GET, format!("/v1/cluster?checksum={checksum}")).within(Duration::from_secs(5)), NO_BODY)
            .await
    }

    /// Whether `GET /readyz` says so.
    pub async fn ready(&self) -> bool {
        let asked = self.client.get(format!("{}/readyz", self.base)).timeout(Duration::from_secs(2)).send().await;
        asked.is_ok_and(|response| response.status().is_success())
    }

    /// `GET /metrics`, as text.
    pub async fn metrics(&self) -> Result<String, Failure> {
        let asked = self.client.get(format!("{}/metrics", self.base)).timeout(CALL_WITHIN).send().await;
        let response = asked.map_err(|error| not_answered(&error))?;
        response.text().await.map_err(|error| Failure::Unknown(chain(&error)))
    }

    /// Has leadership handed to a node, or to the most advanced follower.
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Called<Transferred> {
        self.send(call(Method::POST, "/v1/cluster/transfer".into()), Some(&Transfer { to })).await
    }

    /// Adds a node as a learner.
    pub async fn add_member(&self, node_id: u64, peer_address: &str) -> Called<serde_json::Value> {
        let body = AddMember {
            node_id,
            role: None,
            peer_address: peer_address.to_owned(),
            client_address: None,
            zookeeper_address: None,
            if_version: None,
        };
        self.send(call(Method::POST, "/v1/cluster/members".into()).within(MEMBERS_WITHIN), Some(&body)).await
    }

    /// Makes a learner a voter.
    pub async fn promote_member(&self, node: u64) -> Called<serde_json::Value> {
        let path = format!("/v1/cluster/members/{node}/promote");
        self.send(call(Method::POST, path).within(MEMBERS_WITHIN), NO_BODY).await
    }

    /// Removes a member.
    pub async fn remove_member(&self, node: u64) -> Called<serde_json::Value> {
        self.send(call(Method::DELETE, format!("/v1/cluster/members/{node}")).within(MEMBERS_WITHIN), NO_BODY).await
    }

    /// All of access control.
    pub async fn access(&self) -> Called<Access> {
        self.send(call(Method::GET, "/v1/access".into()), NO_BODY).await
    }

    /// Changes access control.
    pub async fn change_access(&self, change: &AccessChange) -> Called<AccessChanged> {
        self.send(call(Method::POST, "/v1/access".into()), Some(change)).await
    }

    /// The namespaces with limits.
    pub async fn namespaces(&self) -> Called<Namespaces> {
        self.send(call(Method::GET, "/v1/namespaces".into()), NO_BODY).await
    }

    /// Opens a session.
    pub async fn open_session(&self, timeout_ms: u32, label: &str) -> Called<SessionOpened> {
        let body = OpenSession { timeout_ms: Some(timeout_ms), label: Some(label.to_owned()) };
        self.send(call(Method::POST, "/v1/sessions".into()), Some(&body)).await
    }

    /// Keeps a session alive.
    pub async fn keepalive(&self, credential: &str, within: Duration) -> Called<KeptAlive> {
        let id = session_id(credential);
        self.send(call(Method::POST, format!("/v1/sessions/{id}/keepalive")).by(credential).within(within), NO_BODY)
            .await
    }

    /// Closes a session.
    pub async fn close_session(&self, credential: &str) -> Called<serde_json::Value> {
        let id = session_id(credential);
        self.send(call(Method::DELETE, format!("/v1/sessions/{id}")).by(credential), NO_BODY).await
    }

    /// One session.
    pub async fn session(&self, id: u64) -> Called<Session> {
        self.send(call(Method::GET, format!("/v1/sessions/{id}")), NO_BODY).await
    }

    /// A page of the open sessions.
    pub async fn sessions(&self, after: u64) -> Called<Sessions> {
        self.send(call(Method::GET, format!("/v1/sessions?after={after}")), NO_BODY).await
    }

    /// Asks for a lock.
    pub async fn acquire(&self, credential: &str, lock: &str, body: &Acquire, within: Duration) -> Called<Acquired> {
        self.acquire_in(Some(credential), lock, body, within).await
    }

    /// Asks for a lock in a session, or in one that is made for it.
    pub async fn acquire_in(
        &self,
        credential: Option<&str>,
        lock: &str,
        body: &Acquire,
        within: Duration,
    ) -> Called<Acquired> {
        let call = call(Method::POST, format!("/v1/locks/{lock}/acquire")).within(within);
        self.send(HttpCall { session: credential, ..call }, Some(body)).await
    }

    /// Gives a lock back.
    pub async fn release(&self, credential: &str, lock: &str, token: u64) -> Called<Released> {
        self.send(call(Method::POST, format!("/v1/locks/{lock}/release")).by(credential), Some(&Token { token })).await
    }

    /// Whether a token still holds.
    pub async fn verify(&self, lock: &str, token: u64, within: Duration) -> Called<Verified> {
        self.send(call(Method::POST, format!("/v1/locks/{lock}/verify")).within(within), Some(&Token { token })).await
    }

    /// The holders and the waiters of a lock.
    pub async fn lock(&self, lock: &str) -> Called<Lock> {
        self.send(call(Method::GET, format!("/v1/locks/{lock}")), NO_BODY).await
    }

    /// Creates a node; `path` starts with a slash.
    pub async fn create(&self, path: &str, body: &Create, credential: Option<&str>) -> Called<Changed> {
        self.create_within(path, body, credential, CALL_WITHIN).await
    }

    /// Creates a node, and waits for it no longer than `within`.
    pub async fn create_within(
        &self,
        path: &str,
        body: &Create,
        credential: Option<&str>,
        within: Duration,
    ) -> Called<Changed> {
        let call = call(Method::POST, format!("/v1/nodes{path}")).within(within);
        self.send(HttpCall { session: credential, ..call }, Some(body)).await
    }

    /// Carries out a transaction.
    pub async fn transact(&self, credential: &str, body: &serde_json::Value) -> Called<serde_json::Value> {
        self.send(call(Method::POST, "/v1/txn".into()).by(credential), Some(body)).await
    }

    /// Reads a node, linearizable.
    pub async fn get(&self, path: &str, within: Duration) -> Called<Node> {
        self.send(call(Method::GET, format!("/v1/nodes{path}")).within(within), NO_BODY).await
    }

    /// Reads a node as this replica has it.
    pub async fn get_stale(&self, path: &str) -> Called<Node> {
        self.send(call(Method::GET, format!("/v1/nodes{path}?consistency=stale")), NO_BODY).await
    }

    /// The names of all children as this replica has them, and the zxid of the last page.
    pub async fn children_stale(&self, path: &str) -> Result<(Vec<String>, u64), Failure> {
        let mut names = Vec::new();
        let mut after = String::new();
        loop {
            let query = format!("/v1/nodes{path}?children=true&consistency=stale{after}");
            let page: Answer<Node> = self.send(call(Method::GET, query), NO_BODY).await?;
            names.extend(page.value.children.unwrap_or_default());
            match page.value.next_children {
                Some(next) => after = format!("&children_after={next}"),
                None => return Ok((names, page.value.zxid)),
            }
        }
    }

    /// All open sessions and the zxid of the *first* page: a session missing here was gone, or not there yet, at that
    /// zxid or later.
    pub async fn all_sessions(&self) -> Result<(Vec<Session>, u64), Failure> {
        let first = self.sessions(0).await?;
        let zxid = first.value.zxid;
        let (mut all, mut next) = (first.value.sessions, first.value.next);
        while let Some(after) = next {
            let page = self.sessions(after).await?;
            all.extend(page.value.sessions);
            next = page.value.next;
        }
        Ok((all, zxid))
    }
}

/// The id in a credential.
pub fn session_id(credential: &str) -> &str {
    credential.split_once('.').map_or(credential, |(id, _)| id)
}

/// The sum of all samples of a metric in Prometheus' text; none where it does not appear.
pub fn metric_sum(text: &str, name: &str) -> Option<f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = if rest.starts_with('{') { rest.rsplit_once('}')?.1 } else { rest };
        rest.strip_prefix(' ')?.split_whitespace().next()?.parse::<f64>().ok()
    });
    samples.fold(None, |sum, sample| Some(sum.unwrap_or(0.0) + sample))
}

fn not_answered(error: &reqwest::Error) -> Failure {
    if error.is_connect() { Failure::NotDone(chain(error)) } else { Failure::Unknown(chain(error)) }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn classify(status: u16, bytes: &[u8]) -> Failure {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) if problem.code.is_transient() => Failure::NotDone(problem.to_string()),
        Ok(problem) if matches!(problem.code, Code::UnknownOutcome | Code::Internal) => {
            Failure::Unknown(problem.to_string())
        }
        Ok(problem) => Failure::Refused(Box::new(problem)),
        Err(_) => Failure::Unknown(format!("status {status} without a problem document")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_by_exact_name() {
        let text = "# HELP a_total x\n# TYPE a_total counter\na_total{node=\"1\"} 2\na_total{node=\"2\"} \
            3\na_total_more 7\nb 1.5\n";
        assert_eq!(metric_sum(text, "a_total"), Some(5.0));
        assert_eq!(metric_sum(text, "b"), Some(1.5));
        assert_eq!(metric_sum(text, "c"), None);
    }

    #[test]
    fn what_a_failure_makes_certain() {
        let body = |code| serde_json::to_vec(&Problem::new(code, "because")).unwrap();
        assert!(matches!(classify(503, &body(Code::NoLeader)), Failure::NotDone(_)));
        assert!(matches!(classify(504, &body(Code::UnknownOutcome)), Failure::Unknown(_)));
        assert!(matches!(classify(500, &body(Code::Internal)), Failure::Unknown(_)));
        assert!(matches!(classify(502, b"<html>"), Failure::Unknown(_)));
        assert_eq!(classify(423, &body(Code::LockBusy)).code(), Some(Code::LockBusy));
    }
}
