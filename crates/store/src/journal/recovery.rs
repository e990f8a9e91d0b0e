//! What the journal holds at open, and what follows from it for the log. Pure: the segments' bytes in, the frames that
//! are needed and the log that they make out, or a sentence about the damage.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockkeeper_mutants::mutant;

use super::frame::{self, Change, Frame, SECTOR_BYTES};
use super::segment::FIRST_FRAME_AT;
use crate::position::LogPosition;
use crate::types::Record;

/// A frame that is needed, and where it was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundFrame {
    pub(crate) number: u64,
    /// The oldest frame that it needs.
    pub(crate) oldest: u64,
    /// The last task of sled that it relies on.
    pub(crate) task: u64,
    pub(crate) crc: u32,
    pub(crate) changes: Vec<Change>,
    pub(crate) segment: usize,
    /// Where it begins in its segment, and where it ends, with its padding.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The frames of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundFrames {
    /// From the oldest one that the last needs to the last, without a gap. Empty in a journal that was never written.
    pub(crate) needed: Vec<FoundFrame>,
    /// The last frame in each segment, needed or not; 0 where there is none.
    pub(crate) last_in: Vec<u64>,
}

/// A whole frame: itself, its segment, and where it begins there.
type Placed<'a> = (Frame<'a>, usize, usize);

/// Finds the frames that are needed. The last write may be torn, and then its frame is not there: it was never
/// acknowledged. Every other frame that is needed must be whole, because a frame is written only when the one before it
/// is durable.
pub(crate) fn find(segments: &[Vec<u8>], stamp: u64) -> Result<FoundFrames, String> {
    let (mut whole, last_in) = scan(segments, stamp)?;
    let Some((last, oldest)) = whole.last_key_value().map(|(last, (frame, ..))| (*last, frame.oldest)) else {
        return Ok(FoundFrames { needed: Vec::new(), last_in });
    };
    if oldest > last {
        return Err(format!("frame {last} needs none but a later one"));
    }
    let mut before = whole.get(&oldest.saturating_sub(1)).map(|(frame, ..)| frame.crc);
    let mut needed = Vec::new();
    for number in oldest..=last {
        let Some((frame, segment, start)) = whole.remove(&number) else {
            return Err(format!("frame {number} is damaged or missing, yet frame {last} is there and needs it"));
        };
        if before.is_some_and(|before| before != frame.previous) {
            return Err(format!("frame {number} does not continue the one before it"));
        }
        before = Some(frame.crc);
        let end = start + frame::padded_bytes(frame.body.len());
        let Frame { oldest, task, crc, .. } = frame;
        let changes = frame::changes(frame.body).map_err(|what| format!("frame {number}: {what}"))?;
        needed.push(FoundFrame { number, oldest, task, crc, changes, segment, start, end });
    }
    Ok(FoundFrames { needed, last_in })
}

/// Every whole frame, and the last one in each segment.
fn scan(segments: &[Vec<u8>], stamp: u64) -> Result<(BTreeMap<u64, Placed<'_>>, Vec<u64>), String> {
    let mut whole: BTreeMap<u64, Placed<'_>> = BTreeMap::new();
    let mut last_in = vec![0; segments.len()];
    for (segment, content) in segments.iter().enumerate() {
        let mut at = FIRST_FRAME_AT;
        while let Some(rest) = content.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(frame) = frame::decode(rest, stamp) else {
                at += SECTOR_BYTES;
                continue;
            };
            let start = at;
            at += frame::padded_bytes(frame.body.len());
            last_in[segment] = frame.number.max(last_in[segment]);
            if let Some((other, ..)) = whole.insert(frame.number, (frame, segment, start)) {
                return Err(format!("frame {} is there twice", other.number));
            }
        }
    }
    Ok((whole, last_in))
}

/// Votes and marks as sled has them, before the journal is added; each with its sequence. Of two votes, the one with
/// the higher sequence is newer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) vote: Option<(u64, Bytes)>,
    pub(crate) committed: Option<(u64, Bytes)>,
    pub(crate) purged: Option<LogPosition>,
    /// Where a log that was never purged starts.
    pub(crate) start: Option<u64>,
}

/// What the frames make of sled's log: the log is sled's records below `keep`, and then `records`, as far as they lie
/// above `marks.purged`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) marks: Marks,
    pub(crate) keep: u64,
    pub(crate) records: BTreeMap<u64, Record>,
}

impl Replayed {
    /// sled's log alone.
    pub(crate) fn of(marks: Marks) -> Self {
        Self { marks, keep: u64::MAX, records: BTreeMap::new() }
    }

