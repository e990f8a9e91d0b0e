//! Nodes of a cluster in one process: the lock service, sessions, reads and watches, and what faults do to them.

#![allow(clippy::unwrap_used, reason = "tests may, and so may their helpers: what fails there has failed the test")]

mod bounds;
mod common;
mod entry_delay;
mod faults;
mod feature_levels;
mod in_order;
mod locks;
mod rate_limits;
mod rates;
mod sessions;
mod sets;
