//! The command line with real processes: commands against real clusters, processes that run under a lock, and the
//! README's walk-through.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod access;
mod certs;
#[allow(dead_code, reason = "no crate uses all of it")]
#[path = "../../../server/tests/it/collector.rs"]
mod collector;
mod commands;
mod cron;
mod doctor;
mod gate;
mod hold;
mod json;
mod lock;
mod members;
mod operate;
mod otlp;
mod outage;
mod rate;
mod readme_walk;
mod service_manager;
mod signals;
mod support;
mod terminal;
mod top;
mod two_clusters;
mod waiting;
