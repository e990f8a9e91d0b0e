//! What the engines with a lock table in a database share: names of tables, and the wait for a lock.
//!
//! A database grants a lock by one statement (or one transaction for several locks), and has no queue. A waiter looks
//! again when a release is announced, when the lease of the holder ends, and now and then. A grant must never be lost
//! here: if its caller has gone, it is released, and if its answer was lost, the owner of the row tells whose it is.
//!
//! A statement whose answer was lost may still run in the server. Until the lease that it asked for would be over, a
//! call must not end as if nothing had been acquired, whatever the server says next.

mod wakeups;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{Lease, LockRequest};
use crate::error::EngineError;
use crate::wait::Deadline;
pub(crate) use wakeups::Wakeups;

/// Longest part of a table's name: PostgreSQL truncates longer ones.
const MAX_TABLE_BYTES: usize = 63;
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// A statement that was undone for another's sake, as by a deadlock, is sent again so often.
const MOST_CONFLICTS: usize = 10;

/// How long a connection, and then an answer, may take.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// What every engine with a lock table promises.
pub(crate) const TABLE_CAPABILITIES: Capabilities = Capabilities {
    promises: &[Capability::FencingToken, Capability::AtomicBatch, Capability::ShowsHolder],
    minimum_lease: Duration::from_millis(100),
};

/// Why a statement did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server undid the statement, and its transaction, for another's sake. Sent again, it may succeed.
    Conflict { engine: &'static str, why: String },
    /// Anything else.
    Engine(EngineError),
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict { engine, why } => Self::Unreachable { engine: engine.into(), why },
            Failure::Engine(error) => error,
        }
    }
}

/// Awaits the answer of this database to a statement. `failure` says what its error means.
pub(crate) async fn answer<T, E>(
    database: &str,
    call: impl Future<Output = Result<T, E>>,
    failure: impl FnOnce(E) -> Failure,
) -> Result<T, Failure> {
    match timeout(REQUEST_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(failure),
        Err(_) => {
            let why = format!("{database} has not answered within {REQUEST_TIMEOUT:?}");
            Err(Failure::Engine(EngineError::UnknownOutcome(why)))
        }
    }
}

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

/// That an answer was lost: locks may be held, for an owner that is not used again, until its lease is over.
#[derive(Debug)]
struct Doubt {
    why: String,
    until: Moment,
}

impl Doubt {
    /// The doubt that lasts longer.
    fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        [one, other].into_iter().flatten().max_by_key(|doubt| doubt.until)
    }

    /// The error of a call that ends with `then`, unless the doubt is over.
    fn error(self, then: &str) -> Result<(), EngineError> {
        if Moment::now() >= self.until {
            return Ok(());
        }
        Err(EngineError::UnknownOutcome(format!("{}; then {then}", self.why)))
    }
}

/// Acquires the locks of the request; waits by looking again.
pub(crate) async fn acquire<T: LockTable>(table: &Arc<T>, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
    let mut doubt = None;
    let outcome = acquire_or_doubt(table, request, &mut doubt).await;
    let Some(doubt) = doubt else { return outcome };
    match &outcome {
        Ok(Some(_)) | Err(EngineError::UnknownOutcome(_)) => {}
        Ok(None) => doubt.error("the wait was over")?,
        Err(error) => doubt.error(&error.to_string())?,
    }
    outcome
}

