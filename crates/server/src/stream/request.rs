//! From a request on the stream to the work that answers it. Locks, which are what streams are for, go straight to what
//! their HTTP handlers do; everything else goes through the router, as if it had come over HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use futures::future::{AbortHandle, Aborted, BoxFuture, abortable};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use lockkeeper_api::locks::{Acquire, Release, Token};
use lockkeeper_api::{Code, ZXID_HEADER};
use lockkeeper_core::limits::MAX_REMEMBERED_REPLIES;
use lockkeeper_core::{FencingToken, LockName, NodePath, Op, RequestId, RequestKey};
use lockkeeper_node::{At, Caller, KeepaliveAck, NodeError, Presence, Undecided};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Session;
use super::frame::{self, Request};
use crate::admission::{AtWork, address_of, has_own_lane};
use crate::extract::{self, Asking};
use crate::failure::Failure;
use crate::http::connection::Endless;
use crate::http::paths;
use crate::middleware;
use crate::reply::Reply;
use crate::routes::acquire;

/// Longest time for a cancelled request to leave its queue; then the answer is an unknown outcome.
const LONGEST_WITHDRAWAL: Duration = Duration::from_secs(10);

/// The effect of an answer on the locks whose loss the stream reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Effect {
    #[default]
    None,
    /// Granted, with these nodes.
    Granted { token: u64, paths: Vec<NodePath> },
    /// Released.
    Released(Releasing),
    /// Not released, as far as is known.
    NotReleased(Releasing),
    /// Still held, under another node.
    Renamed(Releasing, NodePath),
}

/// Locks that a request releases or downgrades.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Releasing {
    pub(super) token: u64,
    pub(super) directories: Vec<NodePath>,
}

/// The result of a request or keepalive.
pub(super) enum Finished {
    Answer { id: u64, text: Vec<u8>, effect: Effect },
    Keepalive { number: u64, heard: Result<At<KeepaliveAck>, NodeError> },
}

/// A request or keepalive at work.
pub(super) struct Open {
    kind: OnStreamEnd,
    /// The client's presence, which keeps the session alive while a lock request waits.
    presence: Option<Presence>,
    work: BoxFuture<'static, Finished>,
}

impl Open {
    fn new(kind: OnStreamEnd, work: impl Future<Output = Finished> + Send + 'static) -> Self {
        Self { kind, presence: None, work: work.boxed() }
    }
}

/// What happens to a request when the stream ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnStreamEnd {
    /// Carried out all the same: a request that arrived whole takes place.
    Carried,
    /// A waiting lock request: keeps its place for a while when the connection breaks.
    Waits,
    /// Dropped: useless without the stream, or cancelled by the drop.
    Dropped,
}

impl Future for Open {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        self.work.poll_unpin(context)
    }
}

/// A request that has begun.
pub(super) struct Begun {
    pub(super) open: Open,
    /// Cancels it, if it can be cancelled.
    pub(super) cancel: Option<AbortHandle>,
    /// The locks that it releases or downgrades.
    pub(super) releasing: Option<Releasing>,
}

impl Begun {
    fn plain(work: impl Future<Output = Finished> + Send + 'static) -> Self {
        Self { open: Open::new(OnStreamEnd::Carried, work), cancel: None, releasing: None }
    }
}

/// The requests at work on a stream that has ended.
pub(super) struct Unfinished {
    /// Lock requests that wait.
    pub(super) waiting: Vec<Open>,
    carried: usize,
    open: FuturesUnordered<Open>,
}

impl Unfinished {
    /// Separates requests to carry out from waiting ones. All others are cancelled by being dropped here.
    pub(super) fn of(mut open: FuturesUnordered<Open>) -> Self {
        let (mut waiting, mut carried) = (Vec::new(), 0);
        // In place: requests that were not polled yet must be begun in the order in which they came.
        for request in open.iter_mut() {
            match request.kind {
                OnStreamEnd::Carried => carried += 1,
                kind @ (OnStreamEnd::Waits | OnStreamEnd::Dropped) => {
                    let work = std::mem::replace(&mut request.work, std::future::pending().boxed());
                    let presence = request.presence.take();
                    // The client may come back, but is gone now.
                    presence.iter().for_each(Presence::leave);
                    if kind == OnStreamEnd::Waits {
                        waiting.push(Open { kind, presence, work });
                    }
                }
            }
        }
        Self { waiting, carried, open }
    }

