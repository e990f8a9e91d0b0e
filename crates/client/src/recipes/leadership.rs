//! Leading: what a candidate has from its election until it resigns or is deposed.
//!
//! Everything it says as the leader is said in a transaction that is guarded by the lock and its token.

use std::future::Future;
use std::time::Duration;

use lockkeeper_api::nodes::{Kind, Txn, TxnOp};
use lockkeeper_api::{Code, Data};
use tokio::task::JoinHandle;

use super::election::{ElectionPaths, check_data};
use super::ephemeral::{EphemeralNode, run_to_completion};
use super::error::{RecipeError, refused_operation};
use super::path::make_directories;
use crate::error::Error;
use crate::locks::Guard;
use crate::session::Session;

/// What a leader has until it resigns.
#[derive(Debug)]
struct LeaderState {
    guard: Guard,
    node: EphemeralNode,
    /// Removes the node of a leader that was deposed by force, so that observers are told.
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
            // If its session is lost too, the node is going or gone already.
            if let Err(error) = client.delete(&path, None).await {
                tracing::debug!(%error, path, "the node of a leader that lost its lock goes with its session");
            }
        }));
        Self { guard, node, deposed_cleanup }
    }

    /// In this order: nobody is to be observed as the leader who is none.
    async fn leave(self) -> Result<(), RecipeError> {
        let Self { guard, node, deposed_cleanup } = self;
        drop(deposed_cleanup);
        // What fails goes on in the background, and the end of the lock counts whatever became of the node.
        if let Err(error) = node.remove().await {
            tracing::debug!(%error, "the leader's node could not be removed yet");
        }
        Ok(guard.release().await?)
    }
}

/// This candidate leads. Dropping it resigns, in the background.
#[derive(Debug)]
#[must_use = "who drops this resigns"]
pub struct Leadership {
    paths: ElectionPaths,
    /// There until the drop.
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

    /// The fencing token: larger than that of each leader before. Show it to what the leader writes to.
    pub fn token(&self) -> u64 {
        self.lock().map_or(0, Guard::token)
    }

    /// The lock whose holder leads; with the token a guard for transactions.
    pub fn lock_name(&self) -> String {
        self.paths.lock()
    }

    /// An operation for transactions that refuses them when this leadership is over.
    pub fn guard(&self) -> TxnOp {
        TxnOp::LockHeld { lock: self.paths.lock(), token: self.token() }
    }

    /// Completes, with the reason, when the leadership is lost: its session is, or (told over the session's stream only) it was
    /// taken away by force.
    pub fn lost(&self) -> impl Future<Output = String> + Send + use<> {
        let lost = self.lock().map(Guard::lost);
        async move {
            match lost {
                Some(lost) => lost.await,
                None => "it was resigned".into(),
            }
        }
    }

    /// Whether it is lost, by the clock and by what the cluster has told.
    pub fn is_lost(&self) -> bool {
        self.lock().is_none_or(Guard::is_lost)
    }

    /// How long it is sure to last from now on, if no further keepalive is acknowledged. Zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.lock().map_or(Duration::ZERO, Guard::remaining)
    }

    /// Runs `work` for as long as this candidate leads; see [`Guard::run`].
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the leadership was lost before `work` was done, or by the time it was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, RecipeError> {
        Ok(self.state()?.guard.run(work).await?)
    }

    /// Gives observers other data, if this candidate still leads.
    ///
    /// # Errors
    /// [`RecipeError::Stale`] if it does not; otherwise see [`RecipeError`].
    pub async fn proclaim(&self, data: &[u8]) -> Result<(), RecipeError> {
        check_data(data)?;
        let data = Data::from_bytes(data);
        let set = TxnOp::Set { path: self.state()?.node.path().to_owned(), data: data.clone(), version: None };
        match self.guarded(set).await? {
            None => Ok(()),
            // Somebody has removed the node.
            Some(Code::NoNode) => self.announce(data).await,
            Some(code) => Err(Error::refused(code, "the leader's node could not be written").into()),
        }
    }

    /// Makes the leader's node.
    pub(super) async fn announce(&self, data: Data) -> Result<(), RecipeError> {
        let state = self.state()?;
        let path = state.node.path().to_owned();
        let (kind, ttl_ms, sequential, acl) = (Kind::Ephemeral, None, false, None);
        let create = TxnOp::Create { path: path.clone(), data, kind, ttl_ms, sequential, acl };
        for _ in 0..MOST_TRIES {
            match self.guarded(create.clone()).await? {
                None | Some(Code::NodeExists) => return Ok(()),
                Some(Code::NoNode) => make_directories(state.node.session().client(), &self.paths.leaders()).await?,
                Some(code) => return Err(Error::refused(code, format!("{path} could not be made")).into()),
            }
        }
        Err(RecipeError::Removed { path: self.paths.leaders() })
    }

    /// Carries out an operation if this candidate still leads; gives the code if it was refused for itself.
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

    /// Gives the leadership up and waits until that is certain. If the future is dropped it goes on in the background.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if it was not held any more: what was done as the leader may have been done beside another. After any
    /// error it goes on in the background until the cluster has answered or the session is over.
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

/// How often the directory of the leader's node may vanish between its making and its use.
const MOST_TRIES: u32 = 16;

impl Drop for Leadership {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        let client = state.node.session().client().clone();
        client.context.spawn(async move {
            if let Err(error) = state.leave().await {
                tracing::debug!(%error, "a leader that resigned had been deposed, or is seen to in the background");
            }
        });
    }
}
