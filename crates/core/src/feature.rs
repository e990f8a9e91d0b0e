//! The replicated feature level: which formats and commands all members of a cluster can read.
//!
//! The nodes of a cluster are replaced one by one, so for a while programs of two versions share a log. The cluster
//! keeps to what the older one can read until the leader finds that every member supports a higher level; it then
//! raises the level by a command of the log. The level never falls. A program that does not support the level of the
//! cluster cannot read its log or its snapshots any more, and says so.
//!
//! | level | adds |
//! |---|---|
//! | 1 | batch format 5; snapshot formats 6 to 8; peer messages 4 |
//! | 2 | batch format 6: [`RaiseFeatureLevel`](crate::Command), traces; snapshot format 9 |
//! | 3 | batch format 7: re-entry of locks, rates, additions, gates kept for ever or reset; snapshot format 10; |
//! | | more than 32 locks; short timeouts; the uid of the cluster; results of gates, whatever the state's size |
//!
//! A level is never changed once a release has it: what comes next gets the next one.
//!
//! To add an operation: give it a number in `op_codec.rs`, and its level in [`Op::introduced`](crate::Op::introduced),
//! which decides the format of the batch. To give an operation of an earlier level a new meaning: name the arguments
//! that have it in [`Op::level`](crate::Op::level), and let the state look at its own level, so that it decides about
//! old entries of the log as the programs did which wrote them. A node refuses what needs a level that the cluster has
//! not reached before it proposes it, and so does the state.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A level; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureLevel(pub u32);

impl FeatureLevel {
    /// The level at which each cluster begins, and the only one of programs that know of no levels (version 0.1).
    pub const FIRST: Self = Self(1);
    /// The log carries traces.
    pub const TRACES: Self = Self(2);
    /// Locks can be re-entered, and one request asks for up to
    /// [`MAX_LOCKS_TOGETHER`](crate::limits::MAX_LOCKS_TOGETHER) of them.
    pub const REENTRY: Self = Self(3);
    /// A gate keeps its result for ever, and is reset by force. No result is refused because the state is full.
    pub const GATES: Self = Self(3);
    /// Session timeouts may be as short as [`MIN_SESSION_TIMEOUT_MS`](crate::limits::MIN_SESSION_TIMEOUT_MS).
    pub const SHORT_SESSIONS: Self = Self(3);
    /// Rate limits and bounded additions, and rules about rates and with the right to take a backup.
    pub const RATES: Self = Self(3);
    /// The cluster has a [`ClusterUid`](crate::ClusterUid).
    pub const CLUSTER_UID: Self = Self(3);
    /// The highest level that this program supports.
    pub const LATEST: Self = Self(3);
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
