//! Acknowledgement watermark. The end of the journal and the end of sled's file look alike whether a write was torn
//! before it was acknowledged or damaged afterwards; recovery cuts off both. This file beside them records how far the
//! log had been acknowledged, so that opening can detect the loss.
//!
//! Two slots of 4 KiB are written in turn, so that a torn write spoils at most the newer one. A slot is written after
//! the sync that makes a batch durable and before the callbacks, *without* a sync of its own; it is synced at open, at
//! a vote, at a truncation, every [`SYNC_RECORDS`] records and at close.
//!
//! What it detects, exactly, in sled and the journal together:
//! - after a clean close, or after kill -9 (the page cache lives on): any loss of an acknowledged record, vote, purge
//!   mark or start counter, down to the last acknowledged batch. The slot names the last frame of the journal, so the
//!   loss of a frame shows whatever was in it;
//! - after power loss: any loss of data acknowledged before the last synced slot, that is every vote, and all but at
//!   most the last [`SYNC_RECORDS`] records. Of later frames the journal itself shows the loss of each that another one
//!   follows. Loss at its very end cannot be told from a torn write. (It takes a disk that loses data which it reported
//!   as synced.)
//!
//! A slot never claims more than is durable. A truncation lowers both slots, synced, before it removes anything.

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
///
/// 1: no journal. 2: a journal in front of sled.
const MAGIC: [u8; 8] = *b"LKfloor2";
/// The version before this one, which this build opens and turns into its own.
const VERSION_WITHOUT_JOURNAL: u8 = b'1';
/// magic 8, sequence 8, incarnation 8, vote 8, directory 16, frame 8, position 16, crc 4. Version 1 has in place of the
/// frame whether there is a position. Every version has this length, so that an earlier build recognises a later one.
const ENCODED_BYTES: usize = 76;
/// Stands for a log without a position.
const NO_POSITION: LogPosition = LogPosition { term: u64::MAX, index: u64::MAX };

/// The content of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckWatermark {
    /// Starts of the directory.
    pub(crate) incarnation: u64,
    /// Sequence of the last vote.
    pub(crate) vote_sequence: u64,
    /// The directory that the file belongs to.
    pub(crate) directory: u128,
    /// The last frame of the journal.
    pub(crate) frame: u64,
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
    has_journal: bool,
}

/// A slot as read back.
#[derive(Debug, PartialEq, Eq)]
struct Slot {
    sequence: u64,
    watermark: AckWatermark,
    has_journal: bool,
}

impl AckWatermarkFile {
    /// Creates the file with both slots synced.
    pub(crate) fn create(path: &Path, watermark: AckWatermark) -> io::Result<()> {
        let file = create_private_file(path)?;
        let path = path.to_path_buf();
        let mut this = Self { file, path, sequence: 0, watermark, records_since_sync: 0, has_journal: true };
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
        let mut newest: Option<Slot> = None;
        for slot in 0..2 {
            let mut bytes = [0; ENCODED_BYTES];
            let read = read_up_to(&file, &mut bytes, slot * SLOT_BYTES)?;
            match (read == ENCODED_BYTES).then(|| decode(&bytes)).flatten() {
                Some(Ok(found)) => newest = newest.filter(|older| older.sequence > found.sequence).or(Some(found)),
                Some(Err(version)) => return Ok(Err(WatermarkProblem::Version(version))),
                None => {}
            }
        }
        let Some(Slot { sequence, watermark, has_journal }) = newest else {
            return Ok(Err(WatermarkProblem::Damaged("neither of its two slots matches its checksum")));
        };
        Ok(Ok(Self { file, path: path.to_path_buf(), sequence, watermark, records_since_sync: 0, has_journal }))
    }

    /// Whether the directory has a journal: the file has the present version.
    pub(crate) fn has_journal(&self) -> bool {
        self.has_journal
    }

    /// Writes the present version, durably in both slots: an earlier build refuses the directory from the first on.
    pub(crate) fn upgrade(&mut self, watermark: AckWatermark) -> io::Result<()> {
        self.has_journal = true;
        self.write_both(watermark)
    }

