//! The command line with real processes: commands against real clusters, processes that run under a lock, and the
//! README's walk-through.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod access;
mod certs;
mod commands;
mod doctor;
mod gate;
mod hold;
mod lock;
mod members;
mod operate;
mod readme_walk;
mod service_manager;
mod support;
mod top;
mod trouble;
