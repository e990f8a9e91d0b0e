//! One grant of the cluster, the base of every guard. It is released once: by [`Grant::release`], or when its last
//! owner drops it. `lock_loss.rs` notices when it is lost.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, select_all};
use lockkeeper_api::locks::{Acquired, Released};

use super::cleanup;
use super::request::LockRequest;
use crate::error::Error;
use crate::routes::release_spec;
use crate::session::Session;
use crate::tracked_change::{TrackedChange, is_undecided};

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
    /// The release that was sent, while its outcome is unknown. It may have taken effect, and another one would then
    /// give back the hold of another call that has re-entered the lock in this session.
    sent: Option<TrackedChange>,
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
            sent: None,
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
        let change = TrackedChange::new(release_spec(&self.request.first, &self.request.release(self.token))?);
        // Before it is sent: the caller may drop this future at any moment.
        self.sent = Some(change.clone());
        let answer = change.send::<Released>(self.session.client()).await;
        if answer.as_ref().is_err_and(is_undecided) {
            return answer.map(|released| released.still_held);
        }
        self.sent = None;
        // The locks that are held together with a lost one still have to be released.
        self.to_release = answer.is_err() && !self.request.also.is_empty();
        answer.map(|released| released.still_held).map_err(|error| self.as_loss(error))
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
        } else if let Some(change) = self.sent.take() {
            cleanup::finish_release_detached(&self.session, self.request.clone(), self.token, change);
        } else if self.to_release {
            cleanup::release_detached(&self.session, &self.request, self.token);
        }
    }
}
