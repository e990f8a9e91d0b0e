//! Idempotency gates: an operation that is requested any number of times and done once (Stripe's `Idempotency-Key`,
//! GTIS).
//!
//! The cluster decides which worker does the operation, and keeps the result for later requests. This module must never
//! take silence for "did not happen": a worker that disappears leaves the gate pending until its session or its pending
//! time ends.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_api::gates::{self, Begin, Finish, GateView};
use lockkeeper_api::{Code, Data};
use tokio::time::sleep;

use super::ephemeral::run_to_completion;
use super::error::RecipeError;
use super::gapless_watch::GaplessWatch;
use super::path::check_part;
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::safety_margin;
use crate::session::Session;

/// How long an operation may take by default.
const DEFAULT_PENDING: Duration = Duration::from_secs(60);
/// The clock is read at least this often: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// Pause before the client asks again about a gate whose time should be over: clocks differ.
const SHORTEST_RECHECK: Duration = Duration::from_millis(100);

impl Session {
    /// The gate of that key, such as `payments/42`. Sends no request. See [`Gate`].
    pub fn gate(&self, key: impl Into<String>) -> Gate {
        Gate { session: self.clone(), key: key.into(), label: String::new(), pending: DEFAULT_PENDING }
    }
}

/// A gate before an operation that is to be done once.
///
/// The first process that [begins](Self::begin) proceeds and does the work; every other process learns that the work
/// is in progress, or gets the stored result. [`run_once`](Self::run_once) combines these steps. The **fingerprint**
/// identifies the operation, such as a hash of its arguments: the same key with another fingerprint is refused with
/// [`Code::GateMismatch`], instead of answering one operation with the result of another.
///
/// A worker that crashes frees the gate when its session expires, a worker that hangs when its pending time is over.
/// Then another may begin, and **the work may be done a second time**, in part or at the same time: let each resource
/// check the ticket's [token](GateTicket::token), as for a lock.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::recipes::Begun;
/// use std::time::Duration;
///
/// let gate = session.gate("payments/42").label("till 3");
/// let Begun::Proceed(ticket) = gate.begin("42: 10.00 EUR to Ann").await? else { panic!("nobody else is here") };
/// // … pay, showing ticket.token() to the ledger …
/// ticket.finish("receipt 7", Duration::from_secs(24 * 3600)).await?;
///
/// // Asked for again, here or anywhere else:
/// let Begun::Done(done) = gate.begin("42: 10.00 EUR to Ann").await? else { panic!("it is done") };
/// assert_eq!(done.result, b"receipt 7");
/// assert!(gate.begin("42: 99.00 EUR to Bob").await.is_err(), "another operation under the same key");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Gate {
    session: Session,
    key: String,
    label: String,
    pending: Duration,
}

/// The state of a gate when a process asked to begin.
#[derive(Debug)]
pub enum Begun {
    /// The caller does the work.
    Proceed(GateTicket),
    /// Another worker does the work.
    InProgress(InProgress),
    /// The work is done.
    Done(Done),
}

/// Work in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    /// The worker's token.
    pub token: u64,
    /// The worker's session; `None` if it began without a session.
    pub session_id: Option<u64>,
    /// The worker's label, for people.
    pub label: String,
    /// When the work began, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// When another worker may begin at the latest; earlier if the session ends.
    pub until_ms: u64,
}

/// Finished work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The worker's token.
    pub token: u64,
    /// The stored result.
    pub result: Vec<u8>,
    /// When the work was finished, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// Until when the result is kept.
    pub until_ms: u64,
}

