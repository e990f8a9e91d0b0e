//! What a call is, the doors through which it goes, and one try of it over HTTP. What follows from a try is in `course.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_api::{ACKNOWLEDGE_HEADER, Code, Problem, REQUEST_ID_HEADER, SESSION_HEADER};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::client::{Client, MAX_ACKNOWLEDGED_IN_HEADER};
use crate::course::{Course, jitter, refusal};
use crate::endpoints::Endpoint;
use crate::error::{Error, Tried};

/// Longest answer that is read.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Longer bodies go over HTTP, where what is too long is refused in words; a stream would break over it.
const MAX_STREAMED_BODY_BYTES: usize = 256 << 10;
/// Before what was posted is tried anew, after an outage that outlasted the client's patience.
const PAUSE_IN_OUTAGE: Duration = Duration::from_millis(500);
/// Longest that what was posted is tried; no session outlives this in silence.
const LONGEST_OUTAGE: Duration = Duration::from_secs(3_600);

/// Whether a request may be sent again when its fate is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or a second time changes nothing more.
    Freely,
    /// Its body carries what makes it one and the same request.
    Idempotent,
    /// With the session's request id; without a session not at all.
    ByRequestId,
    /// Not at all.
    Never,
}

type MakeBody = Arc<dyn Fn() -> Result<Bytes, Error> + Send + Sync>;

/// What to ask.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// Made anew for each try, for bodies that say how long is left to wait.
    pub(crate) body: Option<MakeBody>,
    pub(crate) repeat: Repeat,
    /// How long the request itself asks the server to wait.
    pub(crate) wait: Duration,
    /// Whether the session's credential goes with it, where there is one.
    pub(crate) as_session: bool,
    /// Whether its body is too long for a stream.
    large: bool,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)
    }
}

impl Ask {
    pub(crate) fn new(method: Method, target: String, repeat: Repeat) -> Self {
        Self { method, target, body: None, repeat, wait: Duration::ZERO, as_session: true, large: false }
    }

    pub(crate) fn get(target: String) -> Self {
        Self::new(Method::GET, target, Repeat::Freely)
    }

    pub(crate) fn json(mut self, body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let bytes = encode(body)?;
        self.large = bytes.len() > MAX_STREAMED_BODY_BYTES;
        self.body = Some(Arc::new(move || Ok(bytes.clone())));
        Ok(self)
    }

    pub(crate) fn json_with(mut self, make: impl Fn() -> Result<Bytes, Error> + Send + Sync + 'static) -> Self {
        self.body = Some(Arc::new(make));
        self
    }

    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    pub(crate) fn anonymous(mut self) -> Self {
        self.as_session = false;
        self
    }
}

pub(crate) fn encode(body: &(impl Serialize + ?Sized)) -> Result<Bytes, Error> {
    let bytes = serde_json::to_vec(body).map_err(|e| Error::refused(Code::BadRequest, e.to_string()))?;
    Ok(Bytes::from(bytes))
}

/// How one try went.
pub(crate) enum Outcome {
    Answered(Bytes),
    Problem(Box<Problem>),
    /// It never left, or certainly had no effect.
    NotSent(String),
    /// It was sent and no answer came.
    Open(String),
    NotLockkeeper(String),
}

