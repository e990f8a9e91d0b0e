//! A change whose request id is kept, so that its outcome can be found out later.
//!
//! A read cannot find it out: a change that was sent and not answered may still be on its way, and take place after the
//! read. Sending it again under the same id can, because the cluster carries it out once and gives the same answer each
//! time. It must never be sent again once it was refused: the cluster may have forgotten the refusal.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::sleep;
use uuid::Uuid;

use crate::client::Client;
use crate::error::Error;
use crate::request_spec::RequestSpec;
use crate::session::Session;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct TrackedChange {
    spec: RequestSpec,
    request_id: Uuid,
}

impl TrackedChange {
    pub(crate) fn new(spec: RequestSpec) -> Self {
        Self { spec, request_id: Uuid::new_v4() }
    }

    pub(crate) async fn send<T: DeserializeOwned>(&self, client: &Client) -> Result<T, Error> {
        client.call_as(&self.spec, self.request_id).await
    }

    /// Sends the change until the cluster has answered or the session is lost. A node that the session creates for
    /// itself ends with it.
    pub(crate) async fn decided<T: DeserializeOwned>(&self, session: &Session) -> Result<T, Error> {
        let client = session.client().unacknowledging();
        let mut pause = FIRST_PAUSE;
        while !session.left().is_zero() {
            match self.send(&client).await {
                Err(error) if is_undecided(&error) => {
                    tracing::debug!(%error, spec = ?self.spec, "the outcome of this change is still unknown");
                }
                decided => return decided,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(Error::Lost("the session was not renewed in time".into()))
    }
}

/// Whether sending a change again may find out its outcome. [`Unreachable`](Error::Unreachable) and
/// [`Tls`](Error::Tls) count: they say that the last attempt had no effect, and nothing about an earlier attempt whose
/// outcome is unknown.
pub(crate) fn is_undecided(error: &Error) -> bool {
    matches!(
        error,
        Error::UnknownOutcome(_) | Error::Unreachable { .. } | Error::Tls { .. } | Error::NotLockkeeper { .. }
    )
}
