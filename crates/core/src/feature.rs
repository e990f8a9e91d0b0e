//! The replicated feature level: which formats and commands all members of a cluster can read.
//!
//! The nodes of a cluster are replaced one by one, so for a while programs of two versions share a log. The cluster
//! keeps to what the older one can read until the leader finds that every member supports a higher level; it then
//! raises the level by a command of the log. The level never falls. A program that does not support the level of the
//! cluster cannot read its log or its snapshots any more, and says so.
//!
//! | level | adds |
//! |---|---|
//! | 1 | batch format 1, snapshot format 1, and everything else that there is |
//!
//! A level is never changed once a release has it: what comes next gets the next one, and its batches the format of
//! that number.
//!
//! To add an operation, or to give one a new meaning with some arguments: name the level in
//! [`Op::level`](crate::Op::level), which decides the format of the batch, and let the state look at its own level, so
//! that it decides about old entries of the log as the programs did which wrote them. A node refuses what needs a level
//! that the cluster has not reached before it proposes it, and so does the state.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A level; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureLevel(pub u32);

impl FeatureLevel {
    /// The level at which each cluster begins.
    pub const FIRST: Self = Self(1);
    /// The highest level that this program supports.
    pub const LATEST: Self = Self(1);
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
