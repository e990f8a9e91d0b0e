//! The recipes against a real cluster: what they promise when all goes well, when participants die, and when futures are dropped.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod counting;
mod leading;
mod meeting;
mod outage;
mod queueing;
mod support;
mod watching;
