//! Nodes that a session makes for a purpose and removes when the purpose is gone, however that comes about.
//!
//! A creation runs in a task of its own: dropping the future that waits for it cannot cut it off in the middle, where nobody
//! would know whether the node exists. Whoever gets the result owns the node; if nobody does, it is removed.

use std::future::Future;
use std::time::Duration;

use lockkeeper_api::Code;
use serde::de::IgnoredAny;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::error::RecipeError;
use super::stale_participants::NodeGuard;
use super::tracked_change::{TrackedChange, is_undecided};
use crate::client::Client;
use crate::error::Error;
use crate::routes::Reading;
use crate::session::Session;

/// How long a node is tried to be removed while the cluster cannot be reached (no session outlives this in silence); the pause between
/// two tries.
const LONGEST_OUTAGE: Duration = Duration::from_secs(3_600);
const PAUSE: Duration = Duration::from_millis(500);

/// Runs to its end even if the caller goes away. A result that nobody takes is dropped, so it should clean up when dropped.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    session: &Session,
    work: impl Future<Output = Result<T, RecipeError>> + Send + 'static,
) -> Result<T, RecipeError> {
    let (send, receive) = oneshot::channel();
    session.client().context.tasks.spawn(async move {
        // An error means that the caller is gone; the result is dropped here.
        drop(send.send(work.await));
    });
    receive.await.unwrap_or_else(|_| Err(Error::UnknownOutcome("the runtime is shutting down".into()).into()))
}

/// An ephemeral node of this session. Removed when dropped.
#[derive(Debug)]
pub(crate) struct EphemeralNode {
    session: Session,
    path: Option<String>,
    /// What was to make it, and may or may not have.
    undecided: Option<TrackedChange>,
    /// There for as long as the node may be.
    node_guard: Option<NodeGuard>,
}

impl EphemeralNode {
    pub(crate) fn new(session: &Session, path: String) -> Self {
        Self { session: session.clone(), path: Some(path), undecided: None, node_guard: None }
    }

    /// With something that is to be dropped when the node is certainly gone.
    pub(crate) fn guarded_by(mut self, node_guard: NodeGuard) -> Self {
        self.node_guard = Some(node_guard);
        self
    }

    /// Making it failed. If that leaves a change open, it is found out in the background what became of it, and undone; if not, the
    /// node is not there, or somebody else's.
    pub(crate) fn not_made(mut self, open: Option<TrackedChange>) {
        match open {
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

    /// It is not there, or somebody else's business now.
    pub(crate) fn forget(mut self) {
        self.path = None;
    }

    /// Removes it. That it is gone already is no error. On an error it goes on in the background.
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
                // A read would not do: what is still on its way would come behind it.
                if let Err(error) = change.decided::<IgnoredAny>(&session).await {
                    tracing::debug!(%error, path, "a node never came to be");
                    return;
                }
            }
            // A session outlives an outage that is shorter than its timeout, so this does too.
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

/// The node may never have come to be, and another's may stand there: only one's own is removed.
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
