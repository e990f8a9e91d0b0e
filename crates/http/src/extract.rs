//! Extractors: from an HTTP request to typed, bounded values. A request that does not fit is answered with a problem
//! document; nothing is guessed, and no unknown field is skipped.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use futures::{FutureExt, StreamExt};
use lockkeeper_api::{
    ACKNOWLEDGE_HEADER, Code, Credential as ApiCredential, MAX_TIMEOUT_MS, REQUEST_ID_HEADER, SESSION_HEADER,
    TIMEOUT_HEADER,
};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_REMEMBERED_REPLIES;
use lockkeeper_core::{RequestId, RequestKey, SessionId};
use lockkeeper_node::{Caller, Consistency, Credential, NodeError};
use lockkeeper_service::admission::AtWork;
use lockkeeper_service::bounds::{BodyBounds, Room};
use lockkeeper_service::budget::Exceeded;
use lockkeeper_service::caller::{ClientAddress, address_of};
use lockkeeper_service::calls::CallScope;
use lockkeeper_service::context::Context;
use lockkeeper_service::failure::{Failure, session_required};
use lockkeeper_service::principals::{Unproved, from_address, prove_certificate, prove_header};
use lockkeeper_service::socket::ClientCertificate;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::context::HttpContext;
use crate::response::HttpFailure;

/// Bytes of a body that is too large which are read and discarded, so that the client reads the refusal and meets no
/// broken pipe.
const DISCARD_BYTES: usize = 32 * 1024 * 1024;

/// How long a body for which there is no room is read and discarded, for the same reason.
const DISCARD_WITHIN: Duration = Duration::from_secs(2);

/// Reads a JSON body. An empty one means `{}`, so that calls whose fields are all optional need none.
pub(crate) async fn json_body<T: DeserializeOwned + Send + 'static>(
    request: Request,
    http: &HttpContext,
) -> Result<T, Failure> {
    let context = &http.service;
    let json = is_json(request.headers());
    let coding = request.headers().get(header::CONTENT_ENCODING).cloned();
    let at_work = request.extensions().get::<AtWork>().cloned();
    let mut room = Room::new(&context.admission, address_of(request.extensions().get()));
    let bytes = read_body(request, http.body, &mut room).await?;
    if let (Some(at_work), Some(taken)) = (at_work, room.into_taken()) {
        at_work.keep(taken);
    }
    if let Some(coding) = coding.filter(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let detail = format!("the body is compressed (Content-Encoding: {}); send it as it is", shown(&coding));
        return Err(Failure::new(Code::UnsupportedMediaType, detail));
    }
    if bytes.is_empty() {
        return parse(b"{}");
    }
    if !json {
        let detail = "the body must be JSON and say so; send the header Content-Type: application/json";
        return Err(Failure::new(Code::UnsupportedMediaType, detail));
    }
    if bytes.len() <= LARGE_BYTES {
        return parse(&bytes);
    }
    // All other requests of this node run on the thread of this task.
    let _turn = context.admission.large_bodies.acquire().await;
    let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
    parsed.unwrap_or_else(|error| Err(Failure::new(Code::Internal, error.to_string())))
}

/// A larger body takes longer to parse than any other request should wait.
const LARGE_BYTES: usize = 64 * 1024;

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    // serde would fill a struct from an array as well, by position.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Failure::bad_request(
            "the body is not a JSON object; /openapi.json describes what this call takes",
        ));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::bad_request(format!("the body is not what this call takes: {error}; /openapi.json describes it"))
    })
}

fn shown(value: &HeaderValue) -> String {
    value.to_str().unwrap_or("?").chars().take(40).collect()
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Reads a body within its bounds of size and time, and within `room`.
async fn read_body(request: Request, bounds: BodyBounds, room: &mut Room) -> Result<Bytes, Failure> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<usize>().ok());
    // A client that sends `Expect: 100-continue` is refused before it sends the body.
    let asks_first = request.headers().get(header::EXPECT).is_some();
    if asks_first && announced.is_some_and(|bytes| bytes > bounds.max_bytes) {
        return Err(too_large(bounds.max_bytes));
    }
    let announced = announced.unwrap_or(0);
    let fits = room.fit(announced.min(bounds.max_bytes));
    if asks_first {
        fits.clone()?;
    }
    let reading = collect(request.into_body(), (announced, bounds.max_bytes), room, fits);
    match tokio::time::timeout(bounds.timeout, reading).await {
        Ok(read) => read,
        Err(_) => {
            let detail = format!("the body did not arrive within {} ms; send it faster", bounds.timeout.as_millis());
            Err(Failure::new(Code::TooSlow, detail))
        }
    }
}

