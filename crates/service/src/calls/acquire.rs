//! Calls that acquire, release and downgrade locks: exclusive, shared, permits, and several locks together.

use std::fmt::Write;
use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquire, Acquired, Downgraded, Mode, Release, Released, Token};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::{MAX_DELAY_MS, MAX_LOCKS_TOGETHER, MAX_PERMITS};
use lockkeeper_core::{
    FencingToken, IfHolding, LockMode, LockName, LockOp, Reply as Outcome, RequestId, RequestKey, Zxid,
};
use lockkeeper_node::{Caller, Credential, Grant, Node, NodeError};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use super::locks::{describe, holder_views};
use super::sessions::{check_label, credential_text, label_or_address};
use super::{CallScope, unexpected, unfair};
use crate::context::Context;
use crate::failure::{Failure, session_required};
use crate::reply::{Answered, Reply};

/// Longest wait for a lock.
pub const MAX_WAIT_MS: u64 = 600_000;

/// A checked lock request.
struct Wanted {
    /// The lock that the call names.
    lock: LockName,
    /// All locks of the request: sorted, each once.
    locks: Vec<LockName>,
    mode: Mode,
    permits: LockMode,
    label: String,
    uuid: RequestId,
}

fn mode_in(ask: &Acquire) -> Result<LockMode, Failure> {
    match (ask.mode, ask.permits) {
        (Mode::Permit, Some(permits @ 1..=MAX_PERMITS)) => Ok(LockMode::Permit(permits)),
        (Mode::Permit, Some(permits)) => {
            Err(Failure::bad_request(format!("'permits' is from 1 to {MAX_PERMITS}, not {permits}")))
        }
        (Mode::Permit, None) => Err(Failure::bad_request(
            "mode 'permit' needs 'permits', the number of holders; all requests in a queue send the same",
        )),
        (_, Some(_)) => {
            Err(Failure::bad_request("'permits' goes with mode 'permit' only; leave it out, or ask for a permit"))
        }
        (Mode::Exclusive, None) => Ok(LockMode::Exclusive),
        (Mode::Shared, None) => Ok(LockMode::Shared),
        (Mode::Write, None) => Ok(LockMode::Write),
    }
}

/// The lock of the call and those of `also`: sorted, each once.
fn together(lock: &LockName, also: &[String]) -> Result<Vec<LockName>, Failure> {
    if also.is_empty() {
        return Ok(vec![lock.clone()]);
    }
    if also.len() >= MAX_LOCKS_TOGETHER {
        let detail = format!(
            "'also' names {} locks, at most {} go together with the one in the path",
            also.len(),
            MAX_LOCKS_TOGETHER - 1
        );
        return Err(Failure::bad_request(detail));
    }
    let mut locks = vec![lock.clone()];
    for name in also {
        let name = LockName::parse(name).map_err(|error| {
            Failure::from(error).with(|problem| problem.detail = format!("'also': {name:?}: {}", problem.detail))
        })?;
        locks.push(name);
    }
    locks.sort();
    match locks.windows(2).find(|two| two[0] == two[1]) {
        Some(twice) => Err(Failure::bad_request(format!(
            "lock {} is named twice, in 'also' or in the path; a lock is taken once",
            twice[0]
        ))),
        None => Ok(locks),
    }
}

/// A request id for a client that sent none.
fn draw() -> RequestId {
    RequestId(Uuid::new_v4().as_u128())
}

