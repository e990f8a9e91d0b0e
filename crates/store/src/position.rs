//! The place of a record in the log.

use std::cmp::Ordering;
use std::fmt;

/// Where a record stands in the Raft log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPosition {
    /// Term of the leader that created the record.
    pub term: u64,
    /// Place in the log; contiguous.
    pub index: u64,
}

impl Ord for LogPosition {
    /// By index, then by term: of two positions the later one covers more of the log.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.index, self.term).cmp(&(other.index, other.term))
    }
}

impl PartialOrd for LogPosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {} of term {}", self.index, self.term)
    }
}
