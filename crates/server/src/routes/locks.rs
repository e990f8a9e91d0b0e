//! `/v1/locks`: acquire, release, verify, look at, break.

use std::time::Duration;

use axum::extract::{Extension, State as Extract};
use lockkeeper_api::locks::{
    Acquire, Acquired, Lock as LockPage, LockSummary, Locks, Mode, Released, Request, Token, Verified,
};
use lockkeeper_api::{Code, Problem};
use lockkeeper_core::{
    FencingToken, LockMode, LockName, LockRequest, Op, Reply as Outcome, RequestId, RequestKey, Standing, State,
};
use lockkeeper_node::{At, Caller, Credential, Grant, Node};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::sessions::{check_label, credential_text};
use super::{Consistency, page_limit};
use crate::app::Shared;
use crate::extract::{Asking, Json, Lock, LockAndToken, Query, session_required};
use crate::failure::{Failure, shutting_down};
use crate::http::connection::ClientAddress;
use crate::reply::{Answer, Reply};

/// Longest wait for a lock.
const MAX_WAIT_MS: u64 = 600_000;
/// Waiters shown of a lock.
const QUEUE_SHOWN: usize = 1_000;
/// Holders shown of a lock that is busy.
const HOLDERS_SHOWN: usize = 100;

fn mode_in(mode: Mode, permits: Option<u16>) -> LockMode {
    match mode {
        Mode::Exclusive => LockMode::Exclusive,
        Mode::Shared => LockMode::Shared,
        Mode::Write => LockMode::Write,
        Mode::Permit => LockMode::Permit(permits.unwrap_or_default()),
    }
}

fn mode_out(mode: LockMode) -> Mode {
    match mode {
        LockMode::Exclusive => Mode::Exclusive,
        LockMode::Shared => Mode::Shared,
        LockMode::Write => Mode::Write,
        LockMode::Permit(_) => Mode::Permit,
    }
}

fn request_view(request: LockRequest) -> Request {
    let waits_for = match request.standing {
        Standing::Waits { blocker } => Some(blocker.to_string()),
        Standing::Holds { .. } | Standing::Gone => None,
    };
    Request {
        token: request.token.0,
        sequence: request.sequence,
        mode: mode_out(request.mode),
        permits: request.permits,
        delay_ms: request.delay_ms,
        delayed_until_ms: request.delayed_until_ms,
        session_id: request.session.map(|session| session.0),
        label: request.label,
        since_ms: request.since_ms,
        path: request.path.to_string(),
        waits_for,
    }
}

/// A session that was made for one lock. Unless it is kept it is closed, whatever way the request ends.
struct Made {
    node: Node,
    credential: Credential,
    kept: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (node, credential) = (self.node.clone(), self.credential);
        tokio::spawn(async move {
            // If this fails the session ends by its timeout, since nobody keeps it alive.
            if let Err(error) = node.close_session(&credential).await {
                tracing::debug!(%error, session = %credential.session, "a session made for a lock is left to expire");
            }
        });
    }
}

/// For whom the lock is.
struct Owner {
    caller: Caller,
    session: u64,
    timeout_ms: Option<u32>,
    made: Option<Made>,
}

async fn owner(app: &Shared, asking: Asking, ask: &Acquire, label: &str) -> Result<Owner, Failure> {
    let mut caller = asking.0;
    match (&caller.credential, ask.ttl_ms) {
        (Some(_), Some(_)) => {
            let detail = "'ttl_ms' has a session made, and Lockkeeper-Session names one; send one of them";
            Err(Failure::bad_request(detail))
        }
        (None, None) => Err(session_required().with(|problem| {
            problem.detail.push_str(", or send 'ttl_ms' to have a session made for this lock");
        })),
        (Some(credential), None) => {
            let session = credential.session.0;
            if let Some(id) = ask.request_id.filter(|_| caller.request.is_none()) {
                // The client drew the id, so it may ask again: it is to be told the same, even after a release (promise P9).
                caller.request = Some(RequestKey { id: RequestId(id.as_u128()), acknowledged: Vec::new() });
            }
            Ok(Owner { session, caller, timeout_ms: None, made: None })
        }
        (None, Some(ttl_ms)) => {
            let opened = app.node.open_session(app.session_timeout_ms(Some(ttl_ms)), label).await?.value;
            let credential = opened.credential;
            caller.credential = Some(credential);
            let made = Made { node: app.node.clone(), credential, kept: false };
            Ok(Owner { caller, session: credential.session.0, timeout_ms: Some(opened.timeout_ms), made: Some(made) })
        }
    }
}

