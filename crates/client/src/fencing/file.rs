//! A file that contains the token of its last writer, and is replaced as a whole.
//!
//! A writer locks a lock file beside it, reads the token in the file, and replaces the file: it writes a new file,
//! syncs it, renames it, and syncs the directory. So a reader sees the old file or the new one, a crash leaves one of
//! the two, and no token is accepted after a larger one. It must never take a file that it cannot parse for an empty
//! one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;

use super::Stale;

/// The beginning of the first line.
const MARK: &str = "lockkeeper-fenced 1";
/// Longest first line.
const MAX_HEAD_BYTES: usize = 100;
/// Largest supported file; it is held in memory.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A file under a lock. Its calls block; in async code run them by `tokio::task::spawn_blocking`.
///
/// The processes that write it must share a file system on which `flock` works between them: a local disk, or NFS from
/// version 4 on. Beside `state` there is `state.lock`, which stays, and briefly `state.new`. The file has one line
/// before the data, so that other programs can read it: `lockkeeper-fenced 1 <token> <bytes> <CRC32C>`.
///
/// ```
/// use lockkeeper_client::fencing::{FencedFile, FileError};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("state");
/// let file = FencedFile::new(path);
/// file.write(33, b"by the holder with token 33")?;
/// file.write(34, b"by the next one")?;
/// // The first holder wakes up from a long pause and goes on:
/// let late = file.write(33, b"what it had computed before");
/// assert!(matches!(late, Err(FileError::Stale(stale)) if stale.seen == Some(34)));
/// assert_eq!(file.read()?.map(|kept| kept.data), Some(b"by the next one".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    patience: Duration,
}

/// The content of a fenced file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The token of its last writer.
    pub token: u64,
    /// The data that it wrote.
    pub data: Vec<u8>,
}

/// Why a file was not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// A later holder has written before. Nothing was written.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The file is not a fenced file, or is damaged. Nothing was written: without its token it is unknown who may
    /// write.
    #[error(
        "{} cannot be trusted: {why}; nothing was written; restore it from a copy, or move it away to start again with \
         the next token",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        why: String,
    },
    /// Other processes kept the file locked. Nothing was written.
    #[error(
        "another process has kept {} locked for {waited_ms} ms; nothing was written; find it with `fuser` and retry",
        .path.display()
    )]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// How long this process waited.
        waited_ms: u64,
    },
    /// The data is too large. Nothing was written.
    #[error("{bytes} bytes are too many: a fenced file holds at most {MAX_FILE_BYTES}")]
    TooLarge {
        /// The size in bytes.
        bytes: u64,
    },
    /// An operation of the operating system failed. After a failed write the file is either the old or the new one.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl FencedFile {
    /// The file at that path. Opens nothing yet; the file need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), patience: Duration::from_secs(10) }
    }

    /// How long to wait while other processes have the file locked; 10 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Reads the file; `None` if it does not exist. The content is always complete, and may be stale at once.
    ///
    /// # Errors
    /// [`FileError::Damaged`] or [`FileError::Io`].
    pub fn read(&self) -> Result<Option<Fenced>, FileError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &self.path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + MAX_HEAD_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(io_error("read", &self.path))?;
        parse(bytes).map(Some).map_err(|why| FileError::Damaged { path: self.path.clone(), why })
    }

    /// Replaces the data, unless the file has a larger token.
    ///
    /// # Errors
    /// After [`FileError::Stale`] the caller must stop. See [`FileError`].
    pub fn write(&self, token: u64, data: &[u8]) -> Result<(), FileError> {
        self.update(token, |_| data.to_vec())
    }

    /// Reads and replaces the data in one step, unless the file has a larger token: `change` gets the old data and
    /// returns the new.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn update(&self, token: u64, change: impl FnOnce(Option<&[u8]>) -> Vec<u8>) -> Result<(), FileError> {
        let _locked = self.lock()?;
        let old = self.read()?;
        if let Some(seen) = old.as_ref().map(|old| old.token).filter(|seen| *seen > token) {
            return Err(Stale { token, seen: Some(seen) }.into());
        }
        let data = change(old.as_ref().map(|old| old.data.as_slice()));
        if data.len() as u64 > MAX_FILE_BYTES {
            return Err(FileError::TooLarge { bytes: data.len() as u64 });
        }
        self.replace(token, &data)
    }

    /// Lets one process at a time read the token and replace the file. The lock is on a separate file, since each write
    /// replaces the fenced file. The kernel releases the lock when its process ends.
    fn lock(&self) -> Result<Flock<File>, FileError> {
        let path = beside(&self.path, ".lock");
        let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let mut file = open.map_err(io_error("open", &path))?;
        let began = Instant::now();
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Ok(locked),
                Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
                Err((_, errno)) => return Err(io_error("lock", &path)(errno.into())),
            };
            let waited = began.elapsed();
            if waited >= self.patience {
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                return Err(FileError::Busy { path, waited_ms });
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Call only under the lock: the new file has a fixed name, and overwrites one that a crash has left.
    fn replace(&self, token: u64, data: &[u8]) -> Result<(), FileError> {
        let new = beside(&self.path, ".new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(head(token, data).as_bytes())?;
            file.write_all(data)?;
            if let Ok(old) = fs::metadata(&self.path) {
                file.set_permissions(old.permissions())?;
            }
            file.sync_all()
        };
        write().map_err(io_error("write", &new))?;
        fs::rename(&new, &self.path).map_err(io_error("rename the new file to", &self.path))?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|file| file.sync_all()).map_err(io_error("sync", directory))
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { doing, path, source }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn checksum(token: u64, data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&token.to_le_bytes()), data)
}

