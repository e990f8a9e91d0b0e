//! The files of the journal: created full of zeros, never grown, shortened or renamed.
//!
//! The sync after a write to blocks that are all written already writes the data and no metadata. The first sector of
//! each file says whose it is and is never written again.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use lockkeeper_mutants::mutant;

use super::frame::SECTOR_BYTES;
use crate::codec::{u32_at, u64_at};
use crate::error::OpenError;
use crate::fsync::sync_and_forget;
use crate::types::Barrier;
use crate::{directory, permissions};

/// First bytes of a segment; the last one is the version.
const MAGIC: [u8; 4] = *b"LKs1";
/// magic 4, number 4, segments 4, crc 4, size 8, stamp 8, directory 16.
const HEADER_BYTES: usize = 48;
/// Zeros are written in pieces of one page: larger ones make large folios of the page cache, and each sync then handles
/// a whole one.
const PAGE_BYTES: usize = 4096;
/// Longest single write, so that a system-call trace shows each in whole.
const WRITE_BYTES: usize = 512 * 1024;

/// What all segments of a journal have in common, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) segments: u32,
    pub(crate) segment_bytes: usize,
    /// The directory that the journal belongs to.
    pub(crate) directory: u128,
    /// Marks the frames of this journal; no client knows it.
    pub(crate) stamp: u64,
}

impl Geometry {
    pub(crate) fn new(segments: u32, segment_bytes: usize, directory: u128) -> Self {
        // The standard library's source of keys that others cannot guess.
        Self { segments, segment_bytes, directory, stamp: RandomState::new().hash_one(directory) }
    }
}

/// What the journal does with a file. Tests have one that loses what was not synced.
pub(crate) trait SegmentFile {
    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()>;
    /// Returns when what was written is durable. An error is final.
    fn sync(&self) -> io::Result<()>;
    /// For error texts.
    fn path(&self) -> &Path;
}

/// A segment in a file.
pub(crate) struct DiskSegment {
    file: File,
    path: PathBuf,
    barrier: Barrier,
}

impl SegmentFile for DiskSegment {
    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()> {
        let pieces = bytes.chunks(WRITE_BYTES).zip((at..).step_by(WRITE_BYTES));
        pieces.into_iter().try_for_each(|(piece, at)| self.file.write_all_at(piece, at as u64))
    }

    fn sync(&self) -> io::Result<()> {
        if self.barrier == Barrier::Full && !mutant!(BareFlush) { self.file.sync_data() } else { Ok(()) }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

fn path(dir: &Path, number: u32) -> PathBuf {
    dir.join(number.to_string())
}

/// Creates the directory of a new journal and its segments, synced. The entry of the directory itself is the caller's.
pub(crate) fn create(dir: &Path, geometry: Geometry) -> Result<(), OpenError> {
    permissions::create_directories(dir).map_err(OpenError::io("create", dir))?;
    for number in 0..geometry.segments {
        let path = path(dir, number);
        let file = permissions::create_private_file(&path).map_err(OpenError::io("create", &path))?;
        let write =
            |bytes: &[u8], at: usize| file.write_all_at(bytes, at as u64).map_err(OpenError::io("write", &path));
        // Not `fallocate`: its blocks count as unwritten, and the first write to each would change metadata.
        let zeros = [0; PAGE_BYTES];
        for at in (0..geometry.segment_bytes).step_by(PAGE_BYTES) {
            write(&zeros[..PAGE_BYTES.min(geometry.segment_bytes - at)], at)?;
        }
        write(&encode_header(geometry, number), 0)?;
        file.sync_all().map_err(OpenError::io("sync", &path))?;
    }
    directory::sync_directory(dir).map_err(OpenError::io("sync", dir))
}

/// The segments of a journal, and what is in them.
pub(crate) type OpenSegments = (Geometry, Vec<DiskSegment>, Vec<Vec<u8>>);

/// Opens the segments of a journal and reads them. What a killed process wrote and did not sync becomes durable: the
/// log that is found must not change any more. A missing file, or one of another size or directory, is damage.
pub(crate) fn open(dir: &Path, directory: u128, barrier: Barrier) -> Result<OpenSegments, OpenError> {
    let (mut segments, mut contents, mut geometry) = (Vec::new(), Vec::new(), None);
    let mut number = 0;
    while geometry.is_none_or(|geometry: Geometry| number < geometry.segments) {
        let (segment, content) = open_one(path(dir, number), barrier)?;
        let damaged = |what: String| OpenError::damaged(&segment.path, what);
        let found = decode_header(&content, number).map_err(damaged)?;
        if found.directory != directory {
            return Err(damaged("it comes from another data directory".into()));
        }
        if geometry.is_some_and(|geometry| geometry != found) {
            return Err(damaged("it does not belong to the segments before it".into()));
        }
        if content.len() != found.segment_bytes {
            let (bytes, created) = (content.len(), found.segment_bytes);
            return Err(damaged(format!("it has {bytes} bytes and was created with {created}")));
        }
        geometry = Some(found);
        segments.push(segment);
        contents.push(content);
        number += 1;
    }
    let geometry = geometry.ok_or_else(|| OpenError::damaged(dir, "it has no segments"))?;
    Ok((geometry, segments, contents))
}

fn open_one(path: PathBuf, barrier: Barrier) -> Result<(DiskSegment, Vec<u8>), OpenError> {
    let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::damaged(&path, "it is missing"));
        }
        opened => opened.map_err(OpenError::io("open", &path))?,
    };
    sync_and_forget(&file).map_err(OpenError::io("sync", &path))?;
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(OpenError::io("read", &path))?;
    Ok((DiskSegment { file, path, barrier }, content))
}