    /// Adds one frame. sled may be ahead of it: the last frame decides, and until then the log may have gaps.
    pub(crate) fn add(&mut self, number: u64, changes: &[Change]) {
        if mutant!(RecoverFromSledAlone) {
            return;
        }
        for change in changes {
            match change {
                Change::Begin(index) => {
                    self.cut(0);
                    self.marks.start = Some(*index);
                }
                Change::Append(record) => {
                    let index = record.position.index;
                    self.cut(index);
                    self.records.insert(index, record.clone());
                }
                Change::Truncate(index) => self.cut(*index),
                Change::Vote { sequence, vote } => {
                    if self.marks.vote.as_ref().is_none_or(|(known, _)| known < sequence) {
                        self.marks.vote = Some((*sequence, vote.clone()));
                    }
                }
                Change::Purge(upto) => {
                    if self.marks.purged.is_none_or(|purged| purged.index < upto.index) {
                        self.marks.purged = Some(*upto);
                    }
                }
                // sled has none that is newer than all frames that are needed: whatever it was given was in one of them
                // or before them. Its number may be that of a frame of an earlier journal.
                Change::Committed(mark) => self.marks.committed = Some((number, mark.clone())),
            }
        }
    }

    /// All frames are added.
    pub(crate) fn finish(&mut self) {
        if let Some(purged) = self.marks.purged {
            self.records = self.records.split_off(&(purged.index + 1));
        }
    }

    /// No record from this index on.
    fn cut(&mut self, index: u64) {
        self.keep = self.keep.min(index);
        drop(self.records.split_off(&index));
    }
}

/// The log of sled and the journal together, as it is read from its start on and checked.
pub(crate) struct WholeLog<'a> {
    replayed: &'a Replayed,
    start: u64,
    expected: u64,
    first: Option<u64>,
    last: Option<LogPosition>,
    sled_next: Option<u64>,
}

impl<'a> WholeLog<'a> {
    /// `purged`: sled's own purge mark.
    pub(crate) fn new(replayed: &'a Replayed, purged: Option<LogPosition>) -> Self {
        let marks = &replayed.marks;
        let start = match (marks.purged, marks.start) {
            (Some(purged), _) => purged.index + 1,
            (None, start) => start.unwrap_or(0),
        };
        let sled_next = purged.map(|purged| purged.index + 1);
        Self { replayed, start, expected: start, first: None, last: marks.purged, sled_next }
    }

    /// The index of the next record; at first, where the log starts.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// The first record, if any.
    pub(crate) fn first(&self) -> Option<u64> {
        self.first
    }

    /// The last record, or the purge mark.
    pub(crate) fn last(&self) -> Option<LogPosition> {
        self.last
    }

    /// The index that follows what sled has; nothing if it has neither a record of the log nor a purge mark.
    pub(crate) fn sled_next(&self) -> Option<u64> {
        self.sled_next
    }

    /// Adds sled's next record; says whether it belongs to the log. The others are purged.
    pub(crate) fn add_of_sled(&mut self, record: &Record) -> Result<bool, String> {
        let index = record.position.index;
        if index < self.start {
            return Ok(false);
        }
        if index >= self.replayed.keep && self.replayed.records.get(&index) != Some(record) {
            return Err(format!("record {index} is not the one that the journal has"));
        }
        self.push(record.position)?;
        self.sled_next = self.sled_next.max(Some(index + 1));
        Ok(true)
    }

    /// Adds the records that sled does not have, and gives them.
    pub(crate) fn add_of_journal(&mut self) -> Result<Vec<Record>, String> {
        let records: Vec<Record> =
            self.replayed.records.range(self.expected..).map(|(_, record)| record.clone()).collect();
        records.iter().try_for_each(|record| self.push(record.position))?;
        Ok(records)
    }

