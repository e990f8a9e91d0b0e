//! The journal in front of sled. An acknowledgement waits for one write and one sync of a file that never changes its
//! size, instead of sled's flush. sled is the log's home and is written behind the journal, on a thread of its own
//! ([`crate::archiver`]): when few segments are left, when nothing was asked for in a while, and at an orderly stop. At
//! rest sled has the whole log, and the journal is empty.
//!
//! # Layout
//! A ring of segments of fixed size, full of zeros at first ([`segment`]). One write is one frame ([`frame`]): all
//! records, votes, truncations and purge marks that were queued. Frames have rising numbers. Each says which is the
//! oldest frame that recovery needs. Frames follow each other within a segment, and then in the next segment of the
//! ring. [`durable_log`] keeps the rules below, [`unarchived`] knows what sled lacks, [`recovery`] reads it all back.
//!
//! # What must never happen
//! - Never write a frame before the one before it is durable, nor tell a caller before its frame is. So of all frames
//!   only the last can be torn, and nobody was told of it.
//! - Never use a segment again before a *durable* frame says that none of its frames is needed. To be able to say so
//!   when a segment is full, each keeps one sector free for a frame without changes.
//! - Never give a frame up before sled durably has what the log still has of it: its records, and the latest vote and
//!   marks. Records that were purged or cut before their turn never go to sled.
//! - Never let the journal cut a record that sled has. Such a truncation, and an append of a record that no segment
//!   takes, is made in sled alone: first sled is given everything, but what a truncation removes of it, which the
//!   journal cuts; then a frame says that no other is needed, then sled is changed. So sled's records are always
//!   records of the log, in order and without a gap.
//! - Never write anything after a failed write or sync.
//!
//! # Recovery
//! The log is sled's, changed by the needed frames in order. sled may be ahead of a frame; therefore a change says what
//! is there after it, whatever was there before: an append ends the log with its record. The last change of an index
//! decides. What no needed frame mentions was not changed since, and sled has it. Between two frames the log may have
//! gaps; what comes out must be whole: contiguous, terms not falling, each record that both have equal, and with
//! everything that the acknowledgement watermark names.
//!
//! Damage is refused, not repaired. A frame that is not whole is damage if any needed frame follows it: nothing was
//! written after a torn one. If none follows, it is the end of the journal, and the watermark, which names the last
//! acknowledged frame, tells whether it may be ([`crate::ack_watermark`] has what it can tell after a power failure).
//! sled cuts damage at its own end off without a word; therefore each task that it is given has a number, which it
//! stores last, and each frame names the last task that it relies on.
//!
//! Opening changes nothing in the journal: the frames stay needed, and the next one follows the last.
//!
//! # Crash orders
//! - *While a frame is written*: it is torn or whole. If whole, the log has something that nobody was told of, and it
//!   is made durable before anybody is. What it was written over is needed by no durable frame.
//! - *While sled is given records*: sled has some prefix of them. The frames are still needed, and have equal records.
//! - *When sled has them, before a frame says so*: the same.
//! - *While such a frame is written*: without it the frame before it counts, and what that one needs is all there,
//!   since no segment is used again yet.
//! - *While sled is changed alone*: the only needed frame has no changes. sled has made a part of the change, and
//!   nobody was told. Before a cut the watermark is lowered, or a log that was cut would be taken for a damaged one.
//! - *While a directory without a journal gets one*: the journal is whole and synced before the watermark says that it
//!   is there, and is made anew if the watermark does not say so. An older build refuses the watermark from then on. At
//!   an orderly stop, when sled has everything in the form of that build, the watermark says that there is no journal.

pub(crate) mod durable_log;
pub(crate) mod frame;
pub(crate) mod recovery;
pub(crate) mod segment;
pub(crate) mod unarchived;

use lockkeeper_mutants::{invariant, mutant};

use self::frame::{Change, Header, SECTOR_BYTES};
use self::recovery::FoundFrames;
use self::segment::{FIRST_FRAME_AT, SegmentFile};
use crate::error::FatalError;
use crate::fsync::io_failure;

