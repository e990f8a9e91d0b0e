//! Why a comparison failed.

use std::io;

use thiserror::Error;

/// See the module's text.
#[derive(Debug, Error)]
pub(crate) enum CompareError {
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The action.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The script is invalid.
    #[error("{part}.txt, line {line}: {why}")]
    Script {
        /// The script's file.
        part: String,
        /// The line, from 1.
        line: usize,
        /// The error.
        why: String,
    },
    /// A step cannot be executed, such as one on an unknown connection.
    #[error("step {step}: {why}")]
    Step {
        /// The step's number.
        step: usize,
        /// The error.
        why: String,
    },
    /// A server does not start or does not serve.
    #[error("{0}")]
    Server(String),
}

impl CompareError {
    /// Wraps an IO error; for `map_err`.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
