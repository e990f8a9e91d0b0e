//! The leadership of an elected candidate, until it resigns or is deposed.
//!
//! Everything that it writes as the leader is written in a transaction that checks the lock and its token.

use std::future::Future;
use std::time::Duration;

use lockkeeper_api::nodes::{Kind, Txn, TxnOp};
use lockkeeper_api::{Code, Data};
use tokio::task::JoinHandle;

use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, check_data, refused_operation};
use super::path::{RecipePath, make_directories};
use crate::error::Error;
use crate::locks::Guard;
use crate::session::Session;

/// Largest data of a leader, in bytes.
pub(super) const MAX_DATA_BYTES: usize = 64 * 1024;
/// The directory of all elections, and the reserved part of a name below which leaders' nodes are.
const ROOT: &str = "/elections";
const LEADER: &str = "_leader";

/// The lock and the nodes of an election.
#[derive(Clone, Debug)]
pub(super) struct ElectionPaths {
    pub(super) name: String,
    directory: String,
}

impl ElectionPaths {
    pub(super) fn of(name: &str) -> Result<Self, RecipeError> {
        let bad = |why: String| RecipeError::BadPath { path: name.into(), why };
        let directory = format!("{ROOT}/{name}");
        RecipePath::parse(&directory).map_err(|error| match error {
            RecipeError::BadPath { why, .. } => bad(why),
            other => other,
        })?;
        if name.split('/').any(|part| part == LEADER) {
            return Err(bad(format!("'{LEADER}' is reserved for the leader's node; choose another name")));
        }
        Ok(Self { name: name.into(), directory })
    }

    pub(super) fn lock(&self) -> String {
        format!("elections/{}", self.name)
    }

    /// The directory of leaders' nodes. It holds one node, and for a while that of a leader that was deposed by force.
    pub(super) fn leaders(&self) -> String {
        format!("{}/{LEADER}", self.directory)
    }

    /// The token has 20 digits, so that names sort like tokens.
    pub(super) fn node(&self, token: u64) -> String {
        format!("{}/{token:020}", self.leaders())
    }
}

/// What a leader owns until it resigns.
#[derive(Debug)]
struct LeaderState {
    guard: Guard,
    node: EphemeralNode,
    /// Removes the node of a leader that was deposed by force, so that observers notice.
    deposed_cleanup: DeposedCleanup,
}

#[derive(Debug)]
struct DeposedCleanup(JoinHandle<()>);

impl Drop for DeposedCleanup {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LeaderState {
    fn new(guard: Guard, node: EphemeralNode) -> Self {
        let (lost, client, path) = (guard.lost(), node.session().client().clone(), node.path().to_owned());
        let deposed_cleanup = DeposedCleanup(node.session().client().context.tasks.spawn(async move {
            lost.await;
            // If the session is lost too, the node ends with it.
            if let Err(error) = client.delete(&path, None).await {
                tracing::debug!(%error, path, "the node of a leader that lost its lock goes with its session");
            }
        }));
        Self { guard, node, deposed_cleanup }
    }

    /// Removes the node before it releases the lock: observers must not see a leader that is none.
    async fn leave(self) -> Result<(), RecipeError> {
        let Self { guard, node, deposed_cleanup } = self;
        drop(deposed_cleanup);
        // A failed removal goes on in the background. The lock decides who leads, whatever becomes of the node.
        if let Err(error) = node.remove().await {
            tracing::debug!(%error, "the leader's node could not be removed yet");
        }
        Ok(guard.release().await?)
    }
}

/// This process leads. Dropping it resigns, in the background.
#[derive(Debug)]
#[must_use = "who drops this resigns"]
pub struct Leadership {
    paths: ElectionPaths,
    /// `Some` until the drop.
    state: Option<LeaderState>,
}

impl Leadership {
    pub(super) fn new(session: &Session, paths: ElectionPaths, guard: Guard) -> Self {
        let node = EphemeralNode::new(session, paths.node(guard.token()));
        Self { paths, state: Some(LeaderState::new(guard, node)) }
    }

    fn state(&self) -> Result<&LeaderState, RecipeError> {
        self.state.as_ref().ok_or_else(|| self.stale("it was resigned"))
    }

    fn stale(&self, why: &str) -> RecipeError {
        RecipeError::Stale { what: format!("the leadership of '{}'", self.paths.name), why: why.into() }
    }

    fn lock(&self) -> Option<&Guard> {
        self.state.as_ref().map(|state| &state.guard)
    }

    /// The fencing token: larger than that of every earlier leader. Show it to each resource that the leader writes to.
    pub fn token(&self) -> u64 {
        self.lock().map_or(0, Guard::token)
    }

    /// The lock whose holder leads. With the token it guards transactions.
    pub fn lock_name(&self) -> String {
        self.paths.lock()
    }

