//! The one place where the log and the vote become durable (fsync), and the marks that show each acknowledgement in a
//! system-call trace.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lockkeeper_mutants::mutant;

use crate::error::FatalError;
use crate::types::Barrier;

/// Makes everything inserted so far durable.
pub(crate) struct DataBarrier {
    db: sled::Db,
    /// Our own descriptor of sled's file: sled's flush (`sync_file_range`) covers neither the file's size nor the
    /// disk's cache. A second reason: sled's periodic flusher syncs too, and only logs a failure. Linux reports a
    /// failed write-back once per descriptor, so this one still reports it.
    file: File,
    path: PathBuf,
    kind: Barrier,
}

impl DataBarrier {
    pub(crate) fn new(db: sled::Db, path: &Path, kind: Barrier) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { db, file, path: path.to_path_buf(), kind })
    }

    /// Returns when everything inserted before is on the disk. An error is final: a second sync may succeed falsely.
    pub(crate) fn run(&self) -> Result<(), FatalError> {
        let started = Instant::now();
        self.db.flush().map_err(|error| io_failure("flush", &self.path, &error))?;
        if self.kind == Barrier::Full && !mutant!(BareFlush) {
            self.file.sync_data().map_err(|error| io_failure("sync", &self.path, &error))?;
        }
        metrics::histogram!("lockkeeper_store_sync_seconds").record(started.elapsed().as_secs_f64());
        Ok(())
    }
}

pub(crate) fn io_failure(what: &'static str, file: &Path, error: &dyn std::fmt::Display) -> FatalError {
    let mut reason = error.to_string();
    // sled passes on the system's text, not its error number.
    if reason.contains("Read-only file system") {
        reason
            .push_str(" (the system mounts a file system read-only when its disk fails: the system's log may say so)");
    }
    FatalError::Io { what, file: file.to_path_buf(), reason }
}

/// Marks for a system-call trace. An acknowledgement is a callback, which no trace shows, so a line is written to
/// /dev/null just before it.
pub(crate) struct Marks(Option<File>);

impl Marks {
    pub(crate) fn new(on: bool) -> io::Result<Self> {
        Ok(Self(if on { Some(OpenOptions::new().write(true).open("/dev/null")?) } else { None }))
    }

    pub(crate) fn on(&self) -> bool {
        self.0.is_some()
    }

    /// Written by one `write` call, so that it is one line of the trace.
    pub(crate) fn write(&mut self, mark: &str) {
        if let Some(file) = &mut self.0 {
            // Nothing depends on it; /dev/null does not refuse.
            let _ = file.write_all(mark.as_bytes());
        }
    }
}
