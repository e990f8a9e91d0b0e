//! Around every request of a client, over HTTP or on a stream: its admission, the metrics by route, the access log at
//! debug, the audit record of a failed authentication, and what a panic of its handler becomes.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;
use hyper::body::Incoming;
use lockkeeper_api::{CLUSTER_HEADER, ClusterIdentity, Code};
use lockkeeper_service::admission::{AtWork, Lane, SMALL_REPLY_BYTES};
use lockkeeper_service::audit::{AuthenticationMethod, Requester};
use lockkeeper_service::budget::{Budget, Exceeded, Holder};
use lockkeeper_service::caller::{ClientAddress, address_of};
use lockkeeper_service::failure::{Failure, RETRY_AFTER_MS};
use lockkeeper_service::principals::TOKEN_PREFIX;
use lockkeeper_service::reply::Reply;
use metrics::{Counter, Histogram};
use parking_lot::RwLock;

use crate::connection::Front;
use crate::context::HttpContext;
use crate::lanes::{has_own_lane, is_health};
use crate::response::failure_response;
use crate::{origin, paths};

/// The label of requests that found no route.
const NO_ROUTE: &str = "none";

/// Checks every request before the router: bounds that hold for all, and names with slashes folded into one part of the
/// path.
#[derive(Clone)]
pub(crate) struct ClientFront {
    pub(crate) context: Arc<HttpContext>,
    pub(crate) router: axum::Router,
}

impl Front for ClientFront {
    async fn answer(&self, request: axum::http::Request<Incoming>) -> Response {
        let mut response = self.respond(request.map(Body::new)).await;
        response.headers_mut().insert(CLUSTER_HEADER, self.context.cluster_header());
        response
    }
}

impl ClientFront {
    async fn respond(&self, mut request: Request) -> Response {
        match self.prepare(&request) {
            Ok(None) => {}
            Ok(Some(uri)) => *request.uri_mut() = uri,
            Err(failure) => {
                let response = failure_response(failure);
                let method = method_label(request.method());
                metrics_of(NO_ROUTE, method, Outcome::status(&response), response.code()).finish(Instant::now());
                return response;
            }
        }
        let from = address_of(request.extensions().get());
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let is_health = is_health(request.uri().path());
        let mut router = self.router.clone();
        match tower::Service::call(&mut router, request).await {
            Ok(response) if is_health => response,
            Ok(response) => {
                until_read(&self.context.service.admission.reply_bytes, Holder::address(from), reads, response)
            }
            Err(never) => match never {},
        }
    }
}

