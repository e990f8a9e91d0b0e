//! One snapshot file: how it is written, read and checked.
//!
//! ```text
//! magic 8 · term 8 · index 8 · meta length 4 · meta        header
//! payload
//! payload length 8 · CRC32C of all before it 4 · magic 8   trailer
//! ```

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Finished, Snapshot, SnapshotDirectory};
use crate::error::SnapshotError;
use crate::permissions::create_private_file;
use crate::position::LogPosition;

const HEAD: [u8; 8] = *b"LKsnap01";
const TAIL: [u8; 8] = *b"LKsnapEn";
const HEADER_BYTES: usize = 28;
const TRAILER_BYTES: u64 = 20;
const MAX_META_BYTES: usize = 1024 * 1024;
/// Written at a time.
const BUFFER_BYTES: usize = 256 * 1024;
/// Synced at a time: one large sync at the end would make the log's barrier wait behind it.
const SYNC_BYTES: u64 = 4 * 1024 * 1024;

/// Writes a snapshot's payload. If it is dropped unfinished, the file is removed.
pub struct SnapshotWriter {
    shared: Arc<SnapshotDirectory>,
    file: File,
    /// Taken when the file has been moved or removed.
    temporary: Option<PathBuf>,
    position: LogPosition,
    meta: Bytes,
    buffer: Vec<u8>,
    crc: u32,
    payload_bytes: u64,
    unsynced_bytes: u64,
}

impl SnapshotWriter {
    pub(super) fn create(
        shared: Arc<SnapshotDirectory>,
        temporary: PathBuf,
        position: LogPosition,
        meta: &[u8],
    ) -> Result<Self, SnapshotError> {
        if meta.len() > MAX_META_BYTES {
            return Err(SnapshotError::MetaTooLarge { bytes: meta.len(), max_bytes: MAX_META_BYTES });
        }
        let file = create_private_file(&temporary).map_err(SnapshotError::io("create", &temporary))?;
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(&HEAD);
        buffer.extend_from_slice(&position.term.to_le_bytes());
        buffer.extend_from_slice(&position.index.to_le_bytes());
        buffer.extend_from_slice(&(meta.len() as u32).to_le_bytes());
        buffer.extend_from_slice(meta);
        let (meta, temporary) = (Bytes::copy_from_slice(meta), Some(temporary));
        Ok(Self { shared, file, temporary, position, meta, buffer, crc: 0, payload_bytes: 0, unsynced_bytes: 0 })
    }

    /// Reads the bytes written so far, from the beginning, to check them before [`finish`](Self::finish).
    pub fn written(&mut self) -> Result<impl Read + Send + use<>, SnapshotError> {
        let Some(path) = self.temporary.clone() else { return Err(self.lost()) };
        self.write_out().map_err(SnapshotError::io("write", &path))?;
        let mut file = File::open(&path).map_err(SnapshotError::io("open", &path))?;
        let header_bytes = (HEADER_BYTES + self.meta.len()) as u64;
        file.seek(SeekFrom::Start(header_bytes)).map_err(SnapshotError::io("read", &path))?;
        Ok(file)
    }

    /// Completes the file, syncs it, renames it and removes older ones. If a newer one is there, see [`Finished`].
    pub fn finish(mut self) -> Result<Finished, SnapshotError> {
        let Some(path) = self.temporary.clone() else { return Err(self.lost()) };
        let payload_bytes = self.payload_bytes;
        self.buffer.extend_from_slice(&payload_bytes.to_le_bytes());
        self.write_out().map_err(SnapshotError::io("write", &path))?;
        let mut end = self.crc.to_le_bytes().to_vec();
        end.extend_from_slice(&TAIL);
        let written = self.file.write_all(&end).and_then(|()| self.file.sync_all());
        written.map_err(SnapshotError::io("sync", &path))?;
        let (position, meta) = (self.position, self.meta.clone());
        let snapshot = Snapshot { position, meta, path: path.clone(), bytes: payload_bytes };
        let finished = self.shared.install(&path, snapshot)?;
        self.temporary = None;
        Ok(finished)
    }

    fn lost(&self) -> SnapshotError {
        SnapshotError::damaged(Path::new("?"), format!("the writer of the snapshot at {} has no file", self.position))
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, &self.buffer);
        self.file.write_all(&self.buffer)?;
        self.unsynced_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        if self.unsynced_bytes >= SYNC_BYTES {
            self.unsynced_bytes = 0;
            self.shared.check_free_space().map_err(io::Error::other)?;
            self.file.sync_data()?;
        }
        Ok(())
    }
}

