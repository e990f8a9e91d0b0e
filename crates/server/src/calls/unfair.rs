//! Acquires a lock without standing in its queue (`unfair`): tries, and tries again after a random pause.
//!
//! It must not load the log while the lock is held: but for the first attempt, nothing is proposed unless this replica
//! shows that nobody waits. Nor may a request stay in the queue between two attempts.
//!
//! Each attempt has an id of its own, which follows from that of the request. So a call that is repeated under the same
//! request id goes through the same attempts, and finds the one that was granted.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockMode, LockName, LockView, RequestId, RequestKey, SessionId, Standing, State};
use lockkeeper_node::{Acquire, Acquired, At, Caller, Consistency, NodeError, Undecided};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

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
    let mut pause = FIRST_PAUSE;
    let mut attempts = 0;
    let mut last = attempt(context, caller, &ask, attempts, &undecided).await?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if matches!(last.value, Acquired::Held(_)) || left.is_zero() {
            break;
        }
        let chance = rand::rng().random_range(0.5..1.0);
        sleep(pause.mul_f64(chance).min(left)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        // A repeated call looks at its earlier attempts, of which one may hold.
        if matches!(last.value, Acquired::Gone) || may_be_free(context, caller, &ask).await? {
            attempts += 1;
            last = attempt(context, caller, &ask, attempts, &undecided).await?;
        } else if let Some(credential) = &caller.credential {
            // An attempt is a sign of life of the session, as a place in the queue would be.
            match context.node.keepalive(credential).await {
                Ok(kept) => pause = pause.min(Duration::from_millis(u64::from(kept.value.timeout_ms) / 3)),
                Err(error @ NodeError::Refused(_)) => return Err(error),
                Err(error) => tracing::debug!(%error, "an unfair lock request could not keep its session alive"),
            }
        }
    }
    Ok(last)
}

async fn attempt(
    context: &Context,
    caller: &Caller,
    ask: &Acquire,
    number: u128,
    undecided: &Arc<Mutex<Option<oneshot::Sender<Undecided>>>>,
) -> Result<At<Acquired>, NodeError> {
    let uuid = RequestId(ask.uuid.0.wrapping_add(number));
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
