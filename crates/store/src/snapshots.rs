//! Snapshot files.
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::{Bounds, LogPosition, Options, SnapshotError};

/// Handle of `dir/snapshots`.
#[derive(Clone)]
pub struct SnapshotStore(std::sync::Arc<()>);

/// A finished snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last log position it covers.
    pub position: LogPosition,
    /// The caller's metadata.
    pub meta: Bytes,
    /// The file.
    pub path: PathBuf,
    /// Bytes of the payload (what was written to the writer).
    pub bytes: u64,
}

impl Snapshot {
    /// Reads the payload; the whole file is checked by the time the end is reported.
    pub fn reader(&self) -> Result<SnapshotReader, SnapshotError> {
        Ok(SnapshotReader(()))
    }
}

/// What became of a finished snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It is the latest now.
    Installed(Snapshot),
    /// One at the same or a later position was there already and stays; this one was dropped.
    Superseded(Snapshot),
}

/// Reads a payload.
pub struct SnapshotReader(());
impl io::Read for SnapshotReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}

/// Writes a payload into a temporary file; dropped unfinished it leaves nothing.
pub struct SnapshotWriter(());
impl io::Write for SnapshotWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
impl SnapshotWriter {
    /// Sync, rename, sync the directory; older snapshots go.
    pub fn finish(self) -> Result<Finished, SnapshotError> {
        Err(SnapshotError::MetaTooLarge { bytes: 0, max_bytes: 0 })
    }
}

impl SnapshotStore {
    /// Opens `dir/snapshots` after `Store::open` gave the bounds.
    pub fn open(dir: &Path, bounds: Bounds, options: &Options) -> Result<SnapshotStore, SnapshotError> {
        Ok(SnapshotStore(std::sync::Arc::new(())))
    }
    /// Starts a snapshot that covers the log up to `position`.
    pub fn create(&self, position: LogPosition, meta: &[u8]) -> Result<SnapshotWriter, SnapshotError> {
        Ok(SnapshotWriter(()))
    }
    /// The latest finished one.
    pub fn latest(&self) -> Option<Snapshot> {
        None
    }
}
