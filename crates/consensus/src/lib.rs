//! Consensus: openraft behind our own small interface, and the transport between peers.
//!
//! The layers above propose bytes ([`Consensus::propose`]), and receive committed bytes in the same order on every node
//! ([`StateMachine::apply`]). Only this crate names openraft. It must never look into a payload, and never report an
//! unknown outcome as known (Raft, sections 5 and 8; Ongaro's dissertation, sections 3.10, 6.4 and 9.6).

mod application;
mod blocking;
mod bootstrap;
mod config;
mod consensus;
mod error;
mod failure_detector;
mod founding;
#[doc(hidden)]
pub mod fuzzing;
mod join;
mod leader_probe;
mod leader_transfer;
/// Raft's log on disk: openraft's storage over the store, the bytes of entries, and compaction.
mod log {
    pub(crate) mod codec;
    pub(crate) mod compaction;
    pub(crate) mod log_size;
    pub(crate) mod log_store;
}
mod majority_watch;
mod membership;
#[cfg(test)]
mod openraft_suite_tests;
mod own_role;
/// Everything between two nodes: calls and their bytes, authentication, and validation of messages.
mod peer {
    pub(crate) mod announced_levels;
    pub(crate) mod append_pipeline;
    pub(crate) mod call_frame;
    pub(crate) mod call_order;
    pub(crate) mod call_server;
    pub(crate) mod claim_exchange;
    pub(crate) mod directory_claim;
    pub(crate) mod framed_transport;
    pub(crate) mod network;
    pub(crate) mod peer_auth;
    pub(crate) mod peer_connection;
    pub(crate) mod peers;
    pub(crate) mod rollback_guard;
    pub(crate) mod rpc_handler;
    pub(crate) mod transport;
    pub(crate) mod validation;
    pub(crate) mod wire;
}
mod propose;
mod raft_node;
mod raft_types;
mod read_index;
mod runtime;
mod snapshot_receive;
mod state_machine;
mod status;
mod status_publisher;

pub use application::{
    ClockReport, Committed, FatalHook, MAX_CLOCK_MS, PeerService, Restored, ServiceError, SnapshotEncoder,
    StateMachine, StepGuard, Timekeeper,
};
pub use blocking::{Blocking, BlockingPool, Work, blocking, blocking_in_background, with_low_priority};
pub use config::Config;
pub use consensus::{Consensus, Parts};
pub use error::{BarrierError, ChangeError, ProposeError, ServeError, StartError};
pub use founding::{Founding, FoundingError, replay_log, stored_term};
pub use lockkeeper_store::LogPosition;
pub use log::codec::{proposal_of, record_of_proposal};
pub use peer::call_frame::PEER_PROTOCOL;
pub use peer::call_server::serve_calls;
pub use peer::directory_claim::{
    Acknowledged, CODE_CLONED, CODE_DIRECTORY_CHANGED, CODE_ROLLED_BACK, KnownPeer, PeerMemory, PeerRejection, Start,
    StartId,
};
pub use peer::framed_transport::FramedTransport;
pub use peer::peer_auth::{
    CODE_BAD_IDENTITY, CODE_UNKNOWN_NODE, CODE_WRONG_CERTIFICATE, CODE_WRONG_CLUSTER, CODE_WRONG_DIRECTORY,
    HEADER_CLUSTER, HEADER_DIRECTORY, HEADER_FROM, HEADER_START, HEADER_TO_DIRECTORY, HEADER_TO_START, PeerAuth,
    PeerBook, PeerCaller, PeerIdentity,
};
pub use peer::peer_connection::{HEADER_CODE, PEER_PATH};
pub use peer::transport::{PeerKind, Transport, TransportError};
pub use read_index::{Coalescer, JoinError};
pub use runtime::seed_this_thread;
pub use status::{
    ConsensusStatus, Follower, Leadership, MemberAddresses, MemberChange, MemberRole, Members, ReadIndex,
};
