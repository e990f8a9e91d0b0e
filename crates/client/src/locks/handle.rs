//! What every lock handle is underneath: a session, a request, and the three ways of waiting.

use std::time::Duration;

use super::guard::{Guard, Held};
use super::request::{Patience, Request};
use super::wait::obtain;
use crate::error::Error;
use crate::session::Session;

#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) session: Session,
    pub(super) request: Request,
}

impl Handle {
    pub(super) fn new(session: &Session, request: Request) -> Self {
        Self { session: session.clone(), request }
    }

    pub(super) async fn wait<K>(&self) -> Result<Guard<K>, Error> {
        loop {
            if let Some(guard) = self.obtain(Patience::Endless).await? {
                return Ok(guard);
            }
        }
    }

    pub(super) async fn try_once<K>(&self) -> Result<Option<Guard<K>>, Error> {
        self.obtain(Patience::Try).await
    }

    pub(super) async fn wait_for<K>(&self, wait: Duration) -> Result<Option<Guard<K>>, Error> {
        self.obtain(Patience::lasting(wait)).await
    }

    pub(super) async fn obtain<K>(&self, patience: Patience) -> Result<Option<Guard<K>>, Error> {
        let grant = obtain(&self.session, &self.request, patience).await?;
        Ok(grant.map(|grant| Guard::new(Held::new(grant))))
    }
}

/// The options that every handle has, for the handles in these fields.
macro_rules! asking_options {
    ($($handle:ident),+) => {
        /// Who asks, for people who look at the queue.
        #[must_use]
        pub fn label(mut self, label: impl Into<String>) -> Self {
            let label = label.into();
            $(self.$handle.request.label.clone_from(&label);)+
            self
        }

        /// Should the session *expire* while it holds, nobody is granted what it held for so long (Chubby's lock-delay): time for
        /// what the holder had sent to arrive. A release and a closed session have no delay. At most 10 minutes.
        #[must_use]
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            $(self.$handle.request.delayed_by(delay);)+
            self
        }
    };
}
pub(super) use asking_options;
