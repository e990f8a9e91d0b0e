//! The lock service: requests that wait for a lock at this node, and those that are cancelled.

pub(crate) mod acquire;
pub(crate) mod cancellation;
pub(crate) mod presence;
pub(crate) mod waiters;
