//! Snapshot files: the state up to a log position, so that the log can be purged (Raft, section 7).
//!
//! A file is written under a temporary name, synced, renamed, and its directory synced; only then is an older file
//! removed. The newest by log position wins, so that a slow build cannot overwrite a newer install. A damaged file is
//! refused, unless an older snapshot (or none) together with the log still holds everything; then the damaged file is
//! renamed and logged.
//!
//! `file` and this module import each other: a writer that is finished installs its file in the directory.

mod file;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::directory::{self, Layout};
use crate::error::SnapshotError;
use crate::position::LogPosition;
use crate::types::{Bounds, FreeSpace, Options};

pub use file::{SnapshotReader, SnapshotWriter};

/// A finished snapshot. Its file may be replaced by a newer one at any time; a reader opened before goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last log position that it covers.
    pub position: LogPosition,
    /// The caller's metadata.
    pub meta: Bytes,
    /// The file.
    pub path: PathBuf,
    /// Bytes of the payload.
    pub bytes: u64,
}

impl Snapshot {
    /// Opens it for reading. The reader reports the end only if the whole file matches its checksum, and an error
    /// otherwise: do not use the payload before that.
    pub fn reader(&self) -> Result<SnapshotReader, SnapshotError> {
        SnapshotReader::open(&self.path)
    }
}

/// What became of a finished snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It is the latest now, durably.
    Installed(Snapshot),
    /// One at the same or a later position is in place and stays; this one was dropped.
    Superseded(Snapshot),
}

/// The snapshot files of one data directory.
#[derive(Clone)]
pub struct SnapshotStore(Arc<SnapshotDirectory>);

pub(crate) struct SnapshotDirectory {
    dir: PathBuf,
    /// Held for a moment only: [`SnapshotStore::latest`] waits for no file.
    latest: Mutex<Option<Snapshot>>,
    /// Held while a file is put in its place.
    installing: Mutex<()>,
    temporary: AtomicU64,
    free_space: FreeSpace,
    free_floor_bytes: u64,
}

impl SnapshotStore {
    /// Opens `dir/snapshots`, after [`crate::Store::open`] has locked the directory and returned the bounds of its log.
    /// Removes unfinished files, checks every byte of the newest, and that it and the log leave no gap.
    pub fn open(dir: &Path, bounds: Bounds, options: &Options) -> Result<SnapshotStore, SnapshotError> {
        let dir = Layout::new(dir).snapshots();
        if !dir.is_dir() {
            directory::create_directory(&dir).map_err(SnapshotError::io("create", &dir))?;
        }
        let latest = newest_valid(&dir, finished_files(&dir)?, bounds)?;
        if let Some(purged) = bounds.purged {
            let newest = latest.as_ref().map(|snapshot| snapshot.position);
            if newest.is_none_or(|newest| newest.index < purged.index) {
                return Err(SnapshotError::Uncovered { dir, purged, newest });
            }
        }
        let store = Self(Arc::new(SnapshotDirectory {
            dir,
            latest: Mutex::new(latest.clone()),
            installing: Mutex::new(()),
            temporary: AtomicU64::new(0),
            free_space: options.free_space.clone(),
            free_floor_bytes: options.free_floor_bytes,
        }));
        if let Some(latest) = latest {
            store.0.remove_older(latest.position)?;
        }
        Ok(store)
    }

    /// Starts a snapshot of everything up to `position`. Several may be under way.
    pub fn create(&self, position: LogPosition, meta: &[u8]) -> Result<SnapshotWriter, SnapshotError> {
        self.0.check_free_space()?;
        let number = self.0.temporary.fetch_add(1, Ordering::Relaxed);
        SnapshotWriter::create(self.0.clone(), self.0.dir.join(format!("{number}.tmp")), position, meta)
    }

    /// The latest finished one.
    pub fn latest(&self) -> Option<Snapshot> {
        self.0.latest.lock().clone()
    }
}

