//! Errors of calls to the cluster, in the classes that a caller must distinguish.

use std::fmt;

use lockkeeper_api::{Code, Problem};
use thiserror::Error;

/// An endpoint that did not serve, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The endpoint.
    pub endpoint: String,
    /// The failure.
    pub why: String,
    /// The code, if a node answered that it could not serve.
    pub code: Option<Code>,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.why)
    }
}

/// Why [`Error::Tls`] names an endpoint that was asked without TLS: it needs `https` and a certificate authority.
pub const SPEAKS_TLS: &str = "this node speaks TLS";

/// Why a call did not succeed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster refused the call. Nothing changed, and a repetition gets the same answer. With access control
    /// enforced this includes [`Code::Unauthenticated`] (no token, or one that does not count) and [`Code::Forbidden`]
    /// (no role allows the call). [`Code::OtherCluster`] means that an endpoint belongs to another cluster than the one
    /// that this client has reached before.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The call may or may not have taken effect. Check before you repeat it.
    #[error("it is not known whether this took place: {0}")]
    UnknownOutcome(String),
    /// No endpoint could serve. The call certainly did not take effect.
    #[error("{}", unreachable(.tried))]
    Unreachable {
        /// Each endpoint with its last failure.
        tried: Vec<Tried>,
    },
    /// TLS failed at every endpoint, such as for an expired certificate or one of another authority. The call certainly
    /// did not take effect. Waiting does not help: this client or the nodes need other certificates.
    #[error("no secure connection to any endpoint: {}", list(.tried))]
    Tls {
        /// Each endpoint with its failure.
        tried: Vec<Tried>,
    },
    /// The session is over, and with it every lock it held; or a lock was taken away by force.
    #[error("the session is lost, or a lock of it: {0}")]
    Lost(String),
    /// The answer does not follow Lockkeeper's protocol: another program listens at the endpoint, or another version.
    /// The outcome of a change is unknown: the answer may come from a proxy before a cluster that has carried it out.
    #[error("{endpoint} gave an answer that is not Lockkeeper's: {why}")]
    NotLockkeeper {
        /// The endpoint that answered.
        endpoint: String,
        /// What is wrong with the answer.
        why: String,
    },
}

/// Says of each endpoint why it could not serve. Endpoints with one cause, which a cluster without a majority has, are
/// named together.
fn unreachable(tried: &[Tried]) -> String {
    /// For one endpoint, and for several.
    type Cause = (&'static str, &'static str);
    let cause = |tried: &Tried| match tried.code {
        Some(Code::NoLeader) => Some(("has no leader", "have no leader")),
        // It led, or knew who did. As nothing was done, the request was one that leaves nothing behind.
        Some(Code::UnknownOutcome) => Some(("waits for a majority", "wait for a majority")),
        None if tried.why.contains("Connection refused") => Some(("refuses connections", "refuse connections")),
        _ => None,
    };
    let lacks_majority = |tried: &Tried| matches!(tried.code, Some(Code::NoLeader | Code::UnknownOutcome));
    if !tried.iter().any(lacks_majority) {
        return format!("no endpoint could serve: {}", list(tried));
    }
    let mut parts: Vec<(Option<Cause>, Vec<String>)> = Vec::new();
    for tried in tried {
        let cause = cause(tried);
        let address = tried.endpoint.split_once("://").map_or(tried.endpoint.as_str(), |(_, address)| address);
        match parts.iter_mut().find(|(known, _)| cause.is_some() && *known == cause) {
            Some((_, addresses)) => addresses.push(address.to_owned()),
            None if cause.is_some() => parts.push((cause, vec![address.to_owned()])),
            None => parts.push((cause, vec![format!("{address}: {}", tried.why)])),
        }
    }
    let said = parts.iter().map(|(cause, addresses)| match cause {
        None => addresses.concat(),
        Some((one, many)) => format!("{} {}", addresses.join(" and "), if addresses.len() > 1 { many } else { one }),
    });
    format!("no majority: {}", said.collect::<Vec<_>>().join(", "))
}