impl Gate {
    /// A name for the worker, for people.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// How long the work may take before another worker may begin: one minute by default, one day at most. The time
    /// runs even while the worker's session lives.
    #[must_use]
    pub fn pending(mut self, pending: Duration) -> Self {
        self.pending = pending;
        self
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Asks to do the operation. Does not wait for another worker.
    ///
    /// Dropping the future opens the gate again if the caller got it at that moment. After [`Error::UnknownOutcome`]
    /// the gate may be the caller's without a ticket: then the next worker begins when this session ends or the
    /// pending time is over.
    ///
    /// # Errors
    /// [`Code::GateMismatch`] if the key is in use for another operation; [`Code::BadPath`] for a key that cannot be
    /// used; otherwise see [`Error`].
    pub async fn begin(&self, fingerprint: &str) -> Result<Begun, Error> {
        Ok(self.begin_at(fingerprint).await?.0)
    }

    /// The state of the gate, and the zxid as of which that is true.
    pub(super) async fn begin_at(&self, fingerprint: &str) -> Result<(Begun, u64), Error> {
        check_key(&self.key)?;
        let begin = Begin {
            fingerprint: fingerprint.into(),
            pending_ms: Some(millis(self.pending)),
            label: Some(self.label.clone()),
        };
        let gate = self.clone();
        // In a task of its own: if it stopped in the middle, it would be unknown whose the gate is.
        let asked = async move {
            // Counting from before the first attempt can only make the worker more careful than it needs to be.
            let asked_at = Moment::now();
            let view = gate.session.client().gate_begin(&gate.key, &begin).await?;
            Ok(UnclaimedTicket(Some((gate.understand(view.clone(), asked_at)?, view.zxid))))
        };
        match run_to_completion::<UnclaimedTicket>(&self.session, asked).await {
            Ok(mut unclaimed) => {
                unclaimed.0.take().ok_or_else(|| Error::UnknownOutcome("the answer was received twice".into()))
            }
            Err(RecipeError::Client(error)) => Err(error),
            Err(other) => Err(Error::UnknownOutcome(other.to_string())),
        }
    }

    fn understand(&self, view: GateView, asked_at: Moment) -> Result<Begun, Error> {
        Ok(match view.gate {
            gates::Gate::Proceed { token, until_ms } => {
                let pending = self.pending.saturating_sub(safety_margin(self.pending));
                let ticket = Ticket { session: self.session.clone(), key: self.key.clone(), token };
                let begun_ms = until_ms.saturating_sub(millis(self.pending));
                Begun::Proceed(GateTicket { ticket, begun_ms, ends_at: asked_at + pending })
            }
            gates::Gate::InProgress { token, session_id, label, since_ms, until_ms } => {
                Begun::InProgress(InProgress { token, session_id, label, since_ms, until_ms })
            }
            gates::Gate::Done { token, result, since_ms, until_ms } => {
                let result = result.to_bytes().map_err(|why| Error::NotLockkeeper {
                    endpoint: self.session.client().preferred().to_string(),
                    why: format!("result of a gate: {why}"),
                })?;
                Begun::Done(Done { token, result, since_ms, until_ms })
            }
        })
    }

    /// Does the operation if no worker has, waits for the result while another worker does it, and returns the result.
    ///
    /// `work` gets the ticket's token, runs while the ticket is [valid](GateTicket::run), and returns the result,
    /// which is kept for `keep_for`. Its error means "did not take place" and opens the gate for the next worker; so
    /// after an error in the middle of the work the next worker must be able to continue. If `work` is dropped or
    /// panics, the gate stays pending until the session or the pending time ends.
    ///
    /// Waiters watch the gate, and all are woken when it changes: all of them want the result.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
    /// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
    /// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
    /// # use std::time::Duration;
    /// let gate = session.gate("mails/welcome/ann");
    /// let send = async |_token: u64| Ok::<_, std::io::Error>(b"sent".to_vec());
    /// let first = gate.run_once("welcome ann", Duration::from_secs(60), send).await?;
    /// let second = gate.run_once("welcome ann", Duration::from_secs(60), send).await?;
    /// assert!(first.ran_here && !second.ran_here);
    /// assert_eq!(second.result, b"sent");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`OnceError`].
    pub async fn run_once<E>(
        &self,
        fingerprint: &str,
        keep_for: Duration,
        work: impl AsyncFnOnce(u64) -> Result<Vec<u8>, E>,
    ) -> Result<Once, OnceError<E>> {
        let mut follow = None;
        let ticket = loop {
            let (in_progress, as_of) = match self.begin_at(fingerprint).await? {
                (Begun::Proceed(ticket), _) => break ticket,
                (Begun::Done(done), _) => {
                    return Ok(Once { ran_here: false, token: done.token, result: done.result });
                }
                (Begun::InProgress(in_progress), as_of) => (in_progress, as_of),
            };
            let follow = follow
                .get_or_insert_with(|| GaplessWatch::node(self.session.client(), &format!("/gates/{}", self.key)));
            tokio::select! {
                changed = follow.change(as_of, |_| true) => drop(changed.map_err(only_client)?),
                () = sleep(until_over(&in_progress)) => {}
                because = self.session.lost() => return Err(Error::Lost(because).into()),
            }
        };
        let token = ticket.token();
        match ticket.run(work(token)).await? {
            Ok(result) => {
                ticket.finish(&result, keep_for).await?;
                Ok(Once { ran_here: true, token, result })
            }
            Err(error) => {
                if let Err(error) = ticket.fail().await {
                    tracing::debug!(%error, key = self.key, "gate left pending until its session or time ends");
                }
                Err(OnceError::Work(error))
            }
        }
    }
}

/// The outcome of [`Gate::run_once`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Whether this call did the work; otherwise an earlier one did.
    pub ran_here: bool,
    /// The worker's token.
    pub token: u64,
    /// The result.
    pub result: Vec<u8>,
}

