//! The bytes of one frame: what one write to the journal changes. Pure.
//!
//! A frame begins at a multiple of [`SECTOR_BYTES`] and is padded with zeros to the next one, so that no write touches
//! a sector that holds an earlier frame. Its header names the journal (a random stamp), its number, the oldest frame
//! that recovery needs, the last of sled's tasks that it relies on, and the checksum of the frame before it. No client
//! knows the stamp, so no payload passes for a frame.
//!
//! The system writes whole pages, and with a frame those beside it again, unchanged. That a disk writes each sector
//! whole or not at all is an assumption, which PostgreSQL makes of its control file as well.
//!
//! Frames of an earlier use of a segment need no other mark: numbers only rise, and a segment is used again only when
//! all of its frames are older than the oldest one that is needed.

use bytes::Bytes;

use crate::codec::{u32_at, u64_at};
use crate::position::LogPosition;
use crate::types::Record;

/// Where a frame may begin: what a disk is taken to write whole or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;
/// First bytes of a frame; the last one is the version.
pub(crate) const MAGIC: [u8; 4] = *b"LKj1";
/// magic 4, length of the changes 4, number 8, oldest needed 8, task of sled 8, stamp 8, checksum of the frame before
/// 4, crc 4.
pub(crate) const HEADER_BYTES: usize = 48;
const CRC_AT: usize = HEADER_BYTES - 4;
/// kind 1, zeros 3, length of the data 4, term 8, index 8.
pub(crate) const CHANGE_HEADER_BYTES: usize = 24;

/// One change of the log, its vote or its marks. Each is absolute: it says what is there, whatever was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The log is empty and was never purged. It starts at this index.
    Begin(u64),
    /// This record, and none after it.
    Append(Record),
    /// A vote with its sequence.
    Vote { sequence: u64, vote: Bytes },
    /// No record from this index on.
    Truncate(u64),
    /// No record up to this position.
    Purge(LogPosition),
    /// How far the log is committed, in the caller's form.
    Committed(Bytes),
}

/// The kinds as they are written.
pub(crate) mod kind {
    pub(crate) const BEGIN: u8 = 1;
    pub(crate) const APPEND: u8 = 2;
    pub(crate) const VOTE: u8 = 3;
    pub(crate) const TRUNCATE: u8 = 4;
    pub(crate) const PURGE: u8 = 5;
    pub(crate) const COMMITTED: u8 = 6;
}

/// A frame as read back; its checksum matches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) number: u64,
    /// The oldest frame that recovery needs if this one is the last.
    pub(crate) oldest: u64,
    /// What sled has done up to this task need not be in the journal.
    pub(crate) task: u64,
    /// Checksum of the frame before it.
    pub(crate) previous: u32,
    pub(crate) crc: u32,
    /// Encoded changes.
    pub(crate) body: &'a [u8],
}

/// What a frame takes in a segment.
pub(crate) fn padded_bytes(body_bytes: usize) -> usize {
    (HEADER_BYTES + body_bytes).next_multiple_of(SECTOR_BYTES)
}

/// Begins a frame in the buffer: changes follow, then [`seal`].
pub(crate) fn begin(out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEADER_BYTES, 0);
}

/// The header of a frame, but for what follows from its changes.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) stamp: u64,
    pub(crate) number: u64,
    pub(crate) oldest: u64,
    pub(crate) task: u64,
    pub(crate) previous: u32,
}

/// Writes the header of the frame in the buffer, pads it, and returns its checksum.
pub(crate) fn seal(out: &mut Vec<u8>, header: Header) -> u32 {
    let body_bytes = out.len() - HEADER_BYTES;
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    for (at, number) in [(8, header.number), (16, header.oldest), (24, header.task), (32, header.stamp)] {
        out[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    out[40..CRC_AT].copy_from_slice(&header.previous.to_le_bytes());
    let crc = checksum(out);
    out[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    out.resize(padded_bytes(body_bytes), 0);
    crc
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..CRC_AT]), &frame[HEADER_BYTES..])
}

/// The frame of this journal that the bytes begin with, if there is one and it is whole.
pub(crate) fn decode(bytes: &[u8], stamp: u64) -> Option<Frame<'_>> {
    if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC || u64_at(bytes, 32, u64::from_le_bytes) != stamp {
        return None;
    }
    let frame = bytes.get(..HEADER_BYTES.checked_add(u32_at(bytes, 4) as usize)?)?;
    let crc = u32_at(bytes, CRC_AT);
    if checksum(frame) != crc {
        return None;
    }
    Some(Frame {
        number: u64_at(bytes, 8, u64::from_le_bytes),
        oldest: u64_at(bytes, 16, u64::from_le_bytes),
        task: u64_at(bytes, 24, u64::from_le_bytes),
        previous: u32_at(bytes, 40),
        crc,
        body: &frame[HEADER_BYTES..],
    })
}

/// Appends one change to the frame in the buffer.
pub(crate) fn push(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::Begin(index) => push_raw(kind::BEGIN, 0, *index, &[], out),
        Change::Append(Record { position, payload }) => {
            push_raw(kind::APPEND, position.term, position.index, payload, out);
        }
        Change::Vote { sequence, vote } => push_raw(kind::VOTE, 0, *sequence, vote, out),
        Change::Truncate(index) => push_raw(kind::TRUNCATE, 0, *index, &[], out),
        Change::Purge(upto) => push_raw(kind::PURGE, upto.term, upto.index, &[], out),
        Change::Committed(mark) => push_raw(kind::COMMITTED, 0, 0, mark, out),
    }
}