fn head(token: u64, data: &[u8]) -> String {
    format!("{MARK} {token} {} {:08x}\n", data.len(), checksum(token, data))
}

/// Parses the bytes of a file.
fn parse(mut bytes: Vec<u8>) -> Result<Fenced, String> {
    if bytes.is_empty() {
        return Err("it is empty, and even empty data have a first line".into());
    }
    let end = bytes.iter().take(MAX_HEAD_BYTES).position(|byte| *byte == b'\n');
    let line = end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok());
    let fields = line.and_then(|line| line.strip_prefix(MARK)?.strip_prefix(' '));
    let (Some(end), Some(fields)) = (end, fields) else {
        return Err(format!("its first line is not '{MARK} <token> <bytes> <CRC32C>'"));
    };
    let fields: Vec<&str> = fields.split(' ').collect();
    let numbers = match fields[..] {
        [token, length, sum] => {
            token.parse::<u64>().ok().zip(length.parse::<usize>().ok()).zip(u32::from_str_radix(sum, 16).ok())
        }
        _ => None,
    };
    let Some(((token, length), sum)) = numbers else {
        return Err("its first line does not have a token, a length and a checksum".into());
    };
    let data = bytes.split_off(end + 1);
    if data.len() != length {
        return Err(format!("it has {} bytes of data, and was written with {length}", data.len()));
    }
    if checksum(token, &data) != sum {
        return Err("its checksum does not fit".into());
    }
    Ok(Fenced { token, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_torn_or_changed_file_is_known_for_one() {
        let data = b"some\ndata";
        let whole = [head(34, data).as_bytes(), data].concat();
        assert_eq!(parse(whole.clone()), Ok(Fenced { token: 34, data: data.to_vec() }));
        for cut in 0..whole.len() {
            assert!(parse(whole[..cut].to_vec()).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            // Not to the other case of a hex digit, which means the same.
            changed[at] ^= 0x01;
            assert!(parse(changed).is_err(), "changed at {at}");
        }
        assert!(parse([&whole[..], b"x"].concat()).is_err());
        for foreign in [&b"hello"[..], b"\n", b"{}\n", &[0; 4096]] {
            assert!(parse(foreign.to_vec()).unwrap_err().contains("first line"));
        }
    }

    #[test]
    fn empty_data_are_data() {
        assert_eq!(parse(head(1, b"").into_bytes()), Ok(Fenced { token: 1, data: Vec::new() }));
    }
}
