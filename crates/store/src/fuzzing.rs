//! Entries for fuzzing (`crates/fuzz`): any bytes as the segments of a journal, and as a value of sled's log. Not part
//! of the interface.
//!
//! Checksums would stop nearly every mutation. The first byte of an input therefore also selects whether they are
//! corrected first, as a program with a defect would write them.

use crate::block;
use crate::codec::{Assembly, part_key, u32_at, u64_at};
use crate::journal::frame::{self, Change, Header, SECTOR_BYTES};
use crate::journal::recovery::{self, FoundFrame, Marks, Replayed, WholeLog};
use crate::journal::segment::{self, FIRST_FRAME_AT, Geometry};
use crate::position::LogPosition;
use crate::types::Record;

const DIRECTORY: u128 = 0xD1;
const STAMP: u64 = 77;
/// Segments of an input, each with this many sectors.
const SEGMENTS: usize = 2;
const SECTORS: usize = 8;
/// The index of the first record in the seeds.
const FIRST: u64 = 5;

/// Reads bytes as the segments of a journal, and the log from the frames that are found; panics where something does
/// not hold.
pub fn journal(input: &[u8]) {
    let Some((&choice, body)) = input.split_first() else { return };
    let mut segments: Vec<Vec<u8>> = body.chunks(SECTORS * SECTOR_BYTES).map(<[u8]>::to_vec).take(SEGMENTS).collect();
    if choice & 1 == 1 {
        correct_frames(&mut segments);
    }
    for (content, number) in segments.iter().zip(0..) {
        if let Ok(geometry) = segment::decode_header(content, number) {
            let header = segment::encode_header(geometry, number);
            assert!(content.starts_with(&header), "an accepted header is not what its fields encode to");
        }
    }
    let Ok(found) = recovery::find(&segments, STAMP) else { return };
    let numbers: Vec<u64> = found.needed.iter().map(|frame| frame.number).collect();
    assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]), "the needed frames have a gap: {numbers:?}");
    found.needed.iter().for_each(comes_back);
    let mut replayed = Replayed::of(Marks::default());
    found.needed.iter().for_each(|frame| replayed.add(frame.number, &frame.changes));
    replayed.finish();
    let mut log = WholeLog::new(&replayed, None);
    let Ok(records) = log.add_of_journal() else { return };
    assert!(records.windows(2).all(|two| two[0].position.index + 1 == two[1].position.index), "the log has a gap");
    assert!(records.windows(2).all(|two| two[0].position.term <= two[1].position.term), "terms fall");
}

/// A frame made of the changes that were found has these changes.
fn comes_back(found: &FoundFrame) {
    let FoundFrame { number, oldest, task, .. } = *found;
    let bytes = frame_of(&found.changes, Header { stamp: STAMP, number, oldest, task, previous: 0 });
    let again = frame::decode(&bytes, STAMP).unwrap_or_else(|| panic!("frame {number} is not read back"));
    assert_eq!((again.number, again.oldest, again.task), (number, oldest, task));
    assert_eq!(frame::changes(again.body).as_ref(), Ok(&found.changes));
}

fn frame_of(changes: &[Change], header: Header) -> Vec<u8> {
    let mut out = Vec::new();
    frame::begin(&mut out);
    changes.iter().for_each(|change| frame::push(change, &mut out));
    frame::seal(&mut out, header);
    out
}

/// Gives each frame its checksum, and that of the one before it where that one lies before it as well.
fn correct_frames(segments: &mut [Vec<u8>]) {
    let mut before = None;
    for content in segments {
        let mut at = FIRST_FRAME_AT;
        while let Some(rest) = content.get_mut(at..).filter(|rest| rest.len() >= frame::HEADER_BYTES) {
            let whole = (u32_at(rest, 4) as usize).saturating_add(frame::HEADER_BYTES);
            if !rest.starts_with(&frame::MAGIC) || whole > rest.len() {
                at += SECTOR_BYTES;
                continue;
            }
            let field = |at| u64_at(rest, at, u64::from_le_bytes);
            let number = field(8);
            let followed = before.filter(|(before, _): &(u64, u32)| before.checked_add(1) == Some(number));
            let previous = followed.map_or_else(|| u32_at(rest, 40), |(_, crc)| crc);
            let header = Header { stamp: field(32), number, oldest: field(16), task: field(24), previous };
            let mut bytes = rest[..whole].to_vec();
            before = Some((number, frame::seal(&mut bytes, header)));
            rest[..whole].copy_from_slice(&bytes[..whole]);
            at += bytes.len();
        }
    }
}

