//! One attempt of a request over HTTP, at one endpoint. What follows from its outcome is decided in `retry.rs`.

use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use lockkeeper_api::text::printable;
use lockkeeper_api::{ACKNOWLEDGE_HEADER, MAX_TIMEOUT_MS, Problem, REQUEST_ID_HEADER, SESSION_HEADER, TIMEOUT_HEADER};
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::context::Context;
use crate::endpoints::Endpoint;
use crate::error::{Error, SPEAKS_TLS, Tried};
use crate::request_spec::{MAX_ANSWER_BYTES, RequestSpec, unencodable};
use crate::tls;

/// Most acknowledgements in one header: a server may be set to take no more than 4 KiB of headers. The rest goes with
/// the next change.
const MAX_ACKNOWLEDGED_IN_HEADER: usize = 64;
/// After so many unanswered liveness checks in a row a node counts as dead.
const FAILED_LIVENESS_CHECKS: u32 = 2;

/// How the answer of a node begins that was asked without TLS at a port with TLS.
const PLAIN_AT_TLS_PORT: &[u8] = b"this port speaks TLS";

/// The body of an answer, as it comes.
pub(crate) type BodyPieces = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

/// How one attempt ended.
pub(crate) enum AttemptOutcome {
    Answered(Bytes),
    Problem(Box<Problem>),
    /// A node of another cluster answered, and may have carried the request out.
    OtherCluster(Box<Problem>),
    /// It never left this host: it certainly had no effect.
    NotSent(String),
    /// It was sent and no answer came: whether it had an effect is unknown.
    Unanswered(String),
    /// TLS failed: no secure connection was made, and the request certainly had no effect.
    Tls(String),
    NotLockkeeper(String),
}

/// How long a node may wait for the leader, so that its answer is here before the attempt ends.
fn leader_limit(of_attempt: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(1);
    const LONGEST_WAY: Duration = Duration::from_millis(250);
    let limit = of_attempt.saturating_sub((of_attempt / 8).min(LONGEST_WAY));
    limit.clamp(SHORTEST, Duration::from_millis(MAX_TIMEOUT_MS))
}

impl Context {
    /// `own_limit` is the time for the attempt beside the time that the request asks to wait.
    pub(crate) async fn attempt(
        &self,
        endpoint: &Endpoint,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
        own_limit: Duration,
        give_up_at: Instant,
    ) -> Result<AttemptOutcome, Error> {
        let request = self.request(endpoint, spec, request_id)?;
        let request = request.header(TIMEOUT_HEADER, leader_limit(own_limit).as_millis().to_string());
        let left = give_up_at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let limit = (own_limit + spec.wait).min(left);
        let answer = async {
            tokio::select! {
                outcome = send(request, |headers| self.cluster.note(endpoint, headers)) => outcome,
                () = self.dead(endpoint, spec.wait) => AttemptOutcome::Unanswered("the node no longer answers".into()),
            }
        };
        let late = |_| AttemptOutcome::Unanswered(format!("no answer within {} ms", limit.as_millis()));
        Ok(timeout(limit, answer).await.unwrap_or_else(late))
    }

    pub(crate) fn request(
        &self,
        endpoint: &Endpoint,
        spec: &RequestSpec,
        request_id: Option<Uuid>,
    ) -> Result<reqwest::RequestBuilder, Error> {
        let call = spec.call();
        let method = Method::from_bytes(call.route().0.as_bytes()).map_err(unencodable)?;
        let mut request = self.to_one_cluster(self.http.request(method, format!("{endpoint}{}", call.target())));
        if let Some(body) = call.body().map_err(unencodable)? {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body);
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
        if let Some(trace) = &spec.trace {
            request = request.header("traceparent", &trace.traceparent);
            if !trace.tracestate.is_empty() {
                request = request.header("tracestate", &trace.tracestate);
            }
        }
        Ok(request)
    }

    /// Completes when the endpoint counts as dead while a request waits there. A frozen node, or a host that is gone,
    /// closes no connection, and without a check the request would sit there until its wait is over.
    ///
    /// Never completes for a request that does not wait, or where there is no other endpoint to go to.
    async fn dead(&self, endpoint: &Endpoint, wait: Duration) {
        let every = self.options.liveness_interval;
        if wait < every || self.endpoints.all().len() < 2 {
            return pending().await;
        }
        let mut failures = 0;
        while failures < FAILED_LIVENESS_CHECKS {
            sleep(every).await;
            let check = self.http.get(format!("{endpoint}/healthz")).send();
            match timeout(every, check).await {
                Ok(Ok(_)) => failures = 0,
                _ => failures += 1,
            }
        }
    }
}

