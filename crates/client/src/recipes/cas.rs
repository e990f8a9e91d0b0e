//! One node whose data is changed by compare-and-set on its version, retried until no other change came between.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::nodes::{Create, SetData};
use lockkeeper_api::{Code, Data};
use rand::Rng;
use tokio::time::{Instant, sleep};

use super::error::RecipeError;
use super::gapless_watch::bytes_of;
use super::path::{self, RecipePath};
use crate::routes::Reading;
use crate::session::Session;

/// How long an update is retried while other changes come between.
const LONGEST_CONTENTION: Duration = Duration::from_secs(20);
/// Upper bounds of the random pause after the first and after many conflicts.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// What to do with the data that was read.
pub(crate) enum Edit<T> {
    /// Leave the data.
    Keep(T),
    /// Replace the data.
    Put(String, T),
}

/// Held while a handle updates; its clones wait.
pub(crate) struct UpdateLock(#[allow(dead_code, reason = "held, never looked at")] tokio::sync::OwnedMutexGuard<()>);

#[derive(Clone, Debug)]
pub(crate) struct CasCell {
    pub(crate) session: Session,
    pub(crate) path: RecipePath,
    /// Clones of a handle update one after the other, instead of conflicting in the cluster.
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl CasCell {
    pub(crate) fn new(session: Session, path: RecipePath) -> Self {
        Self { session, path, lock: Arc::default() }
    }

    /// The data, and the zxid as of which that is true.
    pub(crate) async fn read(&self) -> Result<(Option<Vec<u8>>, u64), RecipeError> {
        let seen =
            super::gapless_watch::read_node(self.session.client(), self.path.as_str(), &Reading::default()).await?;
        Ok((seen.node.as_ref().map(bytes_of).transpose()?, seen.as_of))
    }

    /// Waits until no clone of this handle updates.
    pub(crate) async fn lock(&self) -> UpdateLock {
        UpdateLock(self.lock.clone().lock_owned().await)
    }

    /// Decides by the current data, and writes only if it has not changed since. Each write has a request id: it is
    /// applied once, or its outcome is reported as unknown.
    pub(crate) async fn update<T>(
        &self,
        decide: impl Fn(Option<&[u8]>) -> Result<Edit<T>, RecipeError>,
    ) -> Result<T, RecipeError> {
        let lock = self.lock().await;
        self.update_locked(&lock, decide).await
    }

    /// [`update`](Self::update) for a caller that has the update lock.
    pub(crate) async fn update_locked<T>(
        &self,
        _turn: &UpdateLock,
        decide: impl Fn(Option<&[u8]>) -> Result<Edit<T>, RecipeError>,
    ) -> Result<T, RecipeError> {
        let client = self.session.client();
        let path = self.path.as_str();
        let (began, mut tries, mut pause) = (Instant::now(), 0, FIRST_PAUSE);
        loop {
            tries += 1;
            let current = match client.node(path, &Reading::default()).await {
                Ok(node) => Some(node),
                Err(error) if error.code() == Some(Code::NoNode) => None,
                Err(error) => return Err(error.into()),
            };
            let bytes = current.as_ref().map(bytes_of).transpose()?;
            let (text, value) = match decide(bytes.as_deref())? {
                Edit::Keep(value) => return Ok(value),
                Edit::Put(text, value) => (text, value),
            };
            let data = Data::Text(text);
            let done = match current {
                Some(node) => client.set(path, &SetData { data }, Some(node.stat.version)).await,
                None => path::create_node(client, path, &Create { data, ..Create::default() }).await,
            };
            match done {
                Ok(_) => return Ok(value),
                Err(error) if matches!(error.code(), Some(Code::BadVersion | Code::NodeExists | Code::NoNode)) => {}
                Err(error) => return Err(error.into()),
            }
            if began.elapsed() >= LONGEST_CONTENTION {
                let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(RecipeError::Contended { path: path.into(), tries, elapsed_ms });
            }
            let rest = pause.mul_f64(rand::rng().random_range(0.0..1.0));
            sleep(rest).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
