//! What must still be done when nobody waits for it any more: taking back a request whose caller has gone, and giving back a
//! grant that was dropped or whose release was not answered.
//!
//! Both go on until the cluster has decided or the session is lost, and with it all it owns: no request and no grant is ever
//! left behind by a session that lives on.

use std::time::Duration;

use lockkeeper_api::locks::Release;
use tokio::runtime::Handle;
use tokio::time::sleep;
use uuid::Uuid;

use super::request::Request;
use crate::error::Error;
use crate::session::Session;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Runs something for the session from wherever this is called. In a runtime that is shutting down nothing happens, and the
/// session ends with its process.
pub(super) fn in_background(session: &Session, work: impl Future<Output = ()> + Send + 'static) {
    let own = session.client().identity.as_ref().and_then(|identity| identity.runtime.clone());
    if let Some(runtime) = own.or_else(|| Handle::try_current().ok()) {
        drop(runtime.spawn(work));
    }
}

/// Gives a grant back without being waited for.
pub(super) fn give_back(session: Session, lock: String, release: Release) {
    in_background(&session.clone(), async move { released(&session, &lock, &release).await });
}

/// Takes a request back of which nobody knows whether it waits, holds, or ever arrived. Nobody waits for it.
pub(super) fn take_back(session: Session, request: Request, request_id: Uuid) {
    in_background(&session.clone(), async move { taken_back(&session, &request, request_id).await });
}

async fn released(session: &Session, lock: &str, release: &Release) {
    let mut pause = FIRST_PAUSE;
    while !session.left().is_zero() {
        match session.client().release_together(lock, release).await {
            Ok(_) | Err(Error::Refused(_) | Error::Lost(_)) => return,
            Err(error) => tracing::debug!(%error, lock, token = release.token, "not given back yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asks again under the same id without waiting. The answer is either that it holds, and then it is released; or that it is out
/// of the queue. The replicated order puts this behind whatever an earlier try may still have done.
async fn taken_back(session: &Session, request: &Request, request_id: Uuid) {
    let ask = request.acquire(request_id, Duration::ZERO);
    let mut pause = FIRST_PAUSE;
    while !session.left().is_zero() {
        match session.client().acquire(&request.first, &ask).await {
            Ok(held) => return released(session, &request.first, &request.release(held.token)).await,
            Err(Error::Refused(_) | Error::Lost(_)) => return,
            Err(error) => tracing::debug!(%error, lock = request.first, %request_id, "not taken back yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
