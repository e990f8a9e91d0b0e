//! One replica at work: everything a node does beyond consensus, without sockets, so that a simulation can drive it.
//! Clock, randomness and transport are handed in.
//!
//! | folder | what happens there |
//! |---|---|
//! | `observers` | tables are kept in step with the state: watches, waiting requests, the lives of sessions |
//! | `replica` | committed entries are applied, and what they changed is delivered to the observers |
//! | `log` | commands are queued, batched and proposed; linearizable reads wait for the log |
//! | `sessions` | sessions are kept alive and expired |
//! | `locks` | requests for locks wait, are granted and are cancelled |
//! | `calls` | the other calls: operations in order, the life of a session, permits of a rate limit |
//! | `time` | the clocks |
//!
//! A folder uses those above it in this table, and `time`. `engine` puts the parts up to `sessions` together; `locks`
//! and `calls` are what it does for callers; [`Node`] is what the frontends see.

mod backoff;
mod calls;
mod config;
mod engine;
mod error;
mod feature_level;
mod leader_limit;
mod locks;
mod log;
mod node;
mod observers;
mod rates;
mod replica;
mod replication;
#[cfg(test)]
mod replication_double;
mod request;
mod sessions;
mod status;
mod tasks;
mod time;
mod token_uses;
mod traces;

#[doc(hidden)]
pub mod fuzzing {
    //! One entry for fuzzing what a node reads from its peers: messages of consensus, the batches in them, and
    //! keepalives. Not part of the interface.

    use lockkeeper_core::Batch;

    use crate::sessions::messages::{KeepaliveAnswer, SessionMessage};

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

pub use calls::in_order::OrderedReply;
pub use config::NodeConfig;
pub use error::{Bound, NodeError};
pub use leader_limit::{within_leader_limit, within_same_leader_limit};
pub use locks::cancellation::Undecided;
pub use log::queue::network_of;
pub use node::{Node, Parts};
pub use observers::Observer;
pub use observers::session_event_table::SessionEvent;
pub use observers::watches::history::WatchEvent;
pub use observers::watches::{WatchItem, WatchSpec, WatchStream};
pub use rates::{PermitsTaken, TakePermits};
pub use replica::{ForcedDeletion, ForcedDeletionHook};
pub use request::{
    Acquire, Acquired, At, Attached, Caller, Consistency, Credential, ForceReleased, Grant, HolderInfo, KeepaliveAck,
    OpenedSession,
};
pub use sessions::presence::Presence;
pub use sessions::session_events::SessionEvents;
pub use status::NodeStatus;
pub use time::clock::{Clock, SystemClock};
pub use traces::{MAX_LINKS, TraceSink, TraceSpan, TraceValue};
