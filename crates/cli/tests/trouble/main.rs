//! What can go wrong between a client and its cluster, with real server processes and the client library.
//!
//! Whatever happens, nobody is left in a lock's queue for longer than the timeout of their session: each test ends by looking.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod children;
mod nodes;
mod parties;
mod process;
mod requests;
#[path = "../support/mod.rs"]
mod support;
mod wire;
