//! One call from its first try to its end: which failures lead to the next endpoint, and when the outcome is unknown.
//!
//! A try that was not sent, or was answered with a transient code, certainly changed nothing. A try that was sent and not
//! answered may have: it is repeated only if the request is safe to repeat (it reads, or its session and request id make
//! the cluster give the first answer again), and it is reported as unknown otherwise.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_api::{ACKNOWLEDGE_HEADER, Code, Problem, REQUEST_ID_HEADER, SESSION_HEADER};
use rand::Rng;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::client::Client;
use crate::endpoints::Endpoint;
use crate::error::{Error, Tried};
use crate::stream::{Asked, Hub, Reply};

/// Longest answer that is read.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Longer bodies go over HTTP, where what is too long is refused in words; a stream would break over it.
const MAX_STREAMED_BODY_BYTES: usize = 256 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
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
        self.note_tried(Tried { endpoint: endpoint.to_string(), why });
    }

    fn note_tried(&mut self, new: Tried) {
        match self.tried.iter_mut().find(|tried| tried.endpoint == new.endpoint) {
            Some(tried) => *tried = new,
            None => self.tried.push(new),
        }
    }

    fn into_error(self) -> Error {
        match self.open {
            Some(why) => Error::UnknownOutcome(why),
            None => Error::Unreachable { tried: self.tried },
        }
    }
}

/// A call that is under way.
struct Course<'a> {
    client: &'a Client,
    ask: &'a Ask,
    request_id: Option<Uuid>,
    may_repeat: bool,
    give_up_at: Instant,
    tries: Tries,
    pause: Duration,
    /// Over HTTP, even where there is a stream.
    plain: bool,
}

/// What is left to do after a try.
enum Next {
    Done(Result<(Endpoint, Bytes), Error>),
    /// This endpoint is of no use at the moment.
    MoveOn {
        place: usize,
        retry_after: Option<Duration>,
    },
    /// The same way again, after a pause.
    Again {
        retry_after: Option<Duration>,
    },
    /// At once over HTTP.
    OverHttp,
}

