//! A data directory that is prepared before a node uses it, from a backup or from what a survivor has.
//!
//! The directory must be empty. A marker lies in it until everything is durable: a node refuses a directory with a
//! marker, because it might take half of the data for all of it. If the preparation fails, the directory is emptied.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::directory::{self, Layout};
use crate::error::{OpenError, SnapshotError};
use crate::snapshots::SnapshotStore;
use crate::store::Store;
use crate::types::{Identity, Opened, Options};

/// What a file system keeps at its top, where the data directory is one of its own.
const OF_FILE_SYSTEM: &str = "lost+found";

/// A directory under preparation. Dropped before [`finish`](Self::finish), it is emptied.
#[derive(Debug)]
pub struct Preparation {
    layout: Layout,
    /// Whether the directory was made for it.
    made: bool,
    finished: bool,
}

/// Why a directory could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PreparationError {
    /// There is something in it.
    #[error(
        "the data directory {dir} is not empty (it has {found}): nothing was changed; set storage.directory to an \
         empty directory, or move the old data away"
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// A name in it.
        found: String,
    },
    /// The log cannot be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The snapshot cannot be made.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

impl Preparation {
    /// Begins in an empty directory, or in one that is not there yet.
    ///
    /// # Errors
    /// There is something in the directory, or it cannot be made.
    pub fn begin(dir: &Path) -> Result<Preparation, PreparationError> {
        let made = !dir.is_dir();
        if made {
            directory::create_directory(dir).map_err(OpenError::io("create", dir))?;
        }
        let layout = Layout::new(dir);
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(OpenError::io("read", dir))?;
        let found = entries.iter().map(|entry| entry.file_name()).find(|name| name != OF_FILE_SYSTEM);
        if let Some(found) = found {
            let found = found.to_string_lossy().into_owned();
            return Err(PreparationError::NotEmpty { dir: dir.to_path_buf(), found });
        }
        let preparation = Preparation { layout, made, finished: false };
        let marker = preparation.layout.unfinished();
        // Two at a time would take each other's files away.
        let written =
            File::options().write(true).create_new(true).mode(0o600).open(&marker).and_then(|file| file.sync_all());
        written.and_then(|()| directory::sync_directory(dir)).map_err(OpenError::io("create", &marker))?;
        Ok(preparation)
    }

    /// Opens the log and the snapshots in it.
    ///
    /// # Errors
    /// As [`Store::open`] and [`SnapshotStore::open`].
    pub fn open(
        &self,
        identity: &Identity,
        options: &Options,
    ) -> Result<(Store, Opened, SnapshotStore), PreparationError> {
        let (store, opened) = Store::open_prepared(&self.layout.root, identity, options.clone())?;
        let snapshots = SnapshotStore::open(&self.layout.root, store.bounds(), options)?;
        Ok((store, opened, snapshots))
    }

    /// Everything in the directory is durable: a node may use it from now on.
    ///
    /// # Errors
    /// The marker cannot be removed.
    pub fn finish(mut self) -> Result<(), PreparationError> {
        let marker = self.layout.unfinished();
        let root = &self.layout.root;
        let synced = directory::sync_directory(root).and_then(|()| fs::remove_file(&marker));
        synced.and_then(|()| directory::sync_directory(root)).map_err(OpenError::io("remove", &marker))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // The marker goes last: a node refuses whatever stays here.
        let marker = self.layout.unfinished();
        for path in self.layout.names().into_iter().filter(|path| *path != marker).chain([marker.clone()]) {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove what an unfinished preparation left");
                return;
            }
        }
        if self.made {
            // Fails where the file system has put something there.
            let _ = fs::remove_dir(&self.layout.root);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn identity() -> Identity {
        Identity { cluster: "c".into(), node: 1, directory: 7 }
    }

    fn options() -> Options {
        Options { free_floor_bytes: 0, ..Options::new(Arc::new(|_| {})) }
    }

    #[test]
    fn a_node_refuses_the_directory_until_it_is_finished() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("data");
        let preparation = Preparation::begin(&dir).unwrap();
        let (store, opened, snapshots) = preparation.open(&identity(), &options()).unwrap();
        assert_eq!((opened.directory, snapshots.latest()), (7, None));
        store.close().unwrap();
        let refused = Store::open(&dir, &identity(), options()).err().unwrap().to_string();
        assert!(refused.contains("was not finished"), "{refused}");
        preparation.finish().unwrap();
        let (_, opened) = Store::open(&dir, &identity(), options()).unwrap();
        assert_eq!((opened.directory, opened.incarnation), (7, 2));
    }

    #[test]
    fn a_directory_with_anything_in_it_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(OF_FILE_SYSTEM)).unwrap();
        drop(Preparation::begin(dir.path()).unwrap());
        fs::write(dir.path().join("log"), b"x").unwrap();
        let refused = Preparation::begin(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("not empty (it has log)"), "{refused}");
        assert_eq!(fs::read(dir.path().join("log")).unwrap(), b"x");
    }

    #[test]
    fn one_that_fails_leaves_nothing_behind() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("data");
        let preparation = Preparation::begin(&dir).unwrap();
        let (store, ..) = preparation.open(&identity(), &options()).unwrap();
        store.close().unwrap();
        drop(preparation);
        assert!(!dir.exists());
    }
}