async fn collect(
    body: Body,
    (announced, max_bytes): (usize, usize),
    room: &mut Room,
    mut fits: Result<(), Exceeded>,
) -> Result<Bytes, Failure> {
    let mut stream = body.into_data_stream();
    let mut first = Bytes::new();
    let mut more: Vec<u8> = Vec::new();
    let mut seen = 0usize;
    let mut give_up_at = None;
    loop {
        let next = match give_up_at {
            None if fits.is_ok() => stream.next().await,
            at => {
                let at = *give_up_at.insert(at.unwrap_or_else(|| Instant::now() + DISCARD_WITHIN));
                tokio::time::timeout_at(at, stream.next()).await.unwrap_or_default()
            }
        };
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|error| Failure::bad_request(format!("the body broke off: {error}")))?;
        seen = seen.saturating_add(chunk.len());
        if seen > DISCARD_BYTES {
            break;
        }
        if fits.is_ok() {
            fits = room.fit(seen.min(max_bytes));
        }
        if seen > max_bytes || fits.is_err() {
            (first, more) = (Bytes::new(), Vec::new());
        } else if first.is_empty() {
            first = chunk;
        } else {
            if more.is_empty() {
                more.reserve(announced.clamp(seen, max_bytes));
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&chunk);
        }
    }
    if seen > max_bytes {
        return Err(too_large(max_bytes));
    }
    fits?;
    // Small bodies come in one piece and are not copied.
    Ok(if more.is_empty() { first } else { Bytes::from(more) })
}

fn too_large(max_bytes: usize) -> Failure {
    Failure::new(Code::TooLarge, format!("the body is larger than {max_bytes} bytes (limits.body_bytes); send less"))
}

/// A query string; unknown and repeated fields are errors.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = HttpFailure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpFailure> {
        Ok(Self::of(&parts.uri)?)
    }
}

impl<T: DeserializeOwned> Query<T> {
    /// The query of this URI.
    pub(crate) fn of(uri: &Uri) -> Result<Self, Failure> {
        axum::extract::Query::<T>::try_from_uri(uri).map(|query| Self(query.0)).map_err(|error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            let detail = format!("the query is not what this call takes: {why}; /openapi.json describes it");
            Failure::bad_request(detail)
        })
    }
}

/// A number in the path.
#[derive(Debug)]
pub(crate) struct Id(pub(crate) u64);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = HttpFailure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpFailure> {
        Ok(Self(path_params(parts).await?))
    }
}

/// The parts of the path.
pub(crate) async fn path_params<T: DeserializeOwned + Send>(parts: &mut Parts) -> Result<T, Failure> {
    let Path(value) = Path::<T>::from_request_parts(parts, &()).await.map_err(|error| {
        Failure::bad_request(format!("the path is not what this call takes: {}", error.body_text()))
    })?;
    Ok(value)
}

/// The scope of a call whose caller may name a session and a request id.
pub(crate) struct Identified(pub(crate) CallScope);

/// The scope of a call that only reads. It needs no session; if it names one, it counts as a sign of life of that
/// session.
pub(crate) struct Reader(pub(crate) CallScope);

fn scope(
    parts: &Parts,
    context: &Arc<Context>,
    (caller, expires): (Caller, Option<Instant>),
) -> Result<CallScope, Failure> {
    let from = parts.extensions.get().copied().unwrap_or_default();
    let at_work = match parts.extensions.get::<AtWork>() {
        Some(at_work) => at_work.clone(),
        None => context.admission.enter(address_of(Some(&from)), None)?,
    };
    Ok(CallScope {
        context: context.clone(),
        caller,
        expires,
        at_work,
        from,
        undecided: None,
        leader_limit: leader_limit(&parts.headers)?,
        trace: context.otlp.as_ref().map(|otlp| otlp.caller_over_http(&parts.headers)),
    })
}

impl FromRequestParts<Arc<HttpContext>> for Identified {
    type Rejection = HttpFailure;

    async fn from_request_parts(parts: &mut Parts, http: &Arc<HttpContext>) -> Result<Self, HttpFailure> {
        let context = &http.service;
        let (caller, expires) = caller_of(parts, context)?;
        check_session(context, &caller).await?;
        Ok(Self(scope(parts, context, (caller, expires))?))
    }
}

impl FromRequestParts<Arc<HttpContext>> for Reader {
    type Rejection = HttpFailure;

    async fn from_request_parts(parts: &mut Parts, http: &Arc<HttpContext>) -> Result<Self, HttpFailure> {
        let context = &http.service;
        let (principals, expires) = principals_of(parts, context)?;
        note_presence(parts, context, &principals);
        Ok(Self(scope(parts, context, (Caller { principals, ..Caller::default() }, expires))?))
    }
}

/// Refuses a request under a session of another principal, before it counts as a sign of life of that session: without
/// the credential of its principal, its secret alone must not keep it alive.
async fn check_session(context: &Context, caller: &Caller) -> Result<(), Failure> {
    let Some(Credential { session, .. }) = caller.credential else { return Ok(()) };
    if context.node.look(|state| state.check_owner(&caller.principals, session)).is_ok() {
        return Ok(());
    }
    // The proof may be new, and this replica behind.
    let checked = context.node.read(Consistency::Linearizable, |state| state.check_owner(&caller.principals, session));
    Ok(checked.await?.value.map_err(NodeError::Refused)?)
}

