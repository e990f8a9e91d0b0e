//! One grant of the cluster, the base of every guard. It is released once: by [`Grant::release`], or when its last
//! owner drops it. `lock_loss.rs` notices when it is lost.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, select_all};
use lockkeeper_api::locks::Acquired;

use super::cleanup;
use super::request::LockRequest;
use crate::error::Error;
use crate::session::Session;

/// See the module's text.
pub(crate) struct Grant {
    pub(super) session: Session,
    request: LockRequest,
    pub(super) token: u64,
    /// The position of the answer in the replicated order.
    zxid: u64,
    /// Completes when the cluster reports that the lock was taken away.
    pub(super) revoked: Shared<BoxFuture<'static, String>>,
    /// Whether the drop must release it.
    to_release: bool,
    /// Whether the session was opened for this grant, and ends with it.
    own_session: bool,
}

impl Grant {
    pub(crate) fn new(session: &Session, request: &LockRequest, acquired: &Acquired) -> Self {
        let (token, zxid) = (acquired.token, acquired.zxid);
        let reports = request.names().map(|name| session.watch_grant(name, token).boxed());
        let revoked = select_all(reports).map(|(because, ..)| because).boxed().shared();
        tracing::debug!(lock = request.first, token, session = session.id(), "granted");
        Self {
            session: session.clone(),
            request: request.clone(),
            token,
            zxid,
            revoked,
            to_release: true,
            own_session: false,
        }
    }

    /// The same grant, as the only one of its session, which ends with it.
    pub(super) fn with_its_session(self) -> Self {
        let mut grant = self;
        grant.own_session = true;
        grant
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn zxid(&self) -> u64 {
        self.zxid
    }

    /// The locks, in the order of their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.request.names()
    }

    /// The first of the locks, which names the grant.
    pub(crate) fn name(&self) -> &str {
        &self.request.first
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.session.left() }
    }

    /// Releases the grant and returns how often its session still holds the lock by re-entry. Without an answer the
    /// release goes on in the background.
    pub(crate) async fn release(mut self) -> Result<u32, Error> {
        let release = self.request.release(self.token);
        let answer = self.session.client().release_together(&self.request.first, &release).await;
        let result = answer.map(|released| released.still_held).map_err(|error| self.as_loss(error));
        // Unreachable or unknown: the drop goes on releasing. So it does for the locks that are held together with a
        // lost one.
        let decided = matches!(result, Ok(_) | Err(Error::Refused(_) | Error::Lost(_)));
        self.to_release = !decided || result.is_err() && !self.request.also.is_empty();
        result
    }

    /// Makes the writer a reader. Whatever the outcome, the token remains valid for the release.
    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        let answer = self.session.client().downgrade(&self.request.first, self.token).await;
        answer.map(drop).map_err(|error| self.as_loss(error))
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.own_session {
            cleanup::close_detached(&self.session);
        } else if self.to_release {
            cleanup::release_detached(&self.session, &self.request, self.token);
        }
    }
}
