//! Where a lost lock is noticed: with its session, or by a report of the cluster (`stream/loss_reports.rs`).
//!
//! A grant must never claim to hold when the session's time has run out by the clock, even if no task has noticed yet.

use futures::FutureExt;
use lockkeeper_api::Code;

use super::grant::Grant;
use crate::error::Error;
use crate::session::session_lost;

impl Grant {
    /// Why the grant does not hold any more; `None` if it holds. Reads the clock, not only the reports.
    pub(crate) fn loss(&self) -> Option<String> {
        if let Some(because) = self.revoked.clone().now_or_never() {
            return Some(because);
        }
        self.session.loss()
    }

    /// Completes, with the reason, when the grant is lost.
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

    /// Turns "not held" into a loss.
    pub(super) fn as_loss(&self, error: Error) -> Error {
        match error {
            Error::Refused(problem) if problem.code == Code::NotHeld => {
                Error::Lost(self.loss().unwrap_or(problem.detail))
            }
            other => other,
        }
    }
}
