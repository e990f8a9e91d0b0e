//! What must still be done when nobody waits for it any more: taking back a request whose caller has gone, and giving back a
//! grant that was dropped or whose release was not answered.
//!
//! Both go on until the cluster has decided or the session is lost, and with it all it owns: no request and no grant is ever
//! left behind by a session that lives on.

use std::time::Duration;

use lockkeeper_api::Code;
use tokio::time::sleep;
use uuid::Uuid;

use super::request::LockRequest;
use crate::error::Error;
use crate::routes::release_spec;
use crate::session::Session;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Runs something for the session from wherever this is called. In a runtime that is shutting down nothing happens, and the
/// session ends with its process.
pub(super) fn in_background(session: &Session, work: impl Future<Output = ()> + Send + 'static) {
    session.client().spawn(|_| work);
}

/// Gives a grant back without being waited for: before anything that is asked from here on, where there is a stream.
pub(super) fn release_detached(session: &Session, request: &LockRequest, token: u64) {
    match release_spec(&request.first, &request.detached_release(token)) {
        Ok(ask) => session.client().send_detached(ask),
        Err(error) => tracing::debug!(%error, lock = request.first, token, "cannot be given back"),
    }
}

/// Takes a request back of which nobody knows whether it waits, holds, or ever arrived. Nobody waits for it.
pub(super) fn cancel_detached(session: Session, request: LockRequest, request_id: Uuid) {
    in_background(&session.clone(), async move { cancel(&session, &request, request_id).await });
}

/// Asks again under the same id without waiting. The answer is either that it holds, and then it is released; or that it is out
/// of the queue. The replicated order puts this behind whatever an earlier try may still have done.
pub(super) async fn cancel(session: &Session, request: &LockRequest, request_id: Uuid) {
    let ask = request.acquire(request_id, Duration::ZERO);
    let mut pause = FIRST_PAUSE;
    while !session.left().is_zero() {
        let error = match session.client().acquire(&request.first, &ask).await {
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
        tracing::debug!(%error, lock = request.first, %request_id, "not taken back yet");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Takes what is left of a request for several locks out of their queues, once it cannot hold as a whole any more: one of the locks was
/// broken by force, and the others would stay with a session that lives on. Which are left only the queues themselves tell, and
/// to remove the node is right whether it holds or waits.
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
            tracing::debug!(lock, part, "what was left of a joint request is taken back");
        }
    }
    Ok(())
}
