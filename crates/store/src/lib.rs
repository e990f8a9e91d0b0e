//! Durable Raft log and vote on sled, and snapshot files (`ARCHITECTURE.md`, The way of a write; Raft, section 5:
//! "persistent state on all servers").
//!
//! The promise: what was acknowledged through a callback survives kill -9 at any instant and power loss, or the
//! directory is refused at the next open. This crate must never acknowledge before the barrier, retry after a failed
//! sync, repair damage silently, or know what the payloads mean. It alone names sled; it never names the consensus
//! library.
//!
//! [`Store`] is the log, the vote and the small marks; [`SnapshotStore`] the snapshot files beside it; both behind
//! traits ([`LogStorage`], [`SnapshotStorage`]), so that the simulation can bring a disk of its own; [`trace`] checks a
//! system-call trace of a running process against the promise.

mod barrier;
mod codec;
mod directory;
mod error;
mod floor;
mod log;
mod open;
mod private;
mod queue;
mod recent;
mod scan;
mod snapshots;
mod storage;
mod store;

pub mod trace;
mod types;
mod watchdog;
mod writer;

pub use error::{FatalError, OpenError, SnapshotError, StoreError, remedy};
pub use private::create_private_file;
pub use snapshots::{Finished, Snapshot, SnapshotReader, SnapshotStore, SnapshotWriter};
pub use storage::{Done, LogStorage, SnapshotSink, SnapshotStorage};
pub use store::Store;
pub use types::{Barrier, Bounds, FatalHook, FreeSpace, Identity, LogPosition, Opened, Options, Record};
