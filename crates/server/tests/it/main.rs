//! A node as its clients, its peers and its operator meet it: real sockets, a real store, one process.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be; helpers belong to the tests")]

mod bad_input;
mod bounds;
mod browsers;
mod cluster;
mod config;
mod described;
mod gates;
mod harness;
mod local;
mod locks;
mod nodes;
mod peers;
mod sessions;
mod shares;
mod stream;
mod stream_documented;
mod stream_ends;
mod together;
mod trouble;
mod watch;
mod way;
mod wire;
mod zookeeper;
