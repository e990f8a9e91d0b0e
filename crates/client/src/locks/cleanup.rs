//! Clean-up that no caller waits for: cancelling a request whose caller has gone, and releasing a grant that was
//! dropped or whose release was not answered.
//!
//! Both go on until the cluster has decided, or until the session is lost and with it all it owns. A session that lives
//! on must never leave a request or a grant behind.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::Released;
use tokio::time::sleep;
use uuid::Uuid;

use super::request::LockRequest;
use crate::error::Error;
use crate::routes::release_spec;
use crate::session::Session;
use crate::tracked_change::TrackedChange;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Releases a grant without waiting for it: over a stream, before any request that is sent from here on.
pub(super) fn release_detached(session: &Session, request: &LockRequest, token: u64) {
    match release_spec(&request.first, &request.detached_release(token)) {
        Ok(spec) => session.client().send_detached(spec),
        Err(error) => tracing::debug!(%error, lock = request.first, token, "cannot be released"),
    }
}

/// Finds out, in the background, what became of a release that was sent, by repeating it under the same request id. Of
/// several locks, one of which is gone, the others are released then.
pub(super) fn finish_release_detached(session: &Session, request: LockRequest, token: u64, release: TrackedChange) {
    let of_task = session.clone();
    session.client().context.spawn(async move {
        match release.decided::<Released>(&of_task).await {
            Err(Error::Refused(_)) if !request.also.is_empty() => release_detached(&of_task, &request, token),
            Ok(_) | Err(_) => {}
        }
    });
}

/// Closes, in the background, a session that was opened for one grant: that releases the grant too.
pub(super) fn close_detached(session: &Session) {
    let client = session.client().clone();
    session.client().context.spawn(async move {
        // If this fails, the session ends by itself, since nobody renews it.
        if let Err(error) = client.close_session().await {
            tracing::debug!(%error, "the session of a lock with a fixed time is left to expire");
        }
    });
}

/// Cancels, in the background, a request that may wait, hold, or never have arrived.
pub(super) fn cancel_detached(session: &Session, request: LockRequest, request_id: Uuid) {
    let of_task = session.clone();
    session.client().context.spawn(async move { cancel(&of_task, &request, request_id).await });
}

/// Cancels a request by repeating it under the same id without waiting. The cluster answers either that the request
/// holds, and then it is released; or that it is out of the queue. The replicated order puts this repetition behind
/// every effect of an earlier attempt.
pub(super) async fn cancel(session: &Session, request: &LockRequest, request_id: Uuid) {
    let acquire = request.acquire(request_id, Duration::ZERO);
    let mut pause = FIRST_PAUSE;
    while !session.left().is_zero() {
        let error = match session.client().acquire(&request.first, &acquire).await {
            Ok(held) => return release_detached(session, request, held.token),
            Err(Error::Refused(problem)) if problem.code == Code::NotQueued && !request.also.is_empty() => {
                match remove_parts(session, request, request_id).await {
                    Ok(()) | Err(Error::Refused(_) | Error::Lost(_)) => return,
                    Err(error) => error,
                }
            }
            Err(Error::Refused(_) | Error::Lost(_)) => return,
            Err(error) => error,
        };
        tracing::debug!(%error, lock = request.first, %request_id, "request not cancelled yet");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Removes the remaining nodes of a request for several locks that can no longer hold as a whole: one of the locks was
/// broken by force, and the other nodes would stay with a session that lives on. Only the queues themselves tell which
/// nodes remain. Each may be removed, whether it holds or waits.
async fn remove_parts(session: &Session, request: &LockRequest, request_id: Uuid) -> Result<(), Error> {
    let client = session.client();
    let of_this = format!("_c_{request_id}-");
    let unless_gone = |error: Error| if error.code() == Some(Code::NoNode) { Ok(()) } else { Err(error) };
    for lock in request.names() {
        let directory = format!("/locks/{lock}");
        let children = match client.children(&directory).await {
            Err(error) => {
                unless_gone(error)?;
                continue;
            }
            Ok(children) => children,
        };
        for part in children.iter().filter(|name| name.starts_with(&of_this)) {
            client.delete(&format!("{directory}/{part}"), None).await.map(drop).or_else(unless_gone)?;
            tracing::debug!(lock, part, "remaining node of a joint request removed");
        }
    }
    Ok(())
}
