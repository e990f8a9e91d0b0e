//! The one place where what sled has becomes durable (fsync), and the marks that show each acknowledgement in a
//! system-call trace. The journal syncs its own files (`journal/segment.rs`).

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lockkeeper_mutants::mutant;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::error::FatalError;
use crate::types::Barrier;

/// A key counts as so many bytes at least: a change of a short value rewrites its neighbours as well.
const KEY_BYTES: usize = 256;
/// The part of a segment that may be inserted or removed between two barriers. sled writes four to seven times as much.
const PART_OF_SEGMENT: usize = 8;

/// Makes everything inserted so far durable, at least once for each segment that sled fills.
///
/// What sled recovers after a power failure is a prefix only if it began no more than one new segment since the last
/// barrier. With several, a disk that writes in an order of its own leaves holes, or sled has overwritten a segment
/// whose content is durable nowhere else yet.
pub(crate) struct DataBarrier {
    db: sled::Db,
    /// Our own descriptor of sled's file: sled's flush (`sync_file_range`) covers neither the file's size nor the
    /// disk's cache. A second reason: sled's periodic flusher syncs too, and only logs a failure. Linux reports a
    /// failed write-back once per descriptor, so this one still reports it.
    file: File,
    path: PathBuf,
    kind: Barrier,
    /// Bytes inserted or removed since the last barrier, and the most of them.
    unsynced: Cell<usize>,
    most_unsynced: usize,
    /// Called after each barrier that is not the last one of a task: each has its own time.
    pub(crate) progress: Box<dyn Fn() + Send>,
}

impl DataBarrier {
    pub(crate) fn new(db: sled::Db, path: &Path, kind: Barrier, segment_bytes: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let (unsynced, most_unsynced) = (Cell::new(0), segment_bytes / PART_OF_SEGMENT);
        Ok(Self { db, file, path: path.to_path_buf(), kind, unsynced, most_unsynced, progress: Box::new(|| ()) })
    }

    /// A value of this size was inserted or removed. Runs the barrier if one is due.
    pub(crate) fn changed(&self, bytes: usize) -> Result<(), FatalError> {
        self.unsynced.set(self.unsynced.get() + bytes.max(KEY_BYTES));
        if self.unsynced.get() >= self.most_unsynced { self.step() } else { Ok(()) }
    }

    /// Runs the barrier, which is not the last one of a write.
    pub(crate) fn step(&self) -> Result<(), FatalError> {
        self.run()?;
        (self.progress)();
        Ok(())
    }

    /// Returns when everything inserted before is on the disk. An error is final: a second sync may succeed falsely.
    pub(crate) fn run(&self) -> Result<(), FatalError> {
        self.unsynced.set(0);
        let began = Instant::now();
        self.db.flush().map_err(|error| io_failure("flush", &self.path, &error))?;
        if self.kind == Barrier::Full && !mutant!(BareFlush) {
            self.file.sync_data().map_err(|error| io_failure("sync", &self.path, &error))?;
        }
        metrics::histogram!("lockkeeper_store_sled_sync_seconds").record(began.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Makes what a process before this one left in the page cache durable, and drops it from there: after a failed sync,
/// Linux takes pages for clean that are not on the disk. What is read next is what the disk has.
pub(crate) fn sync_and_forget(file: &File) -> io::Result<()> {
    file.sync_all()?;
    // A file system in memory has nothing else, and need not take the advice.
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
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
