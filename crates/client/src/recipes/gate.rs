//! Idempotency gates: an operation that is asked for any number of times and done once (Stripe's `Idempotency-Key`, GTIS).
//!
//! The cluster decides who does it, and keeps the result for those who ask later. This module must never take silence for
//! "did not happen": a worker that goes away without a word leaves the gate to the end of its session or of its pending time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_api::gates::{Begin, Finish, Gate as Standing, GateView};
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

/// How long an operation may take where nothing else is said.
const PENDING: Duration = Duration::from_secs(60);
/// The clock is looked at this often at least: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// Before a gate whose time should be over is asked about again: clocks differ.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

impl Session {
    /// The gate of that key, such as `payments/42`. Making one asks nothing of the cluster. See [`Gate`].
    pub fn gate(&self, key: impl Into<String>) -> Gate {
        Gate { session: self.clone(), key: key.into(), label: String::new(), pending: PENDING }
    }
}

/// A gate before an operation that is to be done once.
///
/// Whoever [begins](Self::begin) first is told to proceed and does the work; everybody else learns that it is in progress, or gets
/// the stored result. [`run_once`](Self::run_once) does all of it. The **fingerprint** says what the operation is, such as a hash of its
/// arguments: the same key with another fingerprint is refused with [`Code::GateMismatch`], instead of answering one
/// operation with the result of another.
///
/// A worker that crashes frees the gate when its session expires, one that hangs when its pending time is over. Then another
/// may begin, and **the work may be done a second time**, in part or beside the first: let what it touches check the ticket's
/// [token](GateTicket::token), as for a lock.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let session = lockkeeper_client::Session::open(&lockkeeper_client::Client::connect(cluster.endpoints()).await?, &Default::default()).await?;
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

/// How a gate stood when an operation was to begin.
#[derive(Debug)]
pub enum Begun {
    /// The caller is to do the work.
    Proceed(GateTicket),
    /// Somebody does the work.
    InProgress(InProgress),
    /// The work is done.
    Done(Done),
}

/// Work that somebody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    /// Under which token.
    pub token: u64,
    /// Whose session it is; none for one begun without a session.
    pub session_id: Option<u64>,
    /// Who it is, for people.
    pub label: String,
    /// Since when, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// From when on another may begin it, if its session lives that long.
    pub until_ms: u64,
}

/// Work that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Under which token.
    pub token: u64,
    /// What was stored.
    pub result: Vec<u8>,
    /// Since when, in milliseconds since 1970 by the replicated clock.
    pub since_ms: u64,
    /// Until when it is kept.
    pub until_ms: u64,
}

