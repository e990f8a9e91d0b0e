//! What the engine does for callers, beside requests for locks.

pub(crate) mod in_order;
pub(crate) mod session_lifecycle;
pub(crate) mod take_permits;
