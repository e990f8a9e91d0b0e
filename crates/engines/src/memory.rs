//! An engine within one process, for tests of code that uses engines.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest, Mode};
use crate::error::EngineError;
use crate::names::check_name;

/// A waiter looks again at least this often: leases end without an event.
const LONGEST_NAP: Duration = Duration::from_millis(50);

/// Locks of one process. They are gone with it.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    last_token: u64,
    held: HashMap<String, Vec<MemoryHold>>,
}

#[derive(Clone, Debug)]
struct MemoryHold {
    owner: Uuid,
    token: u64,
    label: String,
    shared: bool,
    length: Duration,
    ends_at: Moment,
}

impl State {
    /// The current holds of a lock.
    fn current(&mut self, lock: &str) -> &mut Vec<MemoryHold> {
        let now = Moment::now();
        let held = self.held.entry(lock.to_owned()).or_default();
        held.retain(|held| held.ends_at > now);
        held
    }

    fn acquire(&mut self, request: &LockRequest) -> Option<Lease> {
        let shared = request.mode == Mode::Shared;
        let free = request.locks().iter().all(|lock| self.current(lock).iter().all(|held| shared && held.shared));
        if !free {
            return None;
        }
        self.last_token += 1;
        let (owner, token) = (Uuid::new_v4(), self.last_token);
        let ends_at = Moment::now() + request.lease;
        for lock in request.locks() {
            let label = request.label.clone();
            self.current(lock).push(MemoryHold { owner, token, label, shared, length: request.lease, ends_at });
        }
        let locks = request.locks().to_vec();
        Some(Lease { tokens: vec![token; locks.len()], locks, owner, length: request.lease, ends_at })
    }
}

impl MemoryEngine {
    /// Whether nobody holds one of these locks in any mode.
    pub(crate) fn is_free(&self, locks: &[String]) -> bool {
        let (state, now) = (self.state.lock(), Moment::now());
        !locks.iter().filter_map(|lock| state.held.get(lock)).flatten().any(|held| held.ends_at > now)
    }

    /// Takes the lock away from its holders, as an operator does.
    pub fn break_lock(&self, lock: &str) {
        self.state.lock().held.remove(lock);
        self.changed.notify_waiters();
    }
}

#[async_trait]
impl LockEngine for MemoryEngine {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            promises: &[Capability::FencingToken, Capability::Shared, Capability::AtomicBatch, Capability::ShowsHolder],
            minimum_lease: Duration::from_millis(1),
        }
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(self.name(), self.capabilities())?;
        let deadline = request.wait.deadline();
        loop {
            let changed = self.changed.notified();
            if let Some(lease) = self.state.lock().acquire(request) {
                return Ok(Some(lease));
            }
            if deadline.is_over() {
                return Ok(None);
            }
            tokio::select! {
                () = changed => {}
                () = sleep(deadline.left(LONGEST_NAP)) => {}
            }
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let mut state = self.state.lock();
        let mut ends_at = None;
        for lock in &lease.locks {
            let held = state.current(lock).iter_mut().find(|held| held.owner == lease.owner);
            let held = held.ok_or_else(|| EngineError::Lost(format!("the lease of {lock} has expired")))?;
            held.ends_at = Moment::now() + held.length;
            ends_at = Some(held.ends_at);
        }
        Ok(ends_at.unwrap_or(lease.ends_at))
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        let mut lost = None;
        for lock in &lease.locks {
            let held = state.current(lock);
            let before = held.len();
            held.retain(|held| held.owner != lease.owner);
            if held.len() == before {
                lost = Some(lock.clone());
            }
        }
        drop(state);
        self.changed.notify_waiters();
        match lost {
            None => Ok(()),
            Some(lock) => Err(EngineError::Lost(format!("the lease of {lock} has expired"))),
        }
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        Ok(self.state.lock().current(lock).iter().any(|held| held.token == token))
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let mut state = self.state.lock();
        let held = state.current(lock).first();
        Ok(held.map(|held| Holder { label: held.label.clone(), token: Some(held.token) }))
    }
}

impl FencingEngine for MemoryEngine {}
