//! The bytes of log parts, log keys and meta values. Pure: bytes in, values or a sentence about the damage out.
//!
//! A record that is too large for a block (`block.rs`) is split into parts of at most 4 KiB, because sled puts larger
//! values into blob files that it never syncs; directories from before there were blocks have parts alone. Each part
//! names its record, its place and the total length, and carries a CRC32C over everything in it.

use bytes::Bytes;

use crate::position::LogPosition;
use crate::types::{Identity, Record};

/// First bytes of a part; the last one is the version.
pub(crate) const PART_MAGIC: [u8; 4] = *b"LKr1";
/// First bytes of a meta value; the last one is the version.
pub(crate) const META_MAGIC: [u8; 4] = *b"LKm1";
/// magic 4, part 2, parts 2, index 8, term 8, total 4, crc 4.
pub(crate) const PART_HEADER_BYTES: usize = 32;
/// magic 4, kind 1, zeros 3, sequence 8, length 4, crc 4.
const META_HEADER_BYTES: usize = 24;
/// Largest value handed to sled.
pub(crate) const MAX_VALUE_BYTES: usize = 4096;
/// Payload bytes of a full part.
pub(crate) const PART_DATA_BYTES: usize = MAX_VALUE_BYTES - PART_HEADER_BYTES;
/// Largest data of a meta value.
pub(crate) const MAX_META_BYTES: usize = MAX_VALUE_BYTES - META_HEADER_BYTES;

/// Key of one part: index and part number, big-endian, so that keys sort as the log does.
pub(crate) fn part_key(index: u64, part: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&index.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The reverse of [`part_key`].
pub(crate) fn split_key(key: &[u8]) -> Result<(u64, u16), String> {
    let key: [u8; 10] = key.try_into().map_err(|_| format!("a log key of {} bytes", key.len()))?;
    Ok((u64_at(&key, 0, u64::from_be_bytes), u16::from_be_bytes([key[8], key[9]])))
}

/// Number of parts of a payload; an empty one has one part.
pub(crate) fn part_count(payload_bytes: usize) -> usize {
    payload_bytes.div_ceil(PART_DATA_BYTES).max(1)
}

/// The value of one part.
pub(crate) fn encode_part(record: &Record, part: u16, out: &mut Vec<u8>) {
    let total = record.payload.len();
    let from = usize::from(part) * PART_DATA_BYTES;
    let data = &record.payload[from..total.min(from + PART_DATA_BYTES)];
    out.clear();
    out.extend_from_slice(&PART_MAGIC);
    out.extend_from_slice(&part.to_le_bytes());
    out.extend_from_slice(&(part_count(total) as u16).to_le_bytes());
    out.extend_from_slice(&record.position.index.to_le_bytes());
    out.extend_from_slice(&record.position.term.to_le_bytes());
    out.extend_from_slice(&(total as u32).to_le_bytes());
    seal(out, data);
}

/// One part as read back.
pub(crate) struct Part<'a> {
    pub(crate) position: LogPosition,
    pub(crate) part: u16,
    pub(crate) parts: u16,
    pub(crate) total: usize,
    pub(crate) data: &'a [u8],
}

/// Checks and reads one part.
pub(crate) fn decode_part<'a>(key: &[u8], value: &'a [u8]) -> Result<Part<'a>, String> {
    let (index, part) = split_key(key)?;
    let data =
        unseal(value, PART_MAGIC, PART_HEADER_BYTES).map_err(|what| format!("part {part} of record {index} {what}"))?;
    let read = Part {
        position: LogPosition {
            index: u64_at(value, 8, u64::from_le_bytes),
            term: u64_at(value, 16, u64::from_le_bytes),
        },
        part: u16::from_le_bytes([value[4], value[5]]),
        parts: u16::from_le_bytes([value[6], value[7]]),
        total: u32_at(value, 24) as usize,
        data,
    };
    let from = usize::from(read.part) * PART_DATA_BYTES;
    let expected = read.total.saturating_sub(from).min(PART_DATA_BYTES);
    let consistent = read.position.index == index
        && read.part == part
        && usize::from(read.parts) == part_count(read.total)
        && read.part < read.parts
        && data.len() == expected;
    if consistent { Ok(read) } else { Err(format!("part {part} of record {index} contradicts its own header or key")) }
}

