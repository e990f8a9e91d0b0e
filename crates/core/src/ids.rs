//! Newtypes for every kind of number, so that they cannot be confused.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Position of a state-changing transaction in the replicated order. Starts at 1, never resets, never goes back.
    /// Not the log index: one log entry carries many transactions, and those that change nothing take no zxid.
    Zxid
}
number! {
    /// A session: the zxid of the transaction that opened it, so an id is never used twice.
    SessionId
}
number! {
    /// The fencing token that a lock's holder presents to a resource: the czxid of the holder's lock node. A later
    /// grant of the same lock always has a larger one (Kleppmann, "How to do distributed locking"; Chubby's
    /// sequencer, section 2.4).
    FencingToken
}
number! {
    /// One member of the cluster.
    NodeId
}
number! {
    /// A Raft term (Raft, section 5.1).
    Term
}

/// Tells a cluster from every other one, also of the same name: drawn at random when the cluster is founded, and
/// another one after a restore or a recovery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterUid(pub NonZeroU64);

impl fmt::Debug for ClusterUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterUid({self})")
    }
}

impl fmt::Display for ClusterUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Zxid> for FencingToken {
    fn from(zxid: Zxid) -> Self {
        Self(zxid.0)
    }
}

/// Chosen by the client, unique within its session: the same id with the same payload is the same request (promise P9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u128);

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).fmt(f)
    }
}
