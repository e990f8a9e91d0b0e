//! How a proof ends: it holds, it is broken, or it could not be tried. "Could not be tried" is never a pass.

use std::fmt;

/// Why a proof did not hold.
#[derive(Debug)]
pub enum Failed {
    /// The promise was seen broken, or the cluster did not come to do what it must.
    Broken(String),
    /// The proof needs something that this machine has not.
    CannotRun(String),
}

/// What a proof gives: its figures where it holds.
pub type ProofResult = Result<String, Failed>;

/// The promise is broken: `what` says how.
pub fn broken<T>(what: impl Into<String>) -> Result<T, Failed> {
    Err(Failed::Broken(what.into()))
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::CannotRun(format!("the harness itself failed: {error}"))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(what) | Self::CannotRun(what) => f.write_str(what),
        }
    }
}
