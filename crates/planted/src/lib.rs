//! Bugs planted on purpose, to show that the fault suites would find them: each is one line at its place in the code,
//! `if planted(Bug::X)`. A suite that has never caught anything proves little; this is what it has to catch.
//!
//! This crate must never change what a normal build does. Without the cargo feature `planted` the question is a constant
//! `false` which the compiler removes together with the line behind it, and there is no way to plant anything. With it a
//! process carries at most one bug at a time, chosen at its start (`from_env`) or by a simulation (`plant`).

mod bug;
#[cfg(feature = "planted")]
mod soil;

pub use bug::Bug;
#[cfg(feature = "planted")]
pub use soil::{ENV, UnknownBug, from_env, plant, planted};

/// Whether this bug is planted in this process: never, in a build without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn planted(_: Bug) -> bool {
    false
}
