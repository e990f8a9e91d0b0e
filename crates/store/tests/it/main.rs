//! The store on real files: its content after any end, damage or failure, and its speed.

#![allow(clippy::unwrap_used, reason = "tests may unwrap, and so may what they share")]

mod common;
mod damage;
mod journal;
mod kill;
mod load;
mod log;
mod modes;
mod trace;
