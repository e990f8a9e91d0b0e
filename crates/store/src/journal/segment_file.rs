//! The files of the journal: created full of zeros, written past the page cache, never grown or truncated.
//!
//! A write to a file whose blocks are all written already changes no metadata, so the sync after it writes nothing but
//! the data. `O_DIRECT` keeps the page cache out of it: a sync writes back whole folios, which are megabytes where the
//! kernel uses large ones. Where the file system refuses `O_DIRECT` the same writes go through the page cache.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::frame::PAGE_BYTES;
use crate::directory;
use crate::error::OpenError;
use crate::permissions;

/// While one segment fills, the other one's frames are in sled or on their way there.
const SEGMENTS: usize = 2;
/// Longest single write, so that a system-call trace shows each in whole.
const WRITE_BYTES: usize = 512 * 1024;

fn paths(dir: &Path) -> [PathBuf; SEGMENTS] {
    std::array::from_fn(|number| dir.join(number.to_string()))
}

/// Creates the directory and its segments, synced.
pub(crate) fn create(dir: &Path, segment_bytes: usize) -> Result<(), OpenError> {
    permissions::create_directories(dir).map_err(OpenError::io("create", dir))?;
    for path in paths(dir) {
        let file = permissions::create_private_file(&path).map_err(OpenError::io("create", &path))?;
        // Not `fallocate`: its blocks count as unwritten, and the first write to each would change metadata.
        let zeros = vec![0; segment_bytes.min(16 * PAGE_BYTES)];
        for at in (0..segment_bytes).step_by(zeros.len()) {
            let piece = &zeros[..zeros.len().min(segment_bytes - at)];
            file.write_all_at(piece, at as u64).map_err(OpenError::io("write", &path))?;
        }
        file.sync_all().map_err(OpenError::io("sync", &path))?;
    }
    directory::sync_directory(dir).map_err(OpenError::io("sync", dir))
}

/// What the segments hold. A missing one, or one of another size, is damage.
pub(crate) fn read(dir: &Path, segment_bytes: usize) -> Result<Vec<Vec<u8>>, OpenError> {
    paths(dir).iter().map(|path| read_one(path, segment_bytes)).collect()
}

fn read_one(path: &Path, segment_bytes: usize) -> Result<Vec<u8>, OpenError> {
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::damaged(path, "it is missing"));
        }
        opened => opened.map_err(OpenError::io("open", path))?,
    };
    let bytes = file.metadata().map_err(OpenError::io("examine", path))?.len();
    if bytes != segment_bytes as u64 {
        return Err(OpenError::damaged(path, format!("it has {bytes} bytes and was created with {segment_bytes}")));
    }
    // What a killed process wrote and did not sync must be durable before sled is given it: after power loss sled could
    // have a frame that the journal has lost, and the frames before it must not be applied over it.
    file.sync_all().map_err(OpenError::io("sync", path))?;
    let mut content = Vec::with_capacity(segment_bytes);
    file.read_to_end(&mut content).map_err(OpenError::io("read", path))?;
    Ok(content)
}

/// A segment that is written.
pub(crate) struct SegmentFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// Opens the segments for writing.
pub(crate) fn open(dir: &Path) -> Result<Vec<SegmentFile>, OpenError> {
    let one = |path: PathBuf| {
        let file = open_direct(&path).or_else(|error| match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINVAL | Errno::EOPNOTSUPP) => OpenOptions::new().read(true).write(true).open(&path),
            _ => Err(error),
        });
        Ok(SegmentFile { file: file.map_err(OpenError::io("open", &path))?, path })
    };
    paths(dir).into_iter().map(one).collect()
}

/// Fails where the file system does not take direct reads and writes of pages.
fn open_direct(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_DIRECT.bits()).open(path)?;
    // Some file systems refuse only the access itself.
    let mut page = AlignedBuffer::default();
    file.read_exact_at(page.of(PAGE_BYTES), 0)?;
    Ok(file)
}

impl SegmentFile {
    /// Writes whole pages at a multiple of a page, from an aligned buffer.
    pub(crate) fn write(&self, pages: &[u8], at: usize) -> io::Result<()> {
        let pieces = pages.chunks(WRITE_BYTES).zip((at..).step_by(WRITE_BYTES));
        pieces.into_iter().try_for_each(|(piece, at)| self.file.write_all_at(piece, at as u64))
    }
}

/// A buffer that begins at a multiple of a page in memory, as `O_DIRECT` asks.
#[derive(Default)]
pub(crate) struct AlignedBuffer(Vec<u8>);

impl AlignedBuffer {
    /// Memory that is kept from one frame to the next.
    const KEPT_BYTES: usize = 256 * 1024;

    /// The buffer with this length; what is in it is left over from earlier use.
    pub(crate) fn of(&mut self, bytes: usize) -> &mut [u8] {
        let needed = bytes + PAGE_BYTES;
        if self.0.len() < needed || self.0.len() > needed.max(Self::KEPT_BYTES) {
            self.0 = vec![0; needed];
        }
        let start = self.0.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        &mut self.0[start..start + bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_large_ones_are_given_back() {
        let mut buffer = AlignedBuffer::default();
        for bytes in [PAGE_BYTES, 3 * PAGE_BYTES, 4 * AlignedBuffer::KEPT_BYTES, PAGE_BYTES] {
            let pages = buffer.of(bytes);
            assert_eq!((pages.len(), pages.as_ptr().addr() % PAGE_BYTES), (bytes, 0));
        }
        assert_eq!(buffer.0.len(), 2 * PAGE_BYTES);
    }

    #[test]
    fn pages_of_any_number_are_written_where_they_belong() {
        let dir = tempfile::tempdir().unwrap();
        let segment_bytes = 4 * WRITE_BYTES;
        create(dir.path(), segment_bytes).unwrap();
        let files = open(dir.path()).unwrap();
        let mut buffer = AlignedBuffer::default();
        let pages = buffer.of(2 * WRITE_BYTES + PAGE_BYTES);
        pages.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7) as u8);
        files[1].write(pages, PAGE_BYTES).unwrap();
        let found = read(dir.path(), segment_bytes).unwrap();
        assert_eq!(found[1][PAGE_BYTES..PAGE_BYTES + pages.len()], *pages);
        assert!(found[0].iter().chain(&found[1][..PAGE_BYTES]).all(|byte| *byte == 0));
    }

    #[test]
    fn a_missing_segment_and_one_of_another_size_are_damage() {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), 2 * PAGE_BYTES).unwrap();
        assert!(read(dir.path(), 3 * PAGE_BYTES).is_err());
        let [first, _] = paths(dir.path());
        std::fs::remove_file(first).unwrap();
        let refused = read(dir.path(), 2 * PAGE_BYTES).unwrap_err().to_string();
        assert!(refused.contains("it is missing"), "{refused}");
    }
}
