//! Failures between a client and its cluster, with real server processes and the client library.
//!
//! No request may stay in a lock's queue for longer than its session's timeout: each test checks this at its end.

mod children;
mod nodes;
mod parties;
mod process;
mod requests;
mod wire;
