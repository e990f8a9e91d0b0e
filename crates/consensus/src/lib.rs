//! Consensus: openraft behind our own small interface, and the transport between peers.
//!
//! Everything above sees bytes going in ([`Consensus::propose`]) and committed bytes coming out in the same order on every node
//! ([`Machine::apply`]). Only this crate names openraft; it must never look into a payload, and it must never call an outcome known
//! that is not (Raft, sections 5 and 8; Ongaro's dissertation, sections 3.10, 6.4 and 9.6).

mod admission;
mod blocking;
mod bounds;
mod codec;
mod config;
mod consensus;
mod error;
mod formation;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod http;
mod incoming;
mod inner;
mod lifeline;
mod log_bounds;
mod log_size;
mod log_store;
mod machine;
mod membership;
mod network;
mod peers;
mod propose;
mod refusals;
mod replica;
mod rounds;
mod runtime;
mod serve;
mod starts;
mod status;
#[cfg(test)]
mod suite_tests;
mod time;
mod transport;
mod types;
mod watcher;
mod wire;

pub use blocking::{Blocking, BlockingPool, Work, blocking};
pub use config::Config;
pub use consensus::{Consensus, FatalHook, Parts};
pub use error::{BarrierError, ChangeError, ProposeError, ServeError, StartError};
pub use gate::{
    CODE_BAD_IDENTITY, CODE_DIRECTORY_CHANGED, CODE_UNKNOWN_NODE, CODE_WRONG_CLUSTER, CODE_WRONG_DIRECTORY,
    GateRejection, HEADER_CLUSTER, HEADER_DIRECTORY, HEADER_FROM, HEADER_START, HEADER_TO_DIRECTORY, HEADER_TO_START,
    PeerBook, PeerCaller, PeerGate, PeerIdentity,
};
pub use http::{HEADER_CODE, HttpTransport};
pub use lockkeeper_store::LogPosition;
pub use machine::{Committed, Machine, PeerService, Restored, ServiceError, SnapshotEncoder};
pub use runtime::seed_this_thread;
pub use starts::{Acknowledged, CODE_CLONED, CODE_ROLLED_BACK, KnownPeer, PeerMemory, Start, StartId};
pub use status::{ConsensusStatus, Follower, Leadership, MemberAddresses, Members, ReadIndex};
pub use time::{ClockReport, MAX_CLOCK_MS, Timekeeper};
pub use transport::{PeerKind, Transport, TransportError};
