//! Acquires a lock without standing in its queue (`unfair`): tries, and tries again after a random pause.
//!
//! It must not load the log while the lock is held: but for the first attempt, nothing is proposed unless this replica
//! shows that nobody waits. Nor may a request stay in the queue between two attempts.
//!
//! Each attempt has an id of its own: the first one that of the request, the others a hash of that id with their
//! number. So a call that is repeated under the same request id goes through the same attempts, and finds the one that
//! was granted; and no two calls of a session share an attempt, however their client draws request ids.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockMode, LockName, LockView, RequestId, RequestKey, SessionId, Standing, State};
use lockkeeper_node::{Acquire, Acquired, At, Caller, Consistency, NodeError, Undecided};
use parking_lot::Mutex;
use rand::Rng;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::context::Context;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Tries while `ask.wait` lasts, and at least once. Dropping the future cancels the attempt under way, and drops
/// `undecided` once that is done.
pub(super) async fn acquire(
    context: &Context,
    caller: &Caller,
    ask: Acquire,
    undecided: Option<oneshot::Sender<Undecided>>,
) -> Result<At<Acquired>, NodeError> {
    let until = Instant::now() + ask.wait;
    let undecided = Arc::new(Mutex::new(undecided));
    let (mut pause, mut number) = (FIRST_PAUSE, 0_u32);
    loop {
        let last = attempt(context, caller, &ask, number, &undecided).await?;
        if matches!(last.value, Acquired::Held(_)) {
            return Ok(last);
        }
        // This replica has applied that attempt, and with it all that an earlier call under the same id has got.
        number = match later_attempt(context, caller, &ask, number).await? {
            Some(later) => later,
            None => {
                // An earlier call has made this attempt, and perhaps the next ones too.
                let is_made = matches!(last.value, Acquired::Gone);
                let next = if is_made { number.saturating_mul(2) } else { number }.saturating_add(1);
                match wait_for_chance(context, caller, &ask, (number, &mut pause, until)).await? {
                    Chance::Made(later) => later,
                    Chance::Free => next,
                    // Each call makes one attempt of its own at least, unless the lock is held.
                    Chance::TimeOver if is_made && may_be_free(context, caller, &ask).await? => next,
                    Chance::TimeOver => return Ok(last),
                }
            }
        };
    }
}

/// What ends a wait for the next attempt.
enum Chance {
    /// A later attempt is in the queue: the one with this number.
    Made(u32),
    /// This replica shows that nobody holds the lock or waits.
    Free,
    TimeOver,
}

/// Waits until the next attempt may succeed.
async fn wait_for_chance(
    context: &Context,
    caller: &Caller,
    ask: &Acquire,
    (number, pause, until): (u32, &mut Duration, Instant),
) -> Result<Chance, NodeError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Chance::TimeOver);
        }
        let chance = rand::rng().random_range(0.5..1.0);
        tokio::select! {
            () = sleep(pause.mul_f64(chance).min(left)) => {}
            // Nothing of it stands in the queue.
            () = context.stopping.cancelled() => return Err(NodeError::ShuttingDown),
        }
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        if let Some(later) = later_attempt(context, caller, ask, number).await? {
            return Ok(Chance::Made(later));
        }
        if may_be_free(context, caller, ask).await? {
            return Ok(Chance::Free);
        }
        let Some(credential) = &caller.credential else { continue };
        // An attempt is a sign of life of the session, as a place in the queue would be.
        match context.node.keepalive(credential).await {
            Ok(kept) => *pause = (*pause).min(Duration::from_millis(u64::from(kept.value.timeout_ms) / 3)),
            Err(error @ NodeError::Refused(_)) => return Err(error),
            Err(error) => tracing::debug!(%error, "an unfair lock request could not keep its session alive"),
        }
    }
}

async fn attempt(
    context: &Context,
    caller: &Caller,
    ask: &Acquire,
    number: u32,
    undecided: &Arc<Mutex<Option<oneshot::Sender<Undecided>>>>,
) -> Result<At<Acquired>, NodeError> {
    let uuid = attempt_id(ask.uuid, number);
    let request = caller.request.as_ref().map(|key| RequestKey { id: uuid, ..key.clone() });
    let caller = Caller { request, ..caller.clone() };
    let ask = Acquire { uuid, wait: Duration::ZERO, ..ask.clone() };
    let (sender, cancelled) = oneshot::channel();
    let of_call = undecided.clone();
    // Keeps the caller's sender until this attempt is cancelled or over.
    context.tasks.spawn(async move {
        if cancelled.await.is_ok()
            && let Some(undecided) = of_call.lock().take()
        {
            // The receiver may be gone.
            let _ = undecided.send(Undecided);
        }
    });
    context.node.acquire_with_cancellation(caller, ask, sender).await
}