fn wanted(lock: LockName, caller: &Caller, ask: &Acquire, drawn: RequestId) -> Result<Wanted, Failure> {
    if ask.wait_ms > MAX_WAIT_MS {
        let detail = format!("'wait_ms' is at most {MAX_WAIT_MS}, not {}; ask again after that", ask.wait_ms);
        return Err(Failure::bad_request(detail));
    }
    if ask.delay_ms > MAX_DELAY_MS {
        return Err(Failure::bad_request(format!("'delay_ms' is at most {MAX_DELAY_MS}, not {}", ask.delay_ms)));
    }
    let header_id = caller.request.as_ref().map(|request| request.id);
    let uuid = match (ask.request_id, header_id) {
        (Some(body), Some(header)) if body.as_u128() != header.0 => {
            return Err(Failure::bad_request(
                "'request_id' and Lockkeeper-Request-Id differ; send one, or the same twice",
            ));
        }
        (Some(body), _) => RequestId(body.as_u128()),
        (None, Some(header)) => header,
        (None, None) => drawn,
    };
    let locks = together(&lock, &ask.also)?;
    if ask.reentrant && (locks.len() > 1 || ask.mode != Mode::Exclusive) {
        return Err(Failure::bad_request(
            "'reentrant' is for one lock in mode 'exclusive': leave 'also' and 'mode' out, or 'reentrant'",
        ));
    }
    Ok(Wanted { locks, lock, mode: ask.mode, permits: mode_in(ask)?, label: check_label(ask.label.clone())?, uuid })
}

/// A session that was opened for one lock. Unless it is kept, dropping this closes it.
struct Made {
    node: Node,
    tasks: TaskTracker,
    credential: Credential,
    kept: bool,
    /// Until the session is kept or closed.
    delay_shutdown: Option<TaskTrackerToken>,
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (node, credential, unfinished) = (self.node.clone(), self.credential, self.delay_shutdown.take());
        self.tasks.spawn(async move {
            // If this fails the session ends by its timeout, since nobody keeps it alive.
            if let Err(error) = node.close_session(&credential).await {
                tracing::debug!(%error, session = %credential.session, "a session made for a lock is left to expire");
            }
            drop(unfinished);
        });
    }
}

/// The session that the lock is for.
struct Owner {
    caller: Caller,
    session: u64,
    made: Option<Made>,
}

async fn owner(context: &Context, mut caller: Caller, ask: &Acquire, label: String) -> Result<Owner, Failure> {
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
                // The client drew the id, so it may ask again, and gets the same answer even after a release (promise
                // P9).
                caller.request = Some(RequestKey { id: RequestId(id.as_u128()), acknowledged: Vec::new() });
            }
            Ok(Owner { session, caller, made: None })
        }
        (None, Some(ttl_ms)) => {
            let delay_shutdown = Some(context.node.delay_shutdown());
            let (principals, timeout_ms) = (caller.principals.clone(), context.session_timeout_ms(Some(ttl_ms)));
            let opened = context.node.open_session_as(principals, false, timeout_ms, &label).await?;
            let credential = opened.value.credential;
            caller.credential = Some(credential);
            // Only the answer names the session, so nobody can ask for the lock again in it.
            caller.request = None;
            let (node, tasks) = (context.node.clone(), context.tasks.clone());
            let made = Made { node, tasks, credential, kept: false, delay_shutdown };
            Ok(Owner { caller, session: credential.session.0, made: Some(made) })
        }
    }
}

fn request_for(wanted: &Wanted, ask: &Acquire) -> lockkeeper_node::Acquire {
    lockkeeper_node::Acquire {
        locks: wanted.locks.clone(),
        mode: wanted.permits,
        reentrant: ask.reentrant,
        delay_ms: ask.delay_ms,
        uuid: wanted.uuid,
        label: wanted.label.clone(),
        wait: Duration::from_millis(ask.wait_ms),
    }
}

