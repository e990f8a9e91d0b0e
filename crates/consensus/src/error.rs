//! Errors, by caller. Every text says what happened; the variant says what the caller may conclude.

use std::io;

use serde::{Deserialize, Serialize};

use crate::status::MemberRole;

/// Why consensus did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// A setting does not fit.
    #[error("consensus settings: {0}")]
    Config(String),
    /// What the store holds cannot be used.
    #[error("stored consensus data: {0}")]
    Stored(String),
    /// The protocol did not start.
    #[error("consensus does not start: {0}")]
    Raft(String),
}

/// Why a proposal was not reported as committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ProposeError {
    /// There is no leader that would take it. It is certainly not in the log and will not be.
    #[error("no leader at the moment; the proposal was not taken: try again")]
    NoLeader,
    /// It may or may not be, or come, in the log.
    #[error("the outcome of the proposal is not known: {0}")]
    Unknown(String),
    /// It exceeds the bound; it was not taken.
    #[error("proposal of {bytes} bytes exceeds the bound of {max_bytes}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        max_bytes: usize,
    },
    /// Consensus has failed on this node, and the process must end. The outcome of this proposal is not known.
    #[error("consensus has stopped on this node: {0}")]
    Fatal(String),
    /// This node is shutting down; the proposal was not taken.
    #[error("this node is shutting down; the proposal was not taken")]
    ShuttingDown,
    /// No node could read it; it was not taken.
    #[error("the proposal cannot be read and was not taken: {0}")]
    Unreadable(String),
}

/// Why a read could not be confirmed. Nothing happened; it can be tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum BarrierError {
    /// No leader is known or reachable (or, for `confirm_leadership`: this node does not lead).
    #[error("no leader at the moment: try again")]
    NoLeader,
    /// The leader could not reach a quorum in time.
    #[error("the leader has no contact with a majority: try again")]
    NoQuorum,
    /// No answer in time.
    #[error("no answer in time: {0}")]
    TimedOut(String),
    /// Consensus has failed on this node, and the process must end.
    #[error("consensus has stopped on this node: {0}")]
    Fatal(String),
    /// This node is shutting down.
    #[error("this node is shutting down")]
    ShuttingDown,
}

/// Why a change of the membership or a transfer of leadership was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ChangeError {
    /// There is no leader that would do it.
    #[error("no leader at the moment: try again")]
    NoLeader,
    /// The change makes no sense as things stand; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A front node was to become a voter; nothing was changed.
    #[error(
        "node {0} is a front node, which never votes: remove it, and add the machine again as an ordinary member, \
         under another id and with an empty data directory"
    )]
    FrontNeverVotes(u64),
    /// A member was to get another role; nothing was changed.
    #[error(
        "node {node} is {role} already, and a role cannot be changed: remove the node, and add the machine again under \
         another id and with an empty data directory"
    )]
    RoleIsFixed {
        /// The member.
        node: u64,
        /// The role that it has.
        role: MemberRole,
    },
    /// It may or may not have been done: look at the membership, then decide.
    #[error("the outcome is not known: {0}")]
    Unknown(String),
    /// Consensus has failed on this node, and the process must end.
    #[error("consensus has stopped on this node: {0}")]
    Fatal(String),
    /// This node is shutting down.
    #[error("this node is shutting down")]
    ShuttingDown,
    /// The membership is not the one that the caller has seen; nothing was changed.
    #[error(
        "the membership has changed since it was looked at (version {expected}; now it is {now}): nothing was done; \
         look at the members again, and repeat the change if it is still wanted"
    )]
    ChangedMeanwhile {
        /// The version that the caller has seen.
        expected: u64,
        /// The present version.
        now: u64,
    },
}

/// Why a peer's call was rejected; the peer sees it as [`crate::TransportError::Rejected`]. It was not acted on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct ServeError {
    /// Stable code of the reason.
    pub code: String,
    /// The reason for people.
    pub detail: String,
}

impl ServeError {
    pub(crate) fn new(code: &str, detail: impl Into<String>) -> ServeError {
        ServeError { code: code.to_owned(), detail: detail.into() }
    }

    /// The body of the call cannot be read.
    pub(crate) fn malformed(error: io::Error) -> ServeError {
        ServeError::new("malformed", error.to_string())
    }
}

/// Bytes that a program of this version did not write.
pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unreadable {what}: written by another version, or damaged"))
}