/// The id of an attempt: the number is in its last 32 bits, so that it can be read back.
fn attempt_id(request: RequestId, number: u32) -> RequestId {
    if number == 0 { request } else { RequestId(series_of(request) | u128::from(number)) }
}

fn series_of(request: RequestId) -> u128 {
    let hash = Sha256::new_with_prefix("lockkeeper unfair").chain_update(request.0.to_be_bytes()).finalize();
    hash.iter().take(12).fold(0, |series, byte| series << 8 | u128::from(*byte)) << 32
}

/// The number of the attempt that has this id.
fn number_of(request: RequestId, id: u128) -> Option<u32> {
    let number = u32::try_from(id & u128::from(u32::MAX)).ok();
    number.filter(|number| attempt_id(request, *number).0 == id).or((id == request.0).then_some(0))
}

/// A later attempt of this request that is in the queue, as far as this replica knows: an earlier call under the same
/// id was granted, or makes it at another node.
async fn later_attempt(
    context: &Context,
    caller: &Caller,
    ask: &Acquire,
    number: u32,
) -> Result<Option<u32>, NodeError> {
    let Some(session) = caller.credential.as_ref().map(|credential| credential.session) else { return Ok(None) };
    let (lock, request) = (ask.locks.first().cloned(), ask.uuid);
    let read = context.node.read(Consistency::Stale, move |state: &State| {
        let queue = state.lock(lock.as_ref()?)?;
        let own = queue.requests().filter(|it| it.session == Some(session));
        own.filter_map(|it| number_of(request, id_in(it.path.name())?)).max()
    });
    Ok(read.await?.value.filter(|later| *later > number))
}

/// The id in the name of a request's node.
fn id_in(name: &str) -> Option<u128> {
    let id = name.strip_prefix("_c_")?.get(..36)?;
    Uuid::try_parse(id).ok().map(|id| id.as_u128())
}

/// Whether an attempt may succeed, as far as this replica knows.
async fn may_be_free(context: &Context, caller: &Caller, ask: &Acquire) -> Result<bool, NodeError> {
    let (locks, mode) = (ask.locks.clone(), ask.mode);
    // Only what the caller's own session holds can be re-entered.
    let own = caller.credential.as_ref().map(|credential| credential.session).filter(|_| ask.reentrant);
    let is_free = move |state: &State, lock: &LockName| match (state.lock(lock), mode) {
        (None, _) => true,
        (Some(queue), LockMode::Exclusive | LockMode::Write) => queue.is_empty() || is_held_by(&queue, own),
        (Some(queue), LockMode::Shared | LockMode::Permit(_)) => queue.len() == queue.holders(),
    };
    let read =
        context.node.read(Consistency::Stale, move |state: &State| locks.iter().all(|lock| is_free(state, lock)));
    Ok(read.await?.value)
}

/// Whether this session holds the lock alone.
fn is_held_by(queue: &LockView<'_>, session: Option<SessionId>) -> bool {
    let first = session.and_then(|_| queue.requests().next());
    first.is_some_and(|first| first.session == session && matches!(first.standing, Standing::Holds { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_follow_one_another_share_no_attempt() {
        let first = RequestId(7);
        let ids = |request: RequestId| (0..1_000).map(move |number| attempt_id(request, number).0);
        let of_first: std::collections::BTreeSet<u128> = ids(first).collect();
        assert_eq!(of_first.len(), 1_000);
        for next in [8, 9, 500, u128::MAX] {
            assert!(ids(RequestId(next)).all(|id| !of_first.contains(&id)), "{next}");
        }
    }

    #[test]
    fn an_attempt_is_known_by_its_id() {
        let request = RequestId(u128::MAX - 3);
        for number in [0, 1, 77, u32::MAX] {
            let id = attempt_id(request, number);
            assert_eq!(number_of(request, id.0), Some(number));
            assert_eq!(number_of(RequestId(5), id.0), None);
            assert_eq!(id_in(&format!("_c_{id}-lock-0000000001")), Some(id.0));
        }
        assert_eq!(id_in("lock-0000000001"), None);
    }
}
