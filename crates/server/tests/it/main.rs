//! A node as its clients, its peers and its operator meet it: real sockets, a real store, one process.

mod bad_input;
mod cluster;
mod config;
mod described;
mod harness;
mod locks;
mod nodes;
mod sessions;
mod trouble;
mod watch;
