//! Redis as an engine: one replicated Redis, or Redlock over several that know nothing of each other.
//!
//! Neither has fencing tokens, and neither says that it has.

mod engine;
mod pending;
mod redlock;
mod scripts;
mod server;
mod wakeups;

use std::time::Duration;

use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{Holder, LockRequest};
use crate::error::EngineError;

pub use engine::RedisEngine;
pub use redlock::RedlockEngine;

/// Keys begin with this. A lock `orders/42` is the key `lock:orders/42`, and its channel has the same name.
const KEY_PREFIX: &str = "lock:";
/// Redis counts leases in milliseconds by the clock of its host. Below this, the way to it is most of a lease.
const MINIMUM_LEASE: Duration = Duration::from_millis(100);
const CAPABILITIES: Capabilities =
    Capabilities { promises: &[Capability::AtomicBatch, Capability::ShowsHolder], minimum_lease: MINIMUM_LEASE };

/// Timeouts of connections to Redis, and the pauses of waiters.
#[derive(Clone, Copy, Debug)]
pub struct RedisOptions {
    /// How long to wait for a connection to one server.
    pub connect_timeout: Duration,
    /// How long to wait for the answer of one server. Redlock waits no longer than a tenth of a lease.
    pub response_timeout: Duration,
    /// A waiter asks again at least this often: the message of a release may be lost. Redlock, which has no messages,
    /// waits for a random time around this.
    pub poll_interval: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            poll_interval: Duration::from_millis(250),
        }
    }
}

fn key(lock: &str) -> String {
    format!("{KEY_PREFIX}{lock}")
}

fn keys(locks: &[String]) -> Vec<String> {
    locks.iter().map(|lock| key(lock)).collect()
}

/// The value of a key: the owner in 36 characters, a blank and the label.
fn value(owner: Uuid, request: &LockRequest) -> String {
    format!("{owner} {}", request.label)
}

/// The holder that a value names. Another program may have set the key.
fn holder(value: &str) -> Holder {
    let label =
        value.split_once(' ').filter(|(owner, _)| owner.parse::<Uuid>().is_ok()).map_or(value, |(_, label)| label);
    Holder { label: label.to_owned(), token: None }
}

/// The lease in milliseconds, as the scripts take it.
fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}

fn unreachable(engine: &str, why: impl Into<String>) -> EngineError {
    EngineError::Unreachable { engine: engine.into(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_holder() {
        let mut request = LockRequest::new("a");
        request.label = "billing on host 7".into();
        assert_eq!(holder(&value(Uuid::new_v4(), &request)).label, "billing on host 7");
        assert_eq!(holder("someone else").label, "someone else");
        assert_eq!(keys(request.locks()), ["lock:a"]);
    }
}
