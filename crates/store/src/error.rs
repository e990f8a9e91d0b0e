//! Errors of three kinds: refused at open ([`OpenError`]), refused while running ([`StoreError`]), and the end of the
//! process ([`FatalError`]). Every text says what happened, why, and the remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::position::LogPosition;

/// What an operator does with a damaged directory. A voter that lost acknowledged data may not vote again under its old
/// id.
const REJOIN: &str =
    "keep the directory for examination, and let this machine join again as a new node (new node id, empty directory)";

/// The remedy when the system refuses access to the data directory, to be appended to the system's text; empty where
/// that text says enough.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; the user that runs lockkeeper needs to read and write it: change its owner (chown) or mode (chmod), \
             or set storage.directory to a directory of that user"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; its file system is mounted read-only: the system's log may say why; mount it read-write, or set \
             storage.directory to a directory on another"
        }
        io::ErrorKind::StorageFull => "; the disk is full: free some space, then start again",
        _ => "",
    }
}

/// Why a directory was not opened. Nothing was changed in it beyond what a crash during open could leave.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The lock file is held.
    #[error("another process uses the data directory {dir}: stop it, or give this one a directory of its own")]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A restore or a recovery did not come to its end.
    #[error(
        "the preparation of the data directory {dir} from a backup was not finished: empty the directory, and run \
         the restore again"
    )]
    Unfinished {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory belongs to another cluster or node.
    #[error(
        "data directory {dir} belongs to node {found_node} of cluster \"{found_cluster}\", but this is node {node} \
         of cluster \"{cluster}\": correct the configuration or give this node a directory of its own"
    )]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// Cluster named in the directory.
        found_cluster: String,
        /// Node named in the directory.
        found_node: u64,
        /// Cluster of the caller.
        cluster: String,
        /// Node of the caller.
        node: u64,
    },
    /// Something acknowledged is missing or does not carry its checksum.
    #[error("{file} is damaged: {what}; refusing to start; {REJOIN}")]
    Damaged {
        /// The file concerned.
        file: PathBuf,
        /// What was found.
        what: String,
    },
    /// The directory was written by a version that this one does not read.
    #[error(
        "{file} has format version {found}, this build reads {supported}: use the build that wrote it, or a newer one"
    )]
    Version {
        /// The file concerned.
        file: PathBuf,
        /// Its version.
        found: char,
        /// Ours.
        supported: char,
    },
    /// Too little free space to work.
    #[error(
        "disk of {dir} has {free_bytes} bytes free, and the floor is {floor_bytes}: free some space or lower the \
         floor, then start again"
    )]
    DiskFull {
        /// The directory.
        dir: PathBuf,
        /// Free bytes.
        free_bytes: u64,
        /// The floor.
        floor_bytes: u64,
    },
    /// The caller's options or identity cannot work.
    #[error("{0}")]
    Invalid(String),
    /// The operating system refused.
    #[error("cannot {what} {file}: {source}{}", remedy(.source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(what: &'static str, file: &Path) -> impl FnOnce(io::Error) -> OpenError {
        let file = file.to_path_buf();
        move |source| OpenError::Io { what, file, source }
    }

    pub(crate) fn damaged(file: &Path, what: impl Into<String>) -> OpenError {
        OpenError::Damaged { file: file.to_path_buf(), what: what.into() }
    }
}

