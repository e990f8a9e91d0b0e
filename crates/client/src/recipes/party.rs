//! On whose behalf a recipe acts: a session, and how it is known that it is lost.

use std::future::Future;

use super::error::RecipeError;
use crate::client::Client;
use crate::error::Error;
use crate::session::{Session, SessionState};

/// A session as recipes use it.
#[derive(Clone, Debug)]
pub(crate) struct Party {
    client: Client,
    session_id: u64,
    state: tokio::sync::watch::Receiver<SessionState>,
}

impl Party {
    pub(crate) fn of(session: &Session) -> Self {
        Self { client: session.client().clone(), session_id: session.id(), state: session.state() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn session_id(&self) -> u64 {
        self.session_id
    }

    /// Completes when the session is lost, with the reason.
    pub(crate) async fn lost(&self) -> String {
        let mut state = self.state.clone();
        loop {
            if let SessionState::Lost { because } = &*state.borrow_and_update() {
                return because.clone();
            }
            if state.changed().await.is_err() {
                return "it was closed".into();
            }
        }
    }

    /// Waits for something as long as the session lives.
    pub(crate) async fn while_alive<T>(
        &self,
        wait: impl Future<Output = Result<T, RecipeError>>,
    ) -> Result<T, RecipeError> {
        tokio::select! {
            biased;
            because = self.lost() => Err(Error::Lost(because).into()),
            done = wait => done,
        }
    }
}
