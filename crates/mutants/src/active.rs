//! The active mutant of a process. Ordinary builds do not contain this module.

use std::{
    fmt,
    sync::atomic::{AtomicU8, Ordering},
};

use crate::Mutant;

/// The variable that activates a mutant in the programs of a mutant build.
pub const ENV: &str = "LOCKKEEPER_MUTANT";

const NONE: u8 = u8::MAX;
static ACTIVE: AtomicU8 = AtomicU8::new(NONE);

/// Whether this mutant is active in this process.
#[inline]
#[must_use]
pub fn is_active(mutant: Mutant) -> bool {
    ACTIVE.load(Ordering::Relaxed) == mutant as u8
}

/// The active mutant of this process.
#[must_use]
pub fn active() -> Option<Mutant> {
    Mutant::ALL.iter().copied().find(|mutant| is_active(*mutant))
}

/// Replaces the active mutant, or deactivates it. Call this before the code under the mutant runs.
pub fn activate(mutant: Option<Mutant>) {
    ACTIVE.store(mutant.map_or(NONE, |mutant| mutant as u8), Ordering::Relaxed);
}

/// Activates the mutant named by [`ENV`]; none if the variable is unset or empty.
///
/// # Errors
/// The name is unknown.
pub fn from_env() -> Result<(), UnknownMutant> {
    let mutant = match std::env::var_os(ENV) {
        Some(name) if !name.is_empty() => Some(name.to_string_lossy().parse()?),
        _ => None,
    };
    activate(mutant);
    Ok(())
}

/// Reports on stderr that this is a mutant build, and the active mutant.
pub fn announce(program: &str) {
    match active() {
        Some(mutant) => eprintln!("{program}: MUTANT BUILD: {mutant} is active"),
        None => eprintln!("{program}: MUTANT BUILD: no mutant is active"),
    }
}

/// Runs [`from_env`] and [`announce`]. Each program calls this first.
///
/// # Errors
/// As [`from_env`].
pub fn start(program: &str) -> Result<(), UnknownMutant> {
    from_env()?;
    announce(program);
    Ok(())
}

/// No mutant has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMutant(String);

impl std::str::FromStr for Mutant {
    type Err = UnknownMutant;

    fn from_str(name: &str) -> Result<Self, UnknownMutant> {
        Self::ALL.iter().copied().find(|mutant| mutant.name() == name).ok_or_else(|| UnknownMutant(name.to_owned()))
    }
}

impl fmt::Display for UnknownMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        write!(f, "MUTANT BUILD: unknown mutant {:?}; known mutants: {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownMutant {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mutant_is_active_at_a_time() {
        for mutant in Mutant::ALL.iter().copied() {
            assert_eq!(mutant.name().parse(), Ok(mutant));
            activate(Some(mutant));
            assert_eq!(Mutant::ALL.iter().copied().filter(|other| is_active(*other)).collect::<Vec<_>>(), [mutant]);
            assert_eq!(active(), Some(mutant));
        }
        activate(None);
        assert!(!Mutant::ALL.iter().copied().any(is_active));
        assert_eq!(active(), None);
        assert!("no-such-mutant".parse::<Mutant>().is_err());
    }
}
