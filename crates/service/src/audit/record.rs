//! The records of the audit log.
//!
//! Their fields take names, numbers and fixed texts. None takes a credential, a header, a token or the hash of a
//! password, so that no secret gets into the log.

use std::fmt;
use std::net::IpAddr;

use lockkeeper_api::Code;
use lockkeeper_api::access::AccessChange;
use lockkeeper_api::cluster::Role;
use lockkeeper_core::acl::Principals;
use lockkeeper_core::{FencingToken, GateKey, LockName, NodePath, RequestId, SessionId, State, Zxid};
use lockkeeper_node::ForcedDeletion;
use serde::Serialize;

use crate::principals::names_in;
use crate::reply::Answered;

/// One record.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    /// What was done, or tried.
    pub event: AuditEvent,
    /// Who asked.
    pub requester: Requester,
    /// What became of it.
    pub outcome: AuditOutcome,
}

/// What somebody did, or tried to do.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AuditEvent {
    /// A lock request or a gate was taken from its owner.
    ForcedRelease {
        /// The lock; `None` for a gate.
        #[serde(skip_serializing_if = "Option::is_none")]
        lock: Option<LockName>,
        /// The deleted node, where the request named a node and not a lock.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<NodePath>,
        /// The fencing token, which is no secret.
        token: FencingToken,
    },
    /// A gate was opened by force: its pending operation ended, or its result was forgotten.
    GateReset {
        /// The gate.
        gate: GateKey,
        /// The token of the run that was reset; where that was refused, the one that the caller named.
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<FencingToken>,
    },
    /// A member was added, or its addresses were changed.
    MemberAdded {
        /// The member.
        member: u64,
        /// Its role; `None` where the addresses alone were changed.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<Role>,
        /// Where its peers reach it.
        peer_address: String,
    },
    /// A learner became a voter.
    MemberPromoted {
        /// The member.
        member: u64,
    },
    /// A member was removed.
    MemberRemoved {
        /// The member.
        member: u64,
    },
    /// Leadership was handed over.
    LeadershipTransferred {
        /// The member that was asked for; `None` for any.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<u64>,
    },
    /// Access control was changed.
    AccessChanged {
        /// The change.
        change: AccessChange,
        /// The id of the token that the change made.
        #[serde(skip_serializing_if = "Option::is_none")]
        token_id: Option<String>,
    },
    /// A backup of the whole state went to a client.
    BackupTaken {
        /// Its length.
        bytes: u64,
    },
    /// This node started for the first time on a data directory that was made from another cluster's state.
    ClusterBegun {
        /// `restore` or `recovery`.
        how: String,
        /// Where the other cluster was.
        from_zxid: u64,
        /// Where this one began.
        first_zxid: u64,
    },
    /// A caller showed a proof that proves nothing.
    AuthenticationFailed {
        /// The proof that was shown.
        method: AuthenticationMethod,
        /// How many failures of the same method before this one have no record.
        left_out: u64,
    },
}

/// How a caller tried to prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthenticationMethod {
    /// The secret of a session, over HTTP or as the password of a ZooKeeper session.
    SessionSecret,
    /// The header `Authorization`.
    AuthorizationHeader,
    /// An `auth` request of ZooKeeper's protocol.
    ZookeeperAuth,
    /// A change of access control, which is off, from a machine that proves nothing.
    AccessSetup,
}

/// Who asked.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The names of the caller, without hashes.
    pub principals: Vec<String>,
    /// The address of the connection.
    pub address: Option<IpAddr>,
    /// The session, if the caller has shown its secret.
    pub session: Option<SessionId>,
    /// The id of the request, if it has one.
    pub request_id: Option<RequestId>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditOutcome {
    /// It is done, at this zxid if it has one.
    Done(Option<Zxid>),
    /// Nothing changed, for this reason.
    NotDone(Option<String>),
    /// It may be done or not.
    Unknown(String),
}

