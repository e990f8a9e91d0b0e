//! Idempotency gates: an operation that is requested any number of times and done once (Stripe's `Idempotency-Key`,
//! GTIS).
//!
//! The cluster decides which worker does the operation, and keeps the result for later requests. This module must never
//! take silence for "did not happen": a worker that disappears leaves the gate pending until its session or its pending
//! time ends.

mod once;
mod ticket;

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::gates::{self, Begin, GateView};

pub use once::{IfUnreachable, Once, OnceError, UNPROTECTED};
pub use ticket::GateTicket;
use ticket::{Ticket, UnclaimedTicket};

use super::ephemeral::run_to_completion;
use super::error::RecipeError;
use super::path::check_part;
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::safety_margin;
use crate::routes::begin_spec;
use crate::session::Session;
use crate::tracked_change::TrackedChange;

/// How long an operation may take by default.
const DEFAULT_PENDING: Duration = Duration::from_secs(60);

impl Session {
    /// The gate of that key, such as `payments/42`. Sends no request. See [`Gate`].
    pub fn gate(&self, key: impl Into<String>) -> Gate {
        Gate {
            session: self.clone(),
            key: key.into(),
            label: String::new(),
            pending: DEFAULT_PENDING,
            if_unreachable: IfUnreachable::Refuse,
            forever: false,
        }
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
    if_unreachable: IfUnreachable,
    forever: bool,
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
    /// Until when the result is kept; `None` if it is kept until the gate is reset.
    pub until_ms: Option<u64>,
}

/// How long the result of an operation is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So long, from 1 ms to [`LONGEST_KEEP`]. After that the operation may be done again.
    For(Duration),
    /// Until the gate is [reset](crate::Client::gate_reset) by force. Each such
    /// result takes memory at every node for good: count on about 600 bytes and the result.
    Forever,
}

/// Longest time for which a result is kept if not for ever: 365 days.
pub const LONGEST_KEEP: Duration = Duration::from_secs(365 * 86_400);

impl Keep {
    /// Refuses, before the work is done, a time that the cluster would refuse afterwards.
    fn check(self) -> Result<(), Error> {
        match self {
            Self::For(time) if time.is_zero() || time > LONGEST_KEEP => {
                Err(Error::refused(Code::BadRequest, "a result is kept from 1 ms to 365 days, or for ever"))
            }
            Self::For(_) | Self::Forever => Ok(()),
        }
    }
}

impl From<Duration> for Keep {
    fn from(time: Duration) -> Self {
        Self::For(time)
    }
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

    /// The result is to be kept [for ever](Keep::Forever): where the cluster cannot do that, [`begin`](Self::begin) is
    /// refused, before the work is done. [`run_once`](Self::run_once) says so by itself.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.forever = true;
        self
    }

    /// What [`run_once`](Self::run_once) does while nothing can be reached; [`IfUnreachable::Refuse`] by default.
    #[must_use]
    pub fn if_unreachable(mut self, declared: IfUnreachable) -> Self {
        self.if_unreachable = declared;
        self
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Asks to do the operation. Does not wait for another worker.
    ///
    /// Dropping the future opens the gate again if the caller got it at that moment. After [`Error::UnknownOutcome`]
    /// the gate may be the caller's without a ticket: the client finds that out in the background, and opens it again.
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
            keep: self.forever.then_some(gates::Keep::Forever),
            keep_ms: None,
        };
        let gate = self.clone();
        // In a task of its own: if it stopped in the middle, it would be unknown whose the gate is.
        let asked = async move {
            // Counting from before the first attempt can only make the worker more careful than it needs to be.
            let asked_at = Moment::now();
            let change = TrackedChange::new(begin_spec(&gate.key, &begin));
            let view: GateView = match change.send(gate.session.client()).await {
                Err(error @ (Error::UnknownOutcome(_) | Error::NotLockkeeper { .. })) => {
                    give_back_if_begun(&gate, change);
                    return Err(error.into());
                }
                answer => answer?,
            };
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
}

/// Finds out, in the background, what became of a request to begin that was not answered, and opens the gate again if
/// it is this session's. Otherwise it would stay pending as long as the session lives, and nobody would do the work.
fn give_back_if_begun(gate: &Gate, change: TrackedChange) {
    let (session, key) = (gate.session.clone(), gate.key.clone());
    gate.session.client().context.spawn(async move {
        if let Ok(GateView { gate: gates::Gate::Proceed { token, .. }, .. }) = change.decided(&session).await {
            Ticket { session, key, token }.fail_in_background();
        }
    });
}

/// URLs resolve `.` and `..`: such a key would silently name another resource.
fn check_key(key: &str) -> Result<(), Error> {
    let bad = |error: RecipeError| {
        Error::refused(Code::BadPath, format!("a gate's key is one or more parts separated by '/': {error}"))
    };
    key.split('/').try_for_each(check_part).map_err(bad)
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
}
