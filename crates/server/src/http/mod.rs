//! HTTP/1.1 connections: accepting, bounding, cutting off, finishing. It knows nothing of locks.
//!
//! `axum::serve` has no timers and no caps, so the connections are driven here, by hyper, one task each.

pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod limits;
pub(crate) mod listener;
pub(crate) mod origin;
pub(crate) mod paths;
pub(crate) mod phase;
pub(crate) mod upgrade;