impl SnapshotDirectory {
    /// Puts a synced temporary file in its place, unless something as new is there.
    fn install(&self, temporary: &Path, mut snapshot: Snapshot) -> Result<Finished, SnapshotError> {
        let _one_at_a_time = self.installing.lock();
        let newer = self.latest.lock().clone().filter(|latest| latest.position >= snapshot.position);
        if let Some(newer) = newer {
            fs::remove_file(temporary).map_err(SnapshotError::io("remove", temporary))?;
            return Ok(Finished::Superseded(newer));
        }
        snapshot.path = self.dir.join(file_name(snapshot.position));
        fs::rename(temporary, &snapshot.path).map_err(SnapshotError::io("rename", temporary))?;
        directory::sync_directory(&self.dir).map_err(SnapshotError::io("sync", &self.dir))?;
        *self.latest.lock() = Some(snapshot.clone());
        self.remove_older(snapshot.position)?;
        Ok(Finished::Installed(snapshot))
    }

    fn remove_older(&self, position: LogPosition) -> Result<(), SnapshotError> {
        for (older, path) in finished_files(&self.dir)? {
            if older < position {
                fs::remove_file(&path).map_err(SnapshotError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Refuses to go below the floor, so that the log keeps its room.
    fn check_free_space(&self) -> Result<(), SnapshotError> {
        let free_bytes = self.free_space.bytes(&self.dir).map_err(SnapshotError::io("examine", &self.dir))?;
        if free_bytes < self.free_floor_bytes {
            return Err(SnapshotError::DiskFull {
                dir: self.dir.clone(),
                free_bytes,
                floor_bytes: self.free_floor_bytes,
            });
        }
        Ok(())
    }
}

/// Sorts as the positions do.
fn file_name(position: LogPosition) -> String {
    format!("{:020}-{:020}.snap", position.index, position.term)
}

fn parse_name(name: &str) -> Option<LogPosition> {
    let (index, term) = name.strip_suffix(".snap")?.split_once('-')?;
    let position = LogPosition { index: index.parse().ok()?, term: term.parse().ok()? };
    (file_name(position) == name).then_some(position)
}

/// The finished files, oldest first.
fn finished_files(dir: &Path) -> Result<Vec<(LogPosition, PathBuf)>, SnapshotError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(SnapshotError::io("read", dir))? {
        let path = entry.map_err(SnapshotError::io("read", dir))?.path();
        if path.extension().is_some_and(|extension| extension == "snap") {
            let position = path.file_name().and_then(|name| parse_name(&name.to_string_lossy()));
            let position = position.ok_or_else(|| SnapshotError::damaged(&path, "its name is not one of ours"))?;
            found.push((position, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes temporary files, then finds the newest snapshot that is whole; see the module's comment for a damaged one.
fn newest_valid(
    dir: &Path,
    mut candidates: Vec<(LogPosition, PathBuf)>,
    bounds: Bounds,
) -> Result<Option<Snapshot>, SnapshotError> {
    for entry in fs::read_dir(dir).map_err(SnapshotError::io("read", dir))? {
        let path = entry.map_err(SnapshotError::io("read", dir))?.path();
        if path.extension().is_some_and(|extension| extension == "tmp") {
            fs::remove_file(&path).map_err(SnapshotError::io("remove the unfinished", &path))?;
        }
    }
    while let Some((position, path)) = candidates.pop() {
        let damage = match file::verify(&path, position) {
            Ok(snapshot) => return Ok(Some(snapshot)),
            Err(error @ SnapshotError::Damaged { .. }) => error,
            Err(error) => return Err(error),
        };
        let log_reaches_it = bounds.last.is_some_and(|last| last.index >= position.index);
        let older = candidates.last().map(|(older, _)| older.index);
        let log_starts_in_time = bounds.purged.is_none_or(|purged| older.is_some_and(|older| purged.index <= older));
        if !(log_reaches_it && log_starts_in_time) {
            return Err(damage);
        }
        let aside = path.with_extension("snap-damaged");
        tracing::error!(
            error = %damage, kept_as = %aside.display(),
            "an older snapshot and the log hold everything: going on"
        );
        fs::rename(&path, &aside).map_err(SnapshotError::io("rename", &path))?;
        directory::sync_directory(dir).map_err(SnapshotError::io("sync", dir))?;
    }
    Ok(None)
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
