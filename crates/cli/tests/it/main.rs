//! The command line with real processes: commands against real clusters, processes that run under a lock, and the
//! README's walk-through.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod access;
mod certs;
mod commands;
mod gate;
mod hold;
mod lock;
mod operate;
mod readme_walk;
mod support;
mod trouble;