    fn push(&mut self, position: LogPosition) -> Result<(), String> {
        let expected = self.expected;
        if position.index != expected {
            return Err(format!("record {expected} is missing, yet record {} is there", position.index));
        }
        if self.last.is_some_and(|last| position.term < last.term) {
            return Err(format!("the term falls at record {expected}"));
        }
        self.first = self.first.or(Some(position.index));
        self.last = Some(position);
        self.expected += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::frame::Header;
    use super::*;

    const STAMP: u64 = 77;

    /// Writes frames one after the other, each of which needs those from `oldest` on; gives the checksum of the last.
    fn write(content: &mut [u8], numbers: std::ops::RangeInclusive<u64>, oldest: u64, mut previous: u32) -> u32 {
        let (mut at, mut buffer) = (FIRST_FRAME_AT, Vec::new());
        for number in numbers {
            frame::begin(&mut buffer);
            let mark = Bytes::from(vec![number as u8; 100 + 400 * (number as usize % 3)]);
            frame::push(&Change::Committed(mark), &mut buffer);
            previous = frame::seal(&mut buffer, Header { stamp: STAMP, number, oldest, task: 0, previous });
            content[at..at + buffer.len()].copy_from_slice(&buffer);
            at += buffer.len();
        }
        previous
    }

    fn numbers(segments: &[Vec<u8>]) -> Result<Vec<u64>, String> {
        Ok(find(segments, STAMP)?.needed.iter().map(|found| found.number).collect())
    }

    /// Frames 5 to 8 in the second segment, 9 and 10 over older ones in the first. They need those from 6 on.
    fn segments() -> Vec<Vec<u8>> {
        let mut segments = vec![vec![0; 16 * SECTOR_BYTES]; 2];
        let end = write(&mut segments[0], 1..=4, 1, 0);
        let end = write(&mut segments[1], 5..=8, 2, end);
        write(&mut segments[0], 9..=10, 6, end);
        segments
    }

    #[test]
    fn frames_are_found_across_segments_and_what_is_not_needed_is_left_out() {
        let segments = segments();
        assert_eq!(numbers(&segments), Ok(vec![6, 7, 8, 9, 10]));
        assert_eq!(find(&segments, STAMP).unwrap().last_in, [10, 8]);
        assert!(find(&segments, STAMP + 1).unwrap().needed.is_empty(), "of another journal");
    }

    #[test]
    fn a_torn_last_frame_ends_the_journal_and_a_gap_before_a_frame_is_damage() {
        let whole = segments();
        let flipped = |number: u64| {
            let found = find(&whole, STAMP).unwrap();
            let found = found.needed.iter().find(|found| found.number == number).unwrap();
            let mut damaged = whole.clone();
            damaged[found.segment][found.start + frame::HEADER_BYTES] ^= 1;
            numbers(&damaged)
        };
        assert_eq!(flipped(10), Ok(vec![6, 7, 8, 9]));
        for number in 6..=9 {
            let text = flipped(number).unwrap_err();
            assert!(text.contains(&format!("frame {number} is damaged or missing, yet frame 10")), "{text}");
        }
        let mut without_five = whole.clone();
        without_five[1][FIRST_FRAME_AT + 3] ^= 1;
        assert_eq!(numbers(&without_five), Ok(vec![6, 7, 8, 9, 10]), "frame 5 is not needed");
    }

    #[test]
    fn a_frame_that_does_not_follow_the_one_before_it_is_damage() {
        let mut segments = segments();
        write(&mut segments[0], 9..=10, 6, 0xBAD);
        assert!(numbers(&segments).unwrap_err().contains("frame 9 does not continue"));
    }

    #[test]
    fn a_torn_write_over_old_frames_leaves_the_frames_before_it() {
        let mut segments = vec![vec![0; 16 * SECTOR_BYTES]; 2];
        let end = write(&mut segments[0], 1..=4, 1, 0);
        let end = write(&mut segments[1], 5..=8, 5, end);
        // Frame 8 is durable and needs nothing of the first segment.
        write(&mut segments[0], 9..=9, 5, end);
        segments[0][FIRST_FRAME_AT + 45] ^= 1;
        assert_eq!(numbers(&segments), Ok(vec![5, 6, 7, 8]));
    }

    fn record(term: u64, index: u64) -> Record {
        Record { position: LogPosition { term, index }, payload: Bytes::from(index.to_string()) }
    }

    fn replay(marks: Marks, frames: Vec<Vec<Change>>) -> Replayed {
        let mut replayed = Replayed::of(marks);
        (1..).zip(frames).for_each(|(number, changes)| replayed.add(number, &changes));
        replayed.finish();
        replayed
    }

    #[test]
    fn frames_that_sled_is_ahead_of_give_the_same_log() {
        let append = |term, index| Change::Append(record(term, index));
        let history = vec![
            vec![append(1, 9), append(1, 10)],
            vec![Change::Truncate(6)],
            vec![append(2, 6), append(2, 7)],
            vec![Change::Vote { sequence: 4, vote: "v".into() }],
        ];
        // sled has records 1 to 8 of term 1 or, ahead, 1 to 5 of term 1 and 6 and 7 of term 2.
        let replayed = replay(Marks::default(), history.clone());
        assert_eq!(replayed.keep, 6);
        assert_eq!(replayed.records.into_values().collect::<Vec<_>>(), [record(2, 6), record(2, 7)]);
        let ahead = Marks { vote: Some((5, "w".into())), ..Marks::default() };
        assert_eq!(replay(ahead.clone(), history).marks, ahead);
    }

    #[test]
    fn the_committed_mark_of_a_frame_is_newer_than_that_of_an_earlier_journal() {
        let marks = Marks { committed: Some((900, "old".into())), ..Marks::default() };
        assert_eq!(replay(marks.clone(), vec![vec![]]).marks, marks);
        let replayed = replay(marks, vec![vec![], vec![Change::Committed("new".into())]]);
        assert_eq!(replayed.marks.committed, Some((2, "new".into())));
    }

    #[test]
    fn a_purge_beyond_the_end_leaves_what_follows_it() {
        let upto = LogPosition { term: 3, index: 50 };
        let append = |term, index| Change::Append(record(term, index));
        let history = vec![
            vec![Change::Begin(20), append(1, 20), append(1, 21)],
            vec![Change::Purge(upto)],
            vec![append(3, 51)],
            vec![Change::Purge(LogPosition { term: 1, index: 10 }), Change::Committed("c".into())],
        ];
        let replayed = replay(Marks::default(), history);
        assert_eq!((replayed.marks.purged, replayed.marks.start), (Some(upto), Some(20)));
        assert_eq!(replayed.marks.committed, Some((4, "c".into())));
        assert_eq!(replayed.records.into_values().collect::<Vec<_>>(), [record(3, 51)]);
    }
}
