//! A state as a stream of bytes, and back. The stream is written and read record by record and never exists as one
//! value. The same state always gives the same bytes.
//!
//! Layout: magic, format version (u32), records, CRC32C (u32) of everything before it; numbers are little-endian. A
//! record is its length (u32) and that many bytes of postcard. The order of records is fixed: head, sessions (each
//! followed by its identity, its namespace, and by the replies it remembers, oldest first), nodes in order of their
//! paths, origins (each followed by its outcomes), access control, namespaces, feature level,
//! holds of locks, the cluster's uid, end.
//!
//! Derived data is not written: children, queues, deadlines and the sessions' ephemerals follow from the nodes.

mod read;
mod record;
#[cfg(test)]
mod tests;
mod write;

use std::io;

use thiserror::Error;

use crate::feature::FeatureLevel;

/// The first bytes of every snapshot.
const MAGIC: [u8; 8] = *b"LKSTATE\n";
/// The format.
const VERSION: u32 = 1;
/// Longest record, with room to spare for a node with the largest data and ACL or the outcome of the largest reap.
const MAX_RECORD_BYTES: u32 = 4 * 1024 * 1024;

/// Why a snapshot could not be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The stream itself failed.
    #[error("reading or writing the snapshot failed: {0}")]
    Io(#[from] io::Error),
    /// It does not start with the magic bytes.
    #[error("this is no Lockkeeper snapshot: it starts with other bytes")]
    Magic,
    /// A later program wrote it.
    #[error("the snapshot has format version {0}, this program reads version {VERSION}: upgrade this node")]
    Version(u32),
    /// A later program raised the cluster's feature level.
    #[error(
        "the snapshot has feature level {0}, this program supports level {max}: upgrade this node",
        max = FeatureLevel::LATEST
    )]
    FeatureLevel(FeatureLevel),
    /// It ends too early.
    #[error("the snapshot is cut off after {0} bytes; fetch it again from another node")]
    Truncated(u64),
    /// A record claims a length over the maximum.
    #[error("the snapshot is damaged: a record of {0} bytes; fetch it again from another node")]
    RecordTooLong(u32),
    /// Its bytes cannot be decoded.
    #[error("the snapshot is damaged: {0}; fetch it again from another node")]
    Damaged(String),
    /// Its bytes can be decoded, but the checksum does not match.
    #[error(
        "the snapshot is damaged: its checksum is {actual:08x}, not {expected:08x}; fetch it again from another node"
    )]
    Checksum {
        /// The checksum in the stream.
        expected: u32,
        /// The checksum of its bytes.
        actual: u32,
    },
}
