//! How a command fails: one line that says what happened, why and what to do, and an exit code that scripts can tell apart.

use lockkeeper_api::text::printable;
use lockkeeper_client::{EndpointError, Error};

/// It did what was asked.
pub(crate) const EXIT_OK: u8 = 0;
/// The cluster refused, or something failed that no other code names.
pub(crate) const EXIT_FAILED: u8 = 1;
/// Wrong arguments or configuration.
pub(crate) const EXIT_USAGE: u8 = 2;
/// `gate`: CMD printed more than can be stored.
pub(crate) const EXIT_RESULT_TOO_LARGE: u8 = 117;
/// `gate`: the key is used for another operation.
pub(crate) const EXIT_GATE_MISMATCH: u8 = 118;
/// `gate`: another runs it.
pub(crate) const EXIT_IN_PROGRESS: u8 = 119;
/// `lock` and its like: the wait is over and another still holds it.
pub(crate) const EXIT_WAIT_TIMED_OUT: u8 = 120;
/// `lock` and its like: what was held was lost while CMD ran.
pub(crate) const EXIT_LOCK_LOST: u8 = 121;
/// No endpoint could serve.
pub(crate) const EXIT_UNREACHABLE: u8 = 122;
/// It may or may not have taken place.
pub(crate) const EXIT_UNKNOWN_OUTCOME: u8 = 123;
/// `lock` and its like: wrong arguments, or a failure of its own.
pub(crate) const EXIT_INTERNAL: u8 = 125;
/// `lock` and its like: CMD cannot be executed.
pub(crate) const EXIT_NOT_EXECUTABLE: u8 = 126;
/// `lock` and its like: there is no such CMD.
pub(crate) const EXIT_NOT_FOUND: u8 = 127;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(EXIT_USAGE, message)
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(EXIT_FAILED, message)
    }

    /// The same with another code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// A failure that needs no words: whoever read the output has gone, or the words have been said.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// One line on standard error.
    pub(crate) fn tell(&self, command: &str) {
        if !self.message.is_empty() {
            say(&format!("lockkeeper {command}: {}", self.message));
        }
    }
}

/// A line on standard error, whatever became of it: a failing message must not become a panic.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    let line = line.replace(['\n', '\r'], " ");
    // It may repeat a stranger's words, an error's of a server for instance.
    let _ = writeln!(std::io::stderr(), "{}", printable(&line));
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, remedy) = match &error {
            Error::Unreachable { .. } => (
                EXIT_UNREACHABLE,
                "; check that the cluster runs and has a majority, or name it with --endpoints or LOCKKEEPER_ENDPOINTS (`lockkeeper dev` starts one to try)",
            ),
            Error::UnknownOutcome(_) => (EXIT_UNKNOWN_OUTCOME, "; look whether it did before you repeat it"),
            Error::NotLockkeeper { .. } => (EXIT_FAILED, "; check --endpoints"),
            _ => (EXIT_FAILED, ""),
        };
        Self::new(code, format!("{error}{remedy}"))
    }
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // `lockkeeper ls / | head -1`: the reader has what it wanted.
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::silent(EXIT_OK);
        }
        Self::failed(format!("cannot write the output: {error}"))
    }
}

impl From<nix::Error> for Failure {
    fn from(error: nix::Error) -> Self {
        Self::failed(format!("system call failed: {error}"))
    }
}
