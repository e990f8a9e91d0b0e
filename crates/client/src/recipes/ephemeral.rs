//! Ephemeral nodes that are removed when their handle is dropped.
//!
//! A creation runs in a task of its own: dropping the future that waits for it cannot stop it in the middle, where it
//! would be unknown whether the node exists. The receiver of the result owns the node; without a receiver it is
//! removed.

use std::future::Future;
use std::time::Duration;

use lockkeeper_api::Code;
use serde::de::IgnoredAny;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::error::RecipeError;
use super::stale_participants::NodeGuard;
use crate::client::Client;
use crate::error::Error;
use crate::routes::Reading;
use crate::session::Session;
use crate::tracked_change::{TrackedChange, is_undecided};

/// How long the removal of a node is retried while the cluster cannot be reached (no session lives that long without a
/// keepalive), and the pause between two attempts.
const LONGEST_OUTAGE: Duration = Duration::from_secs(3_600);
const PAUSE: Duration = Duration::from_millis(500);

/// Runs `work` to its end even if the caller goes away. The result is then dropped, so its drop should clean up.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    session: &Session,
    work: impl Future<Output = Result<T, RecipeError>> + Send + 'static,
) -> Result<T, RecipeError> {
    let (send, receive) = oneshot::channel();
    session.client().context.tasks.spawn(async move {
        // If the caller is gone, the result is dropped here.
        drop(send.send(work.await));
    });
    receive.await.unwrap_or_else(|_| Err(Error::UnknownOutcome("the runtime is shutting down".into()).into()))
}

/// An ephemeral node of this session. Removed when dropped.
#[derive(Debug)]
pub(crate) struct EphemeralNode {
    session: Session,
    path: Option<String>,
    /// The creation, if its outcome is unknown.
    undecided: Option<TrackedChange>,
    /// Dropped when the node certainly does not exist.
    node_guard: Option<NodeGuard>,
}

impl EphemeralNode {
    pub(crate) fn new(session: &Session, path: String) -> Self {
        Self { session: session.clone(), path: Some(path), undecided: None, node_guard: None }
    }

    /// Adds a guard that is dropped when the node certainly does not exist.
    pub(crate) fn guarded_by(mut self, node_guard: NodeGuard) -> Self {
        self.node_guard = Some(node_guard);
        self
    }

    /// The creation failed. If its outcome is unknown, it is found out and undone in the background. Otherwise the node
    /// does not exist, or belongs to another owner.
    pub(crate) fn creation_failed(mut self, undecided: Option<TrackedChange>) {
        match undecided {
            Some(change) => self.undecided = Some(change),
            None => self.forget(),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_default()
    }

    /// The last part of its path.
    pub(crate) fn name(&self) -> &str {
        self.path().rsplit('/').next().unwrap_or_default()
    }

    /// Drops the handle without removing the node: it does not exist, or belongs to another owner.
    pub(crate) fn forget(mut self) {
        self.path = None;
    }

    /// Removes the node. A node that is already gone is no error. After an error it goes on in the background.
    pub(crate) async fn remove(self) -> Result<(), RecipeError> {
        match self.session.client().delete(self.path(), None).await {
            Err(error) if error.code() != Some(Code::NoNode) => Err(error.into()),
            _ => {
                self.forget();
                Ok(())
            }
        }
    }
}

impl Drop for EphemeralNode {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let (client, session_id) = (self.session.client().clone(), self.session.id());
        let undecided = self.undecided.take().map(|change| (change, self.session.clone()));
        let node_guard = self.node_guard.take();
        self.session.client().context.spawn(async move {
            let _until_it_is_gone = node_guard;
            if let Some((change, session)) = undecided {
                // A read would not do: a creation that is still on its way would come after it.
                if let Err(error) = change.decided::<IgnoredAny>(&session).await {
                    tracing::debug!(%error, path, "the node was never created");
                    return;
                }
            }
            // A session outlives an outage that is shorter than its timeout, so the removal does too.
            let give_up_at = Instant::now() + LONGEST_OUTAGE;
            while let Err(error) = remove_if_owned(&client, session_id, &path).await {
                tracing::debug!(%error, path, "a node could not be removed");
                if !is_undecided(&error) || Instant::now() >= give_up_at {
                    return;
                }
                sleep(PAUSE).await;
            }
        });
    }
}

/// Removes the node only if this session owns it: the own node may never have existed, and another may be there.
async fn remove_if_owned(client: &Client, session_id: u64, path: &str) -> Result<(), Error> {
    let removed = async {
        if client.node(path, &Reading::default()).await?.stat.ephemeral_owner == Some(session_id) {
            client.delete(path, None).await?;
        }
        Ok(())
    };
    match removed.await {
        Err(Error::Refused(problem)) if problem.code == Code::NoNode => Ok(()),
        other => other,
    }
}