/// Frames that can be given up together: those up to `upto`, once sled has the durable log's records up to `highest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) upto: u64,
    pub(crate) highest: Option<u64>,
}

struct Segment<F> {
    file: F,
    /// Number of its last frame; 0 if it has none.
    last: u64,
    /// The highest index of a record in its frames.
    highest: Option<u64>,
}

/// The journal of an open directory, as its writer sees it.
pub(crate) struct Journal<F> {
    segments: Vec<Segment<F>>,
    segment_bytes: usize,
    stamp: u64,
    /// Number and checksum of the last frame.
    number: u64,
    crc: u32,
    /// Where the next frame goes.
    current: usize,
    at: usize,
    /// The oldest frame that is needed, and as the last frame says it.
    oldest: u64,
    durable_oldest: u64,
    /// The last task of sled that the next frame relies on.
    task: u64,
    /// The last frame that has changes.
    last_change: u64,
    /// Whether the last frame is durable.
    is_synced: bool,
    /// The frame being made, and the highest index of a record in it.
    buffer: Vec<u8>,
    highest: Option<u64>,
}

impl<F: SegmentFile> Journal<F> {
    /// Goes on after the frames found. They are durable, and so is what sled has done: the tasks up to `task`.
    pub(crate) fn new(files: Vec<F>, segment_bytes: usize, stamp: u64, found: &FoundFrames, task: u64) -> Self {
        // A new journal has none.
        let last_in = found.last_in.iter().copied().chain(std::iter::repeat(0));
        let mut segments: Vec<Segment<F>> =
            files.into_iter().zip(last_in).map(|(file, last)| Segment { file, last, highest: None }).collect();
        let mut last_change = 0;
        for frame in &found.needed {
            for change in &frame.changes {
                if let Change::Append(record) = change {
                    let highest = &mut segments[frame.segment].highest;
                    *highest = (*highest).max(Some(record.position.index));
                }
                last_change = frame.number;
            }
        }
        let last = found.needed.last();
        let oldest = last.map_or(1, |last| last.oldest);
        Self {
            segments,
            segment_bytes,
            stamp,
            number: last.map_or(0, |last| last.number),
            crc: last.map_or(0, |last| last.crc),
            current: last.map_or(0, |last| last.segment),
            at: last.map_or(FIRST_FRAME_AT, |last| last.end),
            oldest,
            durable_oldest: oldest,
            task,
            last_change,
            is_synced: true,
            buffer: vec![0; frame::HEADER_BYTES],
            highest: None,
        }
    }

    /// Number of the last frame.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the last frame is durable.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Whether a frame with changes of so many bytes fits into a segment at all.
    pub(crate) fn takes(&self, body_bytes: usize) -> bool {
        FIRST_FRAME_AT + frame::padded_bytes(body_bytes) + SECTOR_BYTES <= self.segment_bytes
    }

    /// Begins a frame.
    pub(crate) fn begin(&mut self) {
        frame::begin(&mut self.buffer);
        self.highest = None;
    }

    /// Adds a change to the frame.
    pub(crate) fn push(&mut self, change: &Change) {
        frame::push(change, &mut self.buffer);
        if let Change::Append(record) = change {
            self.highest = self.highest.max(Some(record.position.index));
        }
    }

    /// Bytes of the changes in the frame so far.
    pub(crate) fn body_bytes(&self) -> usize {
        self.buffer.len() - frame::HEADER_BYTES
    }

    /// Whether the frame goes into the present segment, with a sector to spare.
    pub(crate) fn has_room(&self) -> bool {
        self.at + frame::padded_bytes(self.body_bytes()) + SECTOR_BYTES <= self.segment_bytes
    }

    fn next_segment(&self) -> usize {
        (self.current + 1) % self.segments.len()
    }

    /// Whether a durable frame says that no frame of the next segment is needed.
    pub(crate) fn next_is_free(&self) -> bool {
        let oldest = if mutant!(ReuseSegmentEarly) { self.oldest } else { self.durable_oldest };
        self.segments[self.next_segment()].last < oldest
    }

    /// Whether it is known that no frame of the next segment is needed, durably or not.
    pub(crate) fn next_is_released(&self) -> bool {
        self.segments[self.next_segment()].last < self.oldest
    }

