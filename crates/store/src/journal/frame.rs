//! The bytes of one frame of the journal: what a batch of commands changes, made durable by one write. Pure.
//!
//! A frame begins at a multiple of [`PAGE_BYTES`] and is padded with zeros to the next one. Its header names the run of
//! the journal (a random stamp, new at each open), its number in the log directory, and the checksum of the frame
//! before it. So a frame of an earlier use of the segment never continues a later one, and no client can write a
//! payload that passes for a frame.

use crate::codec::{u32_at, u64_at};

/// What the disk is asked to write at least, and where a write may begin.
pub(crate) const PAGE_BYTES: usize = 4096;
/// First bytes of a frame; the last one is the version.
const MAGIC: [u8; 4] = *b"LKj1";
/// magic 4, length of the body 4, sequence 8, stamp 8, checksum of the previous frame 4, crc 4.
pub(crate) const HEADER_BYTES: usize = 32;
const CRC_AT: usize = HEADER_BYTES - 4;

/// A frame as read back; its checksum matches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) sequence: u64,
    /// Checksum of the frame before it.
    pub(crate) previous: u32,
    pub(crate) crc: u32,
    pub(crate) body: &'a [u8],
}

/// What a frame takes in a segment.
pub(crate) fn padded_bytes(body_bytes: usize) -> usize {
    (HEADER_BYTES + body_bytes).next_multiple_of(PAGE_BYTES)
}

/// Fills `out`, which has the padded length, and returns the frame's checksum.
pub(crate) fn encode(stamp: u64, sequence: u64, previous: u32, body: &[u8], out: &mut [u8]) -> u32 {
    let (header, rest) = out.split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..24].copy_from_slice(&stamp.to_le_bytes());
    header[24..CRC_AT].copy_from_slice(&previous.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), body);
    header[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    let (content, padding) = rest.split_at_mut(body.len());
    content.copy_from_slice(body);
    padding.fill(0);
    crc
}

/// The frame of this run that the bytes begin with, if there is one and it is whole.
pub(crate) fn decode(bytes: &[u8], stamp: u64) -> Option<Frame<'_>> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    if header[..4] != MAGIC || u64_at(header, 16, u64::from_le_bytes) != stamp {
        return None;
    }
    let body = rest.get(..u32_at(header, 4) as usize)?;
    let crc = u32_at(header, CRC_AT);
    if crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), body) != crc {
        return None;
    }
    Some(Frame { sequence: u64_at(header, 8, u64::from_le_bytes), previous: u32_at(header, 24), crc, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_every_flipped_bit_of_it_is_noticed() {
        let body: Vec<u8> = (0..5000_u32).map(|at| at as u8).collect();
        let mut bytes = vec![0xFF; padded_bytes(body.len())];
        let crc = encode(7, 42, 0xABCD, &body, &mut bytes);
        assert_eq!(bytes.len(), 2 * PAGE_BYTES);
        assert_eq!(decode(&bytes, 7), Some(Frame { sequence: 42, previous: 0xABCD, crc, body: &body }));
        assert_eq!(decode(&bytes, 8), None, "of another run");
        for at in 0..(HEADER_BYTES + body.len()) * 8 {
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode(&bytes, 7), None, "bit {at}");
            bytes[at / 8] ^= 1 << (at % 8);
        }
        for length in 0..HEADER_BYTES + body.len() {
            assert_eq!(decode(&bytes[..length], 7), None, "cut to {length} bytes");
        }
    }

    #[test]
    fn frames_fill_whole_pages() {
        assert_eq!(padded_bytes(0), PAGE_BYTES);
        assert_eq!(padded_bytes(PAGE_BYTES - HEADER_BYTES), PAGE_BYTES);
        assert_eq!(padded_bytes(PAGE_BYTES - HEADER_BYTES + 1), 2 * PAGE_BYTES);
    }
}
