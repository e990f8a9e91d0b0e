//! The interface of a lock engine.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::error::EngineError;
use crate::names::{MAX_LABEL_BYTES, MAX_LOCKS, check_name};
use crate::wait::Wait;

/// Longest lease.
pub const LONGEST_LEASE: Duration = Duration::from_secs(3_600);

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other shared holders. Needs [`Capability::Shared`].
    Shared,
}

/// A request for one lock, or for several together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The locks: sorted, each once, at least one. [`LockRequest::new`] and [`LockRequest::together`] see to that.
    locks: Vec<String>,
    /// The mode.
    pub mode: Mode,
    /// How long to wait.
    pub wait: Wait,
    /// How long the lock stays held without a renewal. Not below the engine's minimum.
    pub lease: Duration,
    /// A description for operators.
    pub label: String,
}

impl LockRequest {
    /// A request for one lock, such as `orders/42`: exclusive, waiting as long as it takes, with a lease of 10 s.
    pub fn new(lock: impl Into<String>) -> Self {
        Self {
            locks: vec![lock.into()],
            mode: Mode::default(),
            wait: Wait::default(),
            lease: Duration::from_secs(10),
            label: lockkeeper_client::process_label(&std::env::args_os().next().unwrap_or_default()),
        }
    }

    /// A request for several locks together. Order and repetition do not matter.
    ///
    /// # Errors
    /// No lock is named.
    pub fn together(locks: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, EngineError> {
        let mut locks: Vec<String> = locks.into_iter().map(Into::into).collect();
        locks.sort_unstable();
        locks.dedup();
        if locks.is_empty() {
            return Err(EngineError::Refused("name at least one lock".into()));
        }
        Ok(Self { locks, ..Self::new("") })
    }

    /// The same request in that mode.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The same request with that wait.
    #[must_use]
    pub fn with_wait(self, wait: Wait) -> Self {
        Self { wait, ..self }
    }

    /// The same request with that lease.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// The same request with that description.
    #[must_use]
    pub fn with_label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// The locks, sorted, each once.
    pub fn locks(&self) -> &[String] {
        &self.locks
    }

    /// The same request for one of its locks.
    #[must_use]
    pub fn only(&self, lock: &str) -> Self {
        Self { locks: vec![lock.into()], ..self.clone() }
    }

    /// Checks the request, also against an engine's promises.
    ///
    /// # Errors
    /// [`EngineError::Missing`] for a shared lock, [`EngineError::Refused`] for a lease below the minimum, or for what
    /// no engine takes: a bad name, too many locks, several locks in shared mode.
    pub fn check(&self, engine: &str, capabilities: Capabilities) -> Result<(), EngineError> {
        self.locks.iter().try_for_each(|lock| check_name(lock))?;
        if self.locks.len() > MAX_LOCKS {
            let why = format!("a request names at most {MAX_LOCKS} locks, not {}", self.locks.len());
            return Err(EngineError::Refused(why));
        }
        if self.label.len() > MAX_LABEL_BYTES {
            let why = format!("a label is at most {MAX_LABEL_BYTES} bytes long, this one has {}", self.label.len());
            return Err(EngineError::Refused(why));
        }
        if self.mode == Mode::Shared {
            capabilities.require(engine, Capability::Shared)?;
            if self.locks.len() > 1 {
                return Err(EngineError::Refused("several locks together are exclusive, not shared".into()));
            }
        }
        let shortest = capabilities.minimum_lease;
        if self.lease < shortest || self.lease > LONGEST_LEASE {
            let why = format!(
                "the engine {engine} takes leases from {shortest:?} to {LONGEST_LEASE:?}, not {:?}",
                self.lease
            );
            return Err(EngineError::Refused(why));
        }
        Ok(())
    }
}

/// A lock, or several, that an engine granted for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The locks, sorted.
    pub locks: Vec<String>,
    /// Identifies the grant within its engine.
    pub owner: Uuid,
    /// The fencing tokens, one for each of `locks`. Empty if the engine has none.
    pub tokens: Vec<u64>,
    /// How long a renewal lasts.
    pub length: Duration,
    /// Until when the lock is sure to be held without a renewal, counted from before the request was sent.
    pub ends_at: Moment,
}

impl Lease {
    /// The fencing token of the first lock, which is the only one in most requests.
    pub fn token(&self) -> Option<u64> {
        self.tokens.first().copied()
    }

    /// The fencing token of that lock.
    pub fn token_of(&self, lock: &str) -> Option<u64> {
        let position = self.locks.iter().position(|held| held == lock)?;
        self.tokens.get(position).copied()
    }
}

/// What keeps others from holding a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The engine, as its capabilities say.
    Engine,
    /// Only the other callers of this process are kept out: the engine could not be reached, and the caller had asked
    /// for this.
    ThisProcess,
    /// Nothing: the engine could not be reached, and the caller had asked to run all the same.
    Nothing,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The description that it gave, or the engine's name for it.
    pub label: String,
    /// Its fencing token, if the engine has them.
    pub token: Option<u64>,
}

/// A lock service.
///
/// Futures may be dropped at any point. A grant whose caller has gone is then released, or ends with its lease.
#[async_trait]
pub trait LockEngine: fmt::Debug + Send + Sync + 'static {
    /// The name of the engine, such as `redis`.
    fn name(&self) -> &str;

    /// What the engine promises.
    fn capabilities(&self) -> Capabilities;

    /// Acquires the locks of the request: all, or none. `None` if the wait is over before that.
    ///
    /// # Errors
    /// See [`EngineError`].
    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError>;

    /// Renews a lease for its full length, and returns its new end, counted from before the request was sent.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the lease is over; otherwise see [`EngineError`].
    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError>;

    /// Releases a lease. Only its owner can: the lock of a later holder stays as it is.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the lease was over before; otherwise see [`EngineError`].
    async fn release(&self, lease: &Lease) -> Result<(), EngineError>;

    /// Completes, with the reason, when the engine itself learns that the lease is over. The guard watches the clock.
    async fn lost(&self, _lease: &Lease) -> String {
        std::future::pending().await
    }

    /// What protects this lease.
    fn protection(&self, _lease: &Lease) -> Protection {
        Protection::Engine
    }

    /// Whether the lock is held with this token.
    ///
    /// # Errors
    /// [`EngineError::Missing`] if the engine has no tokens; otherwise see [`EngineError`].
    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError>;

    /// The holder of the lock; one of them in shared mode.
    ///
    /// # Errors
    /// [`EngineError::Missing`] if the engine cannot tell; otherwise see [`EngineError`].
    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError>;
}

/// An engine whose grants have fencing tokens: each [`Lease`] has a token for each of its locks, larger than those of
/// all earlier grants of that lock.
pub trait FencingEngine: LockEngine {}
