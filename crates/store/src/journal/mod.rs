//! The journal in front of sled: what an acknowledgement waits for is one write and one sync of a file that never
//! changes its size, instead of sled's flush. sled is written behind it (`checkpoint.rs`), is what is read, and has
//! everything that the journal need not keep.
//!
//! Each batch of the writer is one frame ([`frame`]) of absolute changes ([`body`]) in one of two segments of fixed
//! size ([`segment_file`]). The journal is durable before sled sees a change. So at open, sled with the frames after
//! [`JournalMark::applied`] applied again, in order, is the log as it was ([`recovery`]).
//!
//! It must never write over a frame that sled does not durably have, and never write again after a failed write or
//! sync.

pub(crate) mod body;
mod frame;
mod recovery;
mod segment_file;

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

pub(crate) use self::frame::PAGE_BYTES;
use self::segment_file::{AlignedBuffer, SegmentFile};
use crate::codec;
use crate::error::{FatalError, OpenError};
use crate::fsync::{self, io_failure};
use crate::types::Barrier;

/// What sled knows of the journal: the data of its meta value, whose sequence is `applied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalMark {
    /// Frames up to this one are durable in sled.
    pub(crate) applied: u64,
    /// Marks the frames written since the last open.
    pub(crate) stamp: u64,
    /// Size of a segment, fixed when the directory is created.
    pub(crate) segment_bytes: u64,
}

impl JournalMark {
    /// The mark of a run that begins after the frame `applied`.
    pub(crate) fn new(applied: u64, segment_bytes: u64) -> Self {
        // The standard library's source of keys that others cannot guess.
        Self { applied, stamp: RandomState::new().hash_one(applied), segment_bytes }
    }

    pub(crate) fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.stamp.to_le_bytes());
        out[8..].copy_from_slice(&self.segment_bytes.to_le_bytes());
        out
    }

    pub(crate) fn decode(applied: u64, data: &[u8]) -> Result<Self, String> {
        let (stamp, segment_bytes) = data.split_at_checked(8).ok_or("a journal mark that is too short")?;
        Ok(Self { applied, stamp: codec::decode_u64(stamp)?, segment_bytes: codec::decode_u64(segment_bytes)? })
    }
}

/// Creates the journal of a new log directory, synced.
pub(crate) fn create(dir: &Path, segment_bytes: usize) -> Result<(), OpenError> {
    segment_file::create(dir, segment_bytes)
}

/// Hands the bodies of the frames that sled may lack to `apply`, in order; returns the number of the last frame.
/// `acknowledged` is the last frame that was acknowledged for certain: without it and all before it nothing is applied.
pub(crate) fn replay(
    dir: &Path,
    mark: JournalMark,
    acknowledged: u64,
    mut apply: impl FnMut(&[u8]) -> Result<(), OpenError>,
) -> Result<u64, OpenError> {
    let damaged = |what| OpenError::damaged(dir, what);
    let segment_bytes = usize::try_from(mark.segment_bytes).unwrap_or(usize::MAX);
    let segments = segment_file::read(dir, segment_bytes)?;
    let frames = recovery::frames_after(&segments, mark.stamp, mark.applied).map_err(damaged)?;
    let last = mark.applied + frames.len() as u64;
    if last < acknowledged {
        return Err(damaged(format!("it was acknowledged up to frame {acknowledged}, and ends at frame {last}")));
    }
    for frame in &frames {
        apply(frame.body)?;
    }
    if !frames.is_empty() {
        tracing::info!(frames = frames.len(), "applied what the journal had and the log had not yet");
    }
    Ok(last)
}

/// The journal of an open directory.
pub(crate) struct Journal {
    dir: PathBuf,
    segments: Vec<SegmentFile>,
    /// The last frame in each segment; 0 where there is none of this run.
    last: Vec<u64>,
    segment_bytes: usize,
    barrier: Barrier,
    stamp: u64,
    /// Number and checksum of the last frame.
    sequence: u64,
    previous: u32,
    /// Where the next frame goes.
    current: usize,
    at: usize,
    buffer: AlignedBuffer,
}

impl Journal {
    /// Begins a run. The mark, and everything up to the frame that it names, must be durable in sled: the whole journal
    /// is written anew.
    pub(crate) fn begin(dir: &Path, mark: JournalMark, barrier: Barrier) -> Result<Self, OpenError> {
        let segments = segment_file::open(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            last: vec![0; segments.len()],
            segments,
            segment_bytes: usize::try_from(mark.segment_bytes).unwrap_or(usize::MAX),
            barrier,
            stamp: mark.stamp,
            sequence: mark.applied,
            previous: 0,
            current: 0,
            at: 0,
            buffer: AlignedBuffer::default(),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The last frame.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether a body of this length fits into a segment at all.
    pub(crate) fn takes(&self, body_bytes: usize) -> bool {
        frame::padded_bytes(body_bytes) <= self.segment_bytes
    }

    /// The frame that must be obsolete before a body of this length is appended: the last one of the segment that it
    /// would overwrite.
    pub(crate) fn overwrites(&self, body_bytes: usize) -> Option<u64> {
        let next = self.last[self.next_segment()];
        (self.is_full_for(body_bytes) && next > 0).then_some(next)
    }

    fn is_full_for(&self, body_bytes: usize) -> bool {
        self.at + frame::padded_bytes(body_bytes) > self.segment_bytes
    }

    fn next_segment(&self) -> usize {
        (self.current + 1) % self.segments.len()
    }

    /// Appends a frame and returns when it is durable. An error is final.
    pub(crate) fn append(&mut self, body: &[u8]) -> Result<(), FatalError> {
        if self.is_full_for(body.len()) {
            (self.current, self.at) = (self.next_segment(), 0);
        }
        let (segment, sequence) = (&self.segments[self.current], self.sequence + 1);
        let pages = self.buffer.of(frame::padded_bytes(body.len()));
        self.previous = frame::encode(self.stamp, sequence, self.previous, body, pages);
        segment.write(pages, self.at).map_err(|error| io_failure("write", &segment.path, &error))?;
        fsync::sync_data(&segment.file, &segment.path, self.barrier)?;
        self.sequence = sequence;
        self.last[self.current] = sequence;
        self.at += pages.len();
        Ok(())
    }
}
