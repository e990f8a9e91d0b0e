//! The other half of a lock: the resource that refuses a stale fencing token in the same step in which it writes.
//!
//! A lock service cannot stop a holder that was paused between its last look at the guard and its write. The resource can: it
//! remembers the highest token that it has seen, and refuses smaller ones. Check and write must be **one** step of the resource;
//! a check before the write leaves the gap that it was to close, only smaller. What is in here does it in one:
//!
//! - [`sql`]: statements for PostgreSQL and SQLite, for any driver.
//! - [`FencedFile`]: a file that carries its token, replaced as a whole.
//! - [`Session::txn`](crate::Session::txn): nodes of the cluster itself, guarded by the lock instead of the token's order.
//!
//! A token that *equals* the highest one is accepted: a holder writes more than once. Tokens of different locks do not compare;
//! guard a resource by one lock, or by one fence for each lock.
//!
//! Nothing in here asks the cluster anything, and nothing in here may accept a token after a larger one.

#[cfg(unix)]
mod file;
pub mod sql;

#[cfg(unix)]
pub use file::{Fenced, FencedFile, FileError};

use thiserror::Error;

/// The resource has seen a larger token: whoever showed this one holds the lock no longer, and must stop. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("fencing token {token} is stale: {}; nothing was written, and its holder must stop", known(.seen))]
pub struct Stale {
    /// The token that was shown.
    pub token: u64,
    /// The largest one seen before, where the resource tells.
    pub seen: Option<u64>,
}

fn known(seen: &Option<u64>) -> String {
    match seen {
        Some(seen) => format!("{seen} has been here"),
        None => "a later holder has been here".into(),
    }
}
