//! An HTTP client for one endpoint that makes one attempt. It gives the moments of sending and of the answer, and says
//! what the answer makes certain.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper_api::access::{Access, AccessChange, AccessChanged, Namespaces};
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::cluster::{AddMember, ClusterQuery, MemberQuery, Status, Transfer, Transferred};
use lockkeeper_api::locks::{Acquire, Acquired, Lock, Release, Released, Token, Verified};
use lockkeeper_api::nodes::{Changed, Create, Node, NodeQuery, Txn};
use lockkeeper_api::sessions::{KeptAlive, OpenSession, Session, SessionOpened, Sessions, SessionsQuery};
use lockkeeper_api::{Call, Code, Level, Problem, REQUEST_ID_HEADER, SESSION_HEADER, ZXID_HEADER};
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
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

/// A call, and how it is made. The same session and the same request id make it one, at however many nodes it is made.
#[derive(Clone, Debug)]
pub struct HttpCall {
    /// The call.
    pub call: Call,
    /// The session's credential.
    pub credential: Option<String>,
    /// The request id.
    pub request_id: Option<Uuid>,
    /// How long to wait for the answer.
    pub within: Duration,
}

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

    /// Its base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The client below, for streams.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Makes a call once, at this node.
    pub async fn send<T: DeserializeOwned>(&self, of: &HttpCall) -> Called<T> {
        let method = sendable(Method::from_bytes(of.call.route().0.as_bytes()));
        let url = format!("{}{}", self.base, of.call.target());
        let mut request = self.client.request(method, url).timeout(of.within);
        if let Some(session) = &of.credential {
            request = request.header(SESSION_HEADER, session);
        }
        if let Some(id) = of.request_id {
            request = request.header(REQUEST_ID_HEADER, id.to_string());
        }
        if let Some(body) = sendable(of.call.body()) {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
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

    async fn call<T: DeserializeOwned>(&self, call: Call) -> Called<T> {
        self.call_within(call, None, CALL_WITHIN).await
    }

    async fn call_within<T: DeserializeOwned>(
        &self,
        call: Call,
        credential: Option<&str>,
        within: Duration,
    ) -> Called<T> {
        self.send(&HttpCall { call, credential: credential.map(str::to_owned), request_id: None, within }).await
    }

    /// `GET /v1/cluster`.
    pub async fn status(&self, checksum: bool) -> Called<Status> {
        let query = ClusterQuery { checksum: Some(checksum), ..ClusterQuery::default() };
        self.call_within(Call::GetCluster { query }, None, Duration::from_secs(5)).await
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
        self.call(Call::TransferLeadership { body: Transfer { to } }).await
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
        self.call_within(Call::AddMember { body }, None, MEMBERS_WITHIN).await
    }

    /// Makes a learner a voter.
    pub async fn promote_member(&self, id: u64) -> Called<serde_json::Value> {
        let query = MemberQuery::default();
        self.call_within(Call::PromoteMember { id, query }, None, MEMBERS_WITHIN).await
    }

    /// Removes a member.
    pub async fn remove_member(&self, id: u64) -> Called<serde_json::Value> {
        self.call_within(Call::RemoveMember { id, query: MemberQuery::default() }, None, MEMBERS_WITHIN).await
    }

    /// All of access control.
    pub async fn access(&self) -> Called<Access> {
        self.call(Call::GetAccess { query: ReadQuery::default() }).await
    }

    /// Changes access control.
    pub async fn change_access(&self, change: &AccessChange) -> Called<AccessChanged> {
        self.call(Call::ChangeAccess { body: change.clone() }).await
    }

    /// The namespaces with limits.
    pub async fn namespaces(&self) -> Called<Namespaces> {
        self.call(Call::ListNamespaces { query: ReadQuery::default() }).await
    }

    /// Opens a session.
    pub async fn open_session(&self, timeout_ms: u32, label: &str) -> Called<SessionOpened> {
        let body = OpenSession { timeout_ms: Some(timeout_ms), label: Some(label.to_owned()) };
        self.call(Call::OpenSession { body }).await
    }

    /// Keeps a session alive.
    pub async fn keepalive(&self, credential: &str, within: Duration) -> Called<KeptAlive> {
        self.call_within(Call::KeepSessionAlive { id: session_number(credential) }, Some(credential), within).await
    }

    /// Closes a session.
    pub async fn close_session(&self, credential: &str) -> Called<serde_json::Value> {
        self.call_within(Call::CloseSession { id: session_number(credential) }, Some(credential), CALL_WITHIN).await
    }

    /// One session.
    pub async fn session(&self, id: u64) -> Called<Session> {
        self.call(Call::GetSession { id, query: ReadQuery::default() }).await
    }

    /// A page of the open sessions.
    pub async fn sessions(&self, after: u64) -> Called<Sessions> {
        let query = SessionsQuery { after: Some(after), ..SessionsQuery::default() };
        self.call(Call::ListSessions { query }).await
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
        let call = Call::AcquireLock { name: lock.to_owned(), body: body.clone() };
        self.call_within(call, credential, within).await
    }

    /// Gives a lock back.
    pub async fn release(&self, credential: &str, lock: &str, token: u64) -> Called<Released> {
        let body = Release { token, ..Release::default() };
        self.call_within(Call::ReleaseLock { name: lock.to_owned(), body }, Some(credential), CALL_WITHIN).await
    }

    /// Whether a token still holds.
    pub async fn verify(&self, lock: &str, token: u64, within: Duration) -> Called<Verified> {
        self.call_within(Call::VerifyLock { name: lock.to_owned(), body: Token { token } }, None, within).await
    }

    /// The holders and the waiters of a lock.
    pub async fn lock(&self, lock: &str) -> Called<Lock> {
        self.call(Call::GetLock { name: lock.to_owned(), query: ReadQuery::default() }).await
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
        self.call_within(Call::CreateNode { path: path.to_owned(), body: body.clone() }, credential, within).await
    }

    /// Carries out a transaction.
    pub async fn transact(&self, credential: &str, body: &serde_json::Value) -> Called<serde_json::Value> {
        let body: Txn = sendable(serde_json::from_value(body.clone()));
        self.call_within(Call::RunTransaction { body }, Some(credential), CALL_WITHIN).await
    }

    /// Reads a node, linearizable.
    pub async fn get(&self, path: &str, within: Duration) -> Called<Node> {
        let call = Call::GetNode { path: path.to_owned(), query: NodeQuery::default() };
        self.call_within(call, None, within).await
    }

    /// Reads a node as this replica has it.
    pub async fn get_stale(&self, path: &str) -> Called<Node> {
        let query = NodeQuery { consistency: Some(Level::Stale), ..NodeQuery::default() };
        self.call(Call::GetNode { path: path.to_owned(), query }).await
    }

    /// The names of all children as this replica has them, and the zxid of the last page.
    pub async fn children_stale(&self, path: &str) -> Result<(Vec<String>, u64), Failure> {
        let (children, consistency) = (Some(true), Some(Level::Stale));
        let mut query = NodeQuery { children, consistency, ..NodeQuery::default() };
        let mut names = Vec::new();
        loop {
            let call = Call::GetNode { path: path.to_owned(), query: query.clone() };
            let page: Answer<Node> = self.call(call).await?;
            names.extend(page.value.children.unwrap_or_default());
            match page.value.next_children {
                Some(next) => query.children_after = Some(next),
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

/// The id in a credential, for calls; 0, which no session has, where there is none.
fn session_number(credential: &str) -> u64 {
    session_id(credential).parse().unwrap_or(0)
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

/// A part of a call. One that cannot be sent is a fault of the harness and not a failed call, from which a check would
/// conclude something about the cluster.
fn sendable<T, E: std::error::Error>(part: Result<T, E>) -> T {
    part.unwrap_or_else(|error| panic!("the harness makes a call that cannot be sent: {}", chain(&error)))
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
