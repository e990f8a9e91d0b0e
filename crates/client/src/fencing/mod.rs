//! The other half of a lock: a resource that refuses a stale fencing token in the same step in which it writes.
//!
//! A lock service cannot stop a holder that is paused between its last check of the guard and its write. The resource
//! can: it remembers the largest token that it has seen, and refuses smaller ones. Check and write must be **one**
//! step of the resource: a check before the write only makes the gap smaller. This module has resources that do both
//! in one step:
//!
//! - [`sql`]: statements for PostgreSQL, SQLite, MySQL and MariaDB, for any driver.
//! - [`operations`]: statements that record the operation of a gate in the transaction of its work.
//! - [`redis`]: a script for Redis, for any client.
//! - [`http`]: the header for a service that is the resource, and a middleware.
//! - [`FencedFile`]: a file that contains its token, replaced as a whole.
//! - [`Session::txn`](crate::Session::txn): nodes of the cluster itself; the cluster checks that the lock is held.
//!
//! A token that *equals* the largest one is accepted: a holder writes more than once. Tokens of different locks cannot
//! be compared; guard a resource by one lock, or by one fence for each lock.
//!
//! Nothing here sends a request to the cluster, and nothing here may accept a token after a larger one.

#[cfg(unix)]
mod file;
pub mod http;
pub mod operations;
pub mod redis;
pub mod sql;

#[cfg(unix)]
pub use file::{Fenced, FencedFile, FileError};

use thiserror::Error;

/// The resource has seen a larger token: the process with this token has lost the lock and must stop. Nothing was
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("fencing token {token} is stale: {}; nothing was written, and its holder must stop", known(.seen))]
pub struct Stale {
    /// The token that was shown.
    pub token: u64,
    /// The largest token seen before, if the resource reports it.
    pub seen: Option<u64>,
}

fn known(seen: &Option<u64>) -> String {
    match seen {
        Some(seen) => format!("{seen} has been here"),
        None => "a later holder has been here".into(),
    }
}
