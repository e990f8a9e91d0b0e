//! The plain lock: one holder at a time, first come first served.

use std::time::Duration;

use lockkeeper_api::locks::Mode;

use super::guard::{Guard, Held};
use super::request::{Patience, Request};
use super::wait::obtain;
use crate::error::Error;
use crate::session::Session;

/// A lock by its name. Making one asks nothing of the cluster.
///
/// It is not reentrant: whoever asks again while holding waits for themselves, through this handle or another, until the
/// wait is over. Two guards of one lock in one process exclude each other like those of two processes.
///
/// A Curator `InterProcessMutex` on `/locks/<name>` stands in the same queue.
#[derive(Clone, Debug)]
pub struct Lock {
    session: Session,
    request: Request,
}

impl Lock {
    pub(super) fn new(session: &Session, name: impl Into<String>) -> Self {
        Self { session: session.clone(), request: Request::new(name, Mode::Exclusive) }
    }

    super::asking_options!(request);

    /// Waits for the lock in its queue for as long as the session lives.
    ///
    /// Dropping the future takes the request out of the queue, and gives the lock back should it have come at that moment.
    /// A wait of more than 10 minutes is asked for in pieces and keeps its place, except where a change of node falls into the
    /// hand-over from one piece to the next: then it queues anew.
    ///
    /// # Errors
    /// [`Error::Lost`] if the session was lost while waiting; otherwise see [`Error`].
    pub async fn lock(&self) -> Result<Guard, Error> {
        loop {
            if let Some(guard) = self.obtain(Patience::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if nobody holds it and nobody waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.obtain(Patience::Try).await
    }

    /// Waits for the lock for so long at most. Finding a node that serves may come on top.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.obtain(Patience::lasting(wait)).await
    }

    async fn obtain(&self, patience: Patience) -> Result<Option<Guard>, Error> {
        let grant = obtain(&self.session, &self.request, patience).await?;
        Ok(grant.map(|grant| Guard::new(Held::new(grant))))
    }
}