    /// An operation that makes a transaction fail when this leadership is over.
    pub fn guard(&self) -> TxnOp {
        TxnOp::LockHeld { lock: self.paths.lock(), token: self.token() }
    }

    /// Completes, with the reason, when the leadership is lost: with its session, or because it was taken away by force
    /// (which only the session's stream reports).
    pub fn lost(&self) -> impl Future<Output = String> + Send + use<> {
        let lost = self.lock().map(Guard::lost);
        async move {
            match lost {
                Some(lost) => lost.await,
                None => "it was resigned".into(),
            }
        }
    }

    /// Whether the leadership is lost, by the clock and by the reports of the cluster.
    pub fn is_lost(&self) -> bool {
        self.lock().is_none_or(Guard::is_lost)
    }

    /// How much longer the leadership is sure to last if no further keepalive is acknowledged. Zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.lock().map_or(Duration::ZERO, Guard::remaining)
    }

    /// Runs `work` while this process leads; see [`Guard::run`].
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the leadership was lost before `work` was done, or by the time it was
    /// done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, RecipeError> {
        Ok(self.state()?.guard.run(work).await?)
    }

    /// Publishes new data for observers, if this process still leads.
    ///
    /// # Errors
    /// [`RecipeError::Stale`] if it does not; otherwise see [`RecipeError`].
    pub async fn proclaim(&self, data: &[u8]) -> Result<(), RecipeError> {
        check_data("a leader's", data, MAX_DATA_BYTES)?;
        let data = Data::from_bytes(data);
        let set = TxnOp::Set { path: self.state()?.node.path().to_owned(), data: data.clone(), version: None };
        match self.guarded(set).await? {
            None => Ok(()),
            // The node was deleted.
            Some(Code::NoNode) => self.announce(data).await,
            Some(code) => Err(Error::refused(code, "the leader's node could not be written").into()),
        }
    }

    /// Creates the leader's node.
    pub(super) async fn announce(&self, data: Data) -> Result<(), RecipeError> {
        let state = self.state()?;
        let path = state.node.path().to_owned();
        let (kind, ttl_ms, sequential, acl) = (Kind::Ephemeral, None, false, None);
        let create = TxnOp::Create { path: path.clone(), data, kind, ttl_ms, sequential, acl };
        for _ in 0..MOST_ATTEMPTS {
            match self.guarded(create.clone()).await? {
                None | Some(Code::NodeExists) => return Ok(()),
                Some(Code::NoNode) => make_directories(state.node.session().client(), &self.paths.leaders()).await?,
                Some(code) => return Err(Error::refused(code, format!("{path} could not be made")).into()),
            }
        }
        Err(RecipeError::Removed { path: self.paths.leaders() })
    }

    /// Carries out an operation if this process still leads. Returns the code if the operation itself was refused.
    async fn guarded(&self, operation: TxnOp) -> Result<Option<Code>, RecipeError> {
        let txn = Txn { operations: vec![self.guard(), operation] };
        match self.state()?.node.session().client().txn(&txn).await {
            Ok(_) => Ok(None),
            Err(error) => match refused_operation(&error) {
                Some((0, _)) => Err(self.stale("the lock is no longer held with its token")),
                Some((_, code)) => Ok(Some(code)),
                None => Err(error.into()),
            },
        }
    }

    /// Resigns and waits until that is certain. If the future is dropped, it goes on in the background.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the leadership was already lost: another leader may have acted at the
    /// same time. After any error it goes on in the background until the cluster has answered or the session is over.
    pub async fn resign(mut self) -> Result<(), RecipeError> {
        match self.state.take() {
            Some(state) => {
                let session = state.node.session().clone();
                run_to_completion(&session, state.leave()).await
            }
            None => Ok(()),
        }
    }
}

/// How often the directory of the leader's node may vanish between its creation and its use.
const MOST_ATTEMPTS: u32 = 16;

impl Drop for Leadership {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        let client = state.node.session().client().clone();
        client.context.spawn(async move {
            if let Err(error) = state.leave().await {
                tracing::debug!(%error, "leader deposed before it resigned, or its lock is still being released");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let paths = ElectionPaths::of("db/primary").unwrap();
        assert_eq!(
            (paths.lock().as_str(), paths.leaders().as_str()),
            ("elections/db/primary", "/elections/db/primary/_leader")
        );
        assert!(paths.node(9) < paths.node(10), "the order of the names is that of the tokens");
        for bad in ["", "/", "a/", "/a", "a/_leader", "a/../b", "a\n"] {
            assert!(matches!(ElectionPaths::of(bad), Err(RecipeError::BadPath { .. })), "{bad:?} was taken");
        }
    }
}
