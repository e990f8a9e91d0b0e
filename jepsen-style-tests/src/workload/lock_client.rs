//! A client of locks. It has one session at a time, opens another when that is over, and records its operations.
//!
//! It must never record an invocation after the request was sent, and never call an outcome certain that is not.

use std::future::Future;

use lockkeeper_client::api::locks::{Released, Verified};
use lockkeeper_client::api::nodes::Kind;
use lockkeeper_client::locks::Guard;
use lockkeeper_client::{Error, SessionState, safety_margin};

use super::client_kit::{self, sure_read};
use crate::history::ops::{AcquireRequest, QueueView, SessionEnded};
use crate::workload::prelude::*;

pub(super) struct LockClient {
    pub(super) kit: ClientKit,
    session: Option<Session>,
}

impl LockClient {
    pub(super) fn new(context: ClientContext) -> Result<Self, String> {
        Ok(Self { kit: ClientKit::new(context)?, session: None })
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.kit.context.recorder
    }

    /// The session, or another if that one is over; none if the client is to end.
    pub(super) async fn session(&mut self) -> Option<Session> {
        if self.kit.context.stop.is_cancelled() {
            return None;
        }
        if self.session.as_ref().is_none_or(|session| session.left().is_zero()) {
            self.session = None;
            if !self.kit.prepare(&[ops::SESSIONS]).await {
                return None;
            }
            let session = self.kit.session().await?;
            follow(&session, self.recorder());
            // With this node the log shows when the session ended.
            let node = Create { kind: Kind::Ephemeral, ..Create::default() };
            let _ = session.client().create(&format!("{}/s{}", ops::SESSIONS, session.id()), &node).await;
            self.session = Some(session);
        }
        self.session.clone()
    }

    /// Closes the session with everything that may still be open in it. Gives whether the cluster acknowledged that.
    pub(super) async fn close(&mut self) -> bool {
        let Some(session) = self.session.take() else { return false };
        self.recorder().note(ops::CLOSING, &SessionRef { session: session.id() }, None);
        // If it fails, the session expires by itself: nothing renews it any more.
        let closed = session.close().await.is_ok();
        if closed {
            self.recorder().note(ops::CLOSED, &SessionRef { session: session.id() }, None);
        }
        closed
    }

    /// Stops renewing the session and does nothing else, like a process that dies. Nobody may hold a clone of it.
    pub(super) fn abandon(&mut self) {
        if let Some(session) = self.session.take() {
            self.recorder().note(ops::ABANDONED, &SessionRef { session: session.id() }, None);
        }
    }

    /// Acquires by `wait`, and records the outcome.
    pub(super) async fn acquire<K>(
        &self,
        asks: &AcquireRequest,
        wait: impl Future<Output = Result<Option<Guard<K>>, Error>>,
    ) -> Option<Guard<K>> {
        let begun = self.recorder().begin(ops::ACQUIRE, asks);
        match wait.await {
            Ok(Some(guard)) => {
                begun.ok(&Granted { token: guard.token() }, Some(guard.zxid()));
                return Some(guard);
            }
            Ok(None) => begun.fail("not to be had in time"),
            Err(error) => {
                end_failed(begun, &error);
                self.rest().await;
            }
        }
        None
    }

    /// Releases, and records the outcome.
    pub(super) async fn release<K>(&self, under: &TokenRef, guard: Guard<K>) {
        let begun = self.recorder().begin(ops::RELEASE, under);
        match guard.release().await {
            Ok(()) => begun.ok(&Value::Null, None),
            // A guard whose release no node took goes on trying: it may still be done.
            Err(error @ Error::Unreachable { .. }) => begun.info(&error.to_string()),
            Err(error) => end_failed(begun, &error),
        }
    }

    /// Closes the session with the lock held under a guard. If it cannot be closed, the guard is dropped and releases
    /// in the background.
    pub(super) async fn leave<H>(&mut self, under: &TokenRef, held: H) {
        if !self.close().await {
            let begun = self.recorder().begin(ops::RELEASE, under);
            drop(held);
            begun.info("dropped, as its session could not be closed");
        }
    }

    /// Asks the guard whether it is lost.
    pub(super) fn look<K>(&self, under: &TokenRef, guard: &Guard<K>) -> bool {
        self.looked(under, || guard.is_lost())
    }

    /// Asks `is_lost` whether the lock is lost.
    pub(super) fn looked(&self, under: &TokenRef, is_lost: impl FnOnce() -> bool) -> bool {
        let begun = self.recorder().begin(ops::LOOK, under);
        let lost = is_lost();
        begun.ok(&lost, None);
        lost
    }

    /// Asks the cluster whether a token holds.
    pub(super) async fn verify(&self, under: &TokenRef) {
        let Some(lock) = under.locks.first() else { return };
        let begun = self.recorder().begin(ops::VERIFY, under);
        match self.kit.client.verify(lock, under.token).await {
            Ok(Verified { held, zxid, .. }) => begun.ok(&held, Some(zxid)),
            Err(error) => sure_read(&error).end(begun, &error.to_string()),
        }
    }

