//! The right to do the work of a gate, and its end.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_api::gates::{self, Finish};
use lockkeeper_api::{Code, Data};
use tokio::time::sleep;

use super::{Begun, Keep, millis};
use crate::clock::Moment;
use crate::error::Error;
use crate::session::Session;

/// The clock is read at least this often: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// Pause before a gate that could not be opened again is tried once more.
const FAIL_PAUSE: Duration = Duration::from_millis(500);

/// The right, and the duty, to do the work.
///
/// Report the outcome by [`finish`](Self::finish) or [`fail`](Self::fail). **Dropping the ticket reports nothing**,
/// since it is unknown how far the work has come: the gate stays pending until this session ends or the pending time
/// is over.
#[derive(Debug)]
#[must_use = "the gate stays pending until the ticket is finished or failed, or its time is over"]
pub struct GateTicket {
    pub(super) ticket: Ticket,
    pub(super) begun_ms: u64,
    /// By this machine's clock; before the cluster lets another worker begin.
    pub(super) ends_at: Moment,
}

#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) session: Session,
    pub(super) key: String,
    pub(super) token: u64,
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

    /// Completes, with the reason, when another worker may begin. The gate is asked each third of the session's timeout
    /// whether it was [reset](crate::Client::gate_reset), so that is noticed later than the other reasons.
    pub async fn lost(&self) -> String {
        tokio::select! {
            because = self.ticket.session.lost() => because,
            because = self.time_over() => because,
            because = self.ticket.taken_away() => because,
        }
    }

    async fn time_over(&self) -> String {
        loop {
            let left = Moment::now().until(self.ends_at);
            if left.is_zero() {
                return "its pending time is over".into();
            }
            sleep(left.min(LONGEST_NAP)).await;
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

    /// Stores the result, at most 64 KiB, for requests within this time, or [for ever](Keep::Forever).
    ///
    /// # Errors
    /// [`GateNotPending`](lockkeeper_api::Code::GateNotPending) if another worker may have begun meanwhile: then
    /// nothing was stored, and two workers may have done the work. After [`Error::UnknownOutcome`] and
    /// [`Error::Unreachable`] you can try again with [`Client::gate_finish`](crate::Client::gate_finish) and the same
    /// token. Otherwise see [`Error`].
    pub async fn finish(self, result: impl AsRef<[u8]>, keep: impl Into<Keep>) -> Result<(), Error> {
        let Ticket { session, key, token } = &self.ticket;
        let result = Data::from_bytes(result.as_ref());
        let (keep_ms, keep) = match keep.into() {
            Keep::For(time) => (Some(millis(time)), None),
            Keep::Forever => (None, Some(gates::Keep::Forever)),
        };
        let finish = Finish { token: *token, result, keep_ms, keep };
        session.client().gate_finish(key, &finish).await.map(drop)
    }

    /// Opens the gate again: the operation did not take place, or can safely be done again.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub async fn fail(self) -> Result<(), Error> {
        self.ticket.fail().await
    }

    /// Opens the gate again should the caller not come to the work.
    pub(in crate::recipes) fn give_back_on_drop(&self) -> GiveBack {
        GiveBack(Some(self.ticket.clone()))
    }
}

impl Ticket {
    async fn fail(&self) -> Result<(), Error> {
        self.session.client().gate_fail(&self.key, self.token).await.map(drop)
    }

    /// Completes when the operation is no longer under way with this token: a reset says nothing to its worker.
    async fn taken_away(&self) -> String {
        let every = self.session.timeout() / 3;
        loop {
            sleep(every).await;
            let is_held = match self.session.client().gate(&self.key).await {
                Ok(view) => matches!(view.gate, gates::Gate::InProgress { token, .. } if token == self.token),
                // Any other failed call says nothing about the gate.
                Err(error) => error.code() != Some(Code::NotFound),
            };
            if !is_held {
                return format!("the gate {} was reset", self.key);
            }
        }
    }

    /// Opens the gate again in the background, until that is known to have taken place or the session is lost.
    pub(super) fn fail_in_background(self) {
        let session = self.session.clone();
        session.client().context.spawn(async move {
            while let Err(error) = self.fail().await {
                let may_pass = error.may_pass();
                tracing::debug!(%error, key = self.key, may_pass, "a gate could not be opened again");
                if !may_pass {
                    return;
                }
                tokio::select! {
                    _ = self.session.lost() => return,
                    () = sleep(FAIL_PAUSE) => {}
                }
            }
        });
    }
}

/// Opens the gate again when it is dropped, unless the work was begun.
pub(in crate::recipes) struct GiveBack(Option<Ticket>);

impl GiveBack {
    /// The work begins, or the gate is open again.
    pub(in crate::recipes) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(ticket) = self.0.take() {
            ticket.fail_in_background();
        }
    }
}

/// An answer on its way to the caller. If the caller is gone, the work has not begun, and the gate is opened again.
pub(super) struct UnclaimedTicket(pub(super) Option<(Begun, u64)>);

impl Drop for UnclaimedTicket {
    fn drop(&mut self) {
        if let Some((Begun::Proceed(ticket), _)) = self.0.take() {
            ticket.ticket.fail_in_background();
        }
    }
}
