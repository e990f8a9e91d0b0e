//! `/v1/locks`.

use std::time::Duration;

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::locks::{
    Acquire, Acquired, Downgraded, Lock, Locks, LocksQuery, Release, Released, Token, Verified,
};
use lockkeeper_api::row::Retry;
use lockkeeper_api::{Call, Code};
use uuid::Uuid;

use super::{Paging, level, limit, lock_name};
use crate::client::Client;
use crate::error::Error;
use crate::request_spec::RequestSpec;

/// Longest wait that the server accepts in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The request of a release.
pub(crate) fn release_spec(lock: &str, release: &Release) -> Result<RequestSpec, Error> {
    let call = Call::ReleaseLock { name: lock_name(lock)?, body: release.clone() };
    Ok(RequestSpec::new(call))
}

impl Client {
    /// Asks for a lock and waits for it for `acquire.wait_ms` milliseconds. With a session, an unanswered request is
    /// sent again under the same request id, to any node, and keeps its place in the queue; without a session
    /// (`ttl_ms`) its outcome is reported as unknown.
    ///
    /// # Errors
    /// [`Code::LockBusy`] when the wait is over; otherwise see [`Error`].
    pub async fn acquire(&self, lock: &str, acquire: &Acquire) -> Result<Acquired, Error> {
        let wait = Duration::from_millis(acquire.wait_ms);
        if wait > LONGEST_WAIT {
            return Err(Error::refused(Code::BadRequest, format!("a wait is at most {} s", LONGEST_WAIT.as_secs())));
        }
        let repeat = if self.context.identity.is_some() { Retry::Idempotent } else { Retry::Never };
        let request_id = Some(acquire.request_id.unwrap_or_else(Uuid::new_v4));
        let call = Call::AcquireLock { name: lock_name(lock)?, body: Acquire { request_id, ..acquire.clone() } };
        self.call(&RequestSpec::new(call).with_retry(repeat)).await
    }

    /// Releases the lock that this client's session holds with that token.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if it is not held with that token; otherwise see [`Error`].
    pub async fn release(&self, lock: &str, token: u64) -> Result<Released, Error> {
        self.release_together(lock, &Release { token, ..Release::default() }).await
    }

    /// Releases all locks that were acquired together, or none.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if one of them is not held with that token; otherwise see [`Error`].
    pub async fn release_together(&self, lock: &str, release: &Release) -> Result<Released, Error> {
        self.call(&release_spec(lock, release)?).await
    }

    /// Makes the holder of a [`Write`](lockkeeper_api::locks::Mode::Write) lock a reader; no other writer is granted in
    /// between. The token stays the same.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if it is not held with that token; otherwise see [`Error`].
    pub async fn downgrade(&self, lock: &str, token: u64) -> Result<Downgraded, Error> {
        let call = Call::DowngradeLock { name: lock_name(lock)?, body: Token { token } };
        self.send(call).await
    }

    /// Whether the lock is held with that token, linearizable. Needs no session: resources call this.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn verify(&self, lock: &str, token: u64) -> Result<Verified, Error> {
        let call = Call::VerifyLock { name: lock_name(lock)?, body: Token { token } };
        self.send(call).await
    }

    /// Reads the holders and the queue of a lock.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn lock(&self, lock: &str) -> Result<Lock, Error> {
        self.lock_as(lock, ReadQuery::default()).await
    }

    /// The same from the server's own replica, which may be stale. It answers without a majority, too, and costs
    /// the other nodes nothing.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn lock_stale(&self, lock: &str) -> Result<Lock, Error> {
        self.lock_as(lock, ReadQuery { consistency: level(true) }).await
    }

    async fn lock_as(&self, lock: &str, query: ReadQuery) -> Result<Lock, Error> {
        self.send(Call::GetLock { name: lock_name(lock)?, query }).await
    }

    /// A page of the locks that are held.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn locks(&self, prefix: Option<&str>, paging: &Paging) -> Result<Locks, Error> {
        let (prefix, after) = (prefix.map(str::to_owned), paging.after.clone());
        let query = LocksQuery { prefix, after, limit: limit(paging.limit), consistency: level(paging.stale) };
        self.send(Call::ListLocks { query }).await
    }

    /// Takes a lock from the holder with that token by force. The server audits this. The holder may still act.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if the lock is not held with that token; otherwise see [`Error`].
    pub async fn force_release(&self, lock: &str, token: u64) -> Result<Released, Error> {
        let call = Call::BreakLock { name: lock_name(lock)?, token };
        // The cluster remembers no request id for this: a second attempt could not tell its own success from another's.
        self.send(call).await
    }
}