fn list(tried: &[Tried]) -> String {
    let all: Vec<String> = tried.iter().map(ToString::to_string).collect();
    all.join("; ")
}

impl Error {
    /// Whether nothing could be reached: no endpoint answered, or none had a leader with a majority. A cluster that is
    /// overloaded is there, and so is one that refuses the call, presents a certificate that is not accepted, or may
    /// have carried the call out.
    ///
    /// What a caller does in an outage is its own decision, such as
    /// [`IfUnreachable`](crate::recipes::IfUnreachable). Errors of a session's stream do not have all codes; ask
    /// [`Client::is_outage`](crate::Client::is_outage) before you act without the cluster.
    pub fn is_outage(&self) -> bool {
        let is_busy = |tried: &Tried| matches!(tried.code, Some(Code::Overloaded | Code::RateLimited));
        matches!(self, Self::Unreachable { tried } if !tried.iter().any(is_busy))
    }

    /// Whether the same call may succeed later, because what stands in its way may pass without a change of the call or
    /// of the caller's rights: an outage, an overload, certificates that are being replaced, a lack of room, or a
    /// feature level that is not raised yet. Not so a refusal for another reason, and the loss of the session.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::UnknownOutcome(_) | Self::Unreachable { .. } | Self::Tls { .. } | Self::NotLockkeeper { .. } => true,
            Self::Lost(_) => false,
            Self::Refused(problem) => {
                problem.code.is_transient()
                    || matches!(
                        problem.code,
                        Code::TooManyEphemerals
                            | Code::StateFull
                            | Code::NamespaceFull
                            | Code::FeatureLevelTooLow
                            | Code::Compacted
                            | Code::TooSlow
                            | Code::Cancelled
                            | Code::UnknownOutcome
                            | Code::Internal
                    )
            }
        }
    }

    /// The cluster's code, if it refused the call.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            _ => None,
        }
    }

    /// The error for a problem that the cluster reported. The end of the own session is a loss.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_time_can_mend_does_not_pass() {
        for code in [
            Code::Overloaded,
            Code::RateLimited,
            Code::NoLeader,
            Code::ShuttingDown,
            Code::StateFull,
            Code::NamespaceFull,
            Code::TooManyEphemerals,
            Code::FeatureLevelTooLow,
        ] {
            assert!(Error::refused(code, "later").may_pass(), "{code}");
        }
        for code in [
            Code::Forbidden,
            Code::Unauthenticated,
            Code::WrongSecret,
            Code::BadRequest,
            Code::GateMismatch,
            Code::OtherCluster,
        ] {
            assert!(!Error::refused(code, "never").may_pass(), "{code}");
        }
        assert!(Error::Tls { tried: Vec::new() }.may_pass() && Error::Unreachable { tried: Vec::new() }.may_pass());
        assert!(!Error::Lost("over".into()).may_pass());
    }

    #[test]
    fn only_a_cluster_that_cannot_be_reached_is_an_outage() {
        let unreachable = |codes: &[Option<Code>]| Error::Unreachable {
            tried: codes.iter().map(|code| Tried { endpoint: "e".into(), why: "w".into(), code: *code }).collect(),
        };
        for codes in [&[None][..], &[None, Some(Code::NoLeader)], &[Some(Code::ShuttingDown)]] {
            assert!(unreachable(codes).is_outage(), "{codes:?}");
        }
        for codes in [&[Some(Code::Overloaded)][..], &[None, Some(Code::RateLimited)]] {
            assert!(!unreachable(codes).is_outage(), "{codes:?}");
        }
        let (why, endpoint) = ("w".to_owned(), "e".to_owned());
        for other in [
            Error::UnknownOutcome(why.clone()),
            Error::Tls { tried: Vec::new() },
            Error::Lost(why.clone()),
            Error::NotLockkeeper { endpoint, why },
            Error::refused(Code::Forbidden, "no"),
        ] {
            assert!(!other.is_outage(), "{other:?}");
        }
    }
}
