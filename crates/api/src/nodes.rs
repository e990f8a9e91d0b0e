//! Nodes of the tree, and transactions over them.

use serde::{Deserialize, Serialize};

use crate::Data;
use crate::level::Level;

/// ZooKeeper's bookkeeping of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stat {
    /// Transaction that created it.
    pub czxid: u64,
    /// Transaction that last set its data.
    pub mzxid: u64,
    /// Transaction that last added or removed a child.
    pub pzxid: u64,
    /// When it was created, in milliseconds since 1970 by the replicated clock.
    pub ctime_ms: u64,
    /// When its data was last set.
    pub mtime_ms: u64,
    /// Changes of its data.
    pub version: i32,
    /// Changes of its list of children.
    pub cversion: i32,
    /// Changes of its ACL.
    pub aversion: i32,
    /// The session that owns it, if it is ephemeral.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral_owner: Option<u64>,
    /// Bytes of data.
    pub data_length: u32,
    /// Number of children.
    pub num_children: u32,
}

/// How a node lives and dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Until it is deleted.
    #[default]
    Persistent,
    /// Until its session ends.
    Ephemeral,
    /// Until it has had children and stays empty.
    Container,
    /// Until it is without children and unchanged for `ttl_ms`.
    Ttl,
}

/// One grant of an ACL, as ZooKeeper has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AclEntry {
    /// Bits: read 1, write 2, create 4, delete 8, admin 16.
    pub permissions: u32,
    /// `world`, `auth`, `digest`, `ip`, …
    pub scheme: String,
    /// The identity within the scheme.
    pub id: String,
}

/// `POST /v1/nodes/{path}`: creates a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Its data.
    #[serde(default)]
    pub data: Data,
    /// How it lives; ephemeral needs a session.
    #[serde(default)]
    pub kind: Kind,
    /// For kind `ttl`, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Appends ten digits of the parent's counter to the name.
    #[serde(default)]
    pub sequential: bool,
    /// Who may do what; open to everyone where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Vec<AclEntry>>,
}

/// The node that was created, or whose data was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Changed {
    /// Where, sequence included.
    pub path: String,
    /// Its bookkeeping.
    pub stat: Stat,
    /// The zxid of the change.
    pub zxid: u64,
}

/// `PUT /v1/nodes/{path}?version=`: sets the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetData {
    /// The new data.
    pub data: Data,
}

/// `DELETE /v1/nodes/{path}?version=`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Deleted {
    /// Where it was.
    pub path: String,
    /// The zxid of the deletion.
    pub zxid: u64,
}

/// `GET /v1/nodes/{path}`; `?children=true` adds their names, `?consistency=stale` answers from this node's replica as
/// it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// Where.
    pub path: String,
    /// Its data.
    pub data: Data,
    /// How it lives.
    pub kind: Kind,
    /// For kind `ttl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Its bookkeeping.
    pub stat: Stat,
    /// Its ACL.
    pub acl: Vec<AclEntry>,
    /// Names of its children in order, if asked for (at most 10,000; `stat.num_children` counts them all).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Vec<String>>,
    /// Where the next page of children starts (`?children_after=`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_children: Option<String>,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum TxnOp {
    /// Creates a node.
    Create {
        /// Where.
        path: String,
        /// Its data.
        #[serde(default)]
        data: Data,
        /// How it lives.
        #[serde(default)]
        kind: Kind,
        /// For kind `ttl`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
        /// With ten digits of the parent's counter.
        #[serde(default)]
        sequential: bool,
        /// Who may do what.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        acl: Option<Vec<AclEntry>>,
    },
    /// Deletes a node.
    Delete {
        /// Which.
        path: String,
        /// Its data version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<i32>,
    },
    /// Sets the data.
    Set {
        /// Where.
        path: String,
        /// The new data.
        data: Data,
        /// The data version it replaces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<i32>,
    },
    /// Succeeds if the node exists with this data version.
    Check {
        /// Which.
        path: String,
        /// Its data version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<i32>,
    },
    /// Succeeds if the lock is held with this token.
    LockHeld {
        /// The lock.
        lock: String,
        /// The fencing token.
        token: u64,
    },
    /// Adds to the decimal number in a node, as `POST /v1/counters/{path}` does.
    Add {
        /// Where.
        path: String,
        /// The summand.
        delta: i64,
        /// The lower bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<i64>,
        /// The upper bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<i64>,
    },
}

/// `POST /v1/txn`: all or nothing, one zxid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Txn {
    /// 1 to 1,024 operations; each sees the effects of those before it.
    pub operations: Vec<TxnOp>,
}

/// What an operation of a transaction did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum TxnResult {
    /// Created.
    Create {
        /// Where, sequence included.
        path: String,
        /// Its bookkeeping.
        stat: Stat,
    },
    /// Deleted.
    Delete,
    /// Set.
    Set {
        /// Its bookkeeping.
        stat: Stat,
    },
    /// The check passed.
    Check,
    /// The lock is held with that token.
    LockHeld,
    /// Added.
    Add {
        /// The number after the addition.
        value: i64,
    },
}

/// `POST /v1/counters/{path}`: adds to the decimal number in a node, within bounds that are checked where the addition
/// takes place. A node that is missing counts as 0 and is created; its parent must exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// The summand; 0 changes nothing.
    pub delta: i64,
    /// The lower bound: a negative summand that leads below it is refused (409 `out_of_bounds`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// The upper bound: a positive summand that leads above it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
}

/// The number in a node after an addition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Added {
    /// The node.
    pub path: String,
    /// The number.
    pub value: i64,
    /// The zxid of the change.
    pub zxid: u64,
}

/// The transaction took place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TxnDone {
    /// One result for each operation.
    pub results: Vec<TxnResult>,
    /// Its zxid.
    pub zxid: u64,
}

/// How to read a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct NodeQuery {
    /// Whether to list the names of its children.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<bool>,
    /// Children after this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children_after: Option<String>,
    /// At most so many children, from 1 to 10,000, which is what is taken where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children_limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}

/// A condition on the data's version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct VersionQuery {
    /// The data version that the node must have; any where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
}
