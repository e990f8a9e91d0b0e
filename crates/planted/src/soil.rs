//! Where the one planted bug of a process is kept: the half of this crate that normal builds do not have.

use std::{
    fmt,
    sync::atomic::{AtomicU8, Ordering},
};

use crate::Bug;

/// The variable that plants a bug in `lockkeeper-faulty` and in a faulty client.
pub const ENV: &str = "LOCKKEEPER_PLANTED";

const NONE: u8 = u8::MAX;
static PLANTED: AtomicU8 = AtomicU8::new(NONE);

/// Whether this bug is planted in this process.
#[inline]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as u8
}

/// Plants one bug in place of the one before, or none. To be called before the work that it shall spoil begins.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(NONE, |bug| bug as u8), Ordering::Relaxed);
}

/// Plants what [`ENV`] names and returns it; nothing when it is not set or empty.
pub fn from_env() -> Result<Option<Bug>, UnknownBug> {
    let bug = match std::env::var(ENV) {
        Ok(name) if !name.is_empty() => Some(name.parse()?),
        _ => None,
    };
    plant(bug);
    Ok(bug)
}

/// No bug has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownBug(String);

impl std::str::FromStr for Bug {
    type Err = UnknownBug;

    fn from_str(name: &str) -> Result<Self, UnknownBug> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| UnknownBug(name.to_owned()))
    }
}

impl fmt::Display for UnknownBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        write!(f, "no planted bug is called {:?}; there are: {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownBug {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bug_at_a_time_by_its_name() {
        for bug in Bug::ALL.iter().copied() {
            assert_eq!(bug.name().parse(), Ok(bug));
            plant(Some(bug));
            assert_eq!(Bug::ALL.iter().copied().filter(|other| planted(*other)).collect::<Vec<_>>(), [bug]);
        }
        plant(None);
        assert!(!Bug::ALL.iter().copied().any(planted));
        assert!("no-such-bug".parse::<Bug>().is_err());
    }
}
