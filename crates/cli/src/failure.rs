//! Failures of commands: one line with the error, its cause and the remedy, and an exit code for scripts.

use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper_api::Code;
use lockkeeper_api::text::{is_obeyed, printable};
use lockkeeper_client::{AccessTokenError, EndpointError, Error, SPEAKS_TLS, TlsError};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::status_line;

/// Success.
pub(crate) const EXIT_OK: u8 = 0;
/// The cluster refused, or a failure without a code of its own.
pub(crate) const EXIT_FAILED: u8 = 1;
/// Wrong arguments or configuration.
pub(crate) const EXIT_USAGE: u8 = 2;
/// `gate`: CMD's output is too large to be stored.
pub(crate) const EXIT_RESULT_TOO_LARGE: u8 = 117;
/// `gate`: the key is used for another operation. `cron`: the job has another schedule.
pub(crate) const EXIT_GATE_MISMATCH: u8 = 118;
/// `gate`: another caller is running it.
pub(crate) const EXIT_IN_PROGRESS: u8 = 119;
/// Commands that run CMD: the wait timed out.
pub(crate) const EXIT_WAIT_TIMED_OUT: u8 = 120;
/// Commands that run CMD: the lock was lost while CMD ran.
pub(crate) const EXIT_LOCK_LOST: u8 = 121;
/// No endpoint could serve.
pub(crate) const EXIT_UNREACHABLE: u8 = 122;
/// The change may or may not have taken place.
pub(crate) const EXIT_UNKNOWN_OUTCOME: u8 = 123;
/// Commands that run CMD: wrong arguments, or a failure of lockkeeper.
pub(crate) const EXIT_INTERNAL: u8 = 125;
/// Commands that run CMD: CMD cannot be executed.
pub(crate) const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Commands that run CMD: CMD was not found.
pub(crate) const EXIT_NOT_FOUND: u8 = 127;

/// The exit code that a shell reports for a process killed by a signal.
pub(crate) fn exit_code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    message: String,
    pub(crate) may_pass: MayPass,
    /// The signal that ended the command, which this process is to die of.
    pub(crate) signal: Option<Signal>,
    /// The fields of the problem document (`--json`) beside those that follow from the others.
    document: Map<String, Value>,
}

/// The `code` of a problem document for a failure that the cluster gave none.
fn word_of(exit_code: u8) -> &'static str {
    match exit_code {
        EXIT_USAGE => "usage",
        EXIT_RESULT_TOO_LARGE => "result_too_large",
        EXIT_GATE_MISMATCH => "gate_mismatch",
        EXIT_IN_PROGRESS => "in_progress",
        EXIT_WAIT_TIMED_OUT => "wait_timed_out",
        EXIT_LOCK_LOST => "lock_lost",
        EXIT_UNREACHABLE => "unreachable",
        EXIT_UNKNOWN_OUTCOME => "unknown_outcome",
        EXIT_NOT_EXECUTABLE => "not_executable",
        EXIT_NOT_FOUND => "command_not_found",
        _ => "failed",
    }
}

/// Whether the same may succeed later; see [`Error::may_pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayPass {
    /// Not without a change of the command or of the caller's rights.
    No,
    /// Yes, such as when there is room again.
    Yes,
    /// Certificates or endpoints are wrong. If they have worked before, they are wrong at the nodes, and may be mended.
    IfItWorked,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), may_pass: MayPass::No, signal: None, document: Map::new() }
    }

    /// The same with fields for the problem document: those of a problem, or others.
    pub(crate) fn with_document(self, fields: &impl Serialize) -> Self {
        let Ok(Value::Object(fields)) = serde_json::to_value(fields) else { return self };
        Self { document: self.document.into_iter().chain(fields).collect(), ..self }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        // Also where the commands that run CMD give it another exit code.
        Self::new(EXIT_USAGE, message).with_document(&json!({ "code": "usage", "title": "usage" }))
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(EXIT_FAILED, message)
    }

    /// The same with another code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same with more advice.
    pub(crate) fn with_remedy(self, remedy: &str) -> Self {
        Self { message: self.message + remedy, ..self }
    }

    /// A failure without a message: the reader closed the pipe, or the message was printed already.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// The end by a signal, which needs no message.
    pub(crate) fn by_signal(signal: Signal) -> Self {
        Self { signal: Some(signal), ..Self::silent(exit_code_of_signal(signal as i32)) }
    }

    /// Prints the failure as one line on standard error, which is a problem document with `--json`.
    pub(crate) fn print(&self, command: &str) {
        if self.message.is_empty() {
            return;
        }
        match wants_json() {
            true => print_error_json(&self.problem()),
            false => print_error(&format!("lockkeeper {command}: {}", self.message)),
        }
    }

    /// The problem document, as the API has them, with the exit code.
    fn problem(&self) -> Value {
        let word = word_of(self.code);
        let mut problem = json!({ "type": "about:blank", "title": word.replace('_', " "), "code": word });
        let own = json!({ "detail": self.message, "exit_code": self.code });
        for (field, value) in self.document.iter().chain(own.as_object().into_iter().flatten()) {
            problem[field] = value.clone();
        }
        problem
    }
}

/// Whether standard error is for programs too (`--json`).
static JSON: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_json(json: bool) {
    JSON.store(json, Ordering::Relaxed);
}

