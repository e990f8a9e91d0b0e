//! Calls of locks: verify, look at, list, break. Acquiring and releasing is in `acquire`.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::locks::{Lock, LockSummary, Locks, LocksQuery, Mode, Released, Request, Token, Verified};
use lockkeeper_core::access::{Need, Resource};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::{FencingToken, LockMode, LockName, LockRequest, Refusal, Standing, State};
use lockkeeper_node::{Consistency, NodeError};

pub(super) use super::acquire::{acquire_lock, downgrade_lock, release_lock};
use super::lists::{ListQuery, Names, Page, list};
use super::{CallScope, level, record};
use crate::audit::AuditEvent;
use crate::context::Context;
use crate::failure::Failure;
use crate::principals::{may_name, may_read};
use crate::reply::{Answered, Reply};

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

fn request_view(state: &State, request: LockRequest) -> Request {
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
        principal: request.session.and_then(|id| state.principal_of_session(state.session(id)?)),
        label: state.label_or_session(&request.label, request.session),
        since_ms: request.since_ms,
        path: request.path.to_string(),
        waits_for,
        holds: request.holds,
    }
}

/// The present holders as this replica knows them, for people who read a busy reply; `None` for callers who may not
/// read the lock's directory.
pub(super) async fn holder_views(context: &Context, principals: &Principals, lock: &LockName) -> Option<Vec<Request>> {
    let (name, principals) = (lock.clone(), principals.clone());
    let read = context.node.read(Consistency::Stale, move |state: &State| {
        may_read(&principals, state, &name.directory()).ok()?;
        let requests = state.lock(&name).into_iter().flat_map(|view| view.requests());
        let holding = requests.take_while(|request| matches!(request.standing, Standing::Holds { .. }));
        Some(holding.take(HOLDERS_SHOWN).map(|request| request_view(state, request)).collect::<Vec<_>>())
    });
    read.await.ok()?.value
}

/// Says whether the lock is held with this token now: what a resource asks before it lets a holder act.
pub(super) async fn verify_lock(scope: CallScope, name: String, Token { token }: Token) -> Answered<Verified> {
    let lock = LockName::parse(&name)?;
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let verified = node
        .read(Consistency::Linearizable, move |state: &State| {
            state.check_right(&principals, &Need::to_read(&lock.directory()))?;
            Ok(state.verify(&lock, FencingToken(token)))
        })
        .await?;
    let held = verified.value.map_err(NodeError::Refused)?;
    let body = Verified { lock: name, token, held, zxid: verified.zxid.0 };
    Ok(Reply::ok(verified.zxid, body))
}

/// Shows who holds the lock and who waits for it. A lock that nobody uses has neither.
pub(super) async fn get_lock(scope: CallScope, name: String, query: ReadQuery) -> Answered<Lock> {
    let lock = LockName::parse(&name)?;
    let (node, principals) = (&scope.context.node, scope.caller.principals);
    let read = node
        .read(level(query.consistency), move |state: &State| {
            may_read(&principals, state, &lock.directory())?;
            let Some(view) = state.lock(&lock) else { return Ok((Vec::new(), Vec::new(), 0)) };
            let (total, holding) = (view.len(), view.holders());
            let shown = view.requests().take(holding + QUEUE_SHOWN).map(|request| request_view(state, request));
            let (queue, holders): (Vec<Request>, Vec<Request>) = shown.partition(|request| request.waits_for.is_some());
            Ok((holders, queue, (total - holding) as u64))
        })
        .await?;
    let (holders, queue, waiting) = read.value.map_err(NodeError::Refused)?;
    let body = Lock { lock: name, holders, queue, waiting, zxid: read.zxid.0 };
    Ok(Reply::ok(read.zxid, body))
}

