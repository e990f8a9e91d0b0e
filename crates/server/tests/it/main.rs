//! A node as its clients, its peers and its operator meet it: real sockets, a real store, one process.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be; helpers belong to the tests")]

mod access;
mod access_faults;
mod audit;
#[allow(dead_code, reason = "no crate uses all of it")]
#[path = "../../../tls/tests/it/authority.rs"]
mod authority;
mod backup;
mod bad_input;
mod cluster;
mod collector;
mod config;
mod fronts;
mod gates;
mod harness;
mod jwt;
mod lifecycle;
mod local;
mod lock_kinds;
mod locks;
mod members;
mod namespaces;
mod nodes;
mod observe;
mod openapi;
mod origins;
mod otlp;
mod peer_link;
mod peer_tls;
mod peers;
mod rate_limits;
mod rights;
mod sessions;
mod shares;
mod state_limits;
mod stream;
mod stream_client;
mod stream_documented;
mod stream_ends;
mod tls;
mod tls_zookeeper;
mod watch;
mod zookeeper;
