//! Acknowledgement watermark. sled silently truncates a damaged tail, taking it for a torn, unacknowledged write; this
//! file beside it records how far the log had been acknowledged, so that opening can detect the loss.
//!
//! Two slots of 4 KiB are written in turn, so that a torn write spoils at most the newer one. A slot is written after
//! each barrier and before the callbacks, *without* a sync of its own; it is synced at open, at a vote, at a
//! truncation, every [`SYNC_RECORDS`] records and at close.
//!
//! What it detects, exactly:
//! - after a clean close, or after kill -9 (the page cache lives on): any loss of an acknowledged record, vote, purge
//!   mark or start counter, down to the last acknowledged batch;
//! - after power loss: any loss of data acknowledged before the last synced slot, that is every vote, and all but at
//!   most the last [`SYNC_RECORDS`] records. This file cannot tell damage to later records from a torn tail. (Losing
//!   them takes a disk that loses data which it reported as synced.)
//!
//! A slot never claims more than a barrier made durable. A truncation lowers both slots, synced, before it removes
//! anything.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::codec::{decode_position, encode_position};
use crate::error::OpenError;
use crate::permissions::create_private_file;
use crate::position::LogPosition;

/// Records after which a slot is synced.
pub(crate) const SYNC_RECORDS: u64 = 4096;
const SLOT_BYTES: u64 = 4096;
/// The last byte is the version of the whole log directory: any change of its format raises it, and it is read first.
const MAGIC: [u8; 8] = *b"LKfloor1";
/// magic 8, sequence 8, incarnation 8, vote 8, directory 16, has position 8, position 16, crc 4.
const ENCODED_BYTES: usize = 76;

/// The content of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckWatermark {
    /// Starts of the directory.
    pub(crate) incarnation: u64,
    /// Sequence of the last vote.
    pub(crate) vote_sequence: u64,
    /// The directory that the file belongs to.
    pub(crate) directory: u128,
    /// The last record (or purge mark, when no record follows it).
    pub(crate) last: Option<LogPosition>,
}

/// Why the file cannot be used.
#[derive(Debug)]
pub(crate) enum WatermarkProblem {
    /// Written by a build with another format.
    Version(u8),
    /// Missing or damaged.
    Damaged(&'static str),
}

impl WatermarkProblem {
    pub(crate) fn refusal(self, path: &Path) -> OpenError {
        match self {
            Self::Version(found) => {
                OpenError::Version { file: path.into(), found: char::from(found), supported: char::from(MAGIC[7]) }
            }
            Self::Damaged(what) => OpenError::damaged(path, what),
        }
    }
}

/// The open file.
pub(crate) struct AckWatermarkFile {
    file: File,
    path: PathBuf,
    sequence: u64,
    watermark: AckWatermark,
    records_since_sync: u64,
}

impl AckWatermarkFile {
    /// Creates the file with both slots synced.
    pub(crate) fn create(path: &Path, watermark: AckWatermark) -> io::Result<()> {
        let file = create_private_file(path)?;
        let mut this = Self { file, path: path.to_path_buf(), sequence: 0, watermark, records_since_sync: 0 };
        this.write_both(watermark)
    }

