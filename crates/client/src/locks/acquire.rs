//! Waiting for a grant, in such a way that none is lost and none is given out too late.
//!
//! The future may be dropped at any moment: the request is then taken back, whether it waits by then, holds, or never arrived.
//! A grant whose answer came after the session had been lost is given back, never given out.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::Acquired;
use tokio::time::sleep;
use uuid::Uuid;

use super::cleanup;
use super::grant::{Grant, session_lost};
use super::request::{LockRequest, Wait};
use crate::error::Error;
use crate::session::Session;

/// In what pieces a long wait is asked for. Each is open for `overlap + renew_after + overlap`, which is to be less than `piece` by as
/// much as a busy machine may be late.
#[derive(Clone, Copy, Debug)]
struct RenewalTiming {
    /// How long the server is asked to wait in one call.
    piece: Duration,
    /// After so long alone, the next call is made under the same request id: it takes the place in the queue over.
    renew_after: Duration,
    /// For so long two calls are open, and the later has taken over by the end of it. To end the earlier before that would take the
    /// request out of the queue.
    overlap: Duration,
}

/// The server waits 10 minutes at most.
const RENEWAL_TIMING: RenewalTiming = RenewalTiming {
    piece: Duration::from_secs(600),
    renew_after: Duration::from_secs(500),
    overlap: Duration::from_secs(20),
};

/// Waits for the lock. None if it was not to be had in time.
pub(crate) async fn acquire(session: &Session, request: &LockRequest, wait: Wait) -> Result<Option<Grant>, Error> {
    acquire_in_pieces(session, request, wait, RENEWAL_TIMING).await
}

async fn acquire_in_pieces(
    session: &Session,
    request: &LockRequest,
    wait: Wait,
    timing: RenewalTiming,
) -> Result<Option<Grant>, Error> {
    loop {
        let mut asked = PendingAcquire { session, request, request_id: Uuid::new_v4(), open: true };
        match unless_lost(session, asked.answer(wait, timing)).await {
            Ok(acquired) => {
                asked.open = false;
                let grant = Grant::new(session, request, &acquired);
                return match grant.loss() {
                    Some(because) => Err(Error::Lost(because)),
                    None => Ok(Some(grant)),
                };
            }
            // Out of the queue: the wait is over, or somebody took the request out.
            Err(Error::Refused(problem)) if matches!(problem.code, Code::LockBusy | Code::NotQueued) => {
                // Of several locks only one may be gone. The others would stand in the way of whoever asks anew.
                let in_part = problem.code == Code::NotQueued && !request.also.is_empty();
                asked.open = in_part && !asked.cancel(wait).await?;
                if asked.open || wait.is_over() {
                    return Ok(None);
                }
                tracing::debug!(lock = request.first, %problem, "asking anew");
            }
            Err(error) => {
                asked.open = !matches!(error, Error::Refused(_) | Error::Lost(_));
                return Err(error);
            }
        }
    }
}

/// What comes of it, unless the session is lost first. Whoever was frozen finds an answer and the end of the session in the same
/// moment: the end is the news. Only a grant is passed on as it is, for it is to be given back.
async fn unless_lost<T>(session: &Session, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = tokio::select! {
        biased;
        because = session_lost(session.state()) => Err(Error::Lost(because)),
        answer = work => answer,
    };
    match (answer, session.loss()) {
        (Err(_), Some(because)) => Err(Error::Lost(because)),
        (answer, _) => answer,
    }
}

/// A request that the cluster may know of. Dropped while that is open, it is taken back.
struct PendingAcquire<'a> {
    session: &'a Session,
    request: &'a LockRequest,
    request_id: Uuid,
    open: bool,
}

impl PendingAcquire<'_> {
    async fn ask(&self, wait: Duration) -> Result<Acquired, Error> {
        let acquire = self.request.acquire(self.request_id, wait);
        self.session.client().acquire(&self.request.first, &acquire).await
    }

    /// Cancels the request unless the wait is over first; returns whether it was cancelled.
    async fn cancel(&self, wait: Wait) -> Result<bool, Error> {
        unless_lost(self.session, async {
            tokio::select! {
                biased;
                () = cleanup::cancel(self.session, self.request, self.request_id) => Ok(true),
                () = wait.ended() => Ok(false),
            }
        })
        .await
    }

    /// The cluster's last word on this request. A wait that is longer than one call is handed from call to call.
    async fn answer(&self, wait: Wait, timing: RenewalTiming) -> Result<Acquired, Error> {
        let mut current = Box::pin(self.ask(wait.left(timing.piece)));
        while wait.left(timing.piece) == timing.piece {
            tokio::select! {
                answer = &mut current => return answer,
                () = sleep(timing.renew_after) => {}
            }
            // From here on only the next call counts: what the earlier one is told, the next is told as well.
            let mut next = Box::pin(self.ask(wait.left(timing.piece)));
            tokio::select! {
                answer = &mut next => return answer,
                () = sleep(timing.overlap) => {}
            }
            tracing::debug!(lock = self.request.first, "a long wait goes on");
            current = next;
        }
        current.await
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if self.open && !self.session.left().is_zero() {
            cleanup::cancel_detached(self.session, self.request.clone(), self.request_id);
        }
    }
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;
