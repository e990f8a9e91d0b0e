//! Backups as files, without a running node: what is in one, and a new cluster from one, or from the data directory of
//! a survivor.
//!
//! `lockkeeper_core::State::into_new_cluster` says what a new cluster takes over and how far its numbers move, and
//! `lockkeeper_consensus::Founding` how its founding members begin. This module brings the two and the disk together.

mod contents;
mod origin;
mod recover;
mod restore;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_api::backup::BackupError;
use lockkeeper_config::{Config, ConfigError};
use lockkeeper_consensus::FoundingError;
use lockkeeper_core::{SnapshotError, ZxidsUsedUp};
use lockkeeper_store::{OpenError, Options, PreparationError, StoreError};
use thiserror::Error;

pub use contents::{Contents, inspect};
pub use origin::Origin;
pub(crate) use origin::announce;
pub use recover::{Recovered, recover};
pub use restore::{Restore, Restored, restore};

/// Why a backup cannot be read, or a cluster not made from it.
#[derive(Debug, Error)]
pub enum BackupFailure {
    /// The file is no usable backup.
    #[error("{}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        error: BackupError,
    },
    /// Its bytes are those that were written, but they are no state that this program reads.
    #[error("{}: the state in it cannot be used: {why}", .file.display())]
    State {
        /// The file, or the data directory.
        file: PathBuf,
        /// Why not.
        why: String,
    },
    /// The configuration is wrong.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// It does not allow this.
    #[error("{0}")]
    Refused(String),
    /// The zxid leaves no room for the gap.
    #[error("no new cluster can begin from this state: {0}")]
    UsedUp(#[from] ZxidsUsedUp),
    /// The data directory cannot be made.
    #[error("{0}")]
    Prepare(#[from] PreparationError),
    /// What is in the data directory cannot be read.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The founding member's files cannot be made.
    #[error("cannot prepare the data directory: {0}")]
    Founding(#[from] FoundingError),
    /// The disk.
    #[error("cannot {what} {}: {error}{}", .path.display(), lockkeeper_store::remedy(.error))]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl BackupFailure {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| Self::Io { what, path, error }
    }

    fn state(file: &Path, error: &SnapshotError) -> Self {
        Self::State { file: file.to_path_buf(), why: error.to_string() }
    }
}

/// The store's options for work on a directory that no node uses. A failure comes back from the call that met it.
fn store_options(config: &Config) -> Options {
    let mut options = Options::new(Arc::new(|error| tracing::error!(%error, "the store has failed")));
    options.free_floor_bytes = config.storage.free_floor_mib * 1024 * 1024;
    options
}