impl Gate {
    /// Who works, for people.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// How long the work may take before another may begin it; one minute where nothing is said, a day at most. Counts even
    /// while the worker's session lives.
    #[must_use]
    pub fn pending(mut self, pending: Duration) -> Self {
        self.pending = pending;
        self
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Asks to do the operation. Does not wait for a worker that is at it.
    ///
    /// Dropping the future opens the gate again should it have been the caller's at that moment. On
    /// [`Error::UnknownOutcome`] it may be the caller's without a ticket: then the next one begins when this session ends or the
    /// pending time is over.
    ///
    /// # Errors
    /// [`Code::GateMismatch`] if the key is in use for another operation; [`Code::BadPath`] for a key that cannot be used; otherwise see
    /// [`Error`].
    pub async fn begin(&self, fingerprint: &str) -> Result<Begun, Error> {
        Ok(self.begin_at(fingerprint).await?.0)
    }

    /// How it stands, and at which zxid.
    async fn begin_at(&self, fingerprint: &str) -> Result<(Begun, u64), Error> {
        check_key(&self.key)?;
        let begin = Begin {
            fingerprint: fingerprint.into(),
            pending_ms: Some(millis(self.pending)),
            label: Some(self.label.clone()),
        };
        let gate = self.clone();
        // In a task of its own: were it cut off in the middle, nobody would know whose the gate is.
        let asked = async move {
            // Counting from before the first try can only make the worker more careful than it needs to be.
            let asked_at = Moment::now();
            let view = gate.session.client().gate_begin(&gate.key, &begin).await?;
            Ok(UnclaimedTicket(Some((gate.understand(view.clone(), asked_at)?, view.zxid))))
        };
        match run_to_completion::<UnclaimedTicket>(&self.session, asked).await {
            Ok(mut unclaimed) => {
                unclaimed.0.take().ok_or_else(|| Error::UnknownOutcome("the answer was taken twice".into()))
            }
            Err(RecipeError::Client(error)) => Err(error),
            Err(other) => Err(Error::UnknownOutcome(other.to_string())),
        }
    }

    fn understand(&self, view: GateView, asked_at: Moment) -> Result<Begun, Error> {
        Ok(match view.gate {
            Standing::Proceed { token, .. } => {
                let pending = self.pending.saturating_sub(safety_margin(self.pending));
                let ticket = Ticket { session: self.session.clone(), key: self.key.clone(), token };
                Begun::Proceed(GateTicket { ticket, ends_at: asked_at + pending })
            }
            Standing::InProgress { token, session_id, label, since_ms, until_ms } => {
                Begun::InProgress(InProgress { token, session_id, label, since_ms, until_ms })
            }
            Standing::Done { token, result, since_ms, until_ms } => {
                let result = result.to_bytes().map_err(|why| Error::NotLockkeeper {
                    endpoint: self.session.client().preferred().to_string(),
                    why: format!("result of a gate: {why}"),
                })?;
                Begun::Done(Done { token, result, since_ms, until_ms })
            }
        })
    }

    /// Does the operation if nobody has, waits for the result if somebody is at it, and gives the result if it is done.
    ///
    /// `work` gets the ticket's token, runs while the ticket is [good](GateTicket::run), and gives the result, which is kept for
    /// `keep_for`. Its error means "did not take place" and opens the gate for the next one; so an error after half of the work must be
    /// one that the next one can go on from. If `work` is dropped or panics, the gate is left to its session or pending time.
    ///
    /// Those who wait watch the gate and are all woken when it changes: all of them want the result.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
    /// # let session = lockkeeper_client::Session::open(&lockkeeper_client::Client::connect(cluster.endpoints()).await?, &Default::default()).await?;
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
            let (underway, as_of) = match self.begin_at(fingerprint).await? {
                (Begun::Proceed(ticket), _) => break ticket,
                (Begun::Done(done), _) => {
                    return Ok(Once { ran_here: false, token: done.token, result: done.result });
                }
                (Begun::InProgress(underway), as_of) => (underway, as_of),
            };
            let follow = follow
                .get_or_insert_with(|| GaplessWatch::node(self.session.client(), &format!("/gates/{}", self.key)));
            tokio::select! {
                changed = follow.change(as_of, |_| true) => drop(changed.map_err(only_client)?),
                () = sleep(until_over(&underway)) => {}
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
                    tracing::debug!(%error, key = self.key, "a gate is left to its session or its pending time");
                }
                Err(OnceError::Work(error))
            }
        }
    }
}

/// What came of [`Gate::run_once`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Whether it was done by this call, or before by another.
    pub ran_here: bool,
    /// Under which token.
    pub token: u64,
    /// The result.
    pub result: Vec<u8>,
}

/// Why [`Gate::run_once`] has no result.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// The work said so. The gate is open for the next one.
    #[error("the operation failed: {0}")]
    Work(E),
    /// The gate did. If the work had been done by then, its result is not stored.
    #[error(transparent)]
    Gate(#[from] Error),
}

/// The right, and the duty, to do the work.
///
/// Say what came of it: [`finish`](Self::finish) or [`fail`](Self::fail). **Dropping the ticket says nothing**, because nobody knows how
/// far the work had come: the gate stays pending until this session ends or the pending time is over.
#[derive(Debug)]
#[must_use = "the gate stays shut until the ticket is finished or failed, or its time is over"]
pub struct GateTicket {
    ticket: Ticket,
    /// On this machine's clock; before the cluster lets another begin.
    ends_at: Moment,
}

#[derive(Clone, Debug)]
struct Ticket {
    session: Session,
    key: String,
    token: u64,
}

impl GateTicket {
    /// A fencing token: larger than that of everyone who began this operation before. Show it to what the work touches.
    pub fn token(&self) -> u64 {
        self.ticket.token
    }

