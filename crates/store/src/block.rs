//! The bytes of a block: many consecutive records in one value of sled, which costs it no more than one record does.
//! Pure.
//!
//! A block lies under the key of its first record. It is never larger than [`limit`], so that sled keeps it in its log
//! and not in a blob file, which it never syncs. A sled of an older build gets none: that build may be put back.

use std::path::Path;

use crate::codec::{self, Assembly, MAX_VALUE_BYTES};
use crate::position::LogPosition;
use crate::types::Record;

/// First bytes of a block; the last one is the version.
pub(crate) const MAGIC: [u8; 4] = *b"LKb1";
/// magic 4, records 4, index of the first 8, length of the records 4, crc 4.
pub(crate) const HEADER_BYTES: usize = 24;
/// term 8, length 4.
pub(crate) const RECORD_HEADER_BYTES: usize = 12;

/// sled's segments in directories that a build made which knows no blocks and no journal.
pub(crate) const OLD_SLED_SEGMENT_BYTES: usize = 512 * 1024;

/// Largest block in a sled with segments of this size; 0 if it gets none. sled writes a leaf page, of up to 20 values,
/// as one message, and makes it a blob from a quarter of a segment on.
pub(crate) fn limit(sled_segment_bytes: usize) -> usize {
    match sled_segment_bytes {
        OLD_SLED_SEGMENT_BYTES => 0,
        bytes => (bytes / 128).clamp(MAX_VALUE_BYTES, 128 * 1024),
    }
}

/// The size of the segments of the sled in this directory, which is fixed when it is created; nothing where sled has
/// not said it.
pub(crate) fn sled_segment_bytes(sled: &Path) -> Option<usize> {
    let settings = std::fs::read(sled.join("conf")).ok()?;
    let text = String::from_utf8_lossy(&settings);
    text.lines().find_map(|line| line.strip_prefix("segment_size: ")?.trim().parse().ok())
}

/// How many of the records, from the first on, fit into one block.
pub(crate) fn fitting(records: &[Record], limit: usize) -> usize {
    let mut bytes = HEADER_BYTES;
    let fits = |record: &&Record| {
        bytes += RECORD_HEADER_BYTES + record.payload.len();
        bytes <= limit
    };
    records.iter().take_while(fits).count()
}

/// The block of these records, which are consecutive.
pub(crate) fn encode(records: &[Record], out: &mut Vec<u8>) {
    let first = records.first().map_or(0, |record| record.position.index);
    out.clear();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&(records.len() as u32).to_le_bytes());
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    for record in records {
        out.extend_from_slice(&record.position.term.to_le_bytes());
        out.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&record.payload);
    }
    let body_bytes = (out.len() - HEADER_BYTES) as u32;
    out[16..20].copy_from_slice(&body_bytes.to_le_bytes());
    seal(out);
}

/// Writes the checksum of a block into it.
pub(crate) fn seal(block: &mut [u8]) {
    let crc = checksum(block);
    block[20..24].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..HEADER_BYTES - 4]), &block[HEADER_BYTES..])
}

/// Whether a value is a block, and not a part of a record.
pub(crate) fn is_block(value: &[u8]) -> bool {
    value.starts_with(&MAGIC[..3])
}

/// The index of the last record of a block, as its header says; nothing for other values.
pub(crate) fn last_index(value: &[u8]) -> Option<u64> {
    if !is_block(value) || value.len() < HEADER_BYTES {
        return None;
    }
    let (records, first) = (codec::u32_at(value, 4), codec::u64_at(value, 8, u64::from_le_bytes));
    first.checked_add(u64::from(records.checked_sub(1)?))
}

/// Checks a block and gives its records.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Vec<Record>, String> {
    let (first, part) = codec::split_key(key)?;
    let damaged = |what: &str| format!("the block at record {first} {what}");
    if value.len() < HEADER_BYTES {
        return Err(damaged("is cut off"));
    }
    if !is_block(value) {
        return Err(damaged("does not begin as a block does"));
    }
    if checksum(value) != codec::u32_at(value, 20) {
        return Err(damaged("does not match its checksum"));
    }
    if value[3] != MAGIC[3] {
        return Err(damaged(&format!(
            "has version {}, and this build reads {}",
            char::from(value[3]),
            char::from(MAGIC[3])
        )));
    }
    let contradicts = || damaged("contradicts its own header or key");
    let (count, index) = (codec::u32_at(value, 4), codec::u64_at(value, 8, u64::from_le_bytes));
    let mut rest = &value[HEADER_BYTES..];
    if index != first || part != 0 || count == 0 || codec::u32_at(value, 16) as usize != rest.len() {
        return Err(contradicts());
    }
    let mut records = Vec::new();
    for at in 0..u64::from(count) {
        let (header, after) = rest.split_at_checked(RECORD_HEADER_BYTES).ok_or_else(contradicts)?;
        let (payload, after) = after.split_at_checked(codec::u32_at(header, 8) as usize).ok_or_else(contradicts)?;
        let index = first.checked_add(at).ok_or_else(contradicts)?;
        let position = LogPosition { term: codec::u64_at(header, 0, u64::from_le_bytes), index };
        records.push(Record { position, payload: payload.to_vec().into() });
        rest = after;
    }
    if rest.is_empty() { Ok(records) } else { Err(contradicts()) }
}