pub(crate) fn decode<T: DeserializeOwned>(endpoint: &Endpoint, bytes: &[u8]) -> Result<T, Error> {
    // An empty answer is read as null.
    let bytes = if bytes.is_empty() { b"null" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|e| Error::NotLockkeeper { endpoint: endpoint.to_string(), why: e.to_string() })
}

/// The cause at the bottom of reqwest's chain; the layers above only say that a request failed. Names the usual reason
/// for an answer that is not HTTP.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut at = error;
    let mut is_http = true;
    loop {
        is_http &= !at.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        match at.source() {
            Some(deeper) => at = deeper,
            None if is_http => return at.to_string(),
            None => return format!("the endpoint does not answer in HTTP ({at}); a TLS listener is an https:// URL"),
        }
    }
}

/// What a request without an answer leaves open.
fn without_answer(error: &reqwest::Error) -> AttemptOutcome {
    if error.is_connect() || error.is_builder() {
        return match tls::failure(error) {
            Some(why) => AttemptOutcome::Tls(why),
            None => AttemptOutcome::NotSent(root_cause(error)),
        };
    }
    match tls::rejection(error) {
        Some(why) => AttemptOutcome::Tls(why),
        None => AttemptOutcome::Unanswered(root_cause(error)),
    }
}

async fn send(
    request: reqwest::RequestBuilder,
    check: impl FnOnce(&HeaderMap) -> Result<(), Box<Problem>>,
) -> AttemptOutcome {
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) => return without_answer(&error),
    };
    let status = response.status();
    if let Err(problem) = check(response.headers()) {
        // A node that compares has refused. It cannot compare a request that names no uid.
        let is_refusal = status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE;
        return if is_refusal { AttemptOutcome::Problem(problem) } else { AttemptOutcome::OtherCluster(problem) };
    }
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
        Err(_) if body.starts_with(PLAIN_AT_TLS_PORT) => AttemptOutcome::Tls(SPEAKS_TLS.into()),
        Err(_) => AttemptOutcome::NotLockkeeper(without_problem(status, &body)),
    }
}

/// Describes an answer that is neither a success nor a problem document. What else answers HTTP often says in a line
/// what is wrong, as a TLS listener does that is asked without TLS.
pub(crate) fn without_problem(status: StatusCode, body: &[u8]) -> String {
    const LONGEST_LINE: usize = 120;
    let line = body.get(..LONGEST_LINE).unwrap_or(body).split(|b| *b == b'\n').next().unwrap_or_default();
    match std::str::from_utf8(line).map(str::trim) {
        Ok(line) if !line.is_empty() && !line.starts_with(['<', '{']) => {
            format!("status {status} without a problem document: {}", printable(line))
        }
        _ => format!("status {status} without a problem document"),
    }
}

/// Sends a request to one endpoint once, without retries: for calls that choose their endpoint themselves.
pub(crate) async fn send_once<T: DeserializeOwned>(
    endpoint: &Endpoint,
    request: reqwest::RequestBuilder,
    limit: Duration,
) -> Result<T, Error> {
    decode(endpoint, &send_once_for_bytes(endpoint, request, limit).await?)
}

/// The same for an answer that is no JSON.
pub(crate) async fn send_once_for_bytes(
    endpoint: &Endpoint,
    request: reqwest::RequestBuilder,
    limit: Duration,
) -> Result<Bytes, Error> {
    let tried = |why| vec![Tried { endpoint: endpoint.to_string(), why, code: None }];
    let unreachable = |why| Error::Unreachable { tried: tried(why) };
    match timeout(limit, send(request, |_| Ok(()))).await {
        Err(_) => Err(unreachable(format!("no answer within {} ms", limit.as_millis()))),
        Ok(AttemptOutcome::Answered(bytes)) => Ok(bytes),
        Ok(AttemptOutcome::Problem(problem)) if problem.code.is_transient() => Err(unreachable(problem.to_string())),
        Ok(AttemptOutcome::Problem(problem) | AttemptOutcome::OtherCluster(problem)) => {
            Err(Error::from_problem(*problem, true))
        }
        Ok(AttemptOutcome::NotSent(why) | AttemptOutcome::Unanswered(why)) => Err(unreachable(why)),
        Ok(AttemptOutcome::Tls(why)) => Err(Error::Tls { tried: tried(why) }),
        Ok(AttemptOutcome::NotLockkeeper(why)) => Err(Error::NotLockkeeper { endpoint: endpoint.to_string(), why }),
    }
}