/// Why [`Gate::run_once`] has no result.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// The work failed. The gate is open for the next worker.
    #[error("the operation failed: {0}")]
    Work(E),
    /// A request to the gate failed. If the work was done by then, its result is not stored.
    #[error(transparent)]
    Gate(#[from] Error),
}

/// The right, and the duty, to do the work.
///
/// Report the outcome by [`finish`](Self::finish) or [`fail`](Self::fail). **Dropping the ticket reports nothing**,
/// since it is unknown how far the work has come: the gate stays pending until this session ends or the pending time
/// is over.
#[derive(Debug)]
#[must_use = "the gate stays pending until the ticket is finished or failed, or its time is over"]
pub struct GateTicket {
    ticket: Ticket,
    begun_ms: u64,
    /// By this machine's clock; before the cluster lets another worker begin.
    ends_at: Moment,
}

#[derive(Clone, Debug)]
struct Ticket {
    session: Session,
    key: String,
    token: u64,
}

impl GateTicket {
    /// A fencing token: larger than that of every earlier worker of this operation. Show it to each resource that the
    /// work changes.
    pub fn token(&self) -> u64 {
        self.ticket.token
    }

    /// The key of the gate.
    pub fn key(&self) -> &str {
        &self.ticket.key
    }

    /// When the cluster let this worker begin, in milliseconds since 1970 by the replicated clock.
    pub fn begun_ms(&self) -> u64 {
        self.begun_ms
    }

    /// When the pending time is over, by this machine's clock: shortly before the cluster lets another worker begin.
    /// The session may end earlier.
    pub fn ends_at(&self) -> Moment {
        self.ends_at
    }

    /// How much longer no other worker may begin, by this machine's clock: the rest of the pending time or of the
    /// session, whichever ends first. Zero once it is over.
    pub fn remaining(&self) -> Duration {
        let now = Moment::now();
        now.until(self.ends_at).min(now.until(self.ticket.session.lost_at()))
    }

    /// Completes, with the reason, when another worker may begin.
    pub async fn lost(&self) -> String {
        loop {
            let left = Moment::now().until(self.ends_at);
            if left.is_zero() {
                return "its pending time is over".into();
            }
            tokio::select! {
                because = self.ticket.session.lost() => return because,
                () = sleep(left.min(LONGEST_NAP)) => {}
            }
        }
    }