/// Takes the next value of sled's log, a block or a part of a record, and hands on each record that is complete.
pub(crate) fn read(
    assembly: &mut Assembly,
    key: &[u8],
    value: &[u8],
    mut each: impl FnMut(Record) -> Result<(), String>,
) -> Result<(), String> {
    if !is_block(value) {
        let record = assembly.push(&codec::decode_part(key, value)?)?;
        return record.map_or(Ok(()), each);
    }
    let records = decode(key, value)?;
    if let Some(open) = assembly.open_index() {
        return Err(format!("record {open} lacks its last parts, yet a block follows"));
    }
    records.into_iter().try_for_each(&mut each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::part_key;

    fn records(sizes: &[usize]) -> Vec<Record> {
        let record = |(index, bytes): (u64, &usize)| Record {
            position: LogPosition { term: 3 + index / 2, index },
            payload: vec![index as u8; *bytes].into(),
        };
        (77..).zip(sizes).map(record).collect()
    }

    #[test]
    fn records_come_back_from_a_block() {
        let records = records(&[0, 10, 300, 1]);
        let mut block = Vec::new();
        encode(&records, &mut block);
        assert_eq!(decode(&part_key(77, 0), &block).unwrap(), records);
        assert_eq!((is_block(&block), last_index(&block)), (true, Some(80)));
        assert!(decode(&part_key(78, 0), &block).is_err() && decode(&part_key(77, 1), &block).is_err());
        block[0] = b'l';
        seal(&mut block);
        assert!(decode(&part_key(77, 0), &block).unwrap_err().contains("does not begin as a block does"));
    }

    #[test]
    fn every_flipped_bit_of_a_block_is_noticed() {
        let mut block = Vec::new();
        encode(&records(&[5, 0, 20]), &mut block);
        for at in 0..block.len() * 8 {
            block[at / 8] ^= 1 << (at % 8);
            assert!(decode(&part_key(77, 0), &block).is_err(), "bit {at}");
            block[at / 8] ^= 1 << (at % 8);
        }
        for length in 0..block.len() {
            assert!(decode(&part_key(77, 0), &block[..length]).is_err(), "cut to {length} bytes");
        }
    }

    #[test]
    fn a_block_takes_as_much_as_its_limit() {
        let records = records(&[100, 100, 100]);
        let of = |count: usize| HEADER_BYTES + count * (RECORD_HEADER_BYTES + 100);
        assert_eq!([of(1) - 1, of(1), of(3) - 1, of(3)].map(|limit| fitting(&records, limit)), [0, 1, 2, 3]);
        let mut block = Vec::new();
        encode(&records, &mut block);
        assert_eq!(block.len(), of(3));
    }

    #[test]
    fn a_leaf_page_of_blocks_stays_below_a_quarter_of_a_segment() {
        for segment_bytes in [1 << 20, 4 << 20, 16 << 20] {
            assert!(20 * (limit(segment_bytes) + 64) < segment_bytes / 4, "{segment_bytes}");
        }
        assert_eq!([512 << 10, 4 << 20, 16 << 20].map(limit), [0, 32 << 10, 128 << 10]);
    }

    #[test]
    fn sleds_own_settings_tell_the_size_of_its_segments() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(sled_segment_bytes(dir.path()), None);
        drop(sled::Config::new().path(dir.path()).segment_size(1 << 16).open().unwrap());
        assert_eq!(sled_segment_bytes(dir.path()), Some(1 << 16));
    }

    #[test]
    fn the_check_of_system_calls_knows_blocks() {
        use lockkeeper_checkers::sync_trace;

        assert_eq!((sync_trace::BLOCK_MAGIC, sync_trace::BLOCK_HEADER_BYTES), (MAGIC, HEADER_BYTES));
        assert_eq!(sync_trace::BLOCK_RECORD_HEADER_BYTES, RECORD_HEADER_BYTES);
    }
}
