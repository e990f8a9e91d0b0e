//! Durable Raft log and vote on sled with a journal in front of it, and snapshot files (`ARCHITECTURE.md`, The way of a
//! write; Raft, section 5: "persistent state on all servers").
//!
//! The promise: what was acknowledged through a callback survives kill -9 at any instant and power loss, or the
//! directory is refused at the next open. This crate must never acknowledge before the barrier, retry after a failed
//! sync, repair damage silently, or know what the payloads mean. It alone names sled; it never names the consensus
//! library.
//!
//! [`Store`] is the log, the vote and the small marks; [`SnapshotStore`] the snapshot files beside it; both behind
//! traits ([`LogStorage`], [`SnapshotStorage`]), so that the simulation can bring a disk of its own; [`Preparation`]
//! makes a directory from a backup.

mod ack_watermark;
mod archiver;
mod block;
mod codec;
mod directory;
mod error;
mod fsync;
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod log_state;
mod open;
mod permissions;
mod position;
mod preparation;
mod queue;
mod scan;
mod sled_log;
mod snapshots;
mod storage;
mod store;
mod tail_cache;
mod term_starts;
mod types;
mod watchdog;
mod writer;

pub use error::{FatalError, OpenError, SnapshotError, StoreError, remedy};
pub use permissions::create_private_file;
pub use position::LogPosition;
pub use preparation::{Preparation, PreparationError};
pub use snapshots::{Finished, Snapshot, SnapshotReader, SnapshotStore, SnapshotWriter};
pub use storage::{LogStorage, SnapshotSink, SnapshotStorage};
pub use store::Store;
pub use types::{Barrier, Bounds, Done, FatalHook, FreeSpace, Identity, Opened, Options, Record};
