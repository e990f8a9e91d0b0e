//! One grant of the cluster: what every guard stands on.
//!
//! It is given back once: by [`Grant::release`], or when the last owner drops it. It must never say that it holds when the
//! session's clock has run out, whatever its tasks have had the time to notice.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, select_all};
use lockkeeper_api::Code;
use lockkeeper_api::locks::Acquired;
use tokio::sync::watch;

use super::cleanup;
use super::request::LockRequest;
use crate::error::Error;
use crate::session::{Session, SessionState};

/// See the module's text.
pub(crate) struct Grant {
    session: Session,
    request: LockRequest,
    token: u64,
    /// Where in the replicated order the answer stood.
    zxid: u64,
    /// Completes when the cluster tells that the lock was taken away.
    revoked: Shared<BoxFuture<'static, String>>,
    /// Whether it is still to be given back.
    to_release: bool,
}

impl Grant {
    pub(crate) fn new(session: &Session, request: &LockRequest, acquired: &Acquired) -> Self {
        let (token, zxid) = (acquired.token, acquired.zxid);
        let told = request.names().map(|name| session.watch_grant(name, token).boxed());
        let revoked = select_all(told).map(|(because, ..)| because).boxed().shared();
        tracing::debug!(lock = request.first, token, session = session.id(), "granted");
        Self { session: session.clone(), request: request.clone(), token, zxid, revoked, to_release: true }
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

    /// The lock that stands for all of them.
    pub(crate) fn name(&self) -> &str {
        &self.request.first
    }

    /// Why it does not hold any more, if that is so. Looks at the clock, not only at what was told.
    pub(crate) fn loss(&self) -> Option<String> {
        if let Some(because) = self.revoked.clone().now_or_never() {
            return Some(because);
        }
        self.session.loss()
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.session.left() }
    }

    /// Completes when it does not hold any more without having been given back.
    pub(crate) fn lost(&self) -> impl Future<Output = String> + Send + use<> {
        let (state, revoked, token) = (self.session.state(), self.revoked.clone(), self.token);
        async move {
            let because = tokio::select! {
                biased;
                because = revoked => because,
                because = session_lost(state) => because,
            };
            tracing::debug!(token, because, "lock lost");
            because
        }
    }

    /// Gives it back, and says what came of that. Where the answer is missing, it goes on in the background.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let release = self.request.release(self.token);
        let answer = self.session.client().release_together(&self.request.first, &release).await;
        let result = answer.map(drop).map_err(|error| self.as_loss(error));
        // Unreachable or unknown: dropping it sees to the rest. So it does to the locks that are held together with one that is lost.
        let settled = matches!(result, Ok(()) | Err(Error::Refused(_) | Error::Lost(_)));
        self.to_release = !settled || result.is_err() && !self.request.also.is_empty();
        result
    }

    /// Makes the writer a reader. Whatever comes of it, the token stays right for giving it back.
    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        let answer = self.session.client().downgrade(&self.request.first, self.token).await;
        answer.map(drop).map_err(|error| self.as_loss(error))
    }

    /// That it is not held any more is a loss.
    fn as_loss(&self, error: Error) -> Error {
        match error {
            Error::Refused(problem) if problem.code == Code::NotHeld => {
                Error::Lost(self.loss().unwrap_or(problem.detail))
            }
            other => other,
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.to_release {
            cleanup::release_detached(&self.session, &self.request, self.token);
        }
    }
}

/// Completes when the session is lost. Holds no part of it: whoever waits for this does not keep it alive.
pub(crate) async fn session_lost(mut state: watch::Receiver<SessionState>) -> String {
    loop {
        if let SessionState::Lost { because } = &*state.borrow_and_update() {
            return because.clone();
        }
        if state.changed().await.is_err() {
            return "the session was dropped".into();
        }
    }
}