/// Asks for the lock, waits in its queue, and returns the fencing token once it is held. Dropping the future withdraws
/// the request and then drops `undecided`.
pub(super) async fn acquire_lock(scope: CallScope, name: String, ask: Acquire) -> Answered<Acquired> {
    let CallScope { context, caller, at_work, undecided, expires, from, .. } = scope;
    let wanted = wanted(LockName::parse(&name)?, &caller, &ask, draw())?;
    // Before a session is opened, which would otherwise be opened and closed for nothing.
    let waiting = (ask.wait_ms > 0).then(|| {
        let session = caller.credential.map(|credential| credential.session.0);
        let holder = session.map_or_else(|| at_work.holder_to_come(), |session| at_work.holder(Some(session)));
        at_work.take_waiting(&context.admission, holder)
    });
    let waiting = waiting.transpose()?;
    if ask.ttl_ms.is_some() {
        context.node.check_room_for_request(&caller.principals, &wanted.locks).await?;
    }
    let mut owner = owner(&context, caller, &ask, label_or_address(wanted.label.clone(), from)).await?;
    let mut request = request_for(&wanted, &ask);
    // Nobody waits, and is granted the lock, by a JWT that has expired meanwhile.
    let left = expires.map(|at| at.saturating_duration_since(Instant::now())).filter(|left| *left < request.wait);
    request.wait = left.unwrap_or(request.wait);
    let answer = {
        if waiting.is_some() {
            at_work.leave();
        }
        let _waiting = waiting;
        match (ask.unfair, undecided) {
            (true, undecided) => unfair::acquire(&context, &owner.caller, request, undecided).await,
            (false, Some(undecided)) => {
                context.node.acquire_with_cancellation(owner.caller.clone(), request, undecided).await
            }
            (false, None) => context.node.acquire(owner.caller.clone(), request).await,
        }
    };
    // One that was drawn for this call says nothing to the caller, who cannot ask for the request again.
    let id_of_caller = owner.caller.request.as_ref().map(|_| Uuid::from_u128(wanted.uuid.0));
    let answer = answer.map_err(|error| failed(error, id_of_caller))?;
    let zxid = answer.zxid;
    match answer.value {
        lockkeeper_node::Acquired::Held(grant) => {
            let body = held(&wanted, &mut owner, (&grant, zxid));
            Ok(Reply::ok(zxid, body))
        }
        lockkeeper_node::Acquired::Busy { .. } if left.is_some() => {
            let detail = "the JWT expired while the request waited; the request has left the queue; show another one";
            Err(Failure::new(Code::Unauthenticated, detail).at(zxid))
        }
        lockkeeper_node::Acquired::Busy { lock, holders, waiting_ahead, .. } => {
            Err(busy(&context, &owner.caller.principals, &lock, &ask, (&holders, waiting_ahead + 1)).await.at(zxid))
        }
        lockkeeper_node::Acquired::Gone => {
            let (id, again) = match id_of_caller {
                Some(id) => (format!("request {id}"), "acquire again with a new request id"),
                None => ("the request".into(), "acquire again"),
            };
            let detail = format!("{id} for lock {} was withdrawn, released or broken; {again}", wanted.lock);
            Err(Failure::new(Code::NotQueued, detail).at(zxid))
        }
    }
}

/// Names the request only by an id of the caller's own.
fn failed(error: NodeError, id_of_caller: Option<Uuid>) -> Failure {
    match (error, id_of_caller) {
        (NodeError::UnknownOutcome(why), None) => {
            let remedy = "it may or may not have been executed; see who holds the lock before you acquire it again";
            Failure::new(Code::UnknownOutcome, format!("{why}; {remedy}"))
        }
        (error @ NodeError::UnknownOutcome(_), Some(id)) => Failure::from(error).with(|problem| {
            let _ = write!(problem.detail, ", which is {id}");
        }),
        (error, _) => error.into(),
    }
}

async fn busy(
    context: &Context,
    principals: &Principals,
    lock: &LockName,
    ask: &Acquire,
    (holders, place): (&[lockkeeper_node::HolderInfo], u64),
) -> Failure {
    let views = holder_views(context, principals, lock).await;
    // Callers who may not read the lock's directory do not learn the holder.
    let first = holders.first().filter(|_| views.is_some());
    let others = match holders.len().saturating_sub(1) {
        0 => String::new(),
        others => format!(", and by {others} more"),
    };
    let who = first.map_or_else(String::new, |first| {
        format!(" by {}{others}", describe(context, &first.label, (first.since_ms, first.token.0)))
    });
    let waited = if ask.wait_ms > 0 { format!("after {} ms ", ask.wait_ms) } else { String::new() };
    let detail = format!(
        "lock {lock} is {waited}still held{who}; the request was at place {place} and has left the queue; \
         retry, with a longer 'wait_ms' to wait longer"
    );
    Failure::new(Code::LockBusy, detail).with(|problem| {
        problem.holders = views.unwrap_or_default();
        problem.place = Some(place);
    })
}