    /// Runs `work` while no other worker may begin, as [`Guard::run`](crate::Guard::run) does for a lock.
    ///
    /// # Errors
    /// [`Error::Lost`] if the session was lost or the pending time was over before `work` was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let (mut lost, mut work) = (pin!(self.lost()), pin!(work));
        let over = || Error::Lost("its pending time, or the session, is over".into());
        poll_fn(|context| {
            if let Poll::Ready(because) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::Lost(because)));
            }
            // A process that wakes from a long pause must not continue.
            if self.remaining().is_zero() {
                return Poll::Ready(Err(over()));
            }
            let Poll::Ready(done) = work.as_mut().poll(context) else { return Poll::Pending };
            Poll::Ready(if self.remaining().is_zero() { Err(over()) } else { Ok(done) })
        })
        .await
    }

    /// Stores the result, at most 64 KiB, for requests within `keep_for`, at most one year. After that the operation
    /// may be done again.
    ///
    /// # Errors
    /// [`Code::GateNotPending`] if another worker may have begun meanwhile: then nothing was stored, and two workers
    /// may have done the work. After [`Error::UnknownOutcome`] and [`Error::Unreachable`] you can try again with
    /// [`Client::gate_finish`](crate::Client::gate_finish) and the same token. Otherwise see [`Error`].
    pub async fn finish(self, result: impl AsRef<[u8]>, keep_for: Duration) -> Result<(), Error> {
        let Ticket { session, key, token } = &self.ticket;
        let result = Data::from_bytes(result.as_ref());
        let finish = Finish { token: *token, result, keep_ms: Some(millis(keep_for)) };
        session.client().gate_finish(key, &finish).await.map(drop)
    }

    /// Opens the gate again: the operation did not take place, or can safely be done again.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub async fn fail(self) -> Result<(), Error> {
        self.ticket.fail().await
    }
}

impl Ticket {
    async fn fail(&self) -> Result<(), Error> {
        self.session.client().gate_fail(&self.key, self.token).await.map(drop)
    }
}

/// An answer on its way to the caller. If the caller is gone, the work has not begun, and the gate is opened again.
struct UnclaimedTicket(Option<(Begun, u64)>);

impl Drop for UnclaimedTicket {
    fn drop(&mut self) {
        let Some((Begun::Proceed(ticket), _)) = self.0.take() else { return };
        let ticket = ticket.ticket.clone();
        let session = ticket.session.clone();
        session.client().context.spawn(async move {
            if let Err(error) = ticket.fail().await {
                tracing::debug!(%error, key = ticket.key, "gate left pending until its session or time ends");
            }
        });
    }
}

/// URLs resolve `.` and `..`: such a key would silently name another resource.
fn check_key(key: &str) -> Result<(), Error> {
    let bad = |error: RecipeError| {
        Error::refused(Code::BadPath, format!("a gate's key is one or more parts separated by '/': {error}"))
    };
    key.split('/').try_for_each(check_part).map_err(bad)
}

/// When to ask again about an unchanged gate. An estimate, by a clock that may differ from the replicated one: the
/// cluster decides.
fn until_over(in_progress: &InProgress) -> Duration {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap_or_default();
    let at_most = in_progress.until_ms.saturating_sub(in_progress.since_ms);
    let left_ms = in_progress.until_ms.saturating_sub(now_ms).min(at_most);
    Duration::from_millis(left_ms).max(SHORTEST_RECHECK)
}

fn only_client(error: RecipeError) -> Error {
    match error {
        RecipeError::Client(error) => error,
        other => Error::refused(Code::BadRequest, other.to_string()),
    }
}

fn millis(duration: Duration) -> u64 {
    // Rounded up: a requested time is never shortened.
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_would_mean_another_resource_are_refused() {
        for good in ["a", "a/b", "payments/42", "..a", "ü x"] {
            assert!(check_key(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".", "a\n"] {
            assert_eq!(check_key(bad).unwrap_err().code(), Some(Code::BadPath), "{bad:?}");
        }
    }

    #[test]
    fn a_gate_is_looked_at_when_its_time_is_over_and_never_in_a_rush() {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap();
        let in_progress =
            |since_ms, until_ms| InProgress { token: 1, session_id: None, label: String::new(), since_ms, until_ms };
        assert_eq!(until_over(&in_progress(0, 1)), SHORTEST_RECHECK);
        let left = until_over(&in_progress(now_ms, now_ms + 60_000));
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60), "{left:?}");
        // The cluster's clock is a day ahead: not longer than the work may take in all.
        let ahead = now_ms + 24 * 3_600_000;
        assert_eq!(until_over(&in_progress(ahead, ahead + 5_000)), Duration::from_secs(5));
        assert_eq!(millis(Duration::from_nanos(1)), 1);
    }
}
