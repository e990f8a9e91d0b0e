//! Sessions: keeping alive, expiring, and the events that a session's connection subscribes to.

pub(crate) mod expiry;
pub(crate) mod keepalive;
pub(crate) mod keepalive_guard;
pub(crate) mod leader_tasks;
pub(crate) mod liveness_replication;
pub(crate) mod messages;
pub(crate) mod presence;
pub(crate) mod session_events;
pub(crate) mod unauthorised;