impl Client {
    /// Asks until there is an answer, a refusal, or no patience left: over the session's stream where there is one, and over HTTP
    /// otherwise.
    pub(crate) async fn call<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(ask, self.request_id(ask), None).await?;
        decode(&endpoint, &bytes)
    }

    /// The same under an id that the caller keeps, to ask again what became of it.
    pub(crate) async fn call_as<T: DeserializeOwned>(&self, ask: &Ask, request_id: Uuid) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(ask, Some(request_id), None).await?;
        decode(&endpoint, &bytes)
    }

    /// A new request id, for requests that are repeated under one.
    fn request_id(&self, ask: &Ask) -> Option<Uuid> {
        (ask.repeat == Repeat::ByRequestId && self.identity.is_some()).then(Uuid::new_v4)
    }

    async fn call_under(
        &self,
        ask: &Ask,
        request_id: Option<Uuid>,
        earlier: Option<String>,
    ) -> Result<(Endpoint, Bytes), Error> {
        Course::new(self, ask, request_id, earlier, !self.is_streamed(ask)).run().await
    }

    fn is_streamed(&self, ask: &Ask) -> bool {
        self.stream.is_some() && ask.as_session && ask.repeat != Repeat::Never && !ask.large
    }

    /// Hands a request over without waiting for what comes of it, from wherever this is called: for what must be said while
    /// something is dropped. Over a stream it comes after all that was asked before and before all that is asked after it. Where no
    /// runtime lives any more nothing is sent, and what the session owns goes with it.
    pub(crate) fn post(&self, ask: Ask) {
        let request_id = self.request_id(&ask);
        let left = match &self.stream {
            Some(hub) if self.is_streamed(&ask) => hub.post(ask, request_id),
            _ => Err(ask),
        };
        if let Err(ask) = left {
            self.spawn(move |client| async move { client.see_to(&ask, request_id, None).await });
        }
    }

    /// Runs something on the runtime in which the session was opened, or else on this one.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Self) -> F) {
        let own = self.identity.as_ref().and_then(|identity| identity.runtime.clone());
        if let Some(runtime) = own.or_else(|| Handle::try_current().ok()) {
            drop(runtime.spawn(work(self.clone())));
        }
    }

    /// Has a request carried out of which nobody waits to hear. What the session owns outlives an outage that is shorter than its
    /// timeout, so this does too: it goes on until the cluster has decided. `earlier` says why it may have taken place already.
    pub(crate) async fn see_to(&self, ask: &Ask, request_id: Option<Uuid>, mut earlier: Option<String>) {
        let give_up_at = Instant::now() + LONGEST_OUTAGE;
        while let Err(error) = self.call_under(ask, request_id, earlier.clone()).await {
            tracing::debug!(%error, target = ask.target, "a request that nobody waits for failed");
            if Instant::now() >= give_up_at {
                return;
            }
            match error {
                Error::UnknownOutcome(why) => earlier = Some(why),
                // A proxy's page says nothing about the cluster, nor about what became of the request behind it.
                Error::NotLockkeeper { .. } => earlier = Some(error.to_string()),
                Error::Unreachable { .. } => {}
                Error::Refused(_) | Error::Lost(_) => return,
            }
            sleep(PAUSE_IN_OUTAGE.mul_f64(jitter())).await;
        }
    }

    pub(crate) async fn try_once(
        &self,
        endpoint: &Endpoint,
        ask: &Ask,
        request_id: Option<Uuid>,
        give_up_at: Instant,
    ) -> Result<Outcome, Error> {
        let request = self.request(endpoint, ask, request_id)?;
        let left = give_up_at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let limit = (self.options.attempt_timeout + ask.wait).min(left);
        let answer = async {
            tokio::select! {
                outcome = send(request) => outcome,
                () = self.dead(endpoint, ask.wait) => Outcome::Open("the node no longer answers".into()),
            }
        };
        let outcome = tokio::time::timeout(limit, answer).await;
        Ok(outcome.unwrap_or_else(|_| Outcome::Open(format!("no answer within {} ms", limit.as_millis()))))
    }

    pub(crate) fn request(
        &self,
        endpoint: &Endpoint,
        ask: &Ask,
        request_id: Option<Uuid>,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let mut request = self.http.request(ask.method.clone(), format!("{endpoint}{}", ask.target));
        if let Some(make) = &ask.body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(make()?);
        }
        if let Some(identity) = self.identity.as_ref().filter(|_| ask.as_session) {
            request = request.header(SESSION_HEADER, identity.credential.to_string());
            if let Some(id) = request_id {
                request = request.header(REQUEST_ID_HEADER, id.to_string());
                let done = identity.acknowledgements.take(MAX_ACKNOWLEDGED_IN_HEADER);
                if !done.is_empty() {
                    let list: Vec<String> = done.iter().map(Uuid::to_string).collect();
                    request = request.header(ACKNOWLEDGE_HEADER, list.join(","));
                }
            }
        }
        Ok(request)
    }
}

fn decode<T: DeserializeOwned>(endpoint: &Endpoint, bytes: &[u8]) -> Result<T, Error> {
    // An answer without a body is read as nothing.
    let bytes = if bytes.is_empty() { b"null" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|e| Error::NotLockkeeper { endpoint: endpoint.to_string(), why: e.to_string() })
}

/// The cause at the bottom of reqwest's chain; the layers above only say that a request failed.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut at = error;
    while let Some(deeper) = at.source() {
        at = deeper;
    }
    at.to_string()
}

async fn send(request: reqwest::RequestBuilder) -> Outcome {
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_connect() || error.is_builder() => return Outcome::NotSent(root_cause(&error)),
        Err(error) => return Outcome::Open(root_cause(&error)),
    };
    let status = response.status();
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) if body.len() + piece.len() <= MAX_ANSWER_BYTES => body.extend_from_slice(&piece),
            Ok(Some(_)) => return Outcome::NotLockkeeper(format!("longer than {MAX_ANSWER_BYTES} bytes")),
            Ok(None) => break,
            Err(error) => return Outcome::Open(root_cause(&error)),
        }
    }
    if status.is_success() {
        return Outcome::Answered(body.freeze());
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => Outcome::Problem(Box::new(problem)),
        Err(_) => Outcome::NotLockkeeper(format!("status {status} without a problem document")),
    }
}

/// Asks one endpoint once, without the ring: for calls that choose their endpoint themselves.
pub(crate) async fn send_once<T: DeserializeOwned>(
    endpoint: &Endpoint,
    request: reqwest::RequestBuilder,
    limit: Duration,
) -> Result<T, Error> {
    let unreachable = |why| Error::Unreachable { tried: vec![Tried { endpoint: endpoint.to_string(), why }] };
    match tokio::time::timeout(limit, send(request)).await {
        Err(_) => Err(unreachable(format!("no answer within {} ms", limit.as_millis()))),
        Ok(Outcome::Answered(bytes)) => decode(endpoint, &bytes),
        Ok(Outcome::Problem(problem)) if problem.code.is_transient() => Err(unreachable(problem.to_string())),
        Ok(Outcome::Problem(problem)) => Err(refusal(*problem, true)),
        Ok(Outcome::NotSent(why) | Outcome::Open(why)) => Err(unreachable(why)),
        Ok(Outcome::NotLockkeeper(why)) => Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }),
    }
}
