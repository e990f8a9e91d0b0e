//! Frames: a 32-bit length, then that many bytes.
//!
//! The decoder takes bytes as they arrive and returns whole frames. It never reserves memory for an announced length
//! alone: a thousand connections that each announce a megabyte and send nothing cost nothing.

use crate::FourLetterWord;
use crate::jute::Writer;
use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// ZooKeeper's own default for `jute.maxbuffer`: one byte less than 1 MiB.
pub const DEFAULT_MAX_FRAME_BYTES: usize = 0xf_ffff;

const LENGTH_BYTES: usize = 4;

/// An invalid frame length. The connection must be closed, because the start of the next frame is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Below zero.
    #[error("frame length {length} is negative: this is not ZooKeeper's protocol, or the stream is corrupt")]
    Negative {
        /// The announced length.
        length: i32,
    },
    /// Above the limit.
    #[error("frame length {length} exceeds the limit of {max} bytes: send less, or raise the limit on both sides")]
    TooLong {
        /// The announced length.
        length: usize,
        /// The limit.
        max: usize,
    },
}

/// A frame or word that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inbound {
    /// The content of a frame, without its length.
    Frame(Bytes),
    /// A four-letter word instead of the first frame. Ignore any bytes after it.
    Word(FourLetterWord),
}

/// Splits a stream of bytes into frames.
#[derive(Debug)]
pub struct FrameDecoder {
    buffered: BytesMut,
    max_frame_bytes: usize,
    /// True on a server until the first frame.
    words_allowed: bool,
}

impl FrameDecoder {
    /// For a server: the first frame may be a four-letter word.
    #[must_use]
    pub fn for_server(max_frame_bytes: usize) -> Self {
        Self { buffered: BytesMut::new(), max_frame_bytes, words_allowed: true }
    }

    /// For a client: a server never sends a word.
    #[must_use]
    pub fn for_client(max_frame_bytes: usize) -> Self {
        Self { buffered: BytesMut::new(), max_frame_bytes, words_allowed: false }
    }

    /// Takes bytes that have arrived. Before feeding more, call [`Self::next_inbound`] until it returns `None`; then at
    /// most one frame and one feed are held in memory.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffered.extend_from_slice(bytes);
    }

    /// The buffer of [`Self::feed`], to read a socket into without a copy. Only append to it.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffered
    }

    /// Number of bytes of an incomplete frame.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered.len()
    }

    /// The next frame, if all of it has arrived. An error is final: later calls return it again.
    pub fn next_inbound(&mut self) -> Result<Option<Inbound>, FrameError> {
        let Some(&prefix) = self.buffered.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        if self.words_allowed
            && let Some(word) = FourLetterWord::from_bytes(prefix)
        {
            self.buffered.advance(LENGTH_BYTES);
            return Ok(Some(Inbound::Word(word)));
        }
        let length = self.checked_length(i32::from_be_bytes(prefix))?;
        if self.buffered.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.words_allowed = false;
        self.buffered.advance(LENGTH_BYTES);
        Ok(Some(Inbound::Frame(self.buffered.split_to(length).freeze())))
    }

    fn checked_length(&self, length: i32) -> Result<usize, FrameError> {
        let max = self.max_frame_bytes;
        match usize::try_from(length) {
            Err(_) => Err(FrameError::Negative { length }),
            Ok(length) if length > max => Err(FrameError::TooLong { length, max }),
            Ok(length) => Ok(length),
        }
    }
}

/// Appends a frame to `out` with the content that `write` writes.
///
/// # Panics
/// When the content is longer than 2³¹−1 bytes, which the protocol cannot express.
pub fn write_frame(out: &mut BytesMut, write: impl FnOnce(&mut Writer<'_>)) {
    let start = out.len();
    Writer::new(out).int(0);
    write(&mut Writer::new(out));
    let length = i32::try_from(out.len() - start - LENGTH_BYTES).expect("a frame is shorter than 2 GiB");
    out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}
