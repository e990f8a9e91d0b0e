//! What every engine must keep, as one test for all of them. The capabilities decide which parts run: where an engine
//! lacks one, the part checks that the lack is a typed error.
//!
//! The parts run at the same time on locks of their own, through several engines, as processes would use them.

mod capability_parts;
mod guard_parts;
mod lease_parts;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};
use lockkeeper_engines::{EngineError, Lease, LockEngine, LockRequest, Wait};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// Longest time that a part may take. A busy machine makes parts slow, so this is only to end what hangs.
const PART_ENDS_WITHIN: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// An engine under test.
#[async_trait]
pub trait Subject: Send + Sync {
    /// An engine with connections of its own, as another process would have it.
    fn engine(&self) -> Arc<dyn LockEngine>;

    /// A lease that is short enough to wait for its end, and long enough for a busy machine.
    fn lease(&self) -> Duration;

    /// Takes the lock away without its holder, as an operator does, or a failover that loses it.
    async fn break_lock(&self, lock: &str);

    /// Whether the engine shows a name of its own for a holder, or changes its label: a server may have no room for
    /// it.
    fn names_holders_itself(&self) -> bool {
        false
    }

    /// How many wait for the lock, if the engine is fair.
    async fn waiting(&self, _lock: &str) -> usize {
        0
    }
}

/// A part that an engine does not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The part.
    pub part: &'static str,
    /// The failure.
    pub why: String,
}

/// What a part finds.
type Found = Result<(), String>;
type Part = for<'a> fn(&'a Bench<'a>) -> BoxFuture<'a, Found>;

/// The parts by name.
const PARTS: [(&str, Part); 15] = [
    ("exclusion", |bench| Box::pin(lease_parts::exclusion(bench))),
    ("try", |bench| Box::pin(lease_parts::try_once(bench))),
    ("wait", |bench| Box::pin(lease_parts::wait(bench))),
    ("time-out", |bench| Box::pin(lease_parts::time_out(bench))),
    ("owner-only release", |bench| Box::pin(lease_parts::owner_only(bench))),
    ("expiry", |bench| Box::pin(lease_parts::expiry(bench))),
    ("dropped futures", |bench| Box::pin(lease_parts::dropped(bench))),
    ("bounds", |bench| Box::pin(lease_parts::bounds(bench))),
    ("renewal", |bench| Box::pin(guard_parts::renewal(bench))),
    ("loss", |bench| Box::pin(guard_parts::loss(bench))),
    ("fencing tokens", |bench| Box::pin(capability_parts::tokens(bench))),
    ("order of waiters", |bench| Box::pin(capability_parts::order(bench))),
    ("shared mode", |bench| Box::pin(capability_parts::shared(bench))),
    ("several locks", |bench| Box::pin(capability_parts::several(bench))),
    ("holder", |bench| Box::pin(capability_parts::holder(bench))),
];

/// Runs all parts. Returns the names of those that ran.
///
/// # Errors
/// The parts that the engine does not keep.
pub async fn run(subject: &dyn Subject) -> Result<Vec<&'static str>, Vec<Broken>> {
    let parts = PARTS.iter().map(|(name, part)| async move {
        let bench = Bench { subject, locks: format!("contract/{}/{}", Uuid::new_v4(), name.replace(' ', "-")) };
        let why = match timeout(PART_ENDS_WITHIN, part(&bench)).await {
            Ok(Ok(())) => return Ok(*name),
            Ok(Err(why)) => why,
            Err(_) => format!("not done after {PART_ENDS_WITHIN:?}"),
        };
        Err(Broken { part: name, why })
    });
    let mut kept = Vec::new();
    let mut broken = Vec::new();
    for outcome in join_all(parts).await {
        match outcome {
            Ok(name) => kept.push(name),
            Err(part) => broken.push(part),
        }
    }
    if broken.is_empty() { Ok(kept) } else { Err(broken) }
}

/// What a part works with.
struct Bench<'a> {
    subject: &'a dyn Subject,
    locks: String,
}

impl Bench<'_> {
    fn engine(&self) -> Arc<dyn LockEngine> {
        self.subject.engine()
    }

    /// A lock of this part.
    fn lock(&self, name: &str) -> String {
        format!("{}/{name}", self.locks)
    }

    fn request(&self, lock: &str, wait: Wait) -> LockRequest {
        let mut request = LockRequest::new(self.lock(lock));
        request.wait = wait;
        request.lease = self.subject.lease();
        request
    }

    fn patient(&self, lock: &str) -> LockRequest {
        self.request(lock, Wait::AtMost(PART_ENDS_WITHIN))
    }
}

/// Acquires a lock that is free, or becomes so.
async fn hold(engine: &dyn LockEngine, request: &LockRequest) -> Result<Lease, String> {
    let lease = engine.acquire(request).await.map_err(|error| format!("acquire: {error}"))?;
    lease.ok_or_else(|| "the lock is not granted although it is free".to_owned())
}

/// Checks that somebody holds the lock.
async fn must_be_held(engine: &dyn LockEngine, request: &LockRequest, when: &str) -> Found {
    let request = request.clone().with_wait(Wait::Try);
    match engine.acquire(&request).await {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(format!("{when}: a second client holds the lock")),
        Err(error) => Err(format!("{when}: {error}")),
    }
}

/// Waits until the lock can be had without waiting, and releases it.
async fn until_free(engine: &dyn LockEngine, request: &LockRequest, within: Duration, when: &str) -> Found {
    let request = request.clone().with_wait(Wait::Try);
    let begun = Instant::now();
    loop {
        let outcome = engine.acquire(&request).await.map_err(|error| format!("{when}: {error}"))?;
        if let Some(lease) = outcome {
            return engine.release(&lease).await.map_err(|error| format!("{when}: release: {error}"));
        }
        if begun.elapsed() > within {
            return Err(format!("{when}: the lock is not free after {within:?}"));
        }
        sleep(LOOK_EVERY).await;
    }
}

fn check(holds: bool, otherwise: impl Into<String>) -> Found {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

fn is_lost<T>(outcome: &Result<T, EngineError>) -> bool {
    matches!(outcome, Err(EngineError::Lost(_)))
}

fn is_missing<T>(outcome: &Result<T, EngineError>) -> bool {
    matches!(outcome, Err(EngineError::Missing { .. }))
}

fn is_refused<T>(outcome: &Result<T, EngineError>) -> bool {
    matches!(outcome, Err(EngineError::Refused(_)))
}

fn text(error: EngineError) -> String {
    error.to_string()
}
