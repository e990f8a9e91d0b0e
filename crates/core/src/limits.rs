//! The bounds on everything that comes from outside. The state refuses what exceeds them, even if the frontend let it
//! pass.

use serde::{Deserialize, Serialize};

/// Longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 1024;
/// Most batches of one node that may be in flight together; the state remembers the answers to as many.
pub const MAX_BATCHES_IN_FLIGHT: usize = 8;
/// Longest single part of a path, in bytes, sequence suffix included.
pub const MAX_PART_BYTES: usize = 255;
/// Largest data of one node, in bytes.
pub const MAX_DATA_BYTES: usize = 1024 * 1024;
/// Longest label of a session or of a lock request, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;
/// Most operations in one multi.
pub const MAX_MULTI_OPS: usize = 1_024;
/// Most entries in one ACL.
pub const MAX_ACL_ENTRIES: usize = 64;
/// Most identities that a caller can have proved.
pub const MAX_IDENTITIES: usize = 32;
/// Longest scheme or id of an ACL entry, in bytes.
pub const MAX_ACL_ID_BYTES: usize = 256;
/// Longest name of a role or a principal, in bytes: that of a principal of the digest scheme, whose identity has a
/// bound of its own.
pub const MAX_ACCESS_NAME_BYTES: usize = MAX_ACL_ID_BYTES + 8;
/// Most roles.
pub const MAX_ROLES: usize = 256;
/// Most rules of a role.
pub const MAX_RULES: usize = 64;
/// Most grants of roles to principals.
pub const MAX_GRANTS: usize = 10_000;
/// Most namespaces with limits.
pub const MAX_NAMESPACES: usize = 1_000;
/// Most tokens that count.
pub const MAX_TOKENS: usize = 10_000;
/// How many replies a session remembers for retries: so many for lock requests and so many for all others. Beyond it
/// the oldest of the same kind is forgotten.
pub const MAX_REMEMBERED_REPLIES: usize = 256;
/// Size of the remembered replies of each kind, in bytes. Beyond it the oldest of that kind are forgotten, but never
/// the last one.
pub const MAX_REMEMBERED_BYTES: u64 = 1024 * 1024;
/// Most sessions in one expiry command and most paths in one reap command.
pub const MAX_BULK: usize = 1024;
/// Most ephemeral nodes of one session, whatever the configuration allows: all of them go with it, in one transaction.
pub const MAX_EPHEMERALS_PER_SESSION: u32 = 100_000;
/// How many ephemeral nodes one expiry command removes before it leaves its other sessions to the next command. A
/// single session may have more.
pub const MAX_EXPIRED_EPHEMERALS: usize = 5_000;
/// Shortest session timeout, in milliseconds.
pub const MIN_SESSION_TIMEOUT_MS: u32 = 100;
/// Longest session timeout, in milliseconds.
pub const MAX_SESSION_TIMEOUT_MS: u32 = 3_600_000;
/// Longest TTL of a node: 40 bits of milliseconds, as ZooKeeper encodes it.
pub const MAX_TTL_MS: u64 = (1 << 40) - 1;
/// How long a container stays empty before it may be reaped, in milliseconds of the replicated clock.
pub const CONTAINER_GRACE_MS: u64 = 10_000;
/// Highest sequence that a sequential node can have: what ten digits hold.
pub const MAX_SEQUENCE: u64 = 9_999_999_999;
/// Most locks that one request asks for.
pub const MAX_LOCKS_TOGETHER: usize = 256;
/// How often a session can hold a lock at once, by re-entry.
pub const MAX_HOLDS: u32 = 65_535;
/// Most permits of a semaphore.
pub const MAX_PERMITS: u16 = 1000;
/// Longest lock delay, in milliseconds.
pub const MAX_DELAY_MS: u32 = 600_000;
/// Longest fingerprint of a gate's operation, in bytes.
pub const MAX_FINGERPRINT_BYTES: usize = 256;
/// Largest result that a gate keeps, in bytes.
pub const MAX_GATE_RESULT_BYTES: usize = 64 * 1024;
/// Most nodes that one page of a list of gates looks at. Directories, and gates whose time is over, are looked at and
/// not listed.
pub const MAX_NODES_PER_PAGE: usize = 5_000;
/// Longest time that a gate's operation may take: a day, in milliseconds.
pub const MAX_GATE_PENDING_MS: u64 = 24 * 3_600_000;
/// Longest time that a gate's result is kept: a year, in milliseconds.
pub const MAX_GATE_KEEP_MS: u64 = 365 * 24 * 3_600_000;
/// Most permits of a rate limit.
pub const MAX_RATE_LIMIT: u32 = 10_000_000;
/// Longest time of a rate limit: a leap year, in milliseconds.
pub const MAX_RATE_PER_MS: u64 = 366 * 24 * 3_600_000;
/// Most requests for permits that one command carries.
pub const MAX_TAKES_TOGETHER: usize = 1_024;

/// Limits of a namespace; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceLimits {
    /// Most sessions: those of the owner, and those of others that own something in the namespace.
    pub sessions: Option<u64>,
    /// Most lock requests in its queues, holders included.
    pub lock_requests: Option<u64>,
    /// Most nodes: gates, pending or done, and directories of locks included.
    pub nodes: Option<u64>,
    /// Most memory of its nodes, in bytes, as [`State::bytes`](crate::State::bytes) counts it.
    pub bytes: Option<u64>,
    /// Most requests a second at each node of the cluster. The frontends enforce it, not the state.
    pub requests_per_s: Option<u64>,
}

impl NamespaceLimits {
    /// Whether they are compared with what the namespace uses.
    pub fn need_counts(&self) -> bool {
        self.sessions.or(self.lock_requests).or(self.nodes).or(self.bytes).is_some()
    }

    /// The limits that are not.
    #[must_use]
    pub fn without_counts(&self) -> Self {
        Self { requests_per_s: self.requests_per_s, ..Self::default() }
    }
}
