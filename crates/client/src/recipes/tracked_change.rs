//! A change that is asked for under an id which is kept, so that what became of it can be found out later.
//!
//! A read cannot tell: a change that was sent and not answered may still be on its way, and take place behind the read. Asking for it
//! again under the same id can, because the cluster carries it out once and gives the same answer each time. It must never be asked
//! for again once it was refused: what was refused is over, and the cluster may have forgotten it.

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

    pub(crate) async fn ask<T: DeserializeOwned>(&self, client: &Client) -> Result<T, Error> {
        client.call_as(&self.spec, self.request_id).await
    }

    /// Asks until the cluster has said what became of it, for as long as the session lives: what a session makes for itself goes with it.
    pub(crate) async fn decided<T: DeserializeOwned>(&self, session: &Session) -> Result<T, Error> {
        let client = session.client().unacknowledging();
        let mut pause = FIRST_PAUSE;
        while !session.left().is_zero() {
            match self.ask(&client).await {
                Err(error) if is_undecided(&error) => {
                    tracing::debug!(%error, spec = ?self.spec, "it is still open whether this took place");
                }
                decided => return decided,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(Error::Lost("the session was not renewed in time".into()))
    }
}

/// Whether asking again may bring what this answer left open. For a change that was asked for once,
/// [`Unreachable`](Error::Unreachable) leaves nothing open; for one of which an earlier asking is open, it says nothing new.
pub(crate) fn is_undecided(error: &Error) -> bool {
    matches!(error, Error::UnknownOutcome(_) | Error::Unreachable { .. } | Error::NotLockkeeper { .. })
}