    /// Goes on in the next segment, which is free.
    pub(crate) fn advance(&mut self) {
        invariant!(self.next_is_free(), "a segment of the journal is used again only when a durable frame frees it");
        self.current = self.next_segment();
        self.at = FIRST_FRAME_AT;
        self.segments[self.current].highest = None;
    }

    /// Segments beside the present one of which no frame is needed.
    pub(crate) fn released_segments(&self) -> usize {
        let others = self.segments.iter().enumerate().filter(|(at, _)| *at != self.current);
        others.filter(|(_, segment)| segment.last < self.oldest).count()
    }

    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The size of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        (self.segments.len() * self.segment_bytes) as u64
    }

    /// Writes the frame and returns when it is durable. There must be room for it. An error is final.
    pub(crate) fn append(&mut self) -> Result<(), FatalError> {
        invariant!(self.has_room(), "a frame leaves a sector of its segment free");
        self.last_change = self.number + 1;
        self.write()
    }

    /// Writes a frame without changes, which says what is needed.
    pub(crate) fn mark(&mut self) -> Result<(), FatalError> {
        self.begin();
        if self.at + SECTOR_BYTES > self.segment_bytes {
            self.advance();
        }
        self.write()
    }

    /// As [`Self::mark`], and the frame that is being made goes on.
    pub(crate) fn mark_before(&mut self) -> Result<(), FatalError> {
        let under_way = (std::mem::take(&mut self.buffer), self.highest);
        self.mark()?;
        (self.buffer, self.highest) = under_way;
        Ok(())
    }

    fn write(&mut self) -> Result<(), FatalError> {
        let number = self.number + 1;
        let Self { stamp, oldest, task, crc: previous, .. } = *self;
        let crc = frame::seal(&mut self.buffer, Header { stamp, number, oldest, task, previous });
        let segment = &mut self.segments[self.current];
        let file = &segment.file;
        self.is_synced = false;
        let sync = || file.sync().map_err(|error| io_failure("sync", file.path(), &error));
        if mutant!(AckBeforeJournalSync) {
            sync()?;
        }
        file.write(&self.buffer, self.at).map_err(|error| io_failure("write", file.path(), &error))?;
        if !mutant!(AckBeforeJournalSync) {
            sync()?;
        }
        self.is_synced = true;
        segment.last = number;
        segment.highest = segment.highest.max(self.highest);
        (self.number, self.crc, self.durable_oldest) = (number, crc, self.oldest);
        self.at += self.buffer.len();
        self.begin();
        self.buffer.shrink_to(KEPT_BYTES);
        Ok(())
    }

    /// Whether a durable frame says that no change in the journal is needed.
    pub(crate) fn is_empty(&self) -> bool {
        self.durable_oldest > self.last_change
    }

    /// Whether it is known, durably or not, that no change in the journal is needed.
    pub(crate) fn is_released(&self) -> bool {
        self.oldest > self.last_change
    }

    /// What to give up next: the needed frames of the oldest segment that has any.
    pub(crate) fn next_release(&self) -> Release {
        let ring = (1..=self.segments.len()).map(|step| &self.segments[(self.current + step) % self.segments.len()]);
        let oldest = ring.into_iter().find(|segment| segment.last >= self.oldest);
        oldest.map_or(Release { upto: self.number, highest: None }, |segment| Release {
            upto: segment.last,
            highest: segment.highest,
        })
    }

    /// sled has done this task durably: it must be found done from the next frame on.
    pub(crate) fn rely_on(&mut self, task: u64) {
        invariant!(self.task < task, "sled's tasks have rising numbers");
        self.task = task;
    }

    /// sled has all that is needed of these frames.
    pub(crate) fn release(&mut self, release: Release) {
        invariant!(release.upto <= self.number, "no frame is released before it is written");
        self.oldest = self.oldest.max(release.upto + 1);
    }
}

/// Memory for a frame that is kept from one to the next: what one takes that commands share.
const KEPT_BYTES: usize = 1088 * 1024;

#[cfg(test)]
mod tests;
