//! Waiting for something as long as the session lives.

use std::future::Future;

use super::error::RecipeError;
use crate::error::Error;
use crate::session::Session;

/// Ends in [`Error::Lost`] when the session is lost: what was waited for may have come or not, and it is too late for either.
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