/// The small values beside the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaKind {
    Identity = 1,
    Incarnation = 2,
    Vote = 3,
    Purged = 4,
    Committed = 5,
    /// First index of a log that was never purged and yet does not start at 0.
    Start = 6,
    /// The last task that the journal's writer had sled do.
    Task = 7,
}

impl MetaKind {
    pub(crate) fn key(self) -> &'static [u8] {
        match self {
            MetaKind::Identity => b"identity",
            MetaKind::Incarnation => b"incarnation",
            MetaKind::Vote => b"vote",
            MetaKind::Purged => b"purged",
            MetaKind::Committed => b"committed",
            MetaKind::Start => b"start",
            MetaKind::Task => b"task",
        }
    }
}

/// A meta value; of two, the one with the higher sequence is newer.
pub(crate) fn encode_meta(kind: MetaKind, sequence: u64, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(META_HEADER_BYTES + data.len());
    out.extend_from_slice(&META_MAGIC);
    out.extend_from_slice(&[kind as u8, 0, 0, 0]);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    seal(&mut out, data);
    out
}

/// Checks and reads a meta value: its sequence and data.
pub(crate) fn decode_meta(kind: MetaKind, value: &[u8]) -> Result<(u64, &[u8]), String> {
    let data = unseal(value, META_MAGIC, META_HEADER_BYTES).map_err(|what| format!("meta value {kind:?} {what}"))?;
    if value[4] != kind as u8 || u32_at(value, 16) as usize != data.len() {
        return Err(format!("meta value {kind:?} contradicts its own header or key"));
    }
    Ok((u64_at(value, 8, u64::from_le_bytes), data))
}

pub(crate) fn encode_position(position: LogPosition) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&position.term.to_le_bytes());
    out[8..].copy_from_slice(&position.index.to_le_bytes());
    out
}

pub(crate) fn decode_position(data: &[u8]) -> Result<LogPosition, String> {
    if data.len() != 16 {
        return Err(format!("a log position of {} bytes", data.len()));
    }
    Ok(LogPosition { term: u64_at(data, 0, u64::from_le_bytes), index: u64_at(data, 8, u64::from_le_bytes) })
}

pub(crate) fn encode_identity(identity: &Identity) -> Vec<u8> {
    let mut out = identity.directory.to_le_bytes().to_vec();
    out.extend_from_slice(&identity.node.to_le_bytes());
    out.extend_from_slice(identity.cluster.as_bytes());
    out
}

pub(crate) fn decode_identity(data: &[u8]) -> Result<Identity, String> {
    let Some((directory, rest)) = data.split_first_chunk::<16>() else { return Err("identity too short".into()) };
    let Some((node, cluster)) = rest.split_first_chunk::<8>() else { return Err("identity too short".into()) };
    let cluster = String::from_utf8(cluster.to_vec()).map_err(|_| "identity is not text".to_owned())?;
    Ok(Identity { cluster, node: u64::from_le_bytes(*node), directory: u128::from_le_bytes(*directory) })
}

pub(crate) fn decode_u64(data: &[u8]) -> Result<u64, String> {
    data.try_into().map(u64::from_le_bytes).map_err(|_| format!("a number of {} bytes", data.len()))
}

/// Puts the parts of one record together, in order.
#[derive(Default)]
pub(crate) struct Assembly {
    head: Option<(LogPosition, u16, usize)>,
    next_part: u16,
    payload: Vec<u8>,
}

impl Assembly {
    /// Index of the record that is still incomplete.
    pub(crate) fn open_index(&self) -> Option<u64> {
        self.head.map(|(position, ..)| position.index)
    }

    /// Takes the next part; returns the record once it is complete.
    pub(crate) fn push(&mut self, part: &Part<'_>) -> Result<Option<Record>, String> {
        let head = (part.position, part.parts, part.total);
        let index = part.position.index;
        match self.head {
            None if part.part != 0 => return Err(format!("record {index} lacks its first {} parts", part.part)),
            None => (self.head, self.next_part) = (Some(head), 0),
            Some(open) if open != head => {
                return Err(format!(
                    "record {} lacks parts from {} on, yet more follows",
                    open.0.index, self.next_part
                ));
            }
            Some(_) if part.part != self.next_part => {
                return Err(format!("record {index} lacks part {}", self.next_part));
            }
            Some(_) => {}
        }
        self.payload.extend_from_slice(part.data);
        self.next_part = part.part + 1;
        if self.next_part < part.parts {
            return Ok(None);
        }
        self.head = None;
        Ok(Some(Record { position: part.position, payload: Bytes::from(std::mem::take(&mut self.payload)) }))
    }
}