    /// Tries to give back what another session holds, if one does.
    pub(super) async fn steal(&self, session: &Session, lock: &str) {
        let Some((_, token)) = holder(session, lock).await else { return };
        let under = TokenRef { locks: vec![lock.to_owned()], token, session: session.id() };
        let begun = self.recorder().begin(ops::STEAL, &under);
        took(begun, session.client().release(lock, token).await);
    }

    /// Takes the lock from whoever else holds it, by force.
    pub(super) async fn force(&self, session: &Session, lock: &str) {
        let Some((owner, token)) = holder(session, lock).await else { return };
        let under = TokenRef { locks: vec![lock.to_owned()], token, session: owner };
        let begun = self.recorder().begin(ops::FORCE, &under);
        took(begun, self.kit.client.force_release(lock, token).await);
    }

    /// After a failure, so that the next does not follow at once.
    pub(super) async fn rest(&self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends an operation that failed in the way that is certain.
pub(super) fn end_failed(begun: OpenOp, error: &Error) {
    client_kit::sure(error).end(begun, &error.to_string());
}

/// Another session that holds the lock, and its token.
async fn holder(session: &Session, lock: &str) -> Option<(u64, u64)> {
    let view = session.client().lock(lock).await.ok()?;
    let other = view.holders.iter().find(|holder| holder.session_id.is_some_and(|id| id != session.id()))?;
    Some((other.session_id?, other.token))
}

/// Records the end of an operation that tried to end another's grant: whether it did.
fn took(begun: OpenOp, answer: Result<Released, Error>) {
    match answer {
        Ok(released) => begun.ok(&true, Some(released.zxid)),
        Err(error) if error.code() == Some(Code::NotHeld) => begun.ok(&false, None),
        Err(error) => end_failed(begun, &error),
    }
}

/// Records with each acknowledged keepalive until when the session certainly lives, and that it is lost. It holds no
/// clone of the session, and so does not keep it alive.
pub(super) fn follow(session: &Session, recorder: &Recorder) {
    let (id, margin, recorder) = (session.id(), safety_margin(session.timeout()), recorder.clone());
    let (mut renewals, mut state) = (session.renewals(), session.state());
    let until_ms = session.expires_at().as_millis();
    recorder.note(ops::SURE, &AliveUntil { session: id, until_ms }, None);
    tokio::spawn(async move {
        loop {
            if let SessionState::Lost { because } = &*state.borrow_and_update() {
                let ended = SessionEnded { session: id, why: because.clone() };
                return recorder.note(ops::SESSION_LOST, &ended, None);
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return },
                changed = renewals.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let lost_at = *renewals.borrow_and_update();
                    let until_ms = (lost_at + margin).as_millis();
                    recorder.note(ops::SURE, &AliveUntil { session: id, until_ms }, None);
                }
            }
        }
    });
}

/// Percentage of holders that close their session instead of releasing.
pub(super) const LEAVE_PERCENT: u32 = 5;

/// How long the queues of most workloads have to become empty, once their clients have gone.
pub(super) const EMPTY_WITHIN: Duration = Duration::from_secs(15);

/// The final reads of a workload about locks alone: the state of their queues.
pub(super) async fn conclude(context: ClientContext, locks: &[&str], within: Duration) -> Result<(), String> {
    let lock_client = LockClient::new(context)?;
    let locks: Vec<String> = locks.iter().map(|lock| (*lock).to_owned()).collect();
    view_all(&lock_client.kit.client, lock_client.recorder(), &locks, within).await
}

/// Records the state of these locks' queues once they are empty, or when the time is over.
pub(super) async fn view_all(
    client: &Client,
    recorder: &Recorder,
    locks: &[String],
    within: Duration,
) -> Result<(), String> {
    let until_us = boot_us() + u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
    for lock in locks {
        loop {
            let begun = recorder.begin(ops::VIEW, lock);
            let in_time = boot_us() < until_us;
            match client.lock(lock).await {
                Ok(view) => {
                    let holders: Vec<u64> = view.holders.iter().map(|holder| holder.token).collect();
                    let empty = holders.is_empty() && view.waiting == 0;
                    begun.ok(&QueueView { holders, waiting: view.waiting }, Some(view.zxid));
                    if empty || !in_time {
                        break;
                    }
                }
                Err(error) => {
                    sure_read(&error).end(begun, &error.to_string());
                    if !in_time {
                        return Err(format!("lock {lock} cannot be looked at: {error}"));
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// What is asked of one lock.
pub(super) fn asks(lock: &str, mode: Mode, wait_ms: u64, session: &Session) -> AcquireRequest {
    AcquireRequest { locks: vec![lock.to_owned()], mode, wait_ms, session: session.id(), permits: None, delay_ms: 0 }
}

/// What is done under a grant.
pub(super) fn under(asks: &AcquireRequest, token: u64) -> TokenRef {
    TokenRef { locks: asks.locks.clone(), token, session: asks.session }
}
