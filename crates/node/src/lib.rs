//! One replica at work: everything a node does beyond consensus, without sockets, so that a simulation can drive it.
//! Clock, randomness and transport are handed in.
//!
//! | folder | what happens there |
//! |---|---|
//! | `replica` | committed entries are applied, and what they changed is delivered |
//! | `log` | commands are queued, batched, proposed and answered; linearizable reads wait for the log |
//! | `locks` | requests for locks wait, are granted and are cancelled |
//! | `sessions` | sessions are opened, kept alive and expired |
//! | `watches` | watches fire, and are resumed from the history |
//! | `time` | the clocks |
//!
//! `engine` puts the parts together; [`Node`] is what the frontends see.

mod backoff;
mod config;
mod engine;
mod error;
mod feature_level;
mod leader_limit;
/// The lock service: requests that wait for a lock at this node, and those that are cancelled.
mod locks {
    pub(crate) mod acquire;
    pub(crate) mod cancellation;
    pub(crate) mod entry_delay;
    pub(crate) mod presence;
    pub(crate) mod wait_span;
    pub(crate) mod waiters;
}
/// Commands on their way into the log: queued, sent as batches, answered in the order of the log; and reads that wait
/// for it.
mod log {
    pub(crate) mod batch_sender;
    pub(crate) mod in_order;
    pub(crate) mod inflight;
    pub(crate) mod proposer;
    pub(crate) mod queue;
    pub(crate) mod read_barrier;
}
mod node;
mod rates;
mod replica;
mod replication;
mod request;
/// Sessions: opening, keeping alive, expiring, and the events that a session's connection subscribes to.
mod sessions {
    pub(crate) mod delegated_keepalive;
    pub(crate) mod expiry;
    pub(crate) mod keepalive;
    pub(crate) mod leader_tasks;
    pub(crate) mod lifecycle;
    pub(crate) mod liveness;
    pub(crate) mod liveness_replication;
    pub(crate) mod records;
    pub(crate) mod session_events;
    pub(crate) mod tracker;
    pub(crate) mod unauthorised;
}
mod status;
mod tasks;
mod time;
mod token_uses;
mod traces;
mod watches;

#[doc(hidden)]
pub mod fuzzing {
    //! One entry for fuzzing what a node reads from its peers: messages of consensus, the batches in them, and
    //! keepalives. Not part of the interface.

    use lockkeeper_core::Batch;

    use crate::sessions::keepalive::{KeepaliveAnswer, SessionMessage};

    /// Reads bytes as a message of another node: the first byte chooses the layer, the rest is the message. The message
    /// is accepted or refused; reading it must never panic.
    pub fn decode_any(bytes: &[u8]) {
        let Some((&choice, rest)) = bytes.split_first() else { return };
        match choice {
            0 => {
                // Every node can read a batch that a leader accepted.
                if let Ok(batch) = Batch::decode(rest) {
                    assert!(Batch::decode(&batch.encode()).is_ok(), "a batch that was read cannot be read again");
                }
            }
            1 => drop(postcard::from_bytes::<SessionMessage>(rest).map(|message| message.check())),
            2 => drop(postcard::from_bytes::<KeepaliveAnswer>(rest)),
            _ => lockkeeper_consensus::fuzzing::decode_any(rest),
        }
    }
}

pub use config::NodeConfig;
pub use error::{Bound, NodeError};
pub use leader_limit::{within_leader_limit, within_same_leader_limit};
pub use locks::cancellation::Undecided;
pub use locks::presence::Presence;
pub use log::in_order::OrderedReply;
pub use log::queue::network_of;
pub use node::{Node, Parts};
pub use rates::{PermitsTaken, TakePermits};
pub use replica::Observer;
pub use request::{
    Acquire, Acquired, At, Attached, Caller, Consistency, Credential, ForceReleased, ForcedDeletion,
    ForcedDeletionHook, Grant, HolderInfo, KeepaliveAck, OpenedSession,
};
pub use sessions::session_events::{SessionEvent, SessionEvents};
pub use status::NodeStatus;
pub use time::clock::{Clock, SystemClock};
pub use traces::{MAX_LINKS, TraceSink, TraceSpan, TraceValue};
pub use watches::history::WatchEvent;
pub use watches::{WatchItem, WatchSpec, WatchStream};
