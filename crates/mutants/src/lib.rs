//! Mutation testing: deliberate defects that the simulation and the fault suite must find. A suite that has never
//! caught a defect proves little. Each mutant is one line in the code: `if mutant!(LoseWakeup) { … }`.
//!
//! This crate must never change what an ordinary build does. Without `--cfg mutants` the macro [`mutant!`] is the
//! constant `false`: the compiler removes it together with the code behind it, and nothing can activate a mutant. With
//! it, a process has at most one active mutant, chosen at its start (`start`, by the variable `LOCKKEEPER_MUTANT`) or
//! by a simulation (`activate`).
//!
//! A mutant build has its own target directory, and its programs report themselves on stderr and in `--version`:
//! `cargo build --config 'build.rustflags=["--cfg","mutants"]' --target-dir target/mutants`.

#[cfg(mutants)]
mod active;
mod mutant;

#[cfg(mutants)]
pub use active::{ENV, UnknownMutant, activate, active, announce, from_env, is_active, start};
pub use mutant::Mutant;

/// Whether this mutant is active in this process: the constant `false`, because this is an ordinary build.
#[cfg(not(mutants))]
#[macro_export]
macro_rules! mutant {
    ($mutant:ident) => {
        const { $crate::never($crate::Mutant::$mutant) }
    };
}

/// Whether this mutant is active in this process.
#[cfg(mutants)]
#[macro_export]
macro_rules! mutant {
    ($mutant:ident) => {
        $crate::is_active($crate::Mutant::$mutant)
    };
}

/// The value of `mutant!` in an ordinary build.
#[cfg(not(mutants))]
#[doc(hidden)]
#[must_use]
pub const fn never(_: Mutant) -> bool {
    false
}

/// A program's version, which marks a mutant build.
#[macro_export]
macro_rules! version {
    () => {
        const {
            if cfg!(mutants) {
                concat!(env!("CARGO_PKG_VERSION"), " (MUTANT BUILD)")
            } else {
                env!("CARGO_PKG_VERSION")
            }
        }
    };
}
