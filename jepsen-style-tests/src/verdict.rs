//! How a proof ends: it holds, it is broken, or it could not be tried. "Could not be tried" is never a pass.

use std::fmt;
use std::path::Path;

/// The lines of a server's log that an error repeats: the log goes with the directory of the proof.
const LAST_LINES: usize = 12;

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

/// The proof cannot run: `what` says why.
pub fn cannot_run<T>(what: impl Into<String>) -> Result<T, Failed> {
    Err(Failed::CannotRun(what.into()))
}

/// The promise is broken: a call failed that nothing hindered.
pub fn without_fault(why: impl fmt::Display) -> Failed {
    Failed::Broken(format!("with no fault about: {why}"))
}

/// The proof cannot run because a server that it needs ended: says the last lines of its log.
pub fn ended_early(what: &str, log: &Path) -> Failed {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
    Failed::CannotRun(format!("{what}; {} ends with:\n{}", log.display(), last.join("\n")))
}

/// What an error means for a proof. It is named behind what it came of.
pub trait OrFailed<T> {
    /// The promise is broken.
    fn or_broken(self, what: impl fmt::Display) -> Result<T, Failed>;

    /// The proof cannot run.
    fn or_cannot_run(self, what: impl fmt::Display) -> Result<T, Failed>;
}

impl<T, E: fmt::Display> OrFailed<T> for Result<T, E> {
    fn or_broken(self, what: impl fmt::Display) -> Result<T, Failed> {
        self.map_err(|why| Failed::Broken(format!("{what}: {why}")))
    }

    fn or_cannot_run(self, what: impl fmt::Display) -> Result<T, Failed> {
        self.map_err(|why| Failed::CannotRun(format!("{what}: {why}")))
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn an_error_repeats_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("server.log");
        assert!(super::ended_early("ended", &log).to_string().ends_with("ends with:\n"));
        let lines: Vec<String> = (0..30).map(|line| format!("line {line}")).collect();
        std::fs::write(&log, lines.join("\n")).unwrap();
        let error = super::ended_early("ended", &log).to_string();
        assert!(error.starts_with("ended; ") && error.ends_with("line 28\nline 29"), "{error}");
        assert!(!error.contains("line 17") && error.contains("line 18"), "{error}");
    }
}
