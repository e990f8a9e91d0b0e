//! The store from outside, on real files: what it gives back after any end, damage or failure, and what it costs.

#![allow(clippy::unwrap_used, reason = "tests may unwrap, and so may what they share")]

mod common;
mod damage;
mod kill;
mod load;
mod log;
mod modes;
mod trace;
