//! Consensus in use: clusters in one process over a network in memory, real sockets, and peers that do not keep to the
//! protocol.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without may end it; helpers belong to the tests")]

#[allow(dead_code, reason = "no crate uses all of it")]
#[path = "../../../tls/tests/it/authority.rs"]
mod authority;
mod cluster;
mod common;
mod feature_levels;
mod forged;
mod fronts;
mod hostile;
mod listener;
mod memory_network;
mod rollback;
mod tls;
mod transport;