/// Asks for the lock, waits in its queue, and gives the fencing token once it is held.
///
/// If the client goes away while it waits, its request leaves the queue; a grant that comes at that very moment is released.
#[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "locks", request_body = Acquire,
    params(("name" = String, Path, description = "The lock; slashes may stand in it"), super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "The lock is held", body = Acquired),
              (status = 423, description = "`lock_busy`: the wait is over and another holds it", body = Problem, content_type = "application/problem+json"),
              (status = "4XX", description = "Refused; nothing changed", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn acquire(
    Extract(app): Extract<Shared>,
    Lock(lock): Lock,
    asking: Asking,
    Json(ask): Json<Acquire>,
) -> Answer<Acquired> {
    if ask.wait_ms > MAX_WAIT_MS {
        return Err(Failure::bad_request(format!(
            "'wait_ms' is at most {MAX_WAIT_MS}, not {}; ask again after that",
            ask.wait_ms
        )));
    }
    let label = check_label(ask.label.clone())?;
    let header_id = asking.0.request.as_ref().map(|request| request.id);
    let uuid = match (ask.request_id, header_id) {
        (Some(body), Some(header)) if body.as_u128() != header.0 => {
            return Err(Failure::bad_request(
                "'request_id' and Lockkeeper-Request-Id differ; send one, or the same twice",
            ));
        }
        (Some(body), _) => RequestId(body.as_u128()),
        (None, Some(header)) => header,
        (None, None) => RequestId(Uuid::new_v4().as_u128()),
    };
    let mut owner = owner(&app, asking, &ask, &label).await?;
    let request = lockkeeper_node::Acquire {
        locks: vec![lock.clone()],
        mode: mode_in(ask.mode, ask.permits),
        delay_ms: ask.delay_ms,
        uuid,
        label,
        wait: Duration::from_millis(ask.wait_ms),
    };
    let answer = {
        let _patient = (ask.wait_ms > 0).then(|| app.load.wait());
        app.node.acquire(owner.caller.clone(), request).await?
    };
    match answer.value {
        lockkeeper_node::Acquired::Held(grant) => {
            let zxid = answer.zxid;
            let body = held(&app, &lock, ask.mode, uuid, &mut owner, At { value: grant, zxid }).await?;
            Ok(Reply::ok(zxid, body))
        }
        lockkeeper_node::Acquired::Busy { lock, holders, ahead } => {
            let who =
                holders.first().map_or_else(String::new, |first| format!(", first of all by {}", describe(first)));
            let waited = if ask.wait_ms > 0 { format!("after {} ms ", ask.wait_ms) } else { String::new() };
            let detail = format!(
                "lock {lock} is {waited}still held{who}; {ahead} stood ahead; the request has left the queue; ask again, with a longer 'wait_ms' to keep its place"
            );
            let holders = holder_views(&app, &lock).await;
            Err(Failure::new(Code::LockBusy, detail).at(answer.zxid).with(|problem| problem.holders = holders))
        }
        lockkeeper_node::Acquired::Gone => {
            let detail = format!(
                "the request {uuid} for lock {lock} was withdrawn, released or broken since; ask anew with a new request id"
            );
            Err(Failure::new(Code::NotQueued, detail).at(answer.zxid))
        }
    }
}

fn describe(holder: &lockkeeper_node::HolderInfo) -> String {
    let session = holder.session.map_or_else(|| "nobody's session".to_owned(), |session| format!("session {session}"));
    if holder.label.is_empty() { session } else { format!("{:?} ({session})", holder.label) }
}

async fn held(
    app: &Shared,
    lock: &LockName,
    mode: Mode,
    uuid: RequestId,
    owner: &mut Owner,
    grant: At<Grant>,
) -> Result<Acquired, Failure> {
    let session = lockkeeper_core::SessionId(owner.session);
    let session_timeout_ms = match owner.timeout_ms {
        Some(timeout_ms) => timeout_ms,
        None => {
            let read = app.node.read(lockkeeper_node::Consistency::Stale, move |state: &State| {
                state.session(session).map(|s| s.timeout_ms)
            });
            let timeout_ms = read.await?.value;
            timeout_ms.ok_or(lockkeeper_node::NodeError::Refused(lockkeeper_core::Refusal::SessionExpired(session)))?
        }
    };
    let credential = owner.made.as_mut().map(|made| {
        made.kept = true;
        credential_text(&made.credential)
    });
    Ok(Acquired {
        also: Vec::new(),
        also_paths: Vec::new(),
        lock: lock.to_string(),
        mode,
        token: grant.value.token.0,
        path: grant.value.paths.first().map(ToString::to_string).unwrap_or_default(),
        session_id: owner.session,
        credential,
        session_timeout_ms,
        session_remaining_ms: grant.value.remaining_ms,
        request_id: Uuid::from_u128(uuid.0),
        zxid: grant.zxid.0,
    })
}

/// Those who hold now, as this replica knows it: for people, so that a busy reply says whom to ask.
async fn holder_views(app: &Shared, lock: &LockName) -> Vec<Request> {
    let name = lock.clone();
    let read = app.node.read(lockkeeper_node::Consistency::Stale, move |state: &State| {
        let requests = state.lock(&name).into_iter().flat_map(|view| view.requests());
        let holding = requests.take_while(|request| matches!(request.standing, Standing::Holds { .. }));
        holding.take(HOLDERS_SHOWN).map(request_view).collect::<Vec<_>>()
    });
    read.await.map(|read| read.value).unwrap_or_default()
}

/// Gives the lock back. Needs the holder's session and its token.
#[utoipa::path(post, path = "/v1/locks/{name}/release", tag = "locks", request_body = Token,
    params(("name" = String, Path, description = "The lock"), super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It was given back", body = Released),
              (status = "4XX", description = "Refused; 409 `not_held`: not held with this token by this session", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn release(
    Extract(app): Extract<Shared>,
    Lock(lock): Lock,
    asking: Asking,
    Json(Token { token }): Json<Token>,
) -> Answer<Released> {
    asking.credential()?;
    let name = lock.to_string();
    let done = app.node.execute(asking.0, Op::Release { locks: vec![lock], token: FencingToken(token) }).await?;
    match done.value {
        Outcome::Released => Ok(Reply::ok(done.zxid, Released { lock: name, token, zxid: done.zxid.0 })),
        other => Err(super::unexpected(&other)),
    }
}

/// Says whether the lock is held with this token now: what a resource asks before it lets a holder act.
#[utoipa::path(post, path = "/v1/locks/{name}/verify", tag = "locks", request_body = Token,
    params(("name" = String, Path, description = "The lock")),
    responses((status = 200, description = "Whether it is held", body = Verified),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Not confirmed: treat the token as not held, and try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn verify(
    Extract(app): Extract<Shared>,
    Lock(lock): Lock,
    Json(Token { token }): Json<Token>,
) -> Answer<Verified> {
    let name = lock.to_string();
    let verified = app.node.verify(&lock, FencingToken(token)).await?;
    Ok(Reply::ok(verified.zxid, Verified { lock: name, token, held: verified.value, zxid: verified.zxid.0 }))
}

/// Shows who holds the lock and who waits for it. A lock that nobody uses has neither.
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock"), Consistency),
    responses((status = 200, description = "The lock", body = LockPage),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    Extract(app): Extract<Shared>,
    Lock(lock): Lock,
    Query(how): Query<Consistency>,
) -> Answer<LockPage> {
    let name = lock.to_string();
    let read = app
        .node
        .read(how.level(), move |state: &State| {
            let Some(view) = state.lock(&lock) else { return (Vec::new(), Vec::new(), 0) };
            let (total, holding) = (view.len(), view.holders());
            let shown = view.requests().take(holding + QUEUE_SHOWN).map(request_view);
            let (queue, holders): (Vec<Request>, Vec<Request>) = shown.partition(|request| request.waits_for.is_some());
            (holders, queue, (total - holding) as u64)
        })
        .await?;
    let (holders, queue, waiting) = read.value;
    Ok(Reply::ok(read.zxid, LockPage { lock: name, holders, queue, waiting, zxid: read.zxid.0 }))
}

/// Which page of locks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Locks whose names start with this.
    prefix: Option<String>,
    /// Locks after this one.
    after: Option<String>,
    /// At most so many, from 1 to 1,000; 100 where it is left out.
    limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    consistency: Option<super::Level>,
}

/// Lists the locks in whose queue somebody stands, in the order of their names.
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(Page),
    responses((status = 200, description = "A page of locks", body = Locks),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(Extract(app): Extract<Shared>, Query(page): Query<Page>) -> Answer<Locks> {
    let limit = page_limit(page.limit)?;
    let prefix = page.prefix.unwrap_or_default();
    if prefix.len() > lockkeeper_core::limits::MAX_PATH_BYTES {
        return Err(Failure::bad_request("'prefix' is longer than any lock's name can be"));
    }
    let after = page.after.as_deref().map(LockName::parse).transpose()?;
    let read = app
        .node
        .read(super::level(page.consistency), move |state: &State| {
            let mut found = state.locks(&prefix, after.as_ref(), limit + 1);
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(|last| last.name.to_string());
            let first = |name: &LockName| state.lock(name).and_then(|view| view.requests().next());
            let summary = |lock: lockkeeper_core::LockSummary| LockSummary {
                holder: first(&lock.name).map(request_view),
                lock: lock.name.to_string(),
                holding: lock.holders as u64,
                waiting: lock.waiters as u64,
            };
            (found.into_iter().map(summary).collect::<Vec<_>>(), next)
        })
        .await?;
    let (locks, next) = read.value;
    Ok(Reply::ok(read.zxid, Locks { locks, next, zxid: read.zxid.0 }))
}

/// Takes the lock from its holder, whoever asks: for people who know that the holder is gone. Each use is in the audit log.
#[utoipa::path(delete, path = "/v1/locks/{name}/holders/{token}", tag = "locks",
    params(("name" = String, Path, description = "The lock"), ("token" = u64, Path, description = "The token of the grant to break"), super::SessionHeader),
    responses((status = 200, description = "It was taken from its holder", body = Released),
              (status = "4XX", description = "Refused; 403 `forbidden`: switched off in this node's configuration", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn force_release(
    Extract(app): Extract<Shared>,
    LockAndToken(lock, token): LockAndToken,
    asking: Asking,
    Extension(ClientAddress(from)): Extension<ClientAddress>,
) -> Answer<Released> {
    if !app.admin.allow_force_release {
        let detail = "forced release is switched off at this node (admin.allow_force_release); close the holder's session instead, or wait for it to expire";
        return Err(Failure::new(Code::Forbidden, detail));
    }
    if app.stopping.is_cancelled() {
        return Err(shutting_down());
    }
    let by = match asking.0.credential {
        // The audit log is to name nobody who has not proved it; and any request is a sign of life.
        Some(credential) => {
            app.node.keepalive(&credential).await?;
            format!("session {} from {from}", credential.session)
        }
        None => format!("somebody without a session from {from}"),
    };
    let name = lock.to_string();
    let done = app.node.force_release(lock, FencingToken(token), &by).await?;
    Ok(Reply::ok(done.zxid, Released { lock: name, token, zxid: done.zxid.0 }))
}