impl Course<'_> {
    async fn run(mut self) -> Result<(Endpoint, Bytes), Error> {
        loop {
            let stream = self.client.stream.as_ref().filter(|_| !self.plain);
            let next = match stream {
                Some(hub) => {
                    let asked = hub.ask(self.ask, self.request_id, self.give_up_at).await;
                    self.after_stream(hub, asked)
                }
                None => {
                    let place = self.client.endpoints.preferred();
                    let endpoint = self.client.endpoints.at(place).clone();
                    let outcome = self.client.try_once(&endpoint, self.ask, self.request_id, self.give_up_at).await?;
                    self.after(place, None, outcome)
                }
            };
            let (all_failed, retry_after) = match next {
                Next::Done(result) => return result,
                Next::OverHttp => {
                    self.plain = true;
                    continue;
                }
                Next::Again { retry_after } => (true, retry_after),
                Next::MoveOn { place, retry_after } => {
                    self.client.endpoints.move_on_from(place);
                    (self.tries.in_this_round >= self.client.endpoints.all().len(), retry_after)
                }
            };
            if all_failed {
                self.tries.in_this_round = 0;
                let rest = self.pause.max(retry_after.unwrap_or_default()).min(LONGEST_PAUSE).mul_f64(jitter());
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                if Instant::now() + rest >= self.give_up_at {
                    return Err(self.tries.into_error());
                }
                sleep(rest).await;
            } else if Instant::now() >= self.give_up_at {
                return Err(self.tries.into_error());
            }
        }
    }

    fn after_stream(&mut self, hub: &Arc<Hub>, asked: Asked) -> Next {
        let reply = match asked {
            Asked::Reply(reply) => reply,
            Asked::GaveUp { sent } => {
                if sent && self.ask.repeat != Repeat::Freely {
                    self.tries.open = Some("no answer came over the session's stream in time".into());
                }
                hub.tried().into_iter().for_each(|tried| self.tries.note_tried(tried));
                return Next::Done(Err(std::mem::take(&mut self.tries).into_error()));
            }
        };
        match reply {
            Reply::Answered { place, bytes } => self.after(place, None, Outcome::Answered(bytes)),
            Reply::Problem { place, generation, problem } => {
                self.after(place, Some((hub, generation)), Outcome::Problem(problem))
            }
            Reply::NotLockkeeper { place, why } => self.after(place, None, Outcome::NotLockkeeper(why)),
            Reply::Impossible(error) => Next::Done(Err(error)),
            // What only reads does not need the session.
            Reply::Over(_) if self.ask.repeat == Repeat::Freely => Next::OverHttp,
            Reply::Over(why) => Next::Done(Err(Error::Lost(why))),
            Reply::Elsewhere => Next::OverHttp,
        }
    }

    fn after(&mut self, place: usize, stream: Option<(&Arc<Hub>, u64)>, outcome: Outcome) -> Next {
        let endpoint = self.client.endpoints.at(place).clone();
        match outcome {
            Outcome::Answered(bytes) => {
                // The stream's driver has noted that already.
                if self.plain || self.client.stream.is_none() {
                    self.client.answered(self.request_id);
                }
                Next::Done(Ok((endpoint, bytes)))
            }
            Outcome::NotLockkeeper(why) => {
                Next::Done(Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }))
            }
            Outcome::Problem(problem) => self.after_problem(place, endpoint, stream, *problem),
            Outcome::NotSent(why) => {
                self.tries.note(&endpoint, why);
                Next::MoveOn { place, retry_after: None }
            }
            Outcome::Open(why) if self.may_repeat => {
                // A read whose answer is missing leaves nothing open.
                if self.ask.repeat != Repeat::Freely {
                    self.tries.open = Some(format!("{endpoint}: {why}"));
                }
                self.tries.note(&endpoint, why);
                Next::MoveOn { place, retry_after: None }
            }
            Outcome::Open(why) => Next::Done(Err(Error::UnknownOutcome(format!("{endpoint}: {why}")))),
        }
    }

    fn after_problem(
        &mut self,
        place: usize,
        endpoint: Endpoint,
        stream: Option<(&Arc<Hub>, u64)>,
        problem: Problem,
    ) -> Next {
        let transient = problem.code.is_transient();
        let open = problem.code == Code::UnknownOutcome && self.may_repeat;
        if !transient && !open {
            self.client.answered(self.request_id);
            return Next::Done(Err(refusal(problem, self.ask.as_session && self.client.identity.is_some())));
        }
        if !transient {
            self.tries.open = Some(format!("{endpoint}: {problem}"));
        }
        let retry_after = problem.retry_after_ms.map(Duration::from_millis).filter(|_| transient);
        let (code, why) = (problem.code, problem.to_string());
        self.tries.note(&endpoint, why.clone());
        match stream {
            None => Next::MoveOn { place, retry_after },
            Some((hub, generation)) => {
                // The node has waited as long as it was ready to. Another may be on the other side of whatever it is.
                if code != Code::Overloaded && self.client.endpoints.all().len() > 1 {
                    hub.abandon(generation, &why);
                }
                Next::Again { retry_after }
            }
        }
    }
}

impl Client {
    /// Asks until there is an answer, a refusal, or no patience left: over the session's stream where there is one, and over HTTP
    /// otherwise.
    pub(crate) async fn call<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, Error> {
        let (endpoint, bytes) = self.call_under(ask, self.request_id(ask)).await?;
        decode(&endpoint, &bytes)
    }

    /// A new request id, for requests that are repeated under one.
    fn request_id(&self, ask: &Ask) -> Option<Uuid> {
        (ask.repeat == Repeat::ByRequestId && self.identity.is_some()).then(Uuid::new_v4)
    }

    async fn call_under(&self, ask: &Ask, request_id: Option<Uuid>) -> Result<(Endpoint, Bytes), Error> {
        let may_repeat = match ask.repeat {
            Repeat::Freely | Repeat::Idempotent => true,
            Repeat::ByRequestId => request_id.is_some(),
            Repeat::Never => false,
        };
        let course = Course {
            client: self,
            ask,
            request_id,
            may_repeat,
            give_up_at: Instant::now() + self.options.patience + ask.wait,
            tries: Tries::default(),
            pause: FIRST_PAUSE,
            plain: !self.is_streamed(ask),
        };
        course.run().await
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
            self.spawn(move |client| async move { client.see_to(&ask, request_id).await });
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
    /// timeout, so this does too: it goes on until the cluster has decided.
    pub(crate) async fn see_to(&self, ask: &Ask, request_id: Option<Uuid>) {
        let give_up_at = Instant::now() + LONGEST_OUTAGE;
        while let Err(error) = self.call_under(ask, request_id).await {
            tracing::debug!(%error, target = ask.target, "a request that nobody waits for failed");
            let is_open = matches!(error, Error::UnknownOutcome(_) | Error::Unreachable { .. });
            if !is_open || Instant::now() >= give_up_at {
                return;
            }
            sleep(LONGEST_PAUSE.mul_f64(jitter())).await;
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