/// Appends the CRC of the header so far and of the data, then the data.
fn seal(out: &mut Vec<u8>, data: &[u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(out), data);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(data);
}

/// Checks a value made by [`seal`], and returns its data.
fn unseal(value: &[u8], magic: [u8; 4], header_bytes: usize) -> Result<&[u8], String> {
    if value.len() < header_bytes {
        return Err(format!("is {} bytes short", header_bytes - value.len()));
    }
    let (header, data) = value.split_at(header_bytes);
    let crc_at = header_bytes - 4;
    if crc32c::crc32c_append(crc32c::crc32c(&header[..crc_at]), data) != u32_at(header, crc_at) {
        return Err("does not match its checksum".into());
    }
    if header[..3] != magic[..3] {
        return Err("is not one of ours".into());
    }
    if header[3] != magic[3] {
        return Err(format!("has version {}, and this build reads {}", char::from(header[3]), char::from(magic[3])));
    }
    Ok(data)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize, convert: fn([u8; 8]) -> u64) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    convert(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload_bytes: usize) -> Record {
        let payload: Vec<u8> = (0..payload_bytes).map(|i| (i % 251) as u8).collect();
        Record { position: LogPosition { term: 3, index: 77 }, payload: payload.into() }
    }

    fn parts(record: &Record) -> Vec<([u8; 10], Vec<u8>)> {
        let count = part_count(record.payload.len()) as u16;
        let encode = |part| {
            let mut out = Vec::new();
            encode_part(record, part, &mut out);
            (part_key(record.position.index, part), out)
        };
        (0..count).map(encode).collect()
    }

    #[test]
    fn a_record_of_any_size_comes_back_from_parts_of_at_most_4_kib() {
        for size in [0, 1, PART_DATA_BYTES - 1, PART_DATA_BYTES, PART_DATA_BYTES + 1, 1024 * 1024] {
            let record = record(size);
            let mut assembly = Assembly::default();
            let mut whole = None;
            for (key, value) in parts(&record) {
                assert!(value.len() <= MAX_VALUE_BYTES);
                assert!(whole.is_none());
                whole = assembly.push(&decode_part(&key, &value).unwrap()).unwrap();
            }
            assert_eq!(whole, Some(record), "payload of {size} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_part_is_noticed() {
        let (key, value) = parts(&record(40)).remove(0);
        for at in 0..value.len() * 8 {
            let mut damaged = value.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(decode_part(&key, &damaged).is_err(), "bit {at}");
        }
        assert!(decode_part(&part_key(78, 0), &value).is_err(), "a part under another record's key");
    }

    #[test]
    fn missing_parts_are_noticed() {
        let all = parts(&record(3 * PART_DATA_BYTES));
        let push = |assembly: &mut Assembly, at: usize| assembly.push(&decode_part(&all[at].0, &all[at].1).unwrap());
        assert!(push(&mut Assembly::default(), 1).is_err());
        let mut assembly = Assembly::default();
        assert!(push(&mut assembly, 0).unwrap().is_none());
        assert_eq!(assembly.open_index(), Some(77));
        assert!(push(&mut assembly, 2).is_err());
    }

    #[test]
    fn meta_values_carry_kind_and_sequence() {
        let value = encode_meta(MetaKind::Vote, 9, b"ballot");
        assert_eq!(decode_meta(MetaKind::Vote, &value).unwrap(), (9, &b"ballot"[..]));
        assert!(decode_meta(MetaKind::Purged, &value).is_err());
    }

    #[test]
    fn the_check_of_system_calls_knows_records_and_votes_by_their_first_bytes() {
        use lockkeeper_checkers::sync_trace;

        assert_eq!((sync_trace::PART_MAGIC, sync_trace::META_MAGIC), (PART_MAGIC, META_MAGIC));
        assert_eq!(sync_trace::VOTE_KIND, MetaKind::Vote as u8);
    }
}
