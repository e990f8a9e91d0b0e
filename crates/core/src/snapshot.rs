//! A state as a stream of bytes, and back. The stream is made and read record by record and never exists as one value; the
//! same state always gives the same bytes.
//!
//! Layout: magic, format version (u32), records, CRC32C (u32) of all that precedes it; numbers little-endian. A record is its
//! length (u32) and that many bytes of postcard. The order of records is fixed: head, sessions (each followed by the replies
//! it remembers, oldest first), nodes in order of their paths, origins (each followed by its outcomes), end.
//!
//! What can be derived is not written: children, queues, deadlines and the sessions' ephemerals come from the nodes.

mod read;
mod record;
#[cfg(test)]
mod tests;
mod write;

use std::io;

use thiserror::Error;

/// What every snapshot starts with.
const MAGIC: [u8; 8] = *b"LKSTATE\n";
/// The format that is written.
const VERSION: u32 = 5;
/// Up to here written by programs before the first release, and read by none since.
const UNRELEASED: u32 = 4;
/// Longest record: a node with the largest data and ACL, or the outcome of the largest reap, with room to spare.
const MAX_RECORD_BYTES: u32 = 4 * 1024 * 1024;

/// Why a snapshot could not be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The stream itself failed.
    #[error("reading or writing the snapshot failed: {0}")]
    Io(#[from] io::Error),
    /// It starts with something else.
    #[error("this is no Lockkeeper snapshot: it starts with other bytes")]
    Magic,
    /// A program from before the first release wrote it.
    #[error(
        "the snapshot has a format version up to {UNRELEASED}, which only an unreleased program wrote: start this cluster with empty data directories"
    )]
    Unreleased,
    /// A later program wrote it.
    #[error("the snapshot has format version {0}, this program reads version {VERSION}: upgrade this node")]
    Version(u32),
    /// It ends too early.
    #[error("the snapshot is cut off after {0} bytes; fetch it again from another node")]
    Truncated(u64),
    /// A record claims to be longer than any can be.
    #[error("the snapshot is damaged: a record of {0} bytes; fetch it again from another node")]
    RecordTooLong(u32),
    /// Its bytes make no sense.
    #[error("the snapshot is damaged: {0}; fetch it again from another node")]
    Damaged(String),
    /// Its bytes make sense, but are not those that were written.
    #[error(
        "the snapshot is damaged: its checksum is {actual:08x}, not {expected:08x}; fetch it again from another node"
    )]
    Checksum {
        /// What the stream says.
        expected: u32,
        /// What its bytes give.
        actual: u32,
    },
}