    /// Carries out the requests that arrived whole before the stream ended, without answering them.
    pub(super) async fn carry_out(mut self) {
        while self.carried > 0 && self.open.next().await.is_some() {
            self.carried -= 1;
        }
    }
}

pub(super) fn keepalive(session: &Arc<Session>, number: u64) -> Open {
    let session = session.clone();
    let work =
        async move { Finished::Keepalive { number, heard: session.context.node.keepalive(&session.credential).await } };
    Open::new(OnStreamEnd::Dropped, work)
}

/// Begins a request. An invalid one is answered with its problem.
pub(super) fn begin(session: &Arc<Session>, request: &Request<'_>) -> Begun {
    let id = request.id;
    begin_right(session, request).unwrap_or_else(|failure| Begun::plain(async move { refused(id, failure) }))
}

fn refused(id: u64, failure: Failure) -> Finished {
    Finished::Answer { id, text: refused_text(id, &failure), effect: Effect::None }
}

fn begin_right(session: &Arc<Session>, request: &Request<'_>) -> Result<Begun, Failure> {
    let asking = asking(session, request)?;
    match lock_call(request)? {
        Some(call) => begin_on_lock(session, request, asking, call),
        None => through_router(session, request, asking),
    }
}

fn asking(session: &Session, request: &Request<'_>) -> Result<Asking, Failure> {
    if request.acknowledge.len() > MAX_REMEMBERED_REPLIES {
        let detail = format!(
            "'acknowledge' names {} ids, at most {MAX_REMEMBERED_REPLIES} are remembered; send fewer",
            request.acknowledge.len()
        );
        return Err(Failure::bad_request(detail));
    }
    if request.request_id.is_none() && !request.acknowledge.is_empty() {
        return Err(Failure::bad_request("'acknowledge' goes with 'request_id'; send both or neither"));
    }
    let key = request.request_id.map(|id| RequestKey {
        id: RequestId(id.as_u128()),
        acknowledged: request.acknowledge.iter().map(|id| RequestId(id.as_u128())).collect(),
    });
    Ok(Asking(Caller {
        credential: Some(session.credential),
        request: key,
        principals: session.principals.clone(),
        may_force: session.context.admin.allow_force_release,
        presence: Presence::default(),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Release,
    Downgrade,
}

/// The call of a lock, if the request is one of those that are dispatched here.
pub(super) fn lock_call(request: &Request<'_>) -> Result<Option<(Verb, LockName)>, Failure> {
    let Some(rest) = request.path.strip_prefix(paths::LOCKS).filter(|_| request.method == "POST") else {
        return Ok(None);
    };
    let Some((name, verb)) = rest.rsplit_once('/') else { return Ok(None) };
    let verb = match verb {
        "acquire" => Verb::Acquire,
        "release" => Verb::Release,
        "downgrade" => Verb::Downgrade,
        _ => return Ok(None),
    };
    paths::check(&request.path)?;
    let name = percent_decode_str(name)
        .decode_utf8()
        .map_err(|_| Failure::bad_request("the name of the lock, decoded, is not UTF-8"))?;
    Ok(Some((verb, LockName::parse(&name)?)))
}

fn begin_on_lock(
    session: &Arc<Session>,
    request: &Request<'_>,
    mut asking: Asking,
    (verb, lock): (Verb, LockName),
) -> Result<Begun, Failure> {
    let id = request.id;
    let body = request.body.map_or("{}", |body| body.get()).as_bytes();
    let session = session.clone();
    match verb {
        Verb::Acquire => {
            let ask: Acquire = extract::parse(body)?;
            let kind = if ask.wait_ms > 0 { OnStreamEnd::Waits } else { OnStreamEnd::Dropped };
            let presence = Presence::default();
            asking.0.presence = presence.clone();
            let context = session.context.clone();
            let (last_word, given_up) = oneshot::channel();
            let work = move |at_work: AtWork| {
                async move {
                    let (reply, grant) = acquire::take(&context, &at_work, lock, asking, ask, Some(last_word)).await?;
                    Ok((reply, Effect::Granted { token: grant.token.0, paths: grant.paths }))
                }
                .boxed()
            };
            let work = carry_out(session, id, "/v1/locks/{name}/acquire", work);
            let (work, cancel) = abortable(work);
            let work = async move {
                // An aborted call has been dropped by then, and its lock request is being withdrawn.
                let ended = work.await;
                match ended {
                    Ok(finished) => finished,
                    Err(Aborted) => refused(id, withdrawn(given_up).await),
                }
            };
            let open = Open { presence: Some(presence), ..Open::new(kind, work) };
            Ok(Begun { open, cancel: Some(cancel), releasing: None })
        }
        Verb::Release => {
            let ask: Release = extract::parse(body)?;
            let also = ask.also.iter().map(|name| LockName::parse(name)).collect::<Result<Vec<_>, _>>()?;
            let directories = also.iter().chain([&lock]).map(LockName::directory).collect();
            let releasing = Releasing { token: ask.token, directories };
            Ok(release_with(session, releasing, |session, releasing| {
                let context = session.context.clone();
                let work = async move {
                    let reply = acquire::give_back(&context, lock, asking, ask).await?;
                    Ok((reply, Effect::Released(releasing)))
                };
                carry_out(session, id, "/v1/locks/{name}/release", |_| work.boxed())
            }))
        }
        Verb::Downgrade => {
            let ask: Token = extract::parse(body)?;
            let releasing = Releasing { token: ask.token, directories: vec![lock.directory()] };
            Ok(release_with(session, releasing, |session, releasing| {
                let context = session.context.clone();
                let work = async move {
                    let (reply, path) = acquire::become_reader(&context, lock, asking, ask).await?;
                    Ok((reply, Effect::Renamed(releasing, path)))
                };
                carry_out(session, id, "/v1/locks/{name}/downgrade", |_| work.boxed())
            }))
        }
    }
}

/// Work that parts with a lock: should it fail, the lock is listened for again.
fn release_with<W>(
    session: Arc<Session>,
    releasing: Releasing,
    work: impl FnOnce(Arc<Session>, Releasing) -> W,
) -> Begun
where
    W: Future<Output = Finished> + Send + 'static,
{
    let failed = releasing.clone();
    let work = work(session, releasing.clone()).map(move |finished| match finished {
        Finished::Answer { id, text, effect: Effect::None } => {
            Finished::Answer { id, text, effect: Effect::NotReleased(failed) }
        }
        finished => finished,
    });
    Begun { releasing: Some(releasing), ..Begun::plain(work) }
}

/// Releases the locks whose grants were never written.
pub(super) fn give_back(session: &Arc<Session>, done: Vec<Finished>) {
    for finished in done {
        let Finished::Answer { effect: Effect::Granted { token, paths }, .. } = finished else { continue };
        let directories = paths.iter().filter_map(NodePath::parent);
        let locks: Vec<LockName> = directories.filter_map(|directory| LockName::of_directory(&directory)).collect();
        let session = session.clone();
        tokio::spawn(async move {
            let caller = Caller { credential: Some(session.credential), ..Caller::default() };
            let op = Op::Release { locks, token: FencingToken(token) };
            // If this fails, the session holds them until it ends or releases them; `hello` names them.
            if let Err(error) = session.context.node.execute(caller, op).await {
                let session = session.credential.session;
                tracing::debug!(%error, %session, token, "cannot release a grant whose answer was not written");
            }
        });
    }
}

/// The answer to a cancelled request, once the cluster has decided that it holds nothing.
async fn withdrawn(given_up: oneshot::Receiver<Undecided>) -> Failure {
    match timeout(LONGEST_WITHDRAWAL, given_up).await {
        // Dropped: nothing of the request is left.
        Ok(Err(_)) => {
            Failure::new(Code::Cancelled, "cancelled by the client; the request holds nothing and has left the queue")
        }
        Ok(Ok(Undecided)) | Err(_) => Failure::new(
            Code::UnknownOutcome,
            "cancelled, but it is unknown whether the request has left the queue; retry with the same request id",
        ),
    }
}

/// Does what the observing layer of the router does, around work that does not pass through it. The work comes in a box
/// of its own: each layer around a bare future would double it.
async fn carry_out<T: Serialize>(
    session: Arc<Session>,
    id: u64,
    route: &'static str,
    work: impl FnOnce(AtWork) -> BoxFuture<'static, Result<(Reply<T>, Effect), Failure>>,
) -> Finished {
    let started = Instant::now();
    let lane = has_own_lane(&Method::POST, route).then_some(&session.lane);
    let done = match session.context.admission.enter(address_of(Some(&session.from)), lane) {
        Ok(at_work) => middleware::caught(work(at_work.clone())).await.unwrap_or_else(Err),
        Err(exceeded) => Err(exceeded.into()),
    };
    let (finished, status, code) = match done {
        Ok((reply, effect)) => {
            let status = reply.status.as_u16();
            let text = frame::answer(id, status, reply.zxid.map(|zxid| zxid.0), |text| frame::json(text, &reply.body));
            (Finished::Answer { id, text, effect }, status, None)
        }
        Err(failure) => {
            let (status, code) = (failure.status(), failure.code());
            (refused(id, failure), status, Some(code))
        }
    };
    middleware::count(route, &Method::POST, status, code, started);
    finished
}

/// The answer to a request that was refused.
pub(super) fn refused_text(id: u64, failure: &Failure) -> Vec<u8> {
    frame::answer(id, failure.status(), failure.zxid().map(|zxid| zxid.0), |text| frame::json(text, failure.problem()))
}

fn through_router(session: &Arc<Session>, request: &Request<'_>, asking: Asking) -> Result<Begun, Failure> {
    let id = request.id;
    let request = http_request(session, request, asking)?;
    let mut router = session.router.clone();
    Ok(Begun::plain(async move {
        let response = match tower::Service::call(&mut router, request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        Finished::Answer { id, text: answer_of(id, response).await, effect: Effect::None }
    }))
}

fn http_request(
    session: &Session,
    request: &Request<'_>,
    asking: Asking,
) -> Result<axum::http::Request<Body>, Failure> {
    if !request.path.starts_with("/v1/") {
        let detail = "on a stream only what lies under /v1 can be asked for; ask for the rest over HTTP";
        return Err(Failure::new(Code::BadPath, detail));
    }
    let method = match &*request.method {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "DELETE" => Method::DELETE,
        _ => return Err(Failure::bad_request("'method' is GET, POST, PUT or DELETE")),
    };
    let uri: axum::http::Uri =
        request.path.parse().map_err(|error| Failure::new(Code::BadPath, format!("'path' is no path: {error}")))?;
    if uri.path() == "/v1/watch" {
        let detail = "a watch on a stream is begun with the message 'watch'; server-sent events are for plain HTTP";
        return Err(Failure::bad_request(detail));
    }
    let uri = paths::fold(&method, &uri)?.unwrap_or(uri);
    let body = request.body.map_or_else(Body::empty, |body| Body::from(body.get().to_owned()));
    let mut http = axum::http::Request::new(body);
    *http.method_mut() = method;
    *http.uri_mut() = uri;
    http.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    http.extensions_mut().insert(session.from);
    http.extensions_mut().insert(session.lane.clone());
    http.extensions_mut().insert(asking);
    Ok(http)
}

async fn answer_of(id: u64, response: Response) -> Vec<u8> {
    if response.extensions().get::<Endless>().is_some() {
        return refused_text(
            id,
            &Failure::bad_request("what has no end cannot be asked for on a stream; use plain HTTP"),
        );
    }
    let (parts, body) = response.into_parts();
    let zxid = parts.headers.get(ZXID_HEADER).and_then(|zxid| zxid.to_str().ok()).and_then(|zxid| zxid.parse().ok());
    let json = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
    match axum::body::to_bytes(body, usize::MAX).await {
        Ok(bytes) if json || bytes.is_empty() => {
            frame::answer(id, parts.status.as_u16(), zxid, |text| text.extend_from_slice(&bytes))
        }
        Ok::<Bytes, _>(_) => refused_text(
            id,
            &Failure::bad_request("the answer is not JSON and does not fit on a stream; use plain HTTP"),
        ),
        Err(error) => refused_text(id, &Failure::new(Code::Internal, format!("the answer broke off: {error}"))),
    }
}
