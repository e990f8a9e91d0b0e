//! What the engines with a lock table in a database share: names of tables, and the wait for a lock.
//!
//! A database grants a lock by one statement (or one transaction for several locks), and has no queue. A waiter looks
//! again when a release is announced, when the lease of the holder ends, and now and then. A grant must never be lost
//! here: if its caller has gone, it is released, and if its answer was lost, the owner of the row tells whose it is.

mod wakeups;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::engine::{Lease, LockRequest};
use crate::error::EngineError;
use crate::wait::Deadline;
pub(crate) use wakeups::Wakeups;

/// Longest part of a table's name: PostgreSQL truncates longer ones.
const MAX_TABLE_BYTES: usize = 63;
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// A statement that was undone for another's sake, as by a deadlock, is sent again so often.
const MOST_CONFLICTS: usize = 10;

/// A table's name, quoted: `table` or `schema.table` of ASCII letters, digits and `_`, so that no other SQL can get
/// into a statement.
pub(crate) fn quoted_table(name: &str, quote: char) -> Result<String, EngineError> {
    let fits = |part: &str| {
        (1..=MAX_TABLE_BYTES).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !part.starts_with(|first: char| first.is_ascii_digit())
    };
    let parts: Vec<&str> = name.splitn(2, '.').collect();
    if !parts.iter().all(|part| fits(part)) {
        return Err(EngineError::Refused(format!(
            "{name:?} is not a valid table name: it needs 1 to {MAX_TABLE_BYTES} ASCII letters, digits and '_', and no \
             digit first; a schema may stand before it, with a point"
        )));
    }
    Ok(parts.iter().map(|part| format!("{quote}{part}{quote}")).collect::<Vec<_>>().join("."))
}

/// A random part of a duration: waiters must not look at the same moment.
pub(crate) fn jittered(duration: Duration) -> Duration {
    // Uuid is the source of randomness that the crate has in any case.
    let [.., random] = *Uuid::new_v4().as_bytes();
    duration / 2 + duration.mul_f64(f64::from(random) / 512.0)
}

/// What became of an attempt to acquire.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The owner has all locks, with these tokens.
    Granted(Vec<u64>),
    /// At least one lock has another owner. Nothing changed.
    Held,
    /// The database undid the attempt for another's sake. Nothing changed.
    Conflict(String),
}

/// A lock table.
#[async_trait]
pub(crate) trait LockTable: Send + Sync + 'static {
    /// The name of the engine.
    fn engine(&self) -> &'static str;

    /// Takes all locks for the owner, or finds that the owner has them. Sets `sent` just before the request goes out,
    /// unless it is set.
    async fn attempt(
        &self,
        request: &LockRequest,
        owner: Uuid,
        sent: &mut Option<Moment>,
    ) -> Result<Attempt, EngineError>;

    /// How long the locks stay held without a renewal. Zero if they are free.
    async fn held_for(&self, locks: &[String]) -> Result<Duration, EngineError>;

    async fn release(&self, lease: &Lease) -> Result<(), EngineError>;

    /// The waiters of this process.
    fn wakeups(&self) -> &Wakeups;

    /// Called before a waiter looks. Returns how long it may then wait without looking.
    async fn prepare_wait(&self) -> Duration;
}

/// Acquires the locks of the request; waits by looking again.
pub(crate) async fn acquire<T: LockTable>(table: &Arc<T>, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
    let (owner, deadline) = (Uuid::new_v4(), request.wait.deadline());
    if let Some(lease) = attempt_unless_dropped(table, request, owner, deadline).await? {
        return Ok(Some(lease));
    }
    let waiter = table.wakeups().register(request.locks());
    let mut pause = FIRST_PAUSE;
    loop {
        if deadline.is_over() {
            return Ok(None);
        }
        let longest = table.prepare_wait().await;
        let held_for = table.held_for(request.locks()).await?;
        if held_for.is_zero() {
            if let Some(lease) = attempt_unless_dropped(table, request, owner, deadline).await? {
                return Ok(Some(lease));
            }
            pause = FIRST_PAUSE;
        }
        let nap = deadline.left(jittered(pause.min(longest)).min(held_for.max(FIRST_PAUSE)));
        // Woken or not, it looks.
        let _ = timeout(nap, waiter.woken()).await;
        pause = (pause * 2).min(longest);
    }
}

/// An attempt that goes on if its caller is dropped, and then releases what it got.
async fn attempt_unless_dropped<T: LockTable>(
    table: &Arc<T>,
    request: &LockRequest,
    owner: Uuid,
    deadline: Deadline,
) -> Result<Option<Lease>, EngineError> {
    let (sender, receiver) = oneshot::channel();
    let (table, request) = (table.clone(), request.clone());
    tokio::spawn(async move {
        let outcome = attempt(&*table, &request, owner, deadline).await;
        if let Err(Ok(Some(lease))) = sender.send(outcome)
            && let Err(error) = table.release(&lease).await
        {
            tracing::debug!(%error, locks = ?lease.locks, "lock of a caller that has gone left to its lease");
        }
    });
    let ended = || Err(EngineError::UnknownOutcome("the runtime is shutting down".into()));
    receiver.await.unwrap_or_else(|_| ended())
}

