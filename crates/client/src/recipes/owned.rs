//! Nodes that a session makes for a purpose and removes when the purpose is gone, however that comes about.
//!
//! A creation runs in a task of its own: dropping the future that waits for it cannot cut it off in the middle, where nobody
//! would know whether the node exists. Whoever gets the result owns the node; if nobody does, it is removed.

use std::future::Future;

use tokio::sync::oneshot;

use super::error::RecipeError;
use super::party::Party;
use crate::error::Error;

/// Runs to its end even if the caller goes away. A result that nobody takes is dropped, so it should clean up when dropped.
pub(crate) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, RecipeError>> + Send + 'static,
) -> Result<T, RecipeError> {
    let (send, receive) = oneshot::channel();
    tokio::spawn(async move {
        // An error means that the caller is gone; the result is dropped here.
        drop(send.send(work.await));
    });
    receive.await.unwrap_or_else(|_| Err(Error::UnknownOutcome("the runtime is shutting down".into()).into()))
}

/// Runs in the background, if there is a runtime that still takes it. Otherwise the session ends with the process, and all it
/// owns with it.
pub(crate) fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

/// An ephemeral node of this session. Removed when dropped.
#[derive(Debug)]
pub(crate) struct OwnedNode {
    party: Party,
    path: Option<String>,
}

impl OwnedNode {
    pub(crate) fn new(party: &Party, path: String) -> Self {
        Self { party: party.clone(), path: Some(path) }
    }

    pub(crate) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_default()
    }

    /// It is not there, or is somebody else's business now.
    pub(crate) fn forget(mut self) {
        self.path = None;
    }

    /// Removes it. That it is gone already is no error.
    pub(crate) async fn remove(mut self) -> Result<(), RecipeError> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let removed = self.party.client().delete(&path, None).await;
        match removed {
            Err(error) if error.code() != Some(lockkeeper_api::Code::NoNode) => Err(error.into()),
            _ => {
                self.path = None;
                Ok(())
            }
        }
    }
}

impl Drop for OwnedNode {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let client = self.party.client().clone();
        in_background(async move {
            if let Err(error) = client.delete(&path, None).await {
                tracing::debug!(%error, path, "a node is left to end with its session");
            }
        });
    }
}
