//! The common part of all lock handles: a session, a request, and the three ways of waiting.

use std::time::Duration;

use super::acquire::acquire;
use super::guard::Guard;
use super::request::{LockRequest, Wait};
use super::shared_queue::Hold;
use crate::error::Error;
use crate::session::Session;

#[derive(Clone, Debug)]
pub(super) struct LockHandle {
    pub(super) session: Session,
    pub(super) request: LockRequest,
}

impl LockHandle {
    pub(super) fn new(session: &Session, request: LockRequest) -> Self {
        Self { session: session.clone(), request }
    }

    pub(super) async fn wait<K>(&self) -> Result<Guard<K>, Error> {
        loop {
            if let Some(guard) = self.acquire(Wait::Endless).await? {
                return Ok(guard);
            }
        }
    }

    pub(super) async fn try_once<K>(&self) -> Result<Option<Guard<K>>, Error> {
        self.acquire(Wait::Try).await
    }

    pub(super) async fn wait_for<K>(&self, wait: Duration) -> Result<Option<Guard<K>>, Error> {
        self.acquire(Wait::lasting(wait)).await
    }

    pub(super) async fn acquire<K>(&self, wait: Wait) -> Result<Option<Guard<K>>, Error> {
        let grant = acquire(&self.session, &self.request, wait).await?;
        Ok(grant.map(|grant| Guard::new(Hold::new(grant))))
    }
}

/// Defines the options that every lock has, for the handles in these fields.
macro_rules! asking_options {
    ($($handle:ident),+) => {
        /// A name for this process, for people who look at the queue.
        #[must_use]
        pub fn label(mut self, label: impl Into<String>) -> Self {
            let label = label.into();
            $(self.$handle.request.label.clone_from(&label);)+
            self
        }

        /// If the session *expires* while it holds the lock, the lock stays closed for that long (Chubby's
        /// lock-delay), so that writes the holder had sent can arrive. A release and a closed session cause no delay.
        /// At most 10 minutes.
        #[must_use]
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            $(self.$handle.request.delayed_by(delay);)+
            self
        }
    };
}
pub(super) use asking_options;
