//! Errors of the recipes.

use lockkeeper_api::Code;
use thiserror::Error;

use crate::error::Error;

/// Why a recipe's operation failed. After every error but [`Client`](Self::Client) nothing has changed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The request failed; the class of the error says whether it may have taken effect.
    #[error(transparent)]
    Client(#[from] Error),
    /// The path or name cannot be used.
    #[error("'{path}' cannot be used: {why}")]
    BadPath {
        /// The path or name.
        path: String,
        /// The rule that it breaks, and what to do.
        why: String,
    },
    /// An argument is out of bounds.
    #[error("{0}")]
    BadArgument(String),
    /// The node at that path was not made by this recipe.
    #[error("{path} is not a {recipe}: {why}; use another path, or delete the node")]
    Foreign {
        /// The path.
        path: String,
        /// The kind of node that was expected.
        recipe: &'static str,
        /// What is wrong with the node.
        why: String,
    },
    /// Other processes use the same path with another parameter.
    #[error("{path} is in use with {found}, and was asked for with {asked}; all users must state the same")]
    Mismatch {
        /// The path.
        path: String,
        /// The parameter of this process.
        asked: String,
        /// The parameter of the others.
        found: String,
    },
    /// The sum does not fit into the counter.
    #[error("counter {path} stands at {value}; adding {delta} would leave the range of 64 bits; nothing was added")]
    Overflow {
        /// The counter.
        path: String,
        /// Its value.
        value: i64,
        /// The number to add.
        delta: i64,
    },
    /// Another process changed the node before each attempt.
    #[error(
        "gave up changing {path} after {tries} attempts in {elapsed_ms} ms: other processes changed it each time; \
         nothing was changed; try again"
    )]
    Contended {
        /// The path.
        path: String,
        /// The number of attempts.
        tries: u32,
        /// How long they took, in milliseconds.
        elapsed_ms: u64,
    },
    /// The delivery or leadership is no longer the caller's: another process may have it by now.
    #[error("{what} is no longer yours: {why}")]
    Stale {
        /// The delivery, leadership, …
        what: String,
        /// The evidence.
        why: String,
    },
    /// The name belongs to another session, or to another handle of this one.
    #[error("{path} is taken by {owner}; use another name, or wait until that session has ended")]
    Taken {
        /// The path.
        path: String,
        /// The owner, for people.
        owner: String,
    },
    /// The node was deleted during the wait.
    #[error("{path} was deleted during the wait")]
    Removed {
        /// The path.
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

    /// Whether the session is lost, and with it all that it owned.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Client(Error::Lost(_)))
    }

    /// Whether the same operation may succeed later; see [`Error::may_pass`]. So it may after other processes changed
    /// the node each time.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Client(error) => error.may_pass(),
            Self::Contended { .. } => true,
            _ => false,
        }
    }
}

/// Refuses data of more than `most` bytes. `whose` stands before "data" in the message.
pub(super) fn check_data(whose: &str, data: &[u8], most: usize) -> Result<(), RecipeError> {
    if data.len() <= most {
        return Ok(());
    }
    Err(RecipeError::BadArgument(format!("{whose} data are at most {most} bytes, these are {}", data.len())))
}

/// The operation that made the cluster refuse a transaction, and why.
pub(crate) fn refused_operation(error: &Error) -> Option<(u32, Code)> {
    match error {
        Error::Refused(problem) if problem.code == Code::TransactionFailed => problem.operation.zip(problem.cause),
        _ => None,
    }
}