pub(crate) fn wants_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Prints a line on standard error. Ignores a failed write, which must not become a panic.
pub(crate) fn print_error(line: &str) {
    use std::io::Write;
    let line = line.replace(['\n', '\r'], " ");
    status_line::erase();
    // The line may contain untrusted text, such as a server's error.
    let _ = writeln!(std::io::stderr(), "{}", printable(&line));
}

/// Prints a document as one line on standard error. JSON has no escapes but its own.
pub(crate) fn print_error_json(document: &Value) {
    print_error(&printable_json(document));
}

/// The document, with characters that a terminal obeys as JSON escapes them.
fn printable_json(document: &Value) -> String {
    let mut text = String::new();
    for c in document.to_string().chars() {
        // All of them are in the basic multilingual plane.
        if is_obeyed(c) { text.push_str(&format!("\\u{:04x}", u32::from(c))) } else { text.push(c) }
    }
    text
}

/// The text of an error without the endpoints that were tried, for a line that names the endpoint.
pub(crate) fn why(error: &Error) -> String {
    match error {
        Error::Unreachable { tried } | Error::Tls { tried } => {
            tried.iter().map(|tried| tried.why.as_str()).collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, remedy) = match &error {
            Error::Unreachable { .. } => (
                EXIT_UNREACHABLE,
                "; check that the cluster runs and has a majority, or set --endpoints or LOCKKEEPER_ENDPOINTS \
                 (`lockkeeper dev` starts a cluster to try)",
            ),
            Error::Tls { tried } if tried.iter().any(|tried| tried.why == SPEAKS_TLS) => (
                EXIT_FAILED,
                ": give --ca FILE or LOCKKEEPER_CA, the authority of the nodes' certificates, and https:// where an \
                 endpoint has a scheme",
            ),
            // No outage: another try meets the same certificates.
            Error::Tls { .. } => {
                (EXIT_FAILED, "; check --ca, --cert and --key, the scheme of --endpoints, and the nodes' certificates")
            }
            Error::UnknownOutcome(_) => (EXIT_UNKNOWN_OUTCOME, "; check whether it took place before you repeat it"),
            Error::NotLockkeeper { .. } => (EXIT_FAILED, "; check --endpoints"),
            Error::Refused(problem) if problem.code == Code::Unauthenticated => {
                (EXIT_FAILED, "; check --token-file, LOCKKEEPER_TOKEN_FILE and LOCKKEEPER_ACCESS_TOKEN")
            }
            Error::Refused(problem) if problem.code == Code::OtherCluster => {
                (EXIT_USAGE, "; check --endpoints and LOCKKEEPER_ENDPOINTS")
            }
            _ => (EXIT_FAILED, ""),
        };
        let may_pass = match &error {
            Error::Tls { .. } | Error::NotLockkeeper { .. } => MayPass::IfItWorked,
            error if error.may_pass() => MayPass::Yes,
            _ => MayPass::No,
        };
        let failure = Self { may_pass, ..Self::new(code, format!("{error}{remedy}")) };
        match &error {
            Error::Refused(problem) => failure.with_document(problem),
            Error::Tls { .. } => failure.with_document(&json!({ "code": "tls_failed", "title": "TLS failed" })),
            Error::NotLockkeeper { .. } => {
                failure.with_document(&json!({ "code": "not_lockkeeper", "title": "not Lockkeeper" }))
            }
            Error::Lost(_) => failure.with_document(&json!({ "code": "session_lost", "title": "session lost" })),
            _ => failure,
        }
    }
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        let remedy = match &error {
            EndpointError::NoAuthority(_) => "; give --ca FILE or LOCKKEEPER_CA",
            _ => "",
        };
        Self::usage(format!("{error}{remedy}"))
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        Self::usage(format!("{error}; check --ca, --cert and --key"))
    }
}

impl From<AccessTokenError> for Failure {
    fn from(error: AccessTokenError) -> Self {
        Self::usage(format!("{error}; check --token-file, LOCKKEEPER_TOKEN_FILE and LOCKKEEPER_ACCESS_TOKEN"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // As in `lockkeeper ls / | head -1`.
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

#[cfg(test)]
mod tests {
    use lockkeeper_api::Problem;

    use super::*;

    #[test]
    fn a_document_with_characters_that_a_terminal_obeys_is_json() {
        let document = json!({ "label": "pay\u{202e}42\u{7f}\n\u{200d}ü" });
        let text = printable_json(&document);
        assert_eq!(text, "{\"label\":\"pay\\u202e42\\u007f\\n\u{200d}ü\"}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }

    #[test]
    fn a_failure_is_a_problem_document_with_a_code_for_programs() {
        let usage = Failure::usage("--a needs --b").problem();
        let expected = json!({
            "type": "about:blank", "title": "usage", "code": "usage", "detail": "--a needs --b", "exit_code": 2,
        });
        assert_eq!(usage, expected);
        let mut problem = Problem::new(Code::LockBusy, "held by another");
        problem.place = Some(2);
        let refused = Failure::from(Error::Refused(Box::new(problem))).problem();
        assert_eq!(
            (&refused["code"], &refused["place"], &refused["status"]),
            (&json!("lock_busy"), &json!(2), &json!(423))
        );
        assert_eq!(refused["exit_code"], 1);
        let lost = Failure::from(Error::Lost("it expired".into())).with_code(EXIT_UNREACHABLE).problem();
        assert_eq!((&lost["code"], &lost["exit_code"]), (&json!("session_lost"), &json!(122)));
    }
}