impl Write for SnapshotWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BUFFER_BYTES);
        self.buffer.extend_from_slice(&bytes[..taken]);
        self.payload_bytes += taken as u64;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        // The caller knows no file.
        self.write_out().map_err(|error| {
            let path = self.temporary.as_deref().unwrap_or(Path::new("?"));
            io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        })
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // The next open removes it otherwise.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Reads a snapshot's payload and checks the file by the time it reports the end.
#[derive(Debug)]
pub struct SnapshotReader {
    file: BufReader<File>,
    path: PathBuf,
    position: LogPosition,
    meta: Bytes,
    payload_bytes: u64,
    left: u64,
    crc: u32,
    checked: bool,
}

impl SnapshotReader {
    pub(super) fn open(path: &Path) -> Result<Self, SnapshotError> {
        let file = File::open(path).map_err(SnapshotError::io("open", path))?;
        let file_bytes = file.metadata().map_err(SnapshotError::io("examine", path))?.len();
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let damaged = |what: &str| SnapshotError::damaged(path, what);
        let mut header = [0; HEADER_BYTES];
        if file_bytes < HEADER_BYTES as u64 + TRAILER_BYTES {
            return Err(damaged("it is too short"));
        }
        file.read_exact(&mut header).map_err(SnapshotError::io("read", path))?;
        let number = |at: usize| header[at..at + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        if header[..8] != HEAD {
            return Err(damaged("it does not begin as a snapshot of this version does"));
        }
        let meta_bytes = u64::from(u32::from_le_bytes([header[24], header[25], header[26], header[27]]));
        let frame_bytes = HEADER_BYTES as u64 + meta_bytes + TRAILER_BYTES;
        if meta_bytes > MAX_META_BYTES as u64 || frame_bytes > file_bytes {
            return Err(damaged("it is shorter than its header says"));
        }
        let mut meta = vec![0; usize::try_from(meta_bytes).unwrap_or(0)];
        file.read_exact(&mut meta).map_err(SnapshotError::io("read", path))?;
        let payload_bytes = file_bytes - frame_bytes;
        Ok(Self {
            crc: crc32c::crc32c_append(crc32c::crc32c(&header), &meta),
            file,
            path: path.to_path_buf(),
            position: LogPosition { term: number(8), index: number(16) },
            meta: meta.into(),
            payload_bytes,
            left: payload_bytes,
            checked: false,
        })
    }

    /// Metadata as the header has it; to be trusted when the end was reported.
    pub fn meta(&self) -> &Bytes {
        &self.meta
    }

    fn check_end(&mut self) -> io::Result<()> {
        let damaged = |path: &Path, what: &str| {
            io::Error::new(io::ErrorKind::InvalidData, SnapshotError::damaged(path, what).to_string())
        };
        let mut trailer = [0; TRAILER_BYTES as usize];
        self.file.read_exact(&mut trailer).map_err(|_| damaged(&self.path, "its end is missing"))?;
        let crc = crc32c::crc32c_append(self.crc, &trailer[..8]);
        let matches = trailer[..8] == self.payload_bytes.to_le_bytes()
            && trailer[8..12] == crc.to_le_bytes()
            && trailer[12..] == TAIL;
        if !matches {
            return Err(damaged(&self.path, "it does not match its checksum"));
        }
        self.checked = true;
        Ok(())
    }
}

impl Read for SnapshotReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            if !self.checked {
                self.check_end()?;
            }
            return Ok(0);
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} was cut short", self.path.display())));
        }
        self.crc = crc32c::crc32c_append(self.crc, &buffer[..count]);
        self.left -= count as u64;
        Ok(count)
    }
}

/// Reads the whole file and checks it against its checksum and its name.
pub(super) fn verify(path: &Path, position: LogPosition) -> Result<Snapshot, SnapshotError> {
    let mut reader = SnapshotReader::open(path)?;
    let read = io::copy(&mut reader, &mut io::sink());
    read.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            SnapshotError::damaged(path, "it does not match its checksum")
        }
        _ => SnapshotError::io("read", path)(error),
    })?;
    if reader.position != position {
        return Err(SnapshotError::damaged(path, format!("it covers {}, unlike its name", reader.position)));
    }
    Ok(Snapshot { position, meta: reader.meta, path: path.to_path_buf(), bytes: reader.payload_bytes })
}
