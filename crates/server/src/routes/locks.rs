//! `/v1/locks`: verify, look at, list, break. Acquiring and releasing is in `acquire`.

use std::sync::Arc;

use axum::extract::{Extension, State as Extract};
use lockkeeper_api::locks::{Lock as LockPage, LockSummary, Locks, Mode, Released, Request, Token, Verified};
use lockkeeper_api::{Code, Problem};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::lock::LOCKS_ROOT;
use lockkeeper_core::{FencingToken, LockMode, LockName, LockRequest, NodePath, Standing, State};
use lockkeeper_node::NodeError;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Consistency, page_limit};
use crate::context::Context;
use crate::extract::{Asking, Json, Lock, LockAndToken, Query, Who};
use crate::failure::{Failure, shutting_down};
use crate::http::connection::ClientAddress;
use crate::principals::{may_name, may_read};
use crate::reply::{Answer, Reply};

/// Most waiters shown of a lock.
const QUEUE_SHOWN: usize = 1_000;
/// Holders shown of a lock that is busy.
const HOLDERS_SHOWN: usize = 100;

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

/// The present holders as this replica knows them, for people who read a busy reply; `None` for callers who may not
/// read the lock's directory.
pub(super) async fn holder_views(context: &Context, principals: &Principals, lock: &LockName) -> Option<Vec<Request>> {
    let (name, principals) = (lock.clone(), principals.clone());
    let read = context.node.read(lockkeeper_node::Consistency::Stale, move |state: &State| {
        may_read(&principals, state, &name.directory()).ok()?;
        let requests = state.lock(&name).into_iter().flat_map(|view| view.requests());
        let holding = requests.take_while(|request| matches!(request.standing, Standing::Holds { .. }));
        Some(holding.take(HOLDERS_SHOWN).map(request_view).collect::<Vec<_>>())
    });
    read.await.ok()?.value
}

/// Says whether the lock is held with this token now: what a resource asks before it lets a holder act.
#[utoipa::path(post, path = "/v1/locks/{name}/verify", tag = "locks", request_body = Token,
    params(("name" = String, Path, description = "The lock")),
    responses((status = 200, description = "Whether it is held", body = Verified),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Not confirmed: treat the token as not held, and try again",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn verify(
    Extract(context): Extract<Arc<Context>>,
    Lock(lock): Lock,
    Json(Token { token }): Json<Token>,
) -> Answer<Verified> {
    let name = lock.to_string();
    let verified = context.node.verify(&lock, FencingToken(token)).await?;
    Ok(Reply::ok(verified.zxid, Verified { lock: name, token, held: verified.value, zxid: verified.zxid.0 }))
}

/// Shows who holds the lock and who waits for it. A lock that nobody uses has neither.
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock"), Consistency),
    responses((status = 200, description = "The lock", body = LockPage),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    Extract(context): Extract<Arc<Context>>,
    Lock(lock): Lock,
    Who(principals): Who,
    Query(how): Query<Consistency>,
) -> Answer<LockPage> {
    let name = lock.to_string();
    let read = context
        .node
        .read(how.level(), move |state: &State| {
            may_read(&principals, state, &lock.directory())?;
            let Some(view) = state.lock(&lock) else { return Ok((Vec::new(), Vec::new(), 0)) };
            let (total, holding) = (view.len(), view.holders());
            let shown = view.requests().take(holding + QUEUE_SHOWN).map(request_view);
            let (queue, holders): (Vec<Request>, Vec<Request>) = shown.partition(|request| request.waits_for.is_some());
            Ok((holders, queue, (total - holding) as u64))
        })
        .await?;
    let (holders, queue, waiting) = read.value.map_err(NodeError::Refused)?;
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
pub(super) async fn list(
    Extract(context): Extract<Arc<Context>>,
    Who(principals): Who,
    Query(page): Query<Page>,
) -> Answer<Locks> {
    let limit = page_limit(page.limit)?;
    let prefix = page.prefix.unwrap_or_default();
    if prefix.len() > lockkeeper_core::limits::MAX_PATH_BYTES {
        return Err(Failure::bad_request("'prefix' is longer than any lock's name can be"));
    }
    let after = page.after.as_deref().map(LockName::parse).transpose()?;
    let root = NodePath::parse(LOCKS_ROOT)?;
    let read = context
        .node
        .read(super::level(page.consistency), move |state: &State| {
            may_read(&principals, state, &root)?;
            let mut found = state.locks(&prefix, after.as_ref(), limit + 1);
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(|last| last.name.to_string());
            // The caller learns a name if it may list the directory of that name, and the holder if it may read the
            // lock's own directory.
            found.retain(|lock| may_name(&principals, state, &lock.name.directory()));
            let readable = |name: &LockName| may_read(&principals, state, &name.directory()).is_ok();
            let first =
                |name: &LockName| state.lock(name).and_then(|view| view.requests().next()).filter(|_| readable(name));
            let summary = |lock: lockkeeper_core::LockSummary| LockSummary {
                holder: first(&lock.name).map(request_view),
                lock: lock.name.to_string(),
                holding: lock.holders as u64,
                waiting: lock.waiters as u64,
            };
            Ok((found.into_iter().map(summary).collect::<Vec<_>>(), next))
        })
        .await?;
    let (locks, next) = read.value.map_err(NodeError::Refused)?;
    Ok(Reply::ok(read.zxid, Locks { locks, next, zxid: read.zxid.0 }))
}

/// Takes the lock from its holder, whoever asks: for people who know that the holder is gone. Each use is in the audit
/// log.
#[utoipa::path(delete, path = "/v1/locks/{name}/holders/{token}", tag = "locks",
    params(("name" = String, Path, description = "The lock"),
           ("token" = u64, Path, description = "The token of the grant to break"), super::SessionHeader),
    responses((status = 200, description = "It was taken from its holder", body = Released),
              (status = "4XX", description = "Refused; 403 `forbidden`: switched off in this node's configuration",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn force_release(
    Extract(context): Extract<Arc<Context>>,
    LockAndToken(lock, token): LockAndToken,
    asking: Asking,
    Extension(ClientAddress(from)): Extension<ClientAddress>,
) -> Answer<Released> {
    if !context.admin.allow_force_release {
        let detail = "forced release is off on this node (admin.allow_force_release); close the holder's session, or \
         let it expire";
        return Err(Failure::new(Code::Forbidden, detail));
    }
    if context.stopping.is_cancelled() {
        return Err(shutting_down());
    }
    let by = match asking.0.credential {
        // The audit log must name only sessions whose secret was shown; and any request is a sign of life.
        Some(credential) => {
            context.node.keepalive(&credential).await?;
            format!("session {} from {from}", credential.session)
        }
        None => format!("somebody without a session from {from}"),
    };
    let name = lock.to_string();
    let done = context.node.force_release(lock, FencingToken(token), asking.0.principals, &by).await?;
    Ok(Reply::ok(done.zxid, Released { lock: name, token, zxid: done.zxid.0 }))
}
