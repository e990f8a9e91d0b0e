//! Mutation testing: deliberate defects that the simulation and the fault suite must find. A suite that has never
//! caught a defect proves little. Each mutant is one line in the code: `if mutant!(LoseWakeup) { … }`.
//!
//! A mutant must never change what an ordinary build does. Without `--cfg mutants` the macro [`mutant!`] is the
//! constant `false`: the compiler removes it together with the code behind it, and nothing can activate a mutant. With
//! it, a process has at most one active mutant, chosen at its start (`start`, by the variable `LOCKKEEPER_MUTANT`) or
//! by a simulation (`activate`).
//!
//! Beside it stands [`invariant!`], which is for ordinary builds.
//!
//! A mutant build has its own target directory, and its programs report themselves on stderr and in `--version`:
//! `cargo build --config .cargo/mutants.toml --target-dir target/mutants`.

use std::any::Any;

#[cfg(mutants)]
mod active;
mod mutant;

#[cfg(mutants)]
pub use active::{ENV, UnknownMutant, activate, active, announce, from_env, is_active, start};
pub use mutant::{CaughtBy, Mutant};

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

/// Panics with this sentence unless the invariant holds: in every build, so it must be cheap. In a node that ends the
/// process as a fatal error, whichever task finds it. A mutant build goes on: its suites must find each defect
/// themselves.
#[macro_export]
macro_rules! invariant {
    ($holds:expr, $sentence:literal $(,)?) => {{
        let holds: bool = $holds;
        if !cfg!(mutants) {
            assert!(holds, concat!("broken invariant: ", $sentence));
        }
    }};
}

/// The message of a panic, if an [`invariant!`] was broken.
pub fn broken_invariant(panic: &(dyn Any + Send)) -> Option<&str> {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    message.filter(|message| message.starts_with("broken invariant: "))
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

#[cfg(all(test, not(mutants)))]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_broken_invariant_is_told_from_other_panics() {
        let broken = catch_unwind(|| invariant!(std::hint::black_box(1) > 2, "one is more than two")).unwrap_err();
        assert_eq!(broken_invariant(&*broken), Some("broken invariant: one is more than two"));
        let other = catch_unwind::<_, ()>(|| panic!("on purpose")).unwrap_err();
        assert_eq!(broken_invariant(&*other), None);
        invariant!(std::hint::black_box(1) < 2, "one is less than two");
    }
}