fn push_raw(kind: u8, term: u64, index: u64, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(&term.to_le_bytes());
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(data);
}

/// The changes of a frame, in order. The error is a sentence: the checksum matched, so another program wrote it.
pub(crate) fn changes(mut body: &[u8]) -> Result<Vec<Change>, String> {
    let mut found = Vec::new();
    while !body.is_empty() {
        let (header, rest) = body.split_at_checked(CHANGE_HEADER_BYTES).ok_or("a change is cut off")?;
        let (data, rest) = rest.split_at_checked(u32_at(header, 4) as usize).ok_or("a change is cut off")?;
        let (term, index) = (u64_at(header, 8, u64::from_le_bytes), u64_at(header, 16, u64::from_le_bytes));
        // One follows every index.
        if index == u64::MAX {
            return Err("a change has an impossible index".into());
        }
        let (position, data) = (LogPosition { term, index }, || Bytes::copy_from_slice(data));
        found.push(match header[0] {
            kind::BEGIN => Change::Begin(index),
            kind::APPEND => Change::Append(Record { position, payload: data() }),
            kind::VOTE => Change::Vote { sequence: index, vote: data() },
            kind::TRUNCATE => Change::Truncate(index),
            kind::PURGE => Change::Purge(position),
            kind::COMMITTED => Change::Committed(data()),
            other => return Err(format!("a change has the kind {other}, which this build does not know")),
        });
        body = rest;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_kinds() -> Vec<Change> {
        let record = |index, bytes| Record { position: LogPosition { term: 2, index }, payload: vec![7; bytes].into() };
        vec![
            Change::Begin(4),
            Change::Append(record(4, 10)),
            Change::Append(record(5, 0)),
            Change::Vote { sequence: 9, vote: "ballot".into() },
            Change::Truncate(5),
            Change::Purge(LogPosition { term: 1, index: 3 }),
            Change::Append(record(6, 900)),
            Change::Committed("four".into()),
        ]
    }

    fn frame(changes: &[Change]) -> Vec<u8> {
        let mut out = vec![0xEE; 7];
        begin(&mut out);
        changes.iter().for_each(|change| push(change, &mut out));
        seal(&mut out, Header { stamp: 7, number: 42, oldest: 40, task: 3, previous: 0xABCD });
        out
    }

    #[test]
    fn a_frame_comes_back_and_every_flipped_bit_of_it_is_noticed() {
        let mut bytes = frame(&all_kinds());
        assert_eq!(bytes.len(), 3 * SECTOR_BYTES);
        let found = decode(&bytes, 7).unwrap();
        assert_eq!((found.number, found.oldest, found.task, found.previous), (42, 40, 3, 0xABCD));
        assert_eq!(changes(found.body).unwrap(), all_kinds());
        assert_eq!(decode(&bytes, 8), None, "of another journal");
        let whole = HEADER_BYTES + found.body.len();
        for at in 0..whole * 8 {
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode(&bytes, 7), None, "bit {at}");
            bytes[at / 8] ^= 1 << (at % 8);
        }
        for length in 0..whole {
            assert_eq!(decode(&bytes[..length], 7), None, "cut to {length} bytes");
        }
    }

    #[test]
    fn an_empty_frame_is_one_sector() {
        let bytes = frame(&[]);
        assert_eq!((bytes.len(), changes(decode(&bytes, 7).unwrap().body)), (SECTOR_BYTES, Ok(vec![])));
        assert_eq!(padded_bytes(SECTOR_BYTES - HEADER_BYTES), SECTOR_BYTES);
        assert_eq!(padded_bytes(SECTOR_BYTES - HEADER_BYTES + 1), 2 * SECTOR_BYTES);
    }

    #[test]
    fn an_unknown_kind_and_a_change_that_is_cut_off_are_refused() {
        let mut body = Vec::new();
        push_raw(77, 0, 0, b"x", &mut body);
        assert!(changes(&body).unwrap_err().contains("kind 77"));
        assert!(changes(&body[..10]).is_err());
        assert!(changes(&frame(&[Change::Begin(u64::MAX)])[HEADER_BYTES..][..CHANGE_HEADER_BYTES]).is_err());
        push(&Change::Committed("abc".into()), &mut body);
        assert!(changes(&body[CHANGE_HEADER_BYTES + 1..body.len() - 3]).is_err());
    }

    #[test]
    fn the_check_of_system_calls_knows_frames_and_their_changes() {
        use lockkeeper_checkers::sync_trace;

        assert_eq!((sync_trace::FRAME_MAGIC, sync_trace::FRAME_HEADER_BYTES), (MAGIC, HEADER_BYTES));
        assert_eq!(sync_trace::CHANGE_HEADER_BYTES, CHANGE_HEADER_BYTES);
        assert_eq!((sync_trace::RECORD_CHANGE, sync_trace::VOTE_CHANGE), (kind::APPEND, kind::VOTE));
    }
}