/// Counts a read as a sign of life of the session that it names, if that is the caller's.
fn note_presence(parts: &Parts, context: &Context, principals: &Principals) {
    let header = single(&parts.headers, SESSION_HEADER).ok().flatten();
    if let Some(Ok(credential)) = header.map(parse_credential)
        && context.node.look(|state| state.check_owner(principals, credential.session)).is_ok()
    {
        // Does not wait for a session that this node does not know; a wrong secret is no sign of life.
        let _ = context.node.authorise(&credential).now_or_never();
    }
}

/// Who the caller is, and when the proof of it stops to count, if it is a JWT.
fn principals_of(parts: &Parts, context: &Context) -> Result<(Principals, Option<Instant>), Failure> {
    let from = parts.extensions.get::<ClientAddress>();
    let mut principals = from.map(|from| from_address(from.address.ip())).unwrap_or_default();
    let mut expires = None;
    if let Some(header) = single(&parts.headers, header::AUTHORIZATION.as_str())? {
        let text = header.to_str().unwrap_or_default();
        let super_digest = context.super_user.for_caller(from.is_some_and(|from| from.is_local));
        let proved = prove_header(&mut principals, text, super_digest, context.jwt.as_deref());
        expires = proved.map_err(|why| {
            let detail = format!(
                "header Authorization proves nothing: {why}; send Bearer with a token, or Basic with user:password, or \
                 leave it out"
            );
            let is_token = matches!(why, Unproved::Token | Unproved::Jwt(_));
            let code = if is_token { Code::Unauthenticated } else { Code::BadRequest };
            Failure::new(code, detail)
        })?;
    }
    context.node.note_token_use(&principals);
    // After the token, which says more of the caller than its machine's certificate: a session belongs to the first.
    if let Some(certificate) = parts.extensions.get::<ClientCertificate>() {
        prove_certificate(&mut principals, certificate);
    }
    Ok((principals, expires))
}

fn caller_of(parts: &Parts, context: &Context) -> Result<(Caller, Option<Instant>), Failure> {
    let headers = &parts.headers;
    let credential = single(headers, SESSION_HEADER)?.map(parse_credential).transpose()?;
    let id = single(headers, REQUEST_ID_HEADER)?.map(|text| parse_uuid(text, "Lockkeeper-Request-Id")).transpose()?;
    let acknowledged = parse_acknowledged(headers)?;
    let request = match id {
        Some(_) if credential.is_none() => return Err(session_required()),
        Some(id) => Some(RequestKey { id, acknowledged }),
        None if !acknowledged.is_empty() => {
            return Err(Failure::bad_request(
                "Lockkeeper-Acknowledge goes with Lockkeeper-Request-Id; send both or neither",
            ));
        }
        None => None,
    };
    let (principals, expires) = principals_of(parts, context)?;
    let may_force = context.admin.allow_force_release;
    Ok((Caller { credential, request, principals, may_force, ..Caller::default() }, expires))
}

fn single<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h HeaderValue>, Failure> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Failure::bad_request(format!("header {name} is given more than once; send one")));
    }
    Ok(first)
}

fn parse_credential(value: &HeaderValue) -> Result<Credential, Failure> {
    let text = value.to_str().unwrap_or_default();
    let parsed: ApiCredential =
        text.parse().map_err(|error| Failure::bad_request(format!("header Lockkeeper-Session: {error}")))?;
    Ok(Credential::new(SessionId(parsed.session_id), parsed.secret))
}

fn parse_uuid(value: &HeaderValue, name: &str) -> Result<RequestId, Failure> {
    uuid_of(value.to_str().unwrap_or_default(), name)
}

fn uuid_of(text: &str, name: &str) -> Result<RequestId, Failure> {
    let uuid = uuid::Uuid::try_parse(text.trim());
    uuid.map(|uuid| RequestId(uuid.as_u128()))
        .map_err(|error| Failure::bad_request(format!("header {name}: not a UUID: {error}")))
}

fn leader_limit(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(value) = single(headers, TIMEOUT_HEADER)? else { return Ok(None) };
    let asked_ms = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    match asked_ms {
        Some(limit_ms @ 1..=MAX_TIMEOUT_MS) => Ok(Some(Duration::from_millis(limit_ms))),
        _ => {
            let detail = format!("header Lockkeeper-Timeout-Ms is a number from 1 to {MAX_TIMEOUT_MS}, or left out");
            Err(Failure::bad_request(detail))
        }
    }
}

fn parse_acknowledged(headers: &HeaderMap) -> Result<Vec<RequestId>, Failure> {
    let Some(value) = single(headers, ACKNOWLEDGE_HEADER)? else { return Ok(Vec::new()) };
    let text = value.to_str().unwrap_or_default();
    let ids: Result<Vec<_>, _> = text.split(',').map(|id| uuid_of(id, "Lockkeeper-Acknowledge")).collect();
    let ids = ids?;
    if ids.len() > MAX_REMEMBERED_REPLIES {
        let detail = format!(
            "header Lockkeeper-Acknowledge names {} ids, at most {MAX_REMEMBERED_REPLIES} are remembered; send fewer",
            ids.len()
        );
        return Err(Failure::bad_request(detail));
    }
    Ok(ids)
}
