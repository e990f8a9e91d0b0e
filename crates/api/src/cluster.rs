//! The cluster and its members.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which cluster a node belongs to: `NAME/UID`, or `NAME` while the node knows no uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterIdentity {
    /// The name that its configuration gives it (`cluster.id`).
    pub name: String,
    /// Unique: a new, a restored and a recovered cluster have each another one, also under the same name.
    pub uid: Option<String>,
}

impl ClusterIdentity {
    /// Parses the text of [`CLUSTER_HEADER`](crate::CLUSTER_HEADER).
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((name, uid)) => Self { name: name.into(), uid: Some(uid.into()) },
            None => Self { name: text.into(), uid: None },
        }
    }

    /// Whether the two are certainly different clusters. Where one has no uid, the names decide.
    pub fn differs_from(&self, other: &Self) -> bool {
        let uids_differ = self.uid.as_ref().zip(other.uid.as_ref()).is_some_and(|(one, other)| one != other);
        self.name != other.name || uids_differ
    }
}

impl fmt::Display for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.uid {
            Some(uid) => write!(f, "{}/{uid}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// What a member is to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Votes and counts towards the quorum.
    Voter,
    /// Receives the log and does not vote yet.
    Learner,
    /// Receives the log and serves clients, and never votes.
    Front,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// Its id, never used again after it is removed.
    pub node_id: u64,
    /// Where its peers reach it.
    pub peer_address: String,
    /// Where clients reach it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<String>,
    /// Where ZooKeeper's clients reach it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zookeeper_address: Option<String>,
    /// What it is to the cluster.
    pub role: Role,
    /// On the leader: the log index up to which it has the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched_index: Option<u64>,
    /// On the leader: age in milliseconds of the newest request that this member has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_ms_ago: Option<u64>,
    /// On the leader: whether it has answered a request sent within the longest election timeout, and lacks at most
    /// 1,000 entries of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<bool>,
    /// Why this node refuses it: its data directory lacks entries that it once acknowledged, or two processes run on
    /// copies of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turned_away: Option<String>,
    /// The feature level that this node knows it to support; left out if the two have not met since either started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_level: Option<u32>,
}

/// `GET /v1/cluster?checksum=`: the cluster as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// The cluster's name (`cluster.id`).
    pub cluster: String,
    /// The cluster's uid, which a restore, a recovery and a new founding change; left out until it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// This node.
    pub node_id: u64,
    /// Version of its software.
    pub version: String,
    /// The Raft term.
    pub term: u64,
    /// The leader, if this node knows one; none once no majority of the voters answers this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
    /// Whether this node leads, and a majority of the voters answers it.
    pub leading: bool,
    /// This node's role; left out where it is no member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Whether it has a leader and is caught up.
    pub ready: bool,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready_because: Option<String>,
    /// Last index of its log.
    pub last_log_index: u64,
    /// Last index it has applied.
    pub applied_index: u64,
    /// Index of its last snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_index: Option<u64>,
    /// Its log is cut up to here: a follower that lacks an earlier entry is sent the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purged_index: Option<u64>,
    /// Last zxid it has applied.
    pub zxid: u64,
    /// Number of open sessions.
    pub sessions: u64,
    /// Number of nodes in the tree.
    pub nodes: u64,
    /// Size of the replicated state in memory, in bytes, as every replica counts it.
    #[serde(default)]
    pub state_bytes: u64,
    /// How large it may grow, by this node's `limits.state_mib`.
    #[serde(default)]
    pub state_bytes_limit: u64,
    /// Conditions that an operator has to act on, in words.
    #[serde(default)]
    pub alarms: Vec<String>,
    /// Watches registered at this node.
    pub watches: u64,
    /// Lock requests that wait at this node.
    pub lock_waiters: u64,
    /// With `?checksum=true`: the zxid and checksum of its state; equal zxids must have equal checksums on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateChecksum>,
    /// The members of the cluster.
    pub members: Vec<Member>,
    /// The version of this membership: each change has a larger one. Changes may name it in `if_version`.
    #[serde(default)]
    pub membership_version: u64,
    /// While a change of the voters is half done, as when the leader failed in the middle of it: the voters before it
    /// and those after it, each of which needs a majority. The next change of the membership finishes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joint_voters: Vec<Vec<u64>>,
    /// On the leader: how many more voters may be lost while the others go on. At 0 the next loss is an outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_tolerance: Option<u64>,
    /// The cluster's feature level: what all its members' programs can read. The leader raises it once every member
    /// supports a higher one. It never falls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_level: Option<u32>,
    /// The highest feature level that this node's program supports, whatever `cluster.max_feature_level` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supported_feature_level: Option<u32>,
}

impl Status {
    /// The cluster to which the node belongs.
    pub fn identity(&self) -> ClusterIdentity {
        ClusterIdentity { name: self.cluster.clone(), uid: self.cluster_uid.clone() }
    }
}

/// `GET /v1/clock`: the replicated clock, by which gates, times to live and schedules are decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterClock {
    /// Milliseconds since 1970, as far as this node knows it. It was read after the request came and before the answer
    /// went, and the node's view of it is at most the delay of one message behind the leader's.
    pub clock_ms: u64,
    /// The zxid that the node had applied by then.
    pub zxid: u64,
}

/// The state of one replica in a few digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateChecksum {
    /// The zxid of the state.
    pub zxid: u64,
    /// Hex digits.
    pub checksum: String,
}

/// `POST /v1/cluster/members`: adds a learner or a front node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AddMember {
    /// A new id.
    pub node_id: u64,
    /// `learner`, which can be promoted to a voter, or `front`, which never votes. It cannot be changed later. If it is
    /// left out, a new member is a learner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Where its peers reach it.
    pub peer_address: String,
    /// Where clients reach it. Every node publishes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<String>,
    /// Where ZooKeeper's clients reach it: `/zookeeper/config` exists only if this is known of every voter,
    /// and lists those front nodes of which it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zookeeper_address: Option<String>,
    /// Only if the membership has this version (`membership_version` of `GET /v1/cluster`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
}

/// When a member may be promoted or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct MemberQuery {
    /// Only if the membership has this version (`membership_version` of `GET /v1/cluster`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
}

/// `POST /v1/cluster/transfer`: hands leadership over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// To whom; the most advanced follower where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// The leader after a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Transferred {
    /// The leader now.
    pub leader: u64,
}

/// How to read the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ClusterQuery {
    /// Whether to compute the checksum of this replica's state: work in proportion to its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<bool>,
    /// With `checksum=true`: the checksum of the first state that has at least this zxid, for which the node waits up
    /// to 2 s; then, or if it is further already, that of its present state. Nodes that are asked in time for one zxid
    /// answer for the same state, even while changes are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_from: Option<u64>,
}

/// The members after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Membership {
    /// Who belongs to the cluster now.
    pub members: Vec<Member>,
    /// The version of this membership.
    #[serde(default)]
    pub membership_version: u64,
}
