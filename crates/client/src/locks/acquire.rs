//! Waits for a grant so that none is left behind and none is returned too late.
//!
//! The future may be dropped at any moment: the request is then cancelled, whether it waits, holds, or never arrived. A
//! grant whose answer came after the session was lost is released, never returned.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::Acquired;
use tokio::time::sleep;
use uuid::Uuid;

use super::cleanup;
use super::grant::Grant;
use super::request::{LockRequest, Wait};
use crate::error::Error;
use crate::session::{Session, session_lost};
use crate::traces;

/// How a long wait is split into calls. A call lasts `overlap + renew_after + overlap`, which must be shorter than
/// `piece` by as much as a busy machine may be late.
#[derive(Clone, Copy, Debug)]
struct RenewalTiming {
    /// How long the server is asked to wait in one call.
    piece: Duration,
    /// After this time the next call is made under the same request id: it takes over the place in the queue.
    renew_after: Duration,
    /// How long two calls are active; the later one has taken over by the end of it. Ending the earlier one before
    /// would take the request out of the queue.
    overlap: Duration,
}

/// The server waits at most 10 minutes.
const RENEWAL_TIMING: RenewalTiming = RenewalTiming {
    piece: Duration::from_secs(600),
    renew_after: Duration::from_secs(500),
    overlap: Duration::from_secs(20),
};

/// Acquires the lock; `None` if the wait ended before that.
pub(crate) async fn acquire(session: &Session, request: &LockRequest, wait: Wait) -> Result<Option<Grant>, Error> {
    traces::acquire(&request.first, Grant::token, acquire_in_pieces(session, request, wait, RENEWAL_TIMING)).await
}

async fn acquire_in_pieces(
    session: &Session,
    request: &LockRequest,
    wait: Wait,
    timing: RenewalTiming,
) -> Result<Option<Grant>, Error> {
    loop {
        let mut pending = PendingAcquire { session, request, request_id: Uuid::new_v4(), undecided: true };
        match unless_lost(session, pending.answer(wait, timing)).await {
            Ok(acquired) => {
                pending.undecided = false;
                let grant = Grant::new(session, request, &acquired);
                return match grant.loss() {
                    Some(because) => Err(Error::Lost(because)),
                    None => Ok(Some(grant)),
                };
            }
            // Out of the queue: the wait is over, or the request was removed by force.
            Err(Error::Refused(problem)) if matches!(problem.code, Code::LockBusy | Code::NotQueued) => {
                // Only one of several locks may be gone. The others would block the next request.
                let in_part = problem.code == Code::NotQueued && !request.also.is_empty();
                pending.undecided = in_part && !pending.cancel(wait).await?;
                if !pending.undecided && !wait.is_over() {
                    tracing::debug!(lock = request.first, %problem, "acquiring again");
                    continue;
                }
                if problem.code == Code::LockBusy {
                    session.set_last_busy(problem);
                }
                return Ok(None);
            }
            Err(error) => {
                pending.undecided = !matches!(error, Error::Refused(_) | Error::Lost(_));
                return Err(error);
            }
        }
    }
}

/// The result of `work`, unless the session is lost first. A process that was frozen finds an answer and the loss of
/// the session at the same moment: then the loss counts. Only a grant is returned as it is, so that it can be
/// released.
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

/// A request that the cluster may know. Dropped while that is undecided, it is cancelled.
struct PendingAcquire<'a> {
    session: &'a Session,
    request: &'a LockRequest,
    request_id: Uuid,
    undecided: bool,
}

impl PendingAcquire<'_> {
    async fn call(&self, wait: Duration) -> Result<Acquired, Error> {
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

    /// The cluster's answer to this request. A wait that is longer than one call continues from call to call.
    async fn answer(&self, wait: Wait, timing: RenewalTiming) -> Result<Acquired, Error> {
        let mut current = Box::pin(self.call(wait.left(timing.piece)));
        while wait.left(timing.piece) == timing.piece {
            tokio::select! {
                answer = &mut current => return answer,
                () = sleep(timing.renew_after) => {}
            }
            // From here on only the next call counts: it gets every answer that the earlier one gets.
            let mut next = Box::pin(self.call(wait.left(timing.piece)));
            tokio::select! {
                answer = &mut next => return answer,
                () = sleep(timing.overlap) => {}
            }
            tracing::debug!(lock = self.request.first, "a long wait continues with the next call");
            current = next;
        }
        current.await
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if self.undecided && !self.session.left().is_zero() {
            cleanup::cancel_detached(self.session, self.request.clone(), self.request_id);
        }
    }
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;
