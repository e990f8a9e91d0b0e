//! One replica at work: everything a node does beyond consensus, without sockets, so that a simulation can drive it. Clock, randomness
//! and transport are handed in.
//!
//! Pure parts (`tracker`, `custody`, `last_heard`, `history`, `watches`, `waiters`) know neither tasks nor clocks. `replica` moves them in step with the
//! replicated state under one lock. Around it run the tasks: `proposer` (writes), `reads` (the read barrier), `keepalive`, `duties` and
//! `heard_replication` (sessions), `locks` and `abandoned` (the lock service), `in_order` (connections whose requests follow each other). [`Node`] is what the front doors see.

mod abandoned;
mod clock;
mod config;
mod custody;
mod duties;
mod engine;
mod error;
mod flight;
#[doc(hidden)]
pub mod fuzzing;
mod heard_replication;
mod hearing;
mod history;
mod in_order;
mod keepalive;
mod last_heard;
mod locks;
mod node;
mod observer;
mod patience;
mod presence;
mod proposer;
mod queue;
mod reads;
mod replica;
mod replicated_clock;
mod replication;
mod request;
mod rounds;
mod sessions;
mod slow_apply;
mod state_size;
mod status;
mod time;
mod tracker;
mod waiters;
mod watches;

pub use abandoned::Undecided;
pub use clock::{Clock, SystemClock};
pub use config::NodeConfig;
pub use error::{Bound, NodeError};
pub use hearing::{Hearing, Told};
pub use history::WatchEvent;
pub use in_order::Answered;
pub use node::{Node, Parts};
pub use observer::Observer;
pub use presence::Presence;
pub use queue::network_of;
pub use request::{
    Acquire, Acquired, At, Attached, Caller, Consistency, Credential, ForceReleased, Grant, HolderInfo, KeepaliveAck,
    OpenedSession,
};
pub use status::NodeStatus;
pub use watches::{WatchItem, WatchSpec, WatchStream};
