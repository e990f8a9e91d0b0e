//! Transactions: several changes of the tree, all or none, under conditions.
//!
//! A lock condition is checked where the changes are applied, in the replicated state and at the same point of its
//! order. So, unlike with a check before the write, the lock cannot be lost in between.

use lockkeeper_api::nodes::{Create, Stat, Txn, TxnOp, TxnResult};
use lockkeeper_api::{Code, Data};

use super::error::refused_operation;
use crate::client::Client;
use crate::error::Error;
use crate::session::Session;

impl Session {
    /// Creates an empty transaction, to be filled and [committed](Transaction::commit).
    pub fn txn(&self) -> Transaction {
        Transaction { client: self.client().clone(), operations: Vec::new() }
    }
}

/// Up to 1,024 conditions and changes that are applied together, under one zxid, or not at all. Each operation sees the
/// effects of those before it.
///
/// With [`if_held`](Self::if_held) the cluster itself is the resource that checks the fencing token: a holder that has
/// lost the lock, paused or not, changes nothing.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use lockkeeper_client::recipes::TxnError;
///
/// let guard = session.lock("accounts").lock().await?;
/// let token = guard.token();
/// let done = session.txn().if_held("accounts", token).create("/ann", "60").create("/bob", "40").commit().await?;
/// assert_eq!(done.path(1), Some("/ann"));
///
/// guard.release().await?;
/// let late = session.txn().if_held("accounts", token).set("/ann", "0", None).commit().await;
/// assert!(matches!(late, Err(TxnError::NotHeld { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a transaction does nothing before `commit`"]
pub struct Transaction {
    client: Client,
    operations: Vec<TxnOp>,
}

impl Transaction {
    /// Condition: the lock is held with that token. Use the token of your own guard. Any number of locks may be named.
    pub fn if_held(self, lock: impl Into<String>, token: u64) -> Self {
        self.with(TxnOp::LockHeld { lock: lock.into(), token })
    }

    /// Condition: the node exists, with that version of its data if one is given.
    pub fn check(self, path: impl Into<String>, version: Option<i32>) -> Self {
        self.with(TxnOp::Check { path: path.into(), version })
    }

    /// Creates a persistent node. Its parent must exist; an earlier operation of this transaction may have created it.
    pub fn create(self, path: impl Into<String>, data: impl AsRef<[u8]>) -> Self {
        let data = Data::from_bytes(data.as_ref());
        self.create_as(path, Create { data, ..Create::default() })
    }

    /// Creates a node of any kind: ephemeral, sequential, with a time to live, …
    pub fn create_as(self, path: impl Into<String>, create: Create) -> Self {
        let Create { data, kind, ttl_ms, sequential, acl } = create;
        self.with(TxnOp::Create { path: path.into(), data, kind, ttl_ms, sequential, acl })
    }

    /// Sets a node's data, if it has that version.
    pub fn set(self, path: impl Into<String>, data: impl AsRef<[u8]>, version: Option<i32>) -> Self {
        let data = Data::from_bytes(data.as_ref());
        self.with(TxnOp::Set { path: path.into(), data, version })
    }

    /// Adds to the number in a node, as a [`BoundedCounter`](super::BoundedCounter) does; `None` is no bound.
    pub fn add(self, path: impl Into<String>, delta: i64, min: Option<i64>, max: Option<i64>) -> Self {
        self.with(TxnOp::Add { path: path.into(), delta, min, max })
    }

    /// Deletes a node, if it has that version.
    pub fn delete(self, path: impl Into<String>, version: Option<i32>) -> Self {
        self.with(TxnOp::Delete { path: path.into(), version })
    }

    /// Adds an operation of the HTTP interface.
    pub fn with(mut self, operation: TxnOp) -> Self {
        self.operations.push(operation);
        self
    }

    /// Sends the transaction to the cluster.
    ///
    /// # Errors
    /// [`TxnError::NotHeld`] and [`TxnError::Refused`] name the operation that was refused; nothing changed. See
    /// [`TxnError::Client`] for other errors.
    pub async fn commit(self) -> Result<Committed, TxnError> {
        let Self { client, operations } = self;
        let txn = Txn { operations };
        match client.txn(&txn).await {
            Ok(done) => Ok(Committed { results: with_lock_checks(done.results, &txn.operations), zxid: done.zxid }),
            Err(error) => Err(explain(error, &txn.operations)),
        }
    }
}

/// The results of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// One result for each operation, in their order.
    pub results: Vec<TxnResult>,
    /// The transaction's position in the replicated order.
    pub zxid: u64,
}

impl Committed {
    /// The path that the operation with that index, from 0, created, sequence number included.
    pub fn path(&self, operation: usize) -> Option<&str> {
        match self.results.get(operation)? {
            TxnResult::Create { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The number after the addition with that index.
    pub fn value(&self, operation: usize) -> Option<i64> {
        match self.results.get(operation)? {
            TxnResult::Add { value } => Some(*value),
            _ => None,
        }
    }

    /// The [`Stat`] of the node that the operation with that index created or set.
    pub fn stat(&self, operation: usize) -> Option<&Stat> {
        match self.results.get(operation)? {
            TxnResult::Create { stat, .. } | TxnResult::Set { stat } => Some(stat),
            _ => None,
        }
    }
}

/// Why a transaction was not committed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The lock is not held with that token (any more). Nothing changed. The process that has this token must stop.
    #[error("nothing was changed: lock '{lock}' is not held with token {token} (operation {operation})")]
    NotHeld {
        /// The index of the operation, from 0.
        operation: usize,
        /// The lock.
        lock: String,
        /// The token that does not hold.
        token: u64,
    },
    /// An operation was refused. Nothing changed.
    #[error("nothing was changed: operation {operation}, {what}, was refused: {cause}")]
    Refused {
        /// The index of the operation, from 0.
        operation: usize,
        /// A description of the operation.
        what: String,
        /// The reason.
        cause: Code,
    },
    /// The request failed; the class of the error says whether it may have taken effect.
    #[error(transparent)]
    Client(#[from] Error),
}

/// The server reports both kinds of conditions as checks; the operations tell which of them are of locks.
fn with_lock_checks(mut results: Vec<TxnResult>, operations: &[TxnOp]) -> Vec<TxnResult> {
    for (result, operation) in results.iter_mut().zip(operations) {
        if let (TxnResult::Check, TxnOp::LockHeld { .. }) = (&result, operation) {
            *result = TxnResult::LockHeld;
        }
    }
    results
}

fn explain(error: Error, operations: &[TxnOp]) -> TxnError {
    let refused = refused_operation(&error).and_then(|(at, cause)| {
        let at = usize::try_from(at).ok()?;
        Some((at, operations.get(at)?, cause))
    });
    match refused {
        Some((operation, TxnOp::LockHeld { lock, token }, Code::NotHeld)) => {
            TxnError::NotHeld { operation, lock: lock.clone(), token: *token }
        }
        Some((operation, refused, cause)) => TxnError::Refused { operation, what: describe(refused), cause },
        None => TxnError::Client(error),
    }
}

fn describe(operation: &TxnOp) -> String {
    match operation {
        TxnOp::Create { path, .. } => format!("creating {path}"),
        TxnOp::Delete { path, .. } => format!("deleting {path}"),
        TxnOp::Set { path, .. } => format!("setting {path}"),
        TxnOp::Add { path, delta, .. } => format!("adding {delta} to {path}"),
        TxnOp::Check { path, .. } => format!("checking {path}"),
        TxnOp::LockHeld { lock, token } => format!("checking that lock '{lock}' is held with token {token}"),
    }
}
