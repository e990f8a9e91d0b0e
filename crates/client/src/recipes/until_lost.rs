//! Ends a wait when the session is lost.

use std::future::Future;

use super::error::RecipeError;
use crate::error::Error;
use crate::session::Session;

/// Waits, and fails with [`Error::Lost`] when the session is lost: whether the event came or not, it is then too late.
pub(crate) async fn until_lost<T>(
    session: &Session,
    wait: impl Future<Output = Result<T, RecipeError>>,
) -> Result<T, RecipeError> {
    tokio::select! {
        biased;
        because = session.lost() => Err(Error::Lost(because).into()),
        done = wait => done,
    }
}
