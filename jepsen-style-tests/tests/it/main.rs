//! The fault suite as a program; the fencing helpers and the engines on SQL databases against real servers; and each
//! family of faults against a real cluster. The last takes minutes, and root for some:
//! `cargo test -p jepsen-style-tests --features live`.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of which clippy takes them to be")]

mod cli;
mod engines;
mod engines_sql;
mod fencing_mysql;
#[cfg(feature = "live")]
mod nemeses;