impl AuditEvent {
    /// The message of the log line.
    pub(super) fn message(&self) -> &'static str {
        match self {
            Self::ForcedRelease { .. } => "forced release",
            Self::GateReset { .. } => "gate reset",
            Self::MemberAdded { .. } => "member added",
            Self::MemberPromoted { .. } => "member promoted",
            Self::MemberRemoved { .. } => "member removed",
            Self::LeadershipTransferred { .. } => "leadership transferred",
            Self::AccessChanged { .. } => "access changed",
            Self::BackupTaken { .. } => "backup taken",
            Self::ClusterBegun { .. } => "cluster begun from another cluster's state",
            Self::AuthenticationFailed { .. } => "authentication failed",
        }
    }
}

impl Requester {
    /// A caller of whom nothing but the address is known.
    pub fn at(address: IpAddr) -> Self {
        Self { address: Some(address.to_canonical()), ..Self::default() }
    }

    /// A caller of whom its identities and the address among them are known, with its names in this state.
    pub(crate) fn known_in(principals: &Principals, state: &State) -> Self {
        Self { principals: names_in(principals, state), ..principals.address.map(Self::at).unwrap_or_default() }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.principals.clone();
        names.extend(self.session.map(|session| format!("session {session}")));
        if names.is_empty() {
            names.push("somebody without a session".into());
        }
        f.write_str(&names.join(", "))?;
        self.address.map_or(Ok(()), |address| write!(f, " from {address}"))
    }
}

impl AuditOutcome {
    /// The outcome of a call.
    pub fn of<T>(answered: &Answered<T>) -> Self {
        match answered {
            Ok(reply) => Self::Done(reply.zxid),
            Err(failure) => {
                let why = failure.problem().detail.clone();
                match failure.code() {
                    Code::UnknownOutcome | Code::Internal => Self::Unknown(why),
                    _ => Self::NotDone(Some(why)),
                }
            }
        }
    }

    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::NotDone(_) => "not_done",
            Self::Unknown(_) => "unknown",
        }
    }

    pub(super) fn zxid(&self) -> Option<u64> {
        if let Self::Done(zxid) = self { zxid.map(|zxid| zxid.0) } else { None }
    }

    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Self::Done(_) => None,
            Self::NotDone(why) => why.as_deref(),
            Self::Unknown(why) => Some(why),
        }
    }
}

impl AuditRecord {
    /// The record of a forced deletion. The state knows the principals of tokens.
    pub fn of_deletion(deletion: ForcedDeletion, state: &State) -> Self {
        let ForcedDeletion { zxid, lock, path, token, session, request_id, principals } = deletion;
        Self {
            event: AuditEvent::ForcedRelease { lock, path: Some(path), token },
            requester: Requester { session, request_id, ..Requester::known_in(&principals, state) },
            outcome: AuditOutcome::Done(Some(zxid)),
        }
    }
}

/// A record as a line of the file has it.
#[derive(Serialize)]
pub(super) struct AuditLine<'r> {
    /// UTC, as RFC 3339 writes it.
    pub(super) time: String,
    /// The cluster node that writes the record.
    pub(super) node: u64,
    #[serde(flatten)]
    pub(super) event: &'r AuditEvent,
    pub(super) principals: &'r [String],
    pub(super) address: Option<IpAddr>,
    pub(super) session: Option<u64>,
    pub(super) request_id: Option<String>,
    pub(super) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) zxid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'r str>,
}

impl<'r> AuditLine<'r> {
    pub(super) fn new(time: String, node: u64, record: &'r AuditRecord) -> Self {
        let AuditRecord { event, requester, outcome } = record;
        Self {
            time,
            node,
            event,
            principals: &requester.principals,
            address: requester.address,
            session: requester.session.map(|session| session.0),
            request_id: requester.request_id.map(|id| id.to_string()),
            outcome: outcome.as_str(),
            zxid: outcome.zxid(),
            error: outcome.error(),
        }
    }
}
