//! Why it could not be found out whether the two behave alike.

use std::io;

use thiserror::Error;

/// See the module's text.
#[derive(Debug, Error)]
pub(crate) enum Trouble {
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// The script is wrong.
    #[error("{part}.txt, line {line}: {why}")]
    Script {
        /// Which file of it.
        part: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A step cannot be taken, such as one on a connection that there is not.
    #[error("step {step}: {why}")]
    Step {
        /// Its number.
        step: usize,
        /// Why not.
        why: String,
    },
    /// A server did not start or does not serve.
    #[error("{0}")]
    Server(String),
}

impl Trouble {
    /// Wraps an error of the operating system; for `map_err`.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
