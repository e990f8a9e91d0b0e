//! What can go wrong between a caller and the cluster, in the classes that a caller must tell apart.

use std::fmt;

use lockkeeper_api::{Code, Problem};
use thiserror::Error;

/// One endpoint that did not serve, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The endpoint.
    pub endpoint: String,
    /// What happened there.
    pub why: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.why)
    }
}

/// Why a call did not succeed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster refused; nothing changed, and asking again gets the same answer.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// It may or may not have taken place. Look before you repeat it.
    #[error("it is not known whether this took place: {0}")]
    UnknownOutcome(String),
    /// No endpoint could serve; it certainly did not take place.
    #[error("no endpoint could serve: {}", list(.tried))]
    Unreachable {
        /// Each endpoint with its last failure.
        tried: Vec<Tried>,
    },
    /// The session is over, and with it every lock it held; or the one lock was taken from it by force.
    #[error("the session is lost, or a lock of it: {0}")]
    Lost(String),
    /// The answer is not one that Lockkeeper gives; something else listens there, or it speaks another version. Of a change that
    /// was asked for nothing is known: what gave this answer may stand before a cluster that has carried it out.
    #[error("{endpoint} gave an answer that is not Lockkeeper's: {why}")]
    NotLockkeeper {
        /// Who answered.
        endpoint: String,
        /// What is wrong with the answer.
        why: String,
    },
}

fn list(tried: &[Tried]) -> String {
    let all: Vec<String> = tried.iter().map(ToString::to_string).collect();
    all.join("; ")
}

impl Error {
    /// The cluster's code, where it refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            _ => None,
        }
    }

    /// The error for a refusal by the cluster; the end of the own session is a loss.
    pub(crate) fn from_problem(problem: Problem, of_own_session: bool) -> Self {
        match problem.code {
            Code::SessionExpired if of_own_session => Self::Lost(problem.detail),
            Code::UnknownOutcome => Self::UnknownOutcome(problem.detail),
            _ => Self::Refused(Box::new(problem)),
        }
    }

    pub(crate) fn refused(code: Code, detail: impl Into<String>) -> Self {
        Self::Refused(Box::new(Problem::new(code, detail)))
    }
}
