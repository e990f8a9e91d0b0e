//! The messages that nodes send each other about sessions: keepalives to the leader, and the leader's calls to the
//! liveness tables of the others.

use lockkeeper_core::{SessionId, Zxid};
use serde::{Deserialize, Serialize};

use crate::observers::records::liveness::Ages;

/// More voters than a cluster can have.
pub(crate) const MAX_VOTERS: usize = 64;
/// Most sessions in one group.
pub(crate) const MAX_GROUP: usize = 16_384;

/// A message between nodes about sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SessionMessage {
    /// To the leader, which answers with a [`KeepaliveAnswer`].
    Keepalives(KeepaliveGroup),
    /// From the leader, answered with a [`TableAnswer`].
    Table(TableCall),
}

impl SessionMessage {
    /// Checks the sizes in a message from a peer.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (Self::Keepalives(KeepaliveGroup { ages }) | Self::Table(TableCall::Accept { ages, .. })) = self else {
            return self.check_voters();
        };
        match ages.len() {
            ..=MAX_GROUP => self.check_voters(),
            count => Err(format!("a message has at most {MAX_GROUP} sessions; this one has {count}")),
        }
    }

    fn check_voters(&self) -> Result<(), String> {
        match self {
            Self::Table(call) if call.voters().len() > MAX_VOTERS => {
                Err(format!("a cluster has at most {MAX_VOTERS} voters; this message names {}", call.voters().len()))
            }
            _ => Ok(()),
        }
    }
}

/// Signs of life that a node reports to the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeepaliveGroup {
    /// In the order of the sessions.
    pub(crate) ages: Ages,
}

/// The leader's answer to a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeepaliveAnswer {
    /// The zxid of the leader's replica.
    pub(crate) zxid: Zxid,
    /// One for each session of the group.
    pub(crate) verdicts: Vec<Verdict>,
}

/// The leader's verdict on one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// It will not be expired before this timeout has passed since the node heard from it.
    Alive(u32),
    /// Its expiry has been proposed; nothing is certain until that is decided.
    Expiring,
    /// It does not exist, or no longer.
    Gone,
}

/// A leader's call to another node's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TableCall {
    /// Accept these signs of life.
    Accept { term: u64, voters: Vec<u64>, ages: Ages },
    /// The whole table follows, once the node has applied this zxid.
    Begin { term: u64, number: u64, zxid: Zxid },
    /// The whole table has been sent to the node in this incarnation.
    Finish { term: u64, number: u64, incarnation: u64, voters: Vec<u64> },
    /// Send the sessions after this one. From then on the node accepts nothing of a lower term.
    Collect { term: u64, voters: Vec<u64>, after: Option<SessionId> },
}

impl TableCall {
    pub(crate) fn term(&self) -> u64 {
        let (Self::Accept { term, .. }
        | Self::Begin { term, .. }
        | Self::Finish { term, .. }
        | Self::Collect { term, .. }) = self;
        *term
    }

    pub(crate) fn voters(&self) -> &[u64] {
        match self {
            Self::Accept { voters, .. } | Self::Finish { voters, .. } | Self::Collect { voters, .. } => voters,
            Self::Begin { .. } => &[],
        }
    }
}

/// The answer to a [`TableCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TableAnswer {
    /// Accepted; and whether the table is whole.
    Accepted { whole: bool },
    /// The node is ready for the whole table.
    Ready { incarnation: u64 },
    /// Not yet: the node does not know that term or its leader, or has not applied enough.
    NotYet,
    /// A later leader has called before.
    Fenced,
    /// Part of the table.
    Page { whole: bool, ages: Ages, more: bool },
}
