//! The values of the crate's interface.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{FatalError, StoreError};
use crate::position::LogPosition;

/// One entry of the Raft log. The payload means nothing to this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it stands.
    pub position: LogPosition,
    /// Its bytes; at most [`Record::MAX_PAYLOAD_BYTES`].
    pub payload: Bytes,
}

impl Record {
    /// Largest payload of one record.
    pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;
}

/// Whose directory this is. A directory of another cluster or node is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name or id of the cluster, at most 256 bytes.
    pub cluster: String,
    /// The node.
    pub node: u64,
    /// Id of the directory itself, so that peers notice a wiped one. The caller draws one at random for a directory
    /// that may be new; an existing directory keeps its own, which [`Opened::directory`] reports.
    pub directory: u128,
}

/// What makes a batch durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barrier {
    /// `fdatasync` of the journal after each write to it, and of sled's file after sled's flush. The only one that
    /// holds promise P4.
    #[default]
    Full,
    /// The write to the journal and sled's flush without `fdatasync`, which do not survive power loss. Only for the
    /// tests that show that the trace check and the simulated power loss can fail.
    FlushOnly,
}

/// Where the figure for free disk space comes from.
#[derive(Clone, Debug, Default)]
pub enum FreeSpace {
    /// The file system that holds the directory.
    #[default]
    Disk,
    /// A figure in bytes that a test sets, to fill the disk without filling it.
    Given(Arc<AtomicU64>),
}

impl FreeSpace {
    /// Bytes available to this process below `dir`.
    pub(crate) fn bytes(&self, dir: &std::path::Path) -> std::io::Result<u64> {
        match self {
            FreeSpace::Disk => {
                let stat = nix::sys::statvfs::statvfs(dir)?;
                Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
            }
            FreeSpace::Given(bytes) => Ok(bytes.load(std::sync::atomic::Ordering::SeqCst)),
        }
    }
}

/// Called once, after the barrier or on failure. It must be quick: everything else waits behind it.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Called once when the store can no longer keep its promise. The process must end: nothing that the store reports
/// after that is certain.
pub type FatalHook = Arc<dyn Fn(FatalError) + Send + Sync>;

/// Settings of the store. [`Options::new`] has a server's.
#[derive(Clone)]
pub struct Options {
    /// sled's page cache; its real use may be several times this.
    pub cache_bytes: u64,
    /// Payload bytes of the newest records kept in memory for replication. Records that sled does not have yet are
    /// always kept. They take no more than about the journal's size, with 100 bytes for each beside its payload; by the
    /// allocator's account it may be twice that where payloads are small.
    pub tail_cache_bytes: usize,
    /// A write that would leave less than this free on the disk is refused: the store fails before it writes anything.
    pub free_floor_bytes: u64,
    /// A batch that takes longer than this to reach the disk counts as a storage failure, and so does each barrier of
    /// sled, behind the batches.
    pub sync_watchdog: Duration,
    /// What makes a batch durable.
    pub barrier: Barrier,
    /// Called once, with the storage failure.
    pub fatal: FatalHook,
    /// Most commands waiting for the writer. Beyond it callers wait: the disk is the bottleneck then.
    pub queue_commands: usize,
    /// Most payload bytes waiting for the writer; a larger command is accepted alone.
    pub queue_bytes: usize,
    /// sled's background flush, beside the barrier. sled collects its garbage there, for half of this at most, and then
    /// syncs. In that time it may begin one segment and no more (`fsync.rs`), which bounds this: with segments of 4 MiB
    /// and 50 ms, only a disk that takes 160 MB/s breaks it.
    pub flush_every_ms: u64,
    /// sled's segment size, a power of two; fixed when the directory is created. It bounds the blocks that sled is
    /// given, and what of sled is not durable. Small only in tests.
    pub segment_bytes: usize,
    /// Segments of the journal, two at least, and the size of each, a multiple of 512; fixed when the directory gets
    /// its journal. A record that exceeds a segment waits for sled. Small only in tests.
    pub journal_segments: u32,
    /// See [`Options::journal_segments`].
    pub journal_segment_bytes: usize,
    /// When nothing has been asked for in so long, sled is given all that the journal keeps.
    pub archive_after: Duration,
    /// Write `ack …` marks to /dev/null just before the callbacks, for a system-call trace (see
    /// `lockkeeper_checkers::sync_trace`).
    pub trace_marks: bool,
    /// Where the figure for free space comes from.
    pub free_space: FreeSpace,
}

impl Options {
    /// The options of a server, with its way to end the process.
    pub fn new(fatal: FatalHook) -> Self {
        Self {
            cache_bytes: 8 * 1024 * 1024,
            tail_cache_bytes: 4 * 1024 * 1024,
            free_floor_bytes: 256 * 1024 * 1024,
            sync_watchdog: Duration::from_secs(10),
            barrier: Barrier::Full,
            fatal,
            queue_commands: 4096,
            queue_bytes: 64 * 1024 * 1024,
            flush_every_ms: 50,
            segment_bytes: 4 * 1024 * 1024,
            journal_segments: 4,
            journal_segment_bytes: 4 * 1024 * 1024,
            archive_after: Duration::from_secs(1),
            trace_marks: false,
            free_space: FreeSpace::Disk,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("cache_bytes", &self.cache_bytes)
            .field("tail_cache_bytes", &self.tail_cache_bytes)
            .field("free_floor_bytes", &self.free_floor_bytes)
            .field("sync_watchdog", &self.sync_watchdog)
            .field("barrier", &self.barrier)
            .finish_non_exhaustive()
    }
}

/// What the open found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Starts of this directory, this one included; durable, never repeated.
    pub incarnation: u64,
    /// The id that the directory carries.
    pub directory: u128,
    /// True when the directory was created by this open.
    pub fresh: bool,
    /// The last vote saved.
    pub vote: Option<Bytes>,
    /// The last committed mark that reached the disk; may lag.
    pub committed: Option<Bytes>,
    /// Everything up to here is gone from the log.
    pub purged: Option<LogPosition>,
    /// The last record, or the purge mark when no record follows it.
    pub last: Option<LogPosition>,
    /// Records in the log.
    pub records: u64,
    /// True when an incomplete record behind the last acknowledged one was cut off.
    pub torn_tail_cut: bool,
}

/// The ends of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Everything up to here is gone from the log.
    pub purged: Option<LogPosition>,
    /// The last record, or the purge mark when no record follows it.
    pub last: Option<LogPosition>,
}
