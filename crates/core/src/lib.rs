//! The replicated state of Lockkeeper and its rules: a tree of nodes, sessions, and the lock queues made of both.
//!
//! This crate is pure. It must never read a clock, draw randomness, do IO, spawn, block, or expose the order of a
//! hash map: the same log applied on two machines gives the same bytes. Its `clippy.toml` enforces that.
//!
//! The only way to change the state is [`State::apply`].

pub mod access;
pub mod acl;
mod blob;
pub mod command;
mod data;
pub mod event;
mod feature;
pub mod gate;
pub mod ids;
pub mod limits;
pub mod lock;
pub mod namespace;
mod nesting;
pub mod path;
pub mod rate;
pub mod reply;
pub mod rules;
pub mod snapshot;
pub mod stat;
pub mod state;
mod trace_context;
pub mod wire;

pub use access::{AccessOp, Need, Resource, Rights, Rule};
pub use acl::{AclEntry, Identity, Permissions, Principals};
pub use command::{
    Actor, Batch, BatchRef, Command, GateOp, IfHolding, LockOp, NodeKind, NodeOp, Op, Origin, RateOp, RequestKey,
    Sequential,
};
pub use data::NodeData;
pub use event::{Event, NodeEventKind, SessionEnd};
pub use feature::FeatureLevel;
pub use gate::{GateKey, GatePage, GateStanding, GateSummary};
pub use ids::{ClusterUid, FencingToken, NodeId, RequestId, SessionId, Term, Zxid};
pub use limits::NamespaceLimits;
pub use lock::{LockMode, LockName};
pub use namespace::{Namespace, NamespaceBound, NamespaceUsage};
pub use path::NodePath;
pub use rate::{Rate, RateName};
pub use reply::{Outcome, Refusal, Reply};
pub use rules::{ForeignNames, Rules};
pub use snapshot::SnapshotError;
pub use stat::Stat;
pub use state::{
    Access, Applied, LockRequest, LockSummary, LockView, NodeView, RatePage, RateView, SEQUENCE_GAP, Session, Standing,
    State, ZXID_GAP, ZxidsUsedUp,
};
pub use trace_context::{BatchTrace, MAX_TRACED_REQUESTS, TraceContext};
pub use wire::DecodeError;
