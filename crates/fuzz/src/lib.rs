//! What a node reads from others or from its disk, under bytes that nobody meant to write.
//!
//! A [`Target`] is a function of any bytes, which panics where something does not hold, and true inputs to begin with. Two things drive it:
//! the runner here (`scripts/fuzz`: mutations of the true inputs from a seed, on stable Rust and without a build of its own), and
//! libFuzzer, which is guided by the branches that an input reaches (`crates/fuzz/libfuzzer/run`).

pub mod runner;
mod targets;

pub use targets::{Target, all};
