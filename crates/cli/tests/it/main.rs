//! The command line with real processes: its commands against real clusters, what becomes of what runs under a lock,
//! and the README's walk.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod commands;
mod gate;
mod holding;
mod lock;
mod readme_walk;
mod sound;
mod support;
mod trouble;
