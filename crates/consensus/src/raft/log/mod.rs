//! Raft's log on disk: openraft's storage over the store, the bytes of entries, and compaction.

pub(crate) mod codec;
pub(crate) mod compaction;
pub(crate) mod log_size;
pub(crate) mod log_store;