    /// Writes the version without a journal, durably in both slots: sled has everything. The next open makes a journal
    /// anew, and an earlier build may come first.
    pub(crate) fn step_back(&mut self) -> io::Result<()> {
        self.has_journal = false;
        self.write_both(self.watermark)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn watermark(&self) -> AckWatermark {
        self.watermark
    }

    /// Raises the watermark, after what it claims has become durable. Synced when asked or when due.
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
        self.file.write_all_at(&encode(sequence, &watermark, self.has_journal), sequence % 2 * SLOT_BYTES)?;
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

fn encode(sequence: u64, watermark: &AckWatermark, has_journal: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(ENCODED_BYTES);
    out.extend_from_slice(&MAGIC[..7]);
    out.push(if has_journal { MAGIC[7] } else { VERSION_WITHOUT_JOURNAL });
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&watermark.incarnation.to_le_bytes());
    out.extend_from_slice(&watermark.vote_sequence.to_le_bytes());
    out.extend_from_slice(&watermark.directory.to_le_bytes());
    let frame = if has_journal { watermark.frame } else { u64::from(watermark.last.is_some()) };
    out.extend_from_slice(&frame.to_le_bytes());
    out.extend_from_slice(&encode_position(watermark.last.unwrap_or(NO_POSITION)));
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// A slot, or the version that this build does not read; nothing when damaged.
fn decode(bytes: &[u8; ENCODED_BYTES]) -> Option<Result<Slot, u8>> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    let (magic, fields) = body.split_first_chunk::<8>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) || magic[..7] != MAGIC[..7] {
        return None;
    }
    let has_journal = magic[7] == MAGIC[7];
    if !has_journal && magic[7] != VERSION_WITHOUT_JOURNAL {
        return Some(Err(magic[7]));
    }
    let number = |at: usize| fields.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let directory = u128::from_le_bytes(fields.get(24..40)?.try_into().ok()?);
    let position = decode_position(fields.get(48..64)?).ok()?;
    let (frame, has_position) = match has_journal {
        true => (number(40)?, position != NO_POSITION),
        false => (0, number(40)? != 0),
    };
    let watermark = AckWatermark {
        incarnation: number(8)?,
        vote_sequence: number(16)?,
        directory,
        frame,
        last: has_position.then_some(position),
    };
    Some(Ok(Slot { sequence: number(0)?, watermark, has_journal }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watermark(index: u64) -> AckWatermark {
        let last = Some(LogPosition { term: 4, index });
        AckWatermark { incarnation: 1, vote_sequence: 2, directory: 3, frame: 5, last }
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

    /// A slot with another last byte of its magic and the checksum that belongs to it.
    fn of_version(version: u8, mut slot: Vec<u8>) -> Vec<u8> {
        slot[7] = version;
        let body = ENCODED_BYTES - 4;
        let crc = crc32c::crc32c(&slot[..body]);
        slot[body..].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    #[test]
    fn the_format_without_a_journal_is_read_and_turned_into_the_present_one_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("floor");
        let old = |watermark| encode(1, &watermark, false);
        std::fs::write(&path, old(AckWatermark { last: None, ..watermark(7) })).unwrap();
        assert_eq!(AckWatermarkFile::open(&path).unwrap().unwrap().watermark().last, None);
        std::fs::write(&path, old(watermark(7))).unwrap();
        let mut file = AckWatermarkFile::open(&path).unwrap().unwrap();
        assert_eq!((file.watermark(), file.has_journal()), (AckWatermark { frame: 0, ..watermark(7) }, false));
        file.upgrade(watermark(8)).unwrap();
        let file = AckWatermarkFile::open(&path).unwrap().unwrap();
        assert_eq!((file.watermark(), file.has_journal()), (watermark(8), true));
        let written = std::fs::read(&path).unwrap();
        assert!(written.chunks(SLOT_BYTES as usize).all(|slot| slot.starts_with(&MAGIC)), "both slots");
        let mut file = file;
        file.step_back().unwrap();
        let file = AckWatermarkFile::open(&path).unwrap().unwrap();
        assert_eq!((file.watermark(), file.has_journal()), (AckWatermark { frame: 0, ..watermark(8) }, false));
        let written = std::fs::read(&path).unwrap();
        assert!(written.chunks(SLOT_BYTES as usize).all(|slot| slot.starts_with(b"LKfloor1")), "both slots");
    }

    #[test]
    fn a_later_format_is_refused_by_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("floor");
        std::fs::write(&path, of_version(b'3', encode(1, &watermark(0), true))).unwrap();
        let problem = AckWatermarkFile::open(&path).unwrap().err().unwrap();
        let text = problem.refusal(&path).to_string();
        assert!(text.contains("format version 3, this build reads 2"), "{text}");
    }

    #[test]
    fn two_damaged_slots_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("floor");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        assert!(AckWatermarkFile::open(&path).unwrap().is_err());
    }
}
