//! Which frames of the journal are to be applied to sled at open. Pure: the segments' bytes in, frames or a sentence
//! about the damage out.
//!
//! A frame is written only when the one before it is durable. So of the frames after those that sled has, only the last
//! can be torn; a gap before a whole frame is damage.

use std::collections::BTreeMap;

use super::frame::{self, Frame, PAGE_BYTES};

/// The frames after `applied`, in order and without a gap; the journal may end in a torn one, which was never
/// acknowledged.
pub(crate) fn frames_after(segments: &[Vec<u8>], stamp: u64, applied: u64) -> Result<Vec<Frame<'_>>, String> {
    let mut found = BTreeMap::new();
    for segment in segments {
        let mut at = 0;
        while let Some(rest) = segment.get(at..).filter(|rest| !rest.is_empty()) {
            let frame = frame::decode(rest, stamp);
            at += frame.as_ref().map_or(PAGE_BYTES, |frame| frame::padded_bytes(frame.body.len()));
            // A segment is used again only when all its frames are in sled, so any left there are not above `applied`.
            let Some(frame) = frame.filter(|frame| frame.sequence >= applied) else { continue };
            if let Some(other) = found.insert(frame.sequence, frame) {
                return Err(format!("frame {} is there twice", other.sequence));
            }
        }
    }
    let mut before = found.remove(&applied).map(|frame| frame.crc);
    for (frame, expected) in found.values().zip(applied + 1..) {
        if frame.sequence != expected {
            return Err(format!("frame {expected} is damaged or missing, yet frame {} is there", frame.sequence));
        }
        if before.is_some_and(|before| before != frame.previous) {
            return Err(format!("frame {expected} does not continue the one before it"));
        }
        before = Some(frame.crc);
    }
    Ok(found.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: u64 = 77;

    /// Writes frames one after the other; gives the checksum of the last.
    fn write(segment: &mut [u8], sequences: std::ops::RangeInclusive<u64>, mut previous: u32) -> u32 {
        let mut at = 0;
        for sequence in sequences {
            let body = vec![sequence as u8; 100 + 3000 * (sequence as usize % 3)];
            let end = at + frame::padded_bytes(body.len());
            previous = frame::encode(STAMP, sequence, previous, &body, &mut segment[at..end]);
            at = end;
        }
        previous
    }

    fn sequences(segments: &[Vec<u8>], applied: u64) -> Result<Vec<u64>, String> {
        Ok(frames_after(segments, STAMP, applied)?.iter().map(|frame| frame.sequence).collect())
    }

    /// Frames 5 to 8 in the second segment, 9 and 10 over older ones in the first.
    fn segments() -> Vec<Vec<u8>> {
        let mut segments = vec![vec![0; 8 * PAGE_BYTES]; 2];
        let end = write(&mut segments[0], 1..=4, 0);
        let end = write(&mut segments[1], 5..=8, end);
        write(&mut segments[0], 9..=10, end);
        segments
    }

    #[test]
    fn frames_are_found_across_segments_and_stale_ones_are_left_out() {
        let segments = segments();
        assert_eq!(sequences(&segments, 4), Ok(vec![5, 6, 7, 8, 9, 10]));
        assert_eq!(sequences(&segments, 8), Ok(vec![9, 10]));
        assert_eq!(sequences(&segments, 10), Ok(vec![]));
        assert_eq!(frames_after(&segments, STAMP + 1, 4), Ok(vec![]), "of another run");
    }

    #[test]
    fn a_torn_last_frame_ends_the_journal_and_a_gap_before_a_frame_is_damage() {
        let whole = segments();
        // Frame 10 lies behind frame 9, which has one page.
        let mut torn = whole.clone();
        torn[0][PAGE_BYTES + 50] ^= 1;
        assert_eq!(sequences(&torn, 4), Ok(vec![5, 6, 7, 8, 9]));
        let mut gap = whole.clone();
        gap[0][50] ^= 1;
        assert!(sequences(&gap, 4).unwrap_err().contains("frame 9 is damaged or missing, yet frame 10 is there"));
        assert!(sequences(&gap, 10).unwrap().is_empty(), "what sled has is not needed");
        assert!(sequences(&whole, 1).unwrap_err().contains("frame 2 is damaged or missing, yet frame 3"));
    }

    #[test]
    fn a_frame_that_does_not_follow_the_one_before_it_is_damage() {
        let mut segments = segments();
        write(&mut segments[0], 9..=10, 0xBAD);
        assert!(sequences(&segments, 4).unwrap_err().contains("frame 9 does not continue"));
        assert!(sequences(&segments, 8).unwrap_err().contains("frame 9 does not continue"));
    }

    #[test]
    fn a_stale_frame_behind_a_torn_one_is_never_taken() {
        let mut segments = vec![vec![0; 8 * PAGE_BYTES]; 2];
        let end = write(&mut segments[0], 1..=6, 0);
        // Segment 0 again, its first frame torn: frames 2 to 6 are whole, and of an earlier use.
        write(&mut segments[0], 7..=7, end);
        segments[0][40] ^= 1;
        assert_eq!(sequences(&segments, 6), Ok(vec![]));
    }
}
