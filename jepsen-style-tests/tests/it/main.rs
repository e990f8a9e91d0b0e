//! The fault suite as a program, and each of its families of faults against a real cluster. The second takes minutes,
//! and root for some: `cargo test -p jepsen-style-tests --features live`.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of which clippy takes them to be")]

mod cli;
#[cfg(feature = "live")]
mod nemeses;