/// Lists the locks in whose queue somebody stands, in the order of their names.
pub(super) async fn list_locks(scope: CallScope, page: LocksQuery) -> Answered<Locks> {
    let LocksQuery { prefix, after, limit, consistency } = page;
    let query = ListQuery { prefix, after, limit, consistency };
    let show = |Page { state, who, names, after, limit }: Page<'_, LockName>| {
        let mut found = match names {
            Names::InParts(name) => in_parts(state, name, after, limit + 1),
            Names::Beginning(prefix) => state.locks(prefix, after, limit + 1),
        };
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| last.name.to_string());
        // The caller learns a name if it may list the directory of that name, and the holder if it may read the lock's
        // own directory.
        found.retain(|lock| may_name(who, state, &lock.name.directory()));
        let readable = |name: &LockName| may_read(who, state, &name.directory()).is_ok();
        let first =
            |name: &LockName| state.lock(name).and_then(|view| view.requests().next()).filter(|_| readable(name));
        let summary = |lock: lockkeeper_core::LockSummary| LockSummary {
            holder: first(&lock.name).map(|request| request_view(state, request)),
            lock: lock.name.to_string(),
            holding: lock.holders as u64,
            waiting: lock.waiters as u64,
            waiting_since_ms: state.lock(&lock.name).and_then(|view| view.waiting_since_ms()),
        };
        (found.into_iter().map(summary).collect::<Vec<_>>(), next)
    };
    let ((locks, next), zxid) = list(scope, Resource::Locks, LockName::parse, query, show).await?;
    Ok(Reply::ok(zxid, Locks { locks, next, zxid: zxid.0 }))
}

/// The locks of a name and of the names below it.
fn in_parts(state: &State, name: &str, after: Option<&LockName>, limit: usize) -> Vec<lockkeeper_core::LockSummary> {
    let first = state.locks(name, None, 1).into_iter().find(|lock| lock.name.as_str() == name);
    let first = first.filter(|_| after.is_none());
    first.into_iter().chain(state.locks(&format!("{name}/"), after, limit)).take(limit).collect()
}

/// The refusal to break a grant that has ended: it names the present one.
async fn not_held_any_more(context: &Context, principals: &Principals, lock: &LockName, token: u64) -> Failure {
    let holders = holder_views(context, principals, lock).await;
    let now = match holders.as_deref() {
        Some([first, ..]) => {
            let who = describe(context, &first.label, (first.since_ms, first.token));
            format!("it is held by {who}: look at that holder before you break its grant")
        }
        Some([]) => "nobody holds it".to_owned(),
        None => "look at its holder before you break a grant".to_owned(),
    };
    Failure::new(Code::NotHeld, format!("lock {lock} is not held with token {token}; {now}"))
        .with(|problem| problem.holders = holders.unwrap_or_default())
}

/// A holder for people: who, since when in the queue, and with which token.
pub(super) fn describe(context: &Context, who: &str, (since_ms, token): (u64, u64)) -> String {
    let seconds = context.node.clock_ms().saturating_sub(since_ms) / 1_000;
    let queued = humantime::format_duration(Duration::from_secs(seconds));
    format!("{who:?}, queued {queued} ago (token {token})")
}

/// Takes the lock from its holder, whoever asks: for people who know that the holder is gone. Each use is in the audit
/// log.
pub(super) async fn break_lock(scope: CallScope, name: String, token: u64) -> Answered<Released> {
    let lock = LockName::parse(&name)?;
    let refused = "forced release is off on this node (admin.allow_force_release); close the holder's session, or let \
                   it expire";
    let requester = scope.admit_force(refused).await?;
    let CallScope { context, caller, .. } = scope;
    let event = AuditEvent::ForcedRelease { lock: Some(lock.clone()), path: None, token: FencingToken(token) };
    let done = context.node.force_release(lock.clone(), FencingToken(token), caller.principals.clone()).await;
    let answered = match done {
        Ok(done) => {
            let body = Released { lock: name, token, still_held: 0, zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        Err(NodeError::Refused(Refusal::NotHeld { .. })) => {
            Err(not_held_any_more(&context, &caller.principals, &lock, token).await)
        }
        Err(error) => Err(error.into()),
    };
    record(&context, event, requester, &answered);
    answered
}