    /// The key of the gate.
    pub fn key(&self) -> &str {
        &self.ticket.key
    }

    /// How long nobody else may begin the work, as far as this machine's clock can tell: what is left of the pending time or of
    /// the session, whichever ends first. Zero once it is over.
    pub fn remaining(&self) -> Duration {
        let now = Moment::now();
        now.until(self.ends_at).min(now.until(self.ticket.session.lost_at()))
    }

    /// Completes, with the reason, when another may begin the work.
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

    /// Runs `work` for as long as nobody else may begin it, as [`Guard::run`](crate::Guard::run) does for a lock.
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
            // A process that wakes from a long pause does not go on.
            if self.remaining().is_zero() {
                return Poll::Ready(Err(over()));
            }
            let Poll::Ready(done) = work.as_mut().poll(context) else { return Poll::Pending };
            Poll::Ready(if self.remaining().is_zero() { Err(over()) } else { Ok(done) })
        })
        .await
    }

    /// Stores the result, at most 64 KiB, for all who ask within `keep_for`, at most a year; after that the operation may be done anew.
    ///
    /// # Errors
    /// [`Code::GateNotPending`] if another may have begun it meanwhile: then nothing was stored, and two may have done the work. With
    /// [`Error::UnknownOutcome`] and [`Error::Unreachable`] [`Client::gate_finish`](crate::Client::gate_finish) can try again with the same
    /// token. Otherwise see [`Error`].
    pub async fn finish(self, result: impl AsRef<[u8]>, keep_for: Duration) -> Result<(), Error> {
        let Ticket { session, key, token } = &self.ticket;
        let result = Data::from_bytes(result.as_ref());
        let finish = Finish { token: *token, result, keep_ms: Some(millis(keep_for)) };
        session.client().gate_finish(key, &finish).await.map(drop)
    }

    /// Opens the gate again: the operation did not take place, or can be done again without harm.
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

/// An answer on its way to the caller. If nobody takes it, the work has not begun, and the gate is opened again.
struct UnclaimedTicket(Option<(Begun, u64)>);

impl Drop for UnclaimedTicket {
    fn drop(&mut self) {
        let Some((Begun::Proceed(ticket), _)) = self.0.take() else { return };
        let ticket = ticket.ticket.clone();
        let session = ticket.session.clone();
        session.client().context.spawn(async move {
            if let Err(error) = ticket.fail().await {
                tracing::debug!(%error, key = ticket.key, "a gate is left to its session or its pending time");
            }
        });
    }
}

/// URLs resolve `.` and `..`: such a key would quietly mean another resource.
fn check_key(key: &str) -> Result<(), Error> {
    let bad = |error: RecipeError| {
        Error::refused(Code::BadPath, format!("a gate's key is one or more parts with '/' between: {error}"))
    };
    key.split('/').try_for_each(check_part).map_err(bad)
}

/// When to ask again about a gate that nobody has changed. Only a guess, by a clock that may differ from the replicated one: what
/// counts is what the cluster then says.
fn until_over(underway: &InProgress) -> Duration {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap_or_default();
    let at_most = underway.until_ms.saturating_sub(underway.since_ms);
    let left_ms = underway.until_ms.saturating_sub(now_ms).min(at_most);
    Duration::from_millis(left_ms).max(SHORTEST_LOOK)
}

fn only_client(error: RecipeError) -> Error {
    match error {
        RecipeError::Client(error) => error,
        other => Error::refused(Code::BadRequest, other.to_string()),
    }
}

fn millis(duration: Duration) -> u64 {
    // A part of a millisecond asked for is a millisecond given.
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
        let underway =
            |since_ms, until_ms| InProgress { token: 1, session_id: None, label: String::new(), since_ms, until_ms };
        assert_eq!(until_over(&underway(0, 1)), SHORTEST_LOOK);
        let left = until_over(&underway(now_ms, now_ms + 60_000));
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60), "{left:?}");
        // The cluster's clock is a day ahead: not longer than the work may take in all.
        let ahead = now_ms + 24 * 3_600_000;
        assert_eq!(until_over(&underway(ahead, ahead + 5_000)), Duration::from_secs(5));
        assert_eq!(millis(Duration::from_nanos(1)), 1);
    }
}
