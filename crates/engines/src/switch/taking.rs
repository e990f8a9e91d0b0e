//! One request on its way to a lease: taken from the engines of the moment, counted if it is still allowed, and given
//! back in every other case, also when the caller drops it in the middle.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_client::Moment;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::agreement::Seat;
use super::inner::{Inner, LeaseRecord, Part};
use super::member::Turn;
use crate::engine::{Lease, LockRequest};
use crate::error::EngineError;
use crate::wait::Wait;

/// Pause before a lock is taken anew from two engines, when the second was held.
const PAUSE: Duration = Duration::from_millis(20);

/// How a request begins.
pub(super) enum Begun {
    Asking(Box<Taking>),
    /// A switch is under way, and nothing is granted.
    Held,
    /// This process is no member.
    NotJoined(String),
}

/// What the engines have answered.
pub(super) enum Taken {
    All,
    TimedOut,
    /// The second engine's lock was held.
    Again,
}

/// See the module's text.
pub(super) struct Taking {
    inner: Arc<Inner>,
    seat: Arc<dyn Seat>,
    turn: Turn,
    parts: Vec<Part>,
    /// Whether the turn is still noted.
    open: bool,
}

impl Taking {
    pub(super) fn begin(inner: &Arc<Inner>) -> Begun {
        let mut core = inner.core.lock();
        let Some(joined) = core.joined.as_mut() else { return Begun::NotJoined(core.why_not.clone()) };
        if !joined.seat.is_sure() {
            return Begun::NotJoined("the session of this process is over".into());
        }
        let Some(turn) = joined.member.begin(Uuid::new_v4()) else { return Begun::Held };
        let seat = joined.seat.clone();
        drop(core);
        Begun::Asking(Box::new(Self { inner: inner.clone(), seat, turn, parts: Vec::new(), open: true }))
    }

    /// Completes when the request is to be made anew, of other engines or under another membership.
    pub(super) fn obsolete(&self, mut changes: watch::Receiver<u64>) -> impl Future<Output = ()> + use<> {
        let (inner, member, turn) = (self.inner.clone(), self.seat.id(), self.turn.clone());
        async move {
            loop {
                changes.borrow_and_update();
                let valid = inner.core.lock().sure(member).is_some_and(|joined| !joined.member.is_obsolete(&turn));
                if !valid || changes.changed().await.is_err() {
                    return;
                }
            }
        }
    }

    /// Takes the locks from each engine, in their order.
    pub(super) async fn take(&mut self, request: &LockRequest, until: Option<Instant>) -> Result<Taken, EngineError> {
        for (place, name) in self.turn.engines.iter().enumerate() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // Nothing renews what was taken first, so the second is waited for much shorter than a lease.
            let most = (place > 0).then_some(request.lease / 3);
            let wait = match (request.wait, left.into_iter().chain(most).min()) {
                (Wait::Try, _) => Wait::Try,
                (_, Some(wait)) => Wait::AtMost(wait),
                (_, None) => Wait::Endless,
            };
            let granted = self.inner.engine(name)?.acquire(&request.clone().with_wait(wait)).await;
            self.inner.note_call(name, "acquire", &granted);
            match granted? {
                Some(lease) => self.parts.push(Part { engine: name.clone(), lease }),
                None if place == 0 || request.wait == Wait::Try => return Ok(Taken::TimedOut),
                None => {
                    self.inner.release_parts(std::mem::take(&mut self.parts));
                    sleep(PAUSE).await;
                    return Ok(Taken::Again);
                }
            }
        }
        Ok(Taken::All)
    }

    /// Makes a lease of what was taken. `None` if the request is to be made anew.
    pub(super) async fn count(mut self: Box<Self>, has_tokens: bool) -> Result<Option<Lease>, EngineError> {
        let member = self.seat.id();
        let must_read = match self.inner.core.lock().sure(member) {
            Some(joined) => joined.member.must_read(&self.turn),
            None => return Ok(None),
        };
        if must_read {
            let why = |why| EngineError::Unreachable { engine: super::inner::NAME.into(), why };
            let seen = self.seat.read().await.map_err(why)?;
            self.inner.observe(member, &seen);
        }
        let Some(length) = self.parts.iter().map(|part| part.lease.length).min() else { return Ok(None) };
        let Some(ends_at) = self.inner.end_of(self.parts.iter().map(|part| part.lease.ends_at)) else {
            return Ok(None);
        };
        let inner = self.inner.clone();
        let mut core = inner.core.lock();
        // A caller of this process may hold a lock without the engines. It looks for leases under the same mutex.
        if self.parts.iter().any(|part| !inner.local.is_free(&part.lease.locks)) {
            return Ok(None);
        }
        let Some(joined) = core.sure(member) else { return Ok(None) };
        let Some(counted) = joined.member.granted(&self.turn, Moment::now(), ends_at) else { return Ok(None) };
        let of_engine = self.parts.iter().find(|part| part.engine == counted.token_of).filter(|_| has_tokens);
        // After an error the drop gives everything back.
        let tokens = counted.tokens(of_engine.map(|part| part.lease.tokens.as_slice()).unwrap_or_default())?;
        let (kept, others) = split(std::mem::take(&mut self.parts), &counted.keep);
        let (owner, locks) = (self.turn.id, kept.first().map(|part| part.lease.locks.clone()).unwrap_or_default());
        core.insert(owner, LeaseRecord { member, parts: kept, ends_at, revoked: watch::Sender::new(None) });
        self.open = false;
        drop(core);
        self.inner.release_parts(others);
        Ok(Some(Lease { locks, owner, tokens, length, ends_at }))
    }
}

/// The parts of these engines, and the others.
pub(super) fn split(parts: Vec<Part>, keep: &BTreeSet<String>) -> (Vec<Part>, Vec<Part>) {
    parts.into_iter().partition(|part| keep.contains(&part.engine))
}

impl Drop for Taking {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        if self.inner.core.lock().end(self.seat.id(), self.turn.id) {
            self.inner.work.notify_one();
        }
        self.inner.release_parts(std::mem::take(&mut self.parts));
    }
}
