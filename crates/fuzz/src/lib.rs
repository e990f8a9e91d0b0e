//! Fuzzing of everything that a node reads from others or from its disk.
//!
//! A [`Target`] is a function that panics if a property does not hold for some bytes, and a list of valid inputs
//! (seeds). Two drivers run it: the runner here (`scripts/fuzz`), which tries mutations of the seeds that depend only
//! on a number, without a build of its own; and libFuzzer (`crates/fuzz/libfuzzer/run`), which is guided by coverage.

pub mod runner;
mod targets;

pub use targets::{Target, all};
