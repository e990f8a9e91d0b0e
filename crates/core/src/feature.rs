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
//!
//! A level is never changed once a release has it: what comes next gets the next one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A level; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureLevel(pub u32);

impl FeatureLevel {
    /// The level at which each cluster begins, and the only one of programs that know of no levels (version 0.1).
    pub const FIRST: Self = Self(1);
    /// The highest level that this program supports.
    pub const LATEST: Self = Self(2);
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
