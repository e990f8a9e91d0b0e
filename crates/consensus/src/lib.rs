//! Consensus: openraft behind our own small interface, and the transport between peers.
//!
//! The layers above propose bytes ([`Consensus::propose`]), and receive committed bytes in the same order on every node
//! ([`StateMachine::apply`]). Only this crate names openraft. It must never look into a payload, and never report an
//! unknown outcome as known (Raft, sections 5 and 8; Ongaro's dissertation, sections 3.10, 6.4 and 9.6).
//!
//! Four folders, of which each knows only those before it: `raft`, openraft over our store and state machine;
//! `admission`, who a peer is and whether it may take part; `connection`, frames between two nodes; `calls`, what is
//! in them. Below stand the plain values and what is handed in (`status`, `error`, `application`, `transport`), above
//! the tasks of a node, `rpc_handler`, which answers its peers, and [`Consensus`], which puts all together.

mod admission;
mod application;
mod blocking;
mod bootstrap;
mod calls;
mod claim_exchange;
mod config;
mod connection;
mod consensus;
mod error;
mod failure_detector;
mod founding;
#[doc(hidden)]
pub mod fuzzing;
mod join;
mod leader_probe;
mod leader_transfer;
mod majority_watch;
mod membership;
mod own_role;
mod propose;
mod raft;
mod read_index;
mod rpc_handler;
mod status;
mod status_publisher;
mod transport;

pub use admission::auth::{
    CODE_BAD_IDENTITY, CODE_UNKNOWN_NODE, CODE_WRONG_CERTIFICATE, CODE_WRONG_CLUSTER, CODE_WRONG_DIRECTORY,
    HEADER_CLUSTER, HEADER_DIRECTORY, HEADER_FROM, HEADER_START, HEADER_TO_DIRECTORY, HEADER_TO_START, PeerAuth,
    PeerBook, PeerCaller, PeerIdentity,
};
pub use admission::claim::{
    Acknowledged, CODE_CLONED, CODE_DIRECTORY_CHANGED, CODE_ROLLED_BACK, KnownPeer, PeerMemory, PeerRejection, Start,
    StartId,
};
pub use application::{
    ClockReport, Committed, FatalHook, MAX_CLOCK_MS, PeerService, Restored, ServiceError, SnapshotEncoder,
    StateMachine, StepGuard, Timekeeper,
};
pub use blocking::{Blocking, BlockingPool, Work, blocking, blocking_in_background, with_low_priority};
pub use config::Config;
pub use connection::frame::PEER_PROTOCOL;
pub use connection::framed_transport::FramedTransport;
pub use connection::peer_connection::{HEADER_CODE, PEER_PATH};
pub use connection::server::serve_calls;
pub use consensus::{Consensus, Parts};
pub use error::{BarrierError, ChangeError, ProposeError, ServeError, StartError};
pub use founding::{Founding, FoundingError, replay_log, stored_term};
pub use lockkeeper_store::LogPosition;
pub use raft::log::codec::{proposal_of, record_of_proposal};
pub use raft::runtime::seed_this_thread;
pub use read_index::{Coalescer, JoinError};
pub use status::{
    ConsensusStatus, Follower, Leadership, MemberAddresses, MemberChange, MemberRole, Members, ReadIndex,
};
pub use transport::{PeerKind, Transport, TransportError};
