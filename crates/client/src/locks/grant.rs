//! One grant of the cluster: what every guard stands on.
//!
//! It is given back once: by [`Grant::release`], or when the last owner drops it. It must never say that it holds when the
//! session's clock has run out, whatever its tasks have had the time to notice.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use lockkeeper_api::Code;
use lockkeeper_api::locks::Acquired;
use tokio::sync::watch;

use super::request::Request;
use super::settle;
use crate::error::Error;
use crate::session::{Session, SessionState};

const OUT_OF_TIME: &str = "the session was not renewed in time";

/// See the module's text.
pub(crate) struct Grant {
    session: Session,
    request: Request,
    token: u64,
    /// Completes when the cluster tells that the lock was taken away.
    taken: Shared<BoxFuture<'static, String>>,
    /// Whether it is still to be given back.
    owed: bool,
}

impl Grant {
    pub(crate) fn new(session: &Session, request: &Request, acquired: &Acquired) -> Self {
        let token = acquired.token;
        let taken = session.watch_grant(&request.first, token).boxed().shared();
        tracing::debug!(lock = request.first, token, session = session.id(), "granted");
        Self { session: session.clone(), request: request.clone(), token, taken, owed: true }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
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
        if let Some(because) = self.taken.clone().now_or_never() {
            return Some(because);
        }
        if !self.session.left().is_zero() {
            return None;
        }
        match &*self.session.state().borrow() {
            SessionState::Lost { because } => Some(because.clone()),
            _ => Some(OUT_OF_TIME.into()),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() { Duration::ZERO } else { self.session.left() }
    }

    /// Completes when it does not hold any more without having been given back.
    pub(crate) fn lost(&self) -> impl Future<Output = String> + Send + use<> {
        let (state, taken, token) = (self.session.state(), self.taken.clone(), self.token);
        async move {
            let because = tokio::select! {
                biased;
                because = taken => because,
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
        let result = match answer {
            Ok(_) => Ok(()),
            Err(Error::Refused(problem)) if problem.code == Code::NotHeld => {
                Err(Error::Lost(self.loss().unwrap_or(problem.detail)))
            }
            Err(error) => Err(error),
        };
        // Unreachable or unknown: dropping it sees to the rest.
        self.owed = !matches!(result, Ok(()) | Err(Error::Refused(_) | Error::Lost(_)));
        result
    }

    /// As a reader from now on.
    pub(crate) async fn downgrade(mut self) -> Result<Self, Error> {
        match self.session.client().downgrade(&self.request.first, self.token).await {
            Ok(_) => {
                self.request.mode = lockkeeper_api::locks::Mode::Shared;
                Ok(self)
            }
            Err(Error::Refused(problem)) if problem.code == Code::NotHeld => {
                self.owed = false;
                Err(Error::Lost(self.loss().unwrap_or(problem.detail)))
            }
            // The token is that of the writer and of the reader: giving it back is right either way.
            Err(error) => Err(error),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.owed {
            let release = self.request.release(self.token);
            settle::give_back(self.session.clone(), self.request.first.clone(), release);
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