fn held(wanted: &Wanted, owner: &mut Owner, (grant, zxid): (&Grant, Zxid)) -> Acquired {
    let credential = owner.made.as_mut().map(|made| {
        made.kept = true;
        credential_text(&made.credential)
    });
    let mut path = String::new();
    let (mut also, mut also_paths) = (Vec::new(), Vec::new());
    for (lock, at) in wanted.locks.iter().zip(&grant.paths) {
        if *lock == wanted.lock {
            path = at.to_string();
        } else {
            also.push(lock.to_string());
            also_paths.push(at.to_string());
        }
    }
    Acquired {
        lock: wanted.lock.to_string(),
        also,
        mode: wanted.mode,
        token: grant.token.0,
        path,
        also_paths,
        holds: grant.holds,
        session_id: owner.session,
        credential,
        session_timeout_ms: grant.timeout_ms,
        session_remaining_ms: grant.remaining_ms,
        request_id: Uuid::from_u128(wanted.uuid.0),
        zxid: zxid.0,
    }
}

/// Gives the lock back. Needs the holder's session and its token.
pub(super) async fn release_lock(scope: CallScope, name: String, ask: Release) -> Answered<Released> {
    let lock = LockName::parse(&name)?;
    scope.credential()?;
    let token = ask.token;
    let (locks, of_grant) = (together(&lock, &ask.also)?, FencingToken(token));
    let op = match ask.even_in_part {
        false => LockOp::Release { locks, token: of_grant },
        true => LockOp::Withdraw { locks, token: of_grant, if_holding: IfHolding::Release },
    };
    let done = scope.context.node.execute(scope.caller, op).await?;
    match done.value {
        Outcome::Released | Outcome::Withdrawn => Ok(released(&lock, token, done.zxid, 0)),
        Outcome::StillHeld { holds } => Ok(released(&lock, token, done.zxid, holds)),
        other => Err(unexpected(&other)),
    }
}

fn released(lock: &LockName, token: u64, zxid: Zxid, still_held: u32) -> Reply<Released> {
    Reply::ok(zxid, Released { lock: lock.to_string(), token, still_held, zxid: zxid.0 })
}

/// Makes the holder of a `write` a reader, without letting go: readers that wait behind it join it. The token stays.
pub(super) async fn downgrade_lock(scope: CallScope, name: String, Token { token }: Token) -> Answered<Downgraded> {
    let lock = LockName::parse(&name)?;
    scope.credential()?;
    let done = scope.context.node.execute(scope.caller, LockOp::Downgrade { lock, token: FencingToken(token) }).await?;
    match done.value {
        Outcome::Downgraded { path } => {
            let body = Downgraded { lock: name, token, path: path.to_string(), zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_names_an_id_of_the_caller_and_no_other() {
        let unknown = || NodeError::UnknownOutcome("it was sent".into());
        let id = draw().0;
        let own = failed(unknown(), Some(Uuid::from_u128(id))).problem().detail.clone();
        assert!(own.ends_with(&format!("the same Lockkeeper-Request-Id, which is {}", Uuid::from_u128(id))), "{own}");
        let without = failed(unknown(), None);
        assert_eq!(without.code(), Code::UnknownOutcome);
        assert!(!without.problem().detail.contains("Request-Id"), "{}", without.problem().detail);
        assert_eq!(failed(NodeError::ShuttingDown, None).code(), Code::ShuttingDown);
    }
}