/// Makes a large reply take room until it is read. Where there is none, a read is refused; the reply to a change is
/// sent in any case.
fn until_read(budget: &Arc<Budget>, holder: Holder, reads: bool, response: Response) -> Response {
    let Some(size) = response.body().size_hint().exact().filter(|size| *size > SMALL_REPLY_BYTES as u64) else {
        return response;
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let taken = match budget.take(holder, size) {
        Ok(taken) => taken,
        Err(exceeded) if reads => return failure_response(Failure::from(exceeded)),
        Err(_) => return response,
    };
    let (parts, body) = response.into_parts();
    // The body is complete: this does not wait.
    match axum::body::to_bytes(body, size).now_or_never() {
        Some(Ok(bytes)) => Response::from_parts(parts, Body::from(taken.with(bytes))),
        _ => {
            let detail = "a reply of known length was incomplete; please report this";
            failure_response(Failure::new(Code::Internal, detail))
        }
    }
}

impl ClientFront {
    /// Checks the bounds of every request; returns the URI with its name folded, if it changed.
    fn prepare(&self, request: &Request) -> Result<Option<axum::http::Uri>, Failure> {
        let (bytes, header_bytes) = (header_size(request.headers()), self.context.header_bytes);
        if bytes > header_bytes {
            let detail = format!(
                "the header has {bytes} bytes, more than {header_bytes} (limits.header_bytes); send fewer or shorter \
                 fields"
            );
            return Err(Failure::new(Code::HeaderTooLarge, detail));
        }
        if is_health(request.uri().path()) {
            // Probes send any name of a host.
            return origin::check_host_count(request.version(), request.headers()).map(|()| None);
        }
        self.check_cluster(request.headers())?;
        check_no_token(request.uri())?;
        origin::check_host(request.version(), request.headers())?;
        self.context.origins.check(request.method(), request.headers())?;
        paths::fold(request.method(), request.uri())
    }

    /// Refuses a request that names another cluster: its client reaches two. A node that does not know its cluster's
    /// uid cannot compare, and a client that sees another uid in the answer must know that nothing was done.
    fn check_cluster(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let named = headers.get(CLUSTER_HEADER).filter(|named| **named != self.context.cluster_header());
        let Some(named) = named else { return Ok(()) };
        let named = ClusterIdentity::parse(named.to_str().unwrap_or_default());
        let own = self.context.service.cluster_identity();
        if !own.differs_from(&named) {
            if own.uid.is_some() || named.uid.is_none() {
                return Ok(());
            }
            let detail = format!(
                "the request is for cluster {named}, and this node does not know the uid of its cluster yet; not \
                 executed; ask another node or try again"
            );
            return Err(Failure::new(Code::NoLeader, detail).retry_after(RETRY_AFTER_MS));
        }
        let detail = format!(
            "the request is for cluster {named}, and this node belongs to cluster {own}: let all endpoints be of one \
             cluster; if {named} was restored or recovered as {own}, restart the client"
        );
        Err(Failure::new(Code::OtherCluster, detail))
    }
}

/// Refuses a token in the query of a URL (RFC 6750, section 5.3): logs, proxies and histories keep URLs.
fn check_no_token(uri: &Uri) -> Result<(), Failure> {
    let mut fields = uri.query().unwrap_or_default().split('&').filter_map(|field| field.split_once('='));
    if !fields.any(|(name, value)| name == "access_token" || value.starts_with(TOKEN_PREFIX)) {
        return Ok(());
    }
    let detail = "a token does not belong in a URL, which logs and proxies keep; send it in the header Authorization: \
                  Bearer, and revoke the one that was sent";
    Err(Failure::bad_request(detail))
}

fn header_size(headers: &HeaderMap) -> usize {
    // Each line has a colon, a space and a line break besides.
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// The layer of the router.
pub(crate) async fn middleware(State(context): State<Arc<HttpContext>>, mut request: Request, next: Next) -> Response {
    let method = method_label(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
    let path = tracing::enabled!(tracing::Level::DEBUG).then(|| request.uri().path().to_owned());
    // Health and metrics need no place: they are needed most when the node is overloaded.
    let admitted = route.starts_with("/v1/").then(|| {
        let from = address_of(request.extensions().get());
        // A connection has one request at a time.
        context.service.admission.enter(from, has_own_lane(method, route).then(Lane::default).as_ref())
    });
    let ClientAddress { address, .. } = request.extensions().get().copied().unwrap_or_default();
    let has_authorization = request.headers().contains_key(header::AUTHORIZATION);
    let disconnects = DisconnectCounter::new();
    let response = serve((method, route, path), admitted, |at_work| {
        if let Some(at_work) = at_work {
            request.extensions_mut().insert(at_work);
        }
        next.run(request).map(Ok)
    });
    let response: Response = response.await.unwrap_or_else(failure_response);
    disconnects.disarm();
    if let Some(method) = failed_authentication(response.code(), has_authorization) {
        context.service.audit.authentication_failed(Requester::at(address.ip()), method);
    }
    response
}

/// The proof that a request was refused for. A caller who shows none has not failed to prove anything.
pub(crate) fn failed_authentication(code: Option<Code>, has_authorization: bool) -> Option<AuthenticationMethod> {
    match code? {
        Code::WrongSecret => Some(AuthenticationMethod::SessionSecret),
        Code::Unauthenticated if has_authorization => Some(AuthenticationMethod::AuthorizationHeader),
        _ => None,
    }
}

/// The outcome of a request as its metrics label it.
pub(crate) trait Outcome {
    fn status(&self) -> u16;

    fn code(&self) -> Option<Code>;
}

impl Outcome for Response {
    fn status(&self) -> u16 {
        self.status().as_u16()
    }

    fn code(&self) -> Option<Code> {
        self.extensions().get().copied()
    }
}

impl Outcome for Reply {
    fn status(&self) -> u16 {
        self.status
    }

    fn code(&self) -> Option<Code> {
        None
    }
}

/// Serves a request over HTTP or a call on a stream: refuses it if admission did, catches a panic, frees the place,
/// counts and logs. `admitted` is `None` for requests that need no place.
pub(crate) async fn serve<T, F>(
    (method, route, path): (&'static str, &str, Option<String>),
    admitted: Option<Result<AtWork, Exceeded>>,
    work: impl FnOnce(Option<AtWork>) -> F,
) -> Result<T, Failure>
where
    T: Outcome,
    F: Future<Output = Result<T, Failure>>,
{
    let started = Instant::now();
    let done = match admitted.transpose() {
        Ok(at_work) => {
            let done = caught(work(at_work.clone())).await;
            at_work.iter().for_each(AtWork::leave);
            done.unwrap_or_else(Err)
        }
        Err(exceeded) => Err(exceeded.into()),
    };
    let (status, code) = match &done {
        Ok(done) => (done.status(), done.code()),
        Err(failure) => (failure.status(), Some(failure.code())),
    };
    metrics_of(route, method, status, code).finish(started);
    if let Some(path) = path {
        tracing::debug!(method, path, status, took_us = started.elapsed().as_micros(), "request");
    }
    done
}

/// Turns a panic of a handler into a problem document.
async fn caught<T>(handling: impl Future<Output = T>) -> Result<T, Failure> {
    AssertUnwindSafe(handling).catch_unwind().await.map_err(|panic| {
        tracing::error!(panic = message_of(&*panic), "a handler panicked; please report this");
        let detail =
            "a defect of the server; its log has more; the request may or may not have been executed; please report \
             this";
        Failure::new(Code::Internal, detail)
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Counts the requests whose client went away before the answer.
struct DisconnectCounter(bool);

impl DisconnectCounter {
    fn new() -> Self {
        Self(true)
    }

    fn disarm(mut self) {
        self.0 = false;
    }
}

impl Drop for DisconnectCounter {
    fn drop(&mut self) {
        if self.0 {
            metrics::counter!("lockkeeper_http_requests_abandoned_total").increment(1);
        }
    }
}

/// Counter and latency of one route, method and outcome.
#[derive(Clone)]
struct RouteMetrics {
    requests: Counter,
    seconds: Histogram,
}

impl RouteMetrics {
    fn finish(&self, started: Instant) {
        self.requests.increment(1);
        self.seconds.record(started.elapsed().as_secs_f64());
    }
}

/// Looked up by hash instead of registered each time, so that a request costs the metrics no allocation.
static KNOWN: LazyLock<RwLock<HashMap<Labels, RouteMetrics>>> = LazyLock::new(RwLock::default);

/// Route patterns come from the router's table, so there are only so many of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Labels {
    route: u64,
    method: &'static str,
    status: u16,
    code: Option<Code>,
}

fn metrics_of(route: &str, method: &'static str, status: u16, code: Option<Code>) -> RouteMetrics {
    let labels = Labels { route: hash_of(route), method, status, code };
    if let Some(known) = KNOWN.read().get(&labels) {
        return known.clone();
    }
    let code = code.map_or_else(|| "ok".to_owned(), |code| code.to_string());
    let (route, method) = (route.to_owned(), labels.method);
    let made = RouteMetrics {
        requests: metrics::counter!("lockkeeper_http_requests_total",
            "route" => route.clone(), "method" => method, "status" => status.to_string(), "code" => code),
        seconds: metrics::histogram!("lockkeeper_http_request_duration_seconds", "route" => route, "method" => method),
    };
    KNOWN.write().insert(labels, made.clone());
    made
}

fn hash_of(route: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    route.hash(&mut hasher);
    hasher.finish()
}

/// A client may send any word as a method; only the usual ones become labels.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_a_problem() {
        let response = caught(async { panic!("on purpose") }).await.unwrap_or_else(failure_response);
        assert_eq!(response.status().as_u16(), 500);
        assert_eq!(response.extensions().get::<Code>(), Some(&Code::Internal));
        let response = caught(async { Response::new(Body::empty()) }).await.unwrap_or_else(failure_response);
        assert_eq!(response.status().as_u16(), 200);
    }

    #[test]
    fn only_a_proof_that_was_shown_can_fail() {
        let failed = |code, has_authorization| failed_authentication(Some(code), has_authorization);
        assert_eq!(failed(Code::WrongSecret, false), Some(AuthenticationMethod::SessionSecret));
        assert_eq!(failed(Code::Unauthenticated, true), Some(AuthenticationMethod::AuthorizationHeader));
        assert_eq!(failed(Code::Unauthenticated, false), None);
        assert_eq!(failed(Code::Forbidden, true), None, "a metric counts refusals");
        assert_eq!(failed_authentication(None, true), None);
    }

    #[test]
    fn labels_are_few() {
        assert_eq!(method_label(&Method::GET), "GET");
        assert_eq!(method_label(&"BREW".parse().unwrap()), "other");
    }
}
