//! Durable Raft log and vote on sled, and snapshot files. The interface lands first; the working parts follow.
#![allow(dead_code, unused_variables)] // removed with the commit that brings the working parts
mod error;
mod snapshots;
mod store;
mod types;

pub use error::{FatalError, OpenError, SnapshotError, StoreError};
pub use snapshots::{Finished, Snapshot, SnapshotReader, SnapshotStore, SnapshotWriter};
pub use store::Store;
pub use types::{Barrier, Bounds, FatalHook, FreeSpace, Identity, LogPosition, Opened, Options, Record};
