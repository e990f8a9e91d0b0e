//! The replicated state, seen from outside: scripts that people read, a naive model beside it, and what large sessions
//! cost.

#![allow(clippy::unwrap_used, reason = "tests may; the exemption does not reach helpers outside of #[test] functions")]

mod access;
mod counters;
mod endings;
mod golden;
mod model;
mod names;
mod namespaces;
mod rates;
mod world;
