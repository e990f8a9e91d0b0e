//! One call from its first try to its end: which failures lead to the next endpoint, and when the outcome is unknown.
//!
//! A try that was not sent, or was answered with a transient code, certainly changed nothing. A try that was sent and not
//! answered may have: it is repeated only if the request is safe to repeat (it reads, or its session and request id make
//! the cluster give the first answer again), and it is reported as unknown otherwise.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_api::{ACKNOWLEDGE_HEADER, Code, Problem, REQUEST_ID_HEADER, SESSION_HEADER};
use rand::Rng;
use reqwest::Method;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::client::Client;
use crate::endpoints::Endpoint;
use crate::error::{Error, Tried};

/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

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
}

impl Ask {
    pub(crate) fn new(method: Method, target: String, repeat: Repeat) -> Self {
        Self { method, target, body: None, repeat, wait: Duration::ZERO, as_session: true }
    }

    pub(crate) fn get(target: String) -> Self {
        Self::new(Method::GET, target, Repeat::Freely)
    }

    pub(crate) fn json(mut self, body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let bytes = encode(body)?;
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
enum Outcome {
    Answered(Bytes),
    Problem(Box<Problem>),
    /// It never left, or certainly had no effect.
    NotSent(String),
    /// It was sent and no answer came.
    Open(String),
    NotLockkeeper(String),
}

/// What the tries so far say together.
#[derive(Default)]
struct Tries {
    tried: Vec<Tried>,
    /// Some try may have taken effect.
    open: Option<String>,
    in_this_round: usize,
}

impl Tries {
    fn note(&mut self, endpoint: &Endpoint, why: String) {
        self.in_this_round += 1;
        match self.tried.iter_mut().find(|t| t.endpoint == endpoint.as_str()) {
            Some(tried) => tried.why = why,
            None => self.tried.push(Tried { endpoint: endpoint.to_string(), why }),
        }
    }

    fn into_error(self) -> Error {
        match self.open {
            Some(why) => Error::UnknownOutcome(why),
            None => Error::Unreachable { tried: self.tried },
        }
    }
}

impl Client {
    /// Asks until there is an answer, a refusal, or no patience left.
    pub(crate) async fn call<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Error> {
        let request_id = (ask.repeat == Repeat::ByRequestId && self.identity.is_some()).then(Uuid::new_v4);
        let may_repeat = match ask.repeat {
            Repeat::Freely | Repeat::Idempotent => true,
            Repeat::ByRequestId => request_id.is_some(),
            Repeat::Never => false,
        };
        let give_up_at = Instant::now() + self.options.patience + ask.wait;
        let mut tries = Tries::default();
        let mut pause = FIRST_PAUSE;
        loop {
            let place = self.endpoints.preferred();
            let endpoint = self.endpoints.at(place).clone();
            let mut retry_after = None;
            match self.try_once(&endpoint, ask, request_id, give_up_at).await? {
                Outcome::Answered(bytes) => {
                    self.answered(request_id);
                    return decode(&endpoint, &bytes);
                }
                Outcome::NotLockkeeper(why) => {
                    return Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why });
                }
                Outcome::Problem(problem) if problem.code.is_transient() => {
                    retry_after = problem.retry_after_ms.map(Duration::from_millis);
                    tries.note(&endpoint, problem.to_string());
                }
                Outcome::Problem(problem) if problem.code == Code::UnknownOutcome && may_repeat => {
                    tries.open = Some(format!("{endpoint}: {problem}"));
                    tries.note(&endpoint, problem.to_string());
                }
                Outcome::Problem(problem) => {
                    self.answered(request_id);
                    return Err(refusal(*problem, ask.as_session && self.identity.is_some()));
                }
                Outcome::NotSent(why) => tries.note(&endpoint, why),
                Outcome::Open(why) if may_repeat => {
                    // A read whose answer is missing leaves nothing open.
                    if ask.repeat != Repeat::Freely {
                        tries.open = Some(format!("{endpoint}: {why}"));
                    }
                    tries.note(&endpoint, why);
                }
                Outcome::Open(why) => return Err(Error::UnknownOutcome(format!("{endpoint}: {why}"))),
            }
            self.endpoints.move_on_from(place);
            if tries.in_this_round >= self.endpoints.all().len() {
                tries.in_this_round = 0;
                let rest = pause.max(retry_after.unwrap_or_default()).min(LONGEST_PAUSE).mul_f64(jitter());
                pause = (pause * 2).min(LONGEST_PAUSE);
                if Instant::now() + rest >= give_up_at {
                    return Err(tries.into_error());
                }
                sleep(rest).await;
            } else if Instant::now() >= give_up_at {
                return Err(tries.into_error());
            }
        }
    }

    /// Hands a request over without waiting for what comes of it, from wherever this is called: for what must be said while
    /// something is dropped. Where no runtime lives any more nothing is sent, and what the session owns goes with it.
    pub(crate) fn post(&self, ask: Ask) {
        let own = || self.identity.as_ref().and_then(|identity| identity.runtime.clone());
        let Some(runtime) = own().or_else(|| Handle::try_current().ok()) else { return };
        let client = self.clone();
        runtime.spawn(async move {
            if let Err(error) = client.call::<IgnoredAny>(&ask).await {
                tracing::debug!(%error, target = ask.target, "a request that nobody waits for failed");
            }
        });
    }

    fn answered(&self, request_id: Option<Uuid>) {
        if let (Some(identity), Some(id)) = (&self.identity, request_id) {
            identity.acknowledgements.answered(id);
        }
    }

    async fn try_once(
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
                let done = identity.acknowledgements.take();
                if !done.is_empty() {
                    let list: Vec<String> = done.iter().map(Uuid::to_string).collect();
                    request = request.header(ACKNOWLEDGE_HEADER, list.join(","));
                }
            }
        }
        Ok(request)
    }
}

/// Many callers that failed together should not come back together.
fn jitter() -> f64 {
    rand::rng().random_range(0.5..1.0)
}

fn refusal(problem: Problem, of_own_session: bool) -> Error {
    match problem.code {
        Code::SessionExpired if of_own_session => Error::Lost(problem.detail),
        Code::UnknownOutcome => Error::UnknownOutcome(problem.detail),
        _ => Error::Refused(Box::new(problem)),
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