async fn attempt<T: LockTable>(
    table: &T,
    request: &LockRequest,
    owner: Uuid,
    deadline: Deadline,
) -> Result<Option<Lease>, EngineError> {
    let mut pause = FIRST_PAUSE;
    let mut last = String::new();
    let mut sent = None;
    // Whether the locks may have been taken at `sent` already.
    let mut unknown = false;
    for _ in 0..MOST_CONFLICTS {
        if !unknown {
            sent = None;
        }
        let mut attempted = table.attempt(request, owner, &mut sent).await;
        if let Err(EngineError::UnknownOutcome(why)) = &attempted {
            // Asks again as the same owner: either the first attempt took the locks, or the second one does.
            let why = why.clone();
            unknown = true;
            attempted = match table.attempt(request, owner, &mut sent).await {
                Err(error) if error.is_failure() => Err(EngineError::UnknownOutcome(format!("{why}; then {error}"))),
                other => other,
            };
        }
        match attempted? {
            Attempt::Granted(tokens) => {
                let (locks, length) = (request.locks().to_vec(), request.lease);
                let ends_at = sent.unwrap_or_else(Moment::now) + length;
                let lease = Lease { locks, owner, tokens, length, ends_at };
                if Moment::now() < ends_at {
                    return Ok(Some(lease));
                }
                // The answer took longer than the lease. The rows may still be there, but not for a known time.
                match table.release(&lease).await {
                    Ok(()) | Err(EngineError::Lost(_)) => {}
                    Err(error) => {
                        return Err(EngineError::UnknownOutcome(format!("the answer came too late; then {error}")));
                    }
                }
                if deadline.is_over() {
                    return Ok(None);
                }
                unknown = false;
                last = "the answer came after the end of the lease".into();
            }
            Attempt::Held => return Ok(None),
            Attempt::Conflict(why) => last = why,
        }
        sleep(jittered(pause)).await;
        pause *= 2;
    }
    Err(EngineError::Unreachable {
        engine: table.engine().into(),
        why: format!(
            "{MOST_CONFLICTS} attempts in a row were undone for the sake of others, or answered too late: {last}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::wait::Wait;

    #[test]
    fn nothing_but_names_gets_into_a_statement() {
        assert_eq!(quoted_table("shop.locks", '`').unwrap(), "`shop`.`locks`");
        assert_eq!(quoted_table("locks", '"').unwrap(), "\"locks\"");
        for bad in ["", ".", "a.b.c", "a b", "a`b", "a\"b", "1a", "ü", "a;drop", ".a", "a.", &"x".repeat(64)] {
            assert!(matches!(quoted_table(bad, '`'), Err(EngineError::Refused(_))), "{bad:?}");
        }
    }

    /// The first outcome is unknown, and comes after the end of the lease; each further attempt is granted.
    #[derive(Default)]
    struct Late {
        wakeups: Wakeups,
        attempts: AtomicU32,
        releases: AtomicU32,
    }

    #[async_trait]
    impl LockTable for Late {
        fn engine(&self) -> &'static str {
            "late"
        }

        async fn attempt(
            &self,
            request: &LockRequest,
            _owner: Uuid,
            sent: &mut Option<Moment>,
        ) -> Result<Attempt, EngineError> {
            sent.get_or_insert_with(Moment::now);
            match self.attempts.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    sleep(request.lease * 2).await;
                    Err(EngineError::UnknownOutcome("no answer".into()))
                }
                _ => Ok(Attempt::Granted(vec![1])),
            }
        }

        async fn held_for(&self, _locks: &[String]) -> Result<Duration, EngineError> {
            Ok(Duration::ZERO)
        }

        async fn release(&self, _lease: &Lease) -> Result<(), EngineError> {
            self.releases.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn wakeups(&self) -> &Wakeups {
            &self.wakeups
        }

        async fn prepare_wait(&self) -> Duration {
            FIRST_PAUSE
        }
    }

    #[tokio::test]
    async fn a_lease_that_is_over_is_released_and_not_returned() {
        let request = LockRequest::new("a").with_lease(Duration::from_millis(500));
        let late = Late::default();
        let deadline = Wait::Endless.deadline();
        let lease = attempt(&late, &request, Uuid::new_v4(), deadline).await.unwrap().unwrap();
        assert!(lease.ends_at > Moment::now());
        assert_eq!((late.attempts.into_inner(), late.releases.into_inner()), (3, 1));

        let late = Late::default();
        let granted = attempt(&late, &request, Uuid::new_v4(), Wait::Try.deadline()).await.unwrap();
        assert_eq!((granted, late.releases.into_inner()), (None, 1));
    }

    #[test]
    fn pauses_are_jittered_around_their_length() {
        for _ in 0..100 {
            let pause = jittered(Duration::from_millis(100));
            assert!((50..100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