/// Why an operation was refused or did not complete.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The records do not continue the log. Nothing was changed.
    #[error("record at {got} does not continue the log, whose last is {last:?}: truncate or purge first")]
    NotContiguous {
        /// Where the record wanted to stand.
        got: LogPosition,
        /// Where the log ends.
        last: Option<LogPosition>,
    },
    /// A payload or value above its bound. Nothing was changed.
    #[error("{what} of {bytes} bytes exceeds the bound of {max_bytes}")]
    TooLarge {
        /// What it was.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The bound.
        max_bytes: usize,
    },
    /// The caller asks to truncate below the purge mark or similar. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The store failed; this process must end. Whether what was waiting reached the disk is not known.
    #[error("the store has failed: {0}")]
    Failed(FatalError),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why this process must end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FatalError {
    /// A write or sync failed. It is never retried: after a failed sync the content of the disk is unknown.
    #[error(
        "cannot {what} {file}: {reason}; stopping, since what reached the disk is not known; check the disk, then \
         start again"
    )]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        file: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The barrier took longer than the watchdog allows.
    #[error("writing to {file} has taken longer than {limit:?}; stopping; check the disk, then start again")]
    Stuck {
        /// On which file.
        file: PathBuf,
        /// The limit.
        limit: Duration,
    },
    /// Writing would have gone below the floor; refused before anything was written.
    #[error(
        "disk of {dir} is full: {free_bytes} bytes free, {needed_bytes} to be written, and the floor is \
         {floor_bytes}; stopping before the write; free some space, then start again"
    )]
    DiskFull {
        /// The data directory.
        dir: PathBuf,
        /// Free bytes.
        free_bytes: u64,
        /// What the batch needs.
        needed_bytes: u64,
        /// The floor.
        floor_bytes: u64,
    },
    /// Something read back is not what was written.
    #[error("{file} is damaged: {what}; stopping; {REJOIN}")]
    Damaged {
        /// The file concerned.
        file: PathBuf,
        /// What was found.
        what: String,
    },
    /// The writer thread panicked.
    #[error("the writer of {file} panicked: {what}; stopping; start again, and report this")]
    Panicked {
        /// The file concerned.
        file: PathBuf,
        /// The panic's message.
        what: String,
    },
}

/// Why a snapshot was not written, found or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file is not what was written, and nothing older covers what it held.
    #[error("snapshot {file} is damaged: {what}; refusing to use it; {REJOIN}")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was found.
        what: String,
    },
    /// The log was cut at a point that no snapshot covers.
    #[error(
        "the log in {dir} starts after {purged}, and the newest snapshot ends at {newest:?}: the records between are \
         missing; {REJOIN}"
    )]
    Uncovered {
        /// The snapshot directory.
        dir: PathBuf,
        /// Where the log starts.
        purged: LogPosition,
        /// What the newest snapshot covers.
        newest: Option<LogPosition>,
    },
    /// Too little free space.
    #[error(
        "disk of {dir} has {free_bytes} bytes free, and the floor is {floor_bytes}: no snapshot is written; free \
         some space"
    )]
    DiskFull {
        /// The directory.
        dir: PathBuf,
        /// Free bytes.
        free_bytes: u64,
        /// The floor.
        floor_bytes: u64,
    },
    /// The metadata exceeds its bound.
    #[error("snapshot metadata of {bytes} bytes exceeds the bound of {max_bytes}")]
    MetaTooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        max_bytes: usize,
    },
    /// The operating system refused.
    #[error("cannot {what} {file}: {source}{}", remedy(.source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl SnapshotError {
    pub(crate) fn io(what: &'static str, file: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
        let file = file.to_path_buf();
        move |source| SnapshotError::Io { what, file, source }
    }

    pub(crate) fn damaged(file: &Path, what: impl Into<String>) -> SnapshotError {
        SnapshotError::Damaged { file: file.to_path_buf(), what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_access_names_the_remedy() {
        let of = |kind: io::ErrorKind| {
            let file = Path::new("/d/lock");
            let open = OpenError::io("open", file)(kind.into()).to_string();
            let snapshot = SnapshotError::io("open", file)(kind.into()).to_string();
            assert_eq!(open, snapshot);
            open
        };
        for (kind, words) in [
            (io::ErrorKind::PermissionDenied, ["chown", "storage.directory"]),
            (io::ErrorKind::ReadOnlyFilesystem, ["read-write", "storage.directory"]),
            (io::ErrorKind::StorageFull, ["full", "free some space"]),
        ] {
            let text = of(kind);
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert!(of(io::ErrorKind::NotFound).ends_with("not found"));
    }
}
