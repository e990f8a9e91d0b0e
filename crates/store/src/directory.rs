//! Where the files are, which of them are the node's, and how a directory entry becomes durable.
//!
//! ```text
//! <dir>/lock               held (flock) by the process that uses the directory
//! <dir>/log/sled/db …      sled's files
//! <dir>/log/journal/0 …    the journal in front of sled (see journal/mod.rs)
//! <dir>/log/journal.new    a journal being made for a directory that had none; the next open makes it anew
//! <dir>/log/floor          the acknowledgement watermark (see ack_watermark.rs)
//! <dir>/log.new            a log directory being created; never acknowledged anything, so the next open deletes it
//! <dir>/snapshots/*.snap   snapshot files
//! <dir>/unfinished         the directory is being prepared (see preparation.rs); a node refuses it
//! <dir>/origin             how the directory was prepared, if it was; the server's
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::error::OpenError;
use crate::permissions;

/// A process killed a moment ago may hold its lock until the kernel has cleaned it up.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The paths below one data directory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }
    /// Every name below the root that is ours; consensus keeps its files of peers and of its own starts there, the
    /// server the origin of a prepared directory.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        let of_others = ["peers", "peers.tmp", "starts", "starts.tmp", "origin"].map(|name| self.root.join(name));
        let ours = [self.lock(), self.log(), self.unfinished_log(), self.snapshots(), self.unfinished()];
        ours.into_iter().chain(of_others).collect()
    }
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("log")
    }
    pub(crate) fn unfinished_log(&self) -> PathBuf {
        self.root.join("log.new")
    }
    pub(crate) fn unfinished(&self) -> PathBuf {
        self.root.join("unfinished")
    }
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }
}

/// sled's directory inside a log directory.
pub(crate) fn sled_dir(log: &Path) -> PathBuf {
    log.join("sled")
}

/// sled's data file inside a log directory.
pub(crate) fn sled_file(log: &Path) -> PathBuf {
    sled_dir(log).join("db")
}

/// The journal inside a log directory.
pub(crate) fn journal_dir(log: &Path) -> PathBuf {
    log.join("journal")
}

/// A journal that is being made for a log directory without one.
pub(crate) fn unfinished_journal_dir(log: &Path) -> PathBuf {
    log.join("journal.new")
}

/// The acknowledgement watermark inside a log directory.
pub(crate) fn watermark_file(log: &Path) -> PathBuf {
    log.join("floor")
}

/// Held as long as the directory is in use.
pub(crate) struct DirectoryLock(#[expect(dead_code, reason = "holding it is the point")] Flock<File>);

impl DirectoryLock {
    /// Takes the lock, or reports that another process holds it.
    pub(crate) fn take(layout: &Layout) -> Result<Self, OpenError> {
        let path = layout.lock();
        let opened = permissions::options().create(true).truncate(false).write(true).open(&path);
        let mut file = opened.map_err(OpenError::io("open", &path))?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self(lock)),
                Err((file, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) => file,
                Err((_, errno)) => return Err(OpenError::io("lock", &path)(errno.into())),
            };
            if Instant::now() >= deadline {
                return Err(OpenError::InUse { dir: layout.root.clone() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates a directory and makes its entry durable.
pub(crate) fn create_directory(dir: &Path) -> io::Result<()> {
    permissions::create_directories(dir)?;
    sync_directory(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// Removes what a crash left of an unfinished sled snapshot: sled would take it for damage (sled issues 1527 and 1533).
pub(crate) fn remove_unfinished_sled_snapshots(sled: &Path) -> io::Result<()> {
    for entry in fs::read_dir(sled)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            tracing::info!(file = %entry.path().display(), "removing an index file that a crash left unfinished");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