async fn acquire_or_doubt<T: LockTable>(
    table: &Arc<T>,
    request: &LockRequest,
    doubt: &mut Option<Doubt>,
) -> Result<Option<Lease>, EngineError> {
    let deadline = request.wait.deadline();
    if let Some(lease) = attempt_unless_dropped(table, request, deadline, doubt).await? {
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
            if let Some(lease) = attempt_unless_dropped(table, request, deadline, doubt).await? {
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
    deadline: Deadline,
    doubt: &mut Option<Doubt>,
) -> Result<Option<Lease>, EngineError> {
    let (sender, receiver) = oneshot::channel();
    let (table, request) = (table.clone(), request.clone());
    tokio::spawn(async move {
        let mut doubt = None;
        let outcome = attempt(&*table, &request, deadline, &mut doubt).await;
        if let Err((Ok(Some(lease)), _)) = sender.send((outcome, doubt))
            && let Err(error) = table.release(&lease).await
        {
            tracing::debug!(%error, locks = ?lease.locks, "lock of a caller that has gone left to its lease");
        }
    });
    let Ok((outcome, new)) = receiver.await else {
        return Err(EngineError::UnknownOutcome("the runtime is shutting down".into()));
    };
    *doubt = Doubt::later(doubt.take(), new);
    outcome
}

/// Attempts as a new owner: what an earlier attempt may still get is not taken for a grant of this one, which would
/// last longer.
async fn attempt<T: LockTable>(
    table: &T,
    request: &LockRequest,
    deadline: Deadline,
    doubt: &mut Option<Doubt>,
) -> Result<Option<Lease>, EngineError> {
    let mut owner = Uuid::new_v4();
    let mut pause = FIRST_PAUSE;
    let mut last = String::new();
    let mut sent = None;
    for _ in 0..MOST_CONFLICTS {
        // The locks may have been taken at `sent` already if there is a doubt.
        if doubt.is_none() {
            sent = None;
        }
        let mut attempted = table.attempt(request, owner, &mut sent).await;
        if let Err(EngineError::UnknownOutcome(why)) = &attempted {
            // The locks may be held for this owner until then.
            let until = sent.unwrap_or_else(Moment::now) + request.lease;
            *doubt = Doubt::later(doubt.take(), Some(Doubt { why: why.clone(), until }));
            // Asks again as the same owner: either the first attempt took the locks, or the second one does.
            attempted = table.attempt(request, owner, &mut sent).await;
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
                // A statement whose answer was lost may still take the locks, but not for the next attempt's owner.
                (owner, sent) = (Uuid::new_v4(), None);
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
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicU32, Ordering};

    use parking_lot::Mutex;

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

    type Answer = Result<Attempt, EngineError>;

    fn unknown() -> Answer {
        Err(EngineError::UnknownOutcome("no answer".into()))
    }

    fn refused() -> Answer {
        Err(EngineError::Refused("no such table".into()))
    }

    /// Gives these answers to attempts, the first after a while, and grants when it has no more.
    #[derive(Default)]
    struct Scripted {
        wakeups: Wakeups,
        answers: Mutex<VecDeque<Answer>>,
        first_takes: Duration,
        owners: Mutex<Vec<Uuid>>,
        releases: AtomicU32,
    }

    impl Scripted {
        fn new(first_takes: Duration, answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
            let answers = Mutex::new(answers.into_iter().collect());
            Arc::new(Self { first_takes, answers, ..Self::default() })
        }

        fn owners(&self) -> Vec<Uuid> {
            self.owners.lock().clone()
        }
    }

    #[async_trait]
    impl LockTable for Scripted {
        fn engine(&self) -> &'static str {
            "scripted"
        }

        async fn attempt(&self, _request: &LockRequest, owner: Uuid, sent: &mut Option<Moment>) -> Answer {
            sent.get_or_insert_with(Moment::now);
            let is_first = self.owners().is_empty();
            self.owners.lock().push(owner);
            if is_first {
                sleep(self.first_takes).await;
            }
            self.answers.lock().pop_front().unwrap_or_else(|| Ok(Attempt::Granted(vec![1])))
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

    const LEASE: Duration = Duration::from_millis(500);

    fn request(wait: Wait) -> LockRequest {
        LockRequest::new("a").with_lease(LEASE).with_wait(wait)
    }

    #[tokio::test]
    async fn a_lease_that_is_over_is_released_and_not_returned() {
        let late = Scripted::new(LEASE * 2, [unknown()]);
        let lease = acquire(&late, &request(Wait::Endless)).await.unwrap().unwrap();
        assert!(lease.ends_at > Moment::now());
        assert_eq!((late.owners().len(), late.releases.load(Ordering::SeqCst)), (3, 1));

        let late = Scripted::new(LEASE * 2, [unknown()]);
        let granted = acquire(&late, &request(Wait::Try)).await.unwrap();
        assert_eq!((granted, late.releases.load(Ordering::SeqCst)), (None, 1));
    }

    #[tokio::test]
    async fn a_lost_answer_is_cleared_up_by_asking_again_and_the_lease_counts_from_the_first_request() {
        let (long, first_takes) = (Duration::from_secs(30), Duration::from_millis(300));
        let table = Scripted::new(first_takes, [unknown()]);
        let lease = acquire(&table, &request(Wait::Try).with_lease(long)).await.unwrap().unwrap();
        let answered = Moment::now();
        assert!(lease.ends_at + first_takes <= answered + long, "{lease:?}");
        assert!(table.owners().windows(2).all(|pair| pair[0] == pair[1]), "the owner tells whose it is");
    }

    #[tokio::test]
    async fn an_outcome_stays_unknown_until_the_lease_would_be_over() {
        let long = request(Wait::Try).with_lease(Duration::from_secs(60));
        let held = || Ok(Attempt::Held);
        let conflicts = || (0..MOST_CONFLICTS).map(|_| Ok(Attempt::Conflict("deadlock".into())));
        let scripts: [Vec<Answer>; 4] = [
            vec![unknown(), refused()],
            vec![unknown(), held()],
            vec![unknown(), unknown()],
            std::iter::once(unknown()).chain(conflicts()).collect(),
        ];
        for script in scripts {
            let shown = format!("{script:?}");
            match acquire(&Scripted::new(Duration::ZERO, script), &long).await {
                Err(EngineError::UnknownOutcome(why)) => assert!(why.contains("no answer"), "{shown}: {why}"),
                other => panic!("{shown}: {other:?}"),
            }
        }
        // Without a doubt before, a refusal is certain.
        let outcome = acquire(&Scripted::new(Duration::ZERO, [refused()]), &long).await;
        assert_eq!(outcome, Err(EngineError::Refused("no such table".into())));
        // And so it is afterwards.
        let table = Scripted::new(Duration::ZERO, [unknown(), held()]);
        let never = (0..10_000).map(|_| held());
        table.answers.lock().extend(never);
        assert_eq!(acquire(&table, &request(Wait::AtMost(LEASE * 2))).await, Ok(None));
    }

    #[tokio::test]
    async fn what_an_attempt_of_unknown_outcome_may_get_is_not_taken_for_a_later_grant() {
        let table = Scripted::new(Duration::ZERO, [unknown(), Ok(Attempt::Held)]);
        let begun = Moment::now();
        let lease = acquire(&table, &request(Wait::Endless)).await.unwrap().unwrap();
        let owners = table.owners();
        assert!(owners[0] == owners[1] && owners[2] != owners[0] && lease.owner == owners[2], "{owners:?}");
        assert!(lease.ends_at >= begun + LEASE);
    }

    #[test]
    fn pauses_are_jittered_around_their_length() {
        for _ in 0..100 {
            let pause = jittered(Duration::from_millis(100));
            assert!((50..100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