    /// Opens the file and reads the newest valid slot.
    pub(crate) fn open(path: &Path) -> io::Result<Result<Self, WatermarkProblem>> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(WatermarkProblem::Damaged("it is missing")));
            }
            Err(error) => return Err(error),
        };
        let mut newest: Option<(u64, AckWatermark)> = None;
        for slot in 0..2 {
            let mut bytes = [0; ENCODED_BYTES];
            let read = read_up_to(&file, &mut bytes, slot * SLOT_BYTES)?;
            match (read == ENCODED_BYTES).then(|| decode(&bytes)).flatten() {
                Some(Ok(found)) => newest = newest.filter(|older| older.0 > found.0).or(Some(found)),
                Some(Err(version)) => return Ok(Err(WatermarkProblem::Version(version))),
                None => {}
            }
        }
        let Some((sequence, watermark)) = newest else {
            return Ok(Err(WatermarkProblem::Damaged("neither of its two slots matches its checksum")));
        };
        Ok(Ok(Self { file, path: path.to_path_buf(), sequence, watermark, records_since_sync: 0 }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn watermark(&self) -> AckWatermark {
        self.watermark
    }

    /// Raises the watermark, after the barrier that made the records durable. Synced when asked or when due.
    pub(crate) fn raise(&mut self, watermark: AckWatermark, records: u64, sync: bool) -> io::Result<()> {
        self.records_since_sync += records;
        self.write_next(watermark)?;
        if sync || self.records_since_sync >= SYNC_RECORDS {
            self.file.sync_data()?;
            self.records_since_sync = 0;
        }
        Ok(())
    }

    /// Lowers the watermark, durably in both slots, before a truncation.
    pub(crate) fn lower(&mut self, last: Option<LogPosition>) -> io::Result<()> {
        self.write_both(AckWatermark { last, ..self.watermark })
    }

    fn write_both(&mut self, watermark: AckWatermark) -> io::Result<()> {
        for _ in 0..2 {
            self.write_next(watermark)?;
            // One at a time: the valid slot that remains if this one is torn must not be overwritten yet.
            self.file.sync_data()?;
        }
        self.records_since_sync = 0;
        Ok(())
    }

    fn write_next(&mut self, watermark: AckWatermark) -> io::Result<()> {
        let sequence = self.sequence + 1;
        self.file.write_all_at(&encode(sequence, &watermark), sequence % 2 * SLOT_BYTES)?;
        (self.sequence, self.watermark) = (sequence, watermark);
        Ok(())
    }
}

fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

fn encode(sequence: u64, watermark: &AckWatermark) -> Vec<u8> {
    let mut out = Vec::with_capacity(ENCODED_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&watermark.incarnation.to_le_bytes());
    out.extend_from_slice(&watermark.vote_sequence.to_le_bytes());
    out.extend_from_slice(&watermark.directory.to_le_bytes());
    out.extend_from_slice(&u64::from(watermark.last.is_some()).to_le_bytes());
    out.extend_from_slice(&encode_position(watermark.last.unwrap_or(LogPosition { term: 0, index: 0 })));
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// A slot's sequence and content, or the version that this build does not read; nothing when damaged.
fn decode(bytes: &[u8; ENCODED_BYTES]) -> Option<Result<(u64, AckWatermark), u8>> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    let (magic, fields) = body.split_first_chunk::<8>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) || magic[..7] != MAGIC[..7] {
        return None;
    }
    if magic[7] != MAGIC[7] {
        return Some(Err(magic[7]));
    }
    let number = |at: usize| fields.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let directory = u128::from_le_bytes(fields.get(24..40)?.try_into().ok()?);
    let position = decode_position(fields.get(48..64)?).ok()?;
    let last = (number(40)? != 0).then_some(position);
    Some(Ok((number(0)?, AckWatermark { incarnation: number(8)?, vote_sequence: number(16)?, directory, last })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watermark(index: u64) -> AckWatermark {
        AckWatermark { incarnation: 1, vote_sequence: 2, directory: 3, last: Some(LogPosition { term: 4, index }) }
    }

    #[test]
    fn the_newest_slot_wins_and_a_torn_one_leaves_the_older() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("floor");
        AckWatermarkFile::create(&path, watermark(0)).unwrap();
        for index in 1..6 {
            let mut file = AckWatermarkFile::open(&path).unwrap().unwrap();
            assert_eq!(file.watermark(), watermark(index - 1));
            file.raise(watermark(index), 1, false).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            let found = AckWatermarkFile::open(&path).unwrap().unwrap().watermark();
            assert!(found == watermark(5) || found == watermark(4), "byte {at}: {found:?}");
        }
    }

    #[test]
    fn after_lowering_neither_slot_claims_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("floor");
        AckWatermarkFile::create(&path, watermark(9)).unwrap();
        let mut file = AckWatermarkFile::open(&path).unwrap().unwrap();
        file.lower(None).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for slot in 0..2 {
            let mut damaged = whole.clone();
            damaged[slot * SLOT_BYTES as usize] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(AckWatermarkFile::open(&path).unwrap().unwrap().watermark().last, None);
        }
    }

    #[test]
    fn two_damaged_slots_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("floor");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        assert!(AckWatermarkFile::open(&path).unwrap().is_err());
    }
}
