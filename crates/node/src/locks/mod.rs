//! The lock service: requests that wait for a lock at this node, and those that are cancelled.

pub(crate) mod acquire;
pub(crate) mod cancellation;
pub(crate) mod entry_delay;
pub(crate) mod wait_span;