/// Valid inputs of `journal`: with every kind of change, and a journal whose first segment is in use again.
pub fn journals() -> Vec<Vec<u8>> {
    let record = |term, index, bytes| Record { position: LogPosition { term, index }, payload: vec![7; bytes].into() };
    let frames = [
        vec![Change::Begin(FIRST), Change::Append(record(1, 5, 40)), Change::Append(record(1, 6, 0))],
        vec![Change::Vote { sequence: 3, vote: "ballot".into() }, Change::Committed("six".into())],
        vec![Change::Truncate(6), Change::Append(record(2, 6, 700)), Change::Append(record(2, 7, 9))],
        vec![Change::Purge(LogPosition { term: 1, index: 5 })],
        vec![],
        vec![Change::Append(record(3, 8, 100))],
    ];
    let geometry = Geometry {
        segments: SEGMENTS as u32,
        segment_bytes: SECTORS * SECTOR_BYTES,
        directory: DIRECTORY,
        stamp: STAMP,
    };
    // Which segment a frame goes to, and the oldest that it needs.
    let journals = [([0, 0, 0, 1, 1, 1], 1), ([0, 0, 0, 1, 1, 0], 4)];
    let mut inputs = Vec::new();
    for (places, oldest) in journals {
        let mut content = vec![0; SEGMENTS * SECTORS * SECTOR_BYTES];
        for (content, number) in content.chunks_mut(SECTORS * SECTOR_BYTES).zip(0..) {
            let header = segment::encode_header(geometry, number);
            content[..header.len()].copy_from_slice(&header);
        }
        let (mut previous, mut at, mut current) = (0, FIRST_FRAME_AT, 0);
        for ((changes, segment), number) in frames.iter().zip(places).zip(1..) {
            if segment != current {
                (current, at) = (segment, FIRST_FRAME_AT);
            }
            let oldest = oldest.min(number);
            let bytes = frame_of(changes, Header { stamp: STAMP, number, oldest, task: 0, previous });
            previous = frame::decode(&bytes, STAMP).map_or(0, |frame| frame.crc);
            let start = segment * SECTORS * SECTOR_BYTES + at;
            content[start..start + bytes.len()].copy_from_slice(&bytes);
            at += bytes.len();
        }
        inputs.extend([0, 1].map(|choice| [&[choice], &content[..]].concat()));
    }
    inputs
}

/// Reads bytes as a value of sled's log, a block or a part of a record; panics where something does not hold.
pub fn block(input: &[u8]) {
    let Some((&choice, value)) = input.split_first() else { return };
    let mut value = value.to_vec();
    if choice & 1 == 1 && value.len() >= block::HEADER_BYTES {
        block::seal(&mut value);
    }
    let first = if value.len() < block::HEADER_BYTES { FIRST } else { u64_at(&value, 8, u64::from_le_bytes) };
    let key = part_key(first, 0);
    drop(block::read(&mut Assembly::default(), &key, &value, |_| Ok(())));
    let Ok(records) = block::decode(&key, &value) else { return };
    let mut again = Vec::new();
    block::encode(&records, &mut again);
    assert_eq!(again, value, "an accepted block is not what its records encode to");
    assert_eq!(block::last_index(&value), records.last().map(|record| record.position.index));
}

/// Valid inputs of `block`.
pub fn blocks() -> Vec<Vec<u8>> {
    let records = |sizes: &[usize]| -> Vec<Record> {
        let record = |(index, bytes): (u64, &usize)| Record {
            position: LogPosition { term: 3, index },
            payload: vec![index as u8; *bytes].into(),
        };
        (FIRST..).zip(sizes).map(record).collect()
    };
    let mut inputs = Vec::new();
    for sizes in [&[0][..], &[10, 300, 0, 1], &[700; 20]] {
        let mut value = Vec::new();
        block::encode(&records(sizes), &mut value);
        inputs.extend([0, 1].map(|choice| [&[choice], &value[..]].concat()));
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_read_whole() {
        for input in journals() {
            journal(&input);
            let segments: Vec<_> = input[1..].chunks(SECTORS * SECTOR_BYTES).map(<[u8]>::to_vec).collect();
            let found = recovery::find(&segments, STAMP).unwrap();
            assert_eq!(found.needed.last().map(|last| last.number), Some(6));
            assert!((0..).zip(&segments).all(|(number, content)| segment::decode_header(content, number).is_ok()));
        }
        for input in blocks() {
            block(&input);
            assert!(block::decode(&part_key(FIRST, 0), &input[1..]).is_ok());
        }
    }
}
