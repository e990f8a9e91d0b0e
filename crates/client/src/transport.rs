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
use crate::endpoints::Endpoint;
use crate::error::{Error, Tried};
use crate::retry::{RetryLoop, jitter, refusal};

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
pub(crate) enum RetryPolicy {
    /// It changes nothing, or a second time changes nothing more.
    Always,
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
pub(crate) struct RequestSpec {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// Made anew for each try, for bodies that say how long is left to wait.
    pub(crate) body: Option<MakeBody>,
    pub(crate) repeat: RetryPolicy,
    /// How long the request itself asks the server to wait.
    pub(crate) wait: Duration,
    /// Whether the session's credential goes with it, where there is one.
    pub(crate) as_session: bool,
    /// Whether its body is too long for a stream.
    large: bool,
}

impl fmt::Debug for RequestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)
    }
}

impl RequestSpec {
    pub(crate) fn new(method: Method, target: String, repeat: RetryPolicy) -> Self {
        Self { method, target, body: None, repeat, wait: Duration::ZERO, as_session: true, large: false }
    }

    pub(crate) fn get(target: String) -> Self {
        Self::new(Method::GET, target, RetryPolicy::Always)
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
pub(crate) enum AttemptOutcome {
    Answered(Bytes),
    Problem(Box<Problem>),
    /// It never left, or certainly had no effect.
    NotSent(String),
    /// It was sent and no answer came.
    Unanswered(String),
    NotLockkeeper(String),
}

impl Client {
    /// Asks until there is an answer, a refusal, or no patience left: over the session's stream where there is one, and over HTTP
    /// otherwise.
    pub(crate) async fn call<T: DeserializeOwned>(&self, spec: &RequestSpec) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(spec, self.request_id(spec), None).await?;
        decode(&endpoint, &bytes)
    }

    /// The same under an id that the caller keeps, to ask again what became of it.
    pub(crate) async fn call_as<T: DeserializeOwned>(&self, spec: &RequestSpec, request_id: Uuid) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(spec, Some(request_id), None).await?;
        decode(&endpoint, &bytes)
    }

    /// A new request id, for requests that are repeated under one.
    fn request_id(&self, spec: &RequestSpec) -> Option<Uuid> {
        (spec.repeat == RetryPolicy::ByRequestId && self.identity.is_some()).then(Uuid::new_v4)
    }

    async fn call_under(
        &self,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        earlier: Option<String>,
    ) -> Result<(Endpoint, Bytes), Error> {
        RetryLoop::new(self, spec, request_id, earlier, !self.is_streamed(spec)).run().await
    }

    fn is_streamed(&self, spec: &RequestSpec) -> bool {
        self.stream.is_some() && spec.as_session && spec.repeat != RetryPolicy::Never && !spec.large
    }

    /// Hands a request over without waiting for what comes of it, from wherever this is called: for what must be said while
    /// something is dropped. Over a stream it comes after all that was asked before and before all that is asked after it. Where no
    /// runtime lives any more nothing is sent, and what the session owns goes with it.
    pub(crate) fn send_detached(&self, spec: RequestSpec) {
        let request_id = self.request_id(&spec);
        let left = match &self.stream {
            Some(stream) if self.is_streamed(&spec) => stream.send_detached(spec, request_id),
            _ => Err(spec),
        };
        if let Err(spec) = left {
            self.spawn(move |client| async move { client.retry_until_decided(&spec, request_id, None).await });
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
    pub(crate) async fn retry_until_decided(
        &self,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        mut earlier: Option<String>,
    ) {
        let give_up_at = Instant::now() + LONGEST_OUTAGE;
        while let Err(error) = self.call_under(spec, request_id, earlier.clone()).await {
            tracing::debug!(%error, target = spec.target, "a request that nobody waits for failed");
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

    pub(crate) async fn attempt(
        &self,
        endpoint: &Endpoint,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        give_up_at: Instant,
    ) -> Result<AttemptOutcome, Error> {
        let request = self.request(endpoint, spec, request_id)?;
        let left = give_up_at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let limit = (self.options.attempt_timeout + spec.wait).min(left);
        let answer = async {
            tokio::select! {
                outcome = send(request) => outcome,
                () = self.dead(endpoint, spec.wait) => AttemptOutcome::Unanswered("the node no longer answers".into()),
            }
        };
        let outcome = tokio::time::timeout(limit, answer).await;
        Ok(outcome.unwrap_or_else(|_| AttemptOutcome::Unanswered(format!("no answer within {} ms", limit.as_millis()))))
    }

    pub(crate) fn request(
        &self,
        endpoint: &Endpoint,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let mut request = self.http.request(spec.method.clone(), format!("{endpoint}{}", spec.target));
        if let Some(make) = &spec.body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(make()?);
        }
        if let Some(identity) = self.identity.as_ref().filter(|_| spec.as_session) {
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

async fn send(request: reqwest::RequestBuilder) -> AttemptOutcome {
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_connect() || error.is_builder() => return AttemptOutcome::NotSent(root_cause(&error)),
        Err(error) => return AttemptOutcome::Unanswered(root_cause(&error)),
    };
    let status = response.status();
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) if body.len() + piece.len() <= MAX_ANSWER_BYTES => body.extend_from_slice(&piece),
            Ok(Some(_)) => return AttemptOutcome::NotLockkeeper(format!("longer than {MAX_ANSWER_BYTES} bytes")),
            Ok(None) => break,
            Err(error) => return AttemptOutcome::Unanswered(root_cause(&error)),
        }
    }
    if status.is_success() {
        return AttemptOutcome::Answered(body.freeze());
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => AttemptOutcome::Problem(Box::new(problem)),
        Err(_) => AttemptOutcome::NotLockkeeper(format!("status {status} without a problem document")),
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
        Ok(AttemptOutcome::Answered(bytes)) => decode(endpoint, &bytes),
        Ok(AttemptOutcome::Problem(problem)) if problem.code.is_transient() => Err(unreachable(problem.to_string())),
        Ok(AttemptOutcome::Problem(problem)) => Err(refusal(*problem, true)),
        Ok(AttemptOutcome::NotSent(why) | AttemptOutcome::Unanswered(why)) => Err(unreachable(why)),
        Ok(AttemptOutcome::NotLockkeeper(why)) => Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }),
    }
}
