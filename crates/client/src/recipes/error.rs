//! Why a recipe did not do what was asked.

use lockkeeper_api::Code;
use thiserror::Error;

use crate::error::Error;

/// Why a recipe did not do what was asked. Everything but [`Client`](Self::Client) is certain: nothing changed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The call itself failed; the class of the error says whether it may have taken place.
    #[error(transparent)]
    Client(#[from] Error),
    /// The path or name cannot be used.
    #[error("'{path}' cannot be used: {why}")]
    BadPath {
        /// What was given.
        path: String,
        /// Which rule it breaks, and what to do.
        why: String,
    },
    /// An argument is out of bounds.
    #[error("{0}")]
    BadArgument(String),
    /// Something else lives at that path.
    #[error("{path} holds something that is no {recipe}: {why}; use another path, or remove it")]
    Foreign {
        /// Where.
        path: String,
        /// What was looked for.
        recipe: &'static str,
        /// What is wrong with what is there.
        why: String,
    },
    /// Others use the same path with another parameter.
    #[error("{path} is in use with {found}, and was asked for with {asked}; all must state the same")]
    Mismatch {
        /// Where.
        path: String,
        /// What was asked for.
        asked: String,
        /// What is there.
        found: String,
    },
    /// The counter cannot hold the sum.
    #[error("counter {path} stands at {value}; adding {delta} would leave the range of 64 bits; nothing was added")]
    Overflow {
        /// Which counter.
        path: String,
        /// Its value.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// Others were faster each time.
    #[error(
        "gave up changing {path} after {tries} tries in {elapsed_ms} ms: others changed it each time; nothing changed; try again"
    )]
    Contended {
        /// Where.
        path: String,
        /// How often it was tried.
        tries: u32,
        /// For how long.
        elapsed_ms: u64,
    },
    /// What the handle stood for is no longer the caller's: another may have it by now.
    #[error("{what} is no longer yours: {why}")]
    Stale {
        /// The delivery, leadership, …
        what: String,
        /// How that is known.
        why: String,
    },
    /// The name belongs to another session, or to another handle of this one.
    #[error("{path} is taken by {owner}; use another name, or wait until that session has ended")]
    Taken {
        /// Where.
        path: String,
        /// Whose it is, for people.
        owner: String,
    },
    /// What was waited for does not exist any more.
    #[error("{path} was removed while it was waited for")]
    Removed {
        /// Where.
        path: String,
    },
}

impl RecipeError {
    /// The cluster's code, where it refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Client(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the session is lost, and with it all it owned.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Client(Error::Lost(_)))
    }

    /// Whether the change may have taken place all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Client(Error::UnknownOutcome(_) | Error::NotLockkeeper { .. }))
    }
}

/// Of a transaction that was refused: which operation, and why.
pub(crate) fn refused_operation(error: &Error) -> Option<(u32, Code)> {
    match error {
        Error::Refused(problem) if problem.code == Code::TransactionFailed => problem.operation.zip(problem.cause),
        _ => None,
    }
}
