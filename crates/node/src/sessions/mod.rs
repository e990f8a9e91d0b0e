//! Sessions: opening, keeping alive, expiring, and the events that a session's connection subscribes to.

pub(crate) mod delegated_keepalive;
pub(crate) mod keepalive;
pub(crate) mod leader_tasks;
pub(crate) mod lifecycle;
pub(crate) mod liveness;
pub(crate) mod liveness_replication;
pub(crate) mod session_events;
pub(crate) mod tracker;