pub(crate) fn encode_header(geometry: Geometry, number: u32) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&number.to_le_bytes());
    out[8..12].copy_from_slice(&geometry.segments.to_le_bytes());
    out[16..24].copy_from_slice(&(geometry.segment_bytes as u64).to_le_bytes());
    out[24..32].copy_from_slice(&geometry.stamp.to_le_bytes());
    out[32..].copy_from_slice(&geometry.directory.to_le_bytes());
    // Over the header with zeros in place of the checksum.
    let crc = crc32c::crc32c(&out);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(crate) fn decode_header(content: &[u8], number: u32) -> Result<Geometry, String> {
    let Some((header, _)) = content.split_first_chunk::<HEADER_BYTES>() else {
        return Err(format!("it has {} bytes", content.len()));
    };
    let mut directory = [0; 16];
    directory.copy_from_slice(&header[32..]);
    let geometry = Geometry {
        segments: u32_at(header, 8),
        segment_bytes: usize::try_from(u64_at(header, 16, u64::from_le_bytes)).unwrap_or(usize::MAX),
        stamp: u64_at(header, 24, u64::from_le_bytes),
        directory: u128::from_le_bytes(directory),
    };
    let expected = encode_header(geometry, number);
    if *header == expected {
        return Ok(geometry);
    }
    // A version that this build does not read differs in its fourth byte and in the checksum.
    match header[..3] == MAGIC[..3] && header[3] != MAGIC[3] && header[4..12] == expected[4..12] {
        true => Err(format!("it has version {}, and this build reads {}", char::from(header[3]), char::from(MAGIC[3]))),
        false => Err("its header does not match its checksum".into()),
    }
}

/// Bytes of a segment that hold no frames.
pub(crate) const FIRST_FRAME_AT: usize = SECTOR_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry::new(3, 4 * SECTOR_BYTES, 0xD1)
    }

    #[test]
    fn what_is_written_is_read_back_where_it_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry::new(2, 3 * WRITE_BYTES, 0xD1);
        create(dir.path(), geometry).unwrap();
        let (found, segments, contents) = open(dir.path(), 0xD1, Barrier::Full).unwrap();
        assert_eq!((found, segments.len()), (geometry, 2));
        assert!(contents.iter().all(|content| content[HEADER_BYTES..].iter().all(|byte| *byte == 0)));
        let bytes: Vec<u8> = (0..2 * WRITE_BYTES + SECTOR_BYTES).map(|at| (at / 7) as u8).collect();
        segments[1].write(&bytes, FIRST_FRAME_AT).unwrap();
        segments[1].sync().unwrap();
        let (_, _, contents) = open(dir.path(), 0xD1, Barrier::Full).unwrap();
        assert_eq!(contents[1][FIRST_FRAME_AT..FIRST_FRAME_AT + bytes.len()], bytes);
        assert!(contents[0][HEADER_BYTES..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_segment_that_is_missing_or_cut_or_damaged_or_foreign_is_refused() {
        let refused = |change: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            create(dir.path(), geometry()).unwrap();
            change(dir.path());
            open(dir.path(), 0xD1, Barrier::Full).err().expect("it was opened").to_string()
        };
        let edit = |file: &'static str, edit: fn(&mut Vec<u8>)| {
            move |dir: &Path| {
                let mut content = std::fs::read(dir.join(file)).unwrap();
                edit(&mut content);
                std::fs::write(dir.join(file), content).unwrap();
            }
        };
        assert!(refused(&|dir| std::fs::remove_file(dir.join("2")).unwrap()).contains("it is missing"));
        assert!(refused(&edit("1", |content| content.truncate(1024))).contains("has 1024 bytes"));
        assert!(refused(&edit("0", |content| content.truncate(20))).contains("has 20 bytes"));
        assert!(refused(&edit("0", |content| content[20] ^= 1)).contains("does not match its checksum"));
        assert!(refused(&edit("0", |content| content[3] = b'9')).contains("has version 9"));
        assert!(refused(&|dir| assert!(std::fs::copy(dir.join("0"), dir.join("1")).is_ok())).contains("checksum"));
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), geometry()).unwrap();
        assert!(open(dir.path(), 0xD2, Barrier::Full).err().unwrap().to_string().contains("another data directory"));
    }
}
