//! One replicated Redis as an engine: `SET NX PX` with an owner, compare-and-delete, a message at a release.
//!
//! No fencing tokens, no order of waiters. Replication is asynchronous: a replica that takes over may not know of a
//! lock, and a server that restarts without its data knows of none. Then two hold.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use tokio::time::sleep;
use uuid::Uuid;

use super::pending::Pending;
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use super::server::{CallError, Server};
use super::wakeups::{Subscriptions, WakeupSubscription};
use super::{CAPABILITIES, RedisOptions, holder, key, keys, millis, value};
use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{Holder, Lease, LockEngine, LockRequest};
use crate::error::EngineError;
use crate::names::check_name;
use crate::wait::Deadline;

const NAME: &str = "redis";
const SHORTEST_NAP: Duration = Duration::from_millis(1);

/// One Redis with its replicas.
///
/// Lacks fencing tokens, order of waiters, a report of the loss, one holder across a failover, and shared mode. Two
/// clients hold at once after a failover to a replica that had not got the write, after a restart without the data, and
/// after a jump of the server's clock.
#[derive(Debug)]
pub struct RedisEngine {
    server: Arc<Server>,
    wakeups: Subscriptions,
    options: RedisOptions,
}

enum TakeAnswer {
    Held,
    /// Held by others, for this long if nobody renews; `None` without an end.
    Busy(Option<Duration>),
}

impl RedisEngine {
    /// The Redis at these addresses, such as `redis://127.0.0.1:6379`: those of one replicated Redis, of which the one
    /// that takes writes is used. It connects when first used.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if there is no address, or one cannot be used.
    pub fn new(
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        options: RedisOptions,
    ) -> Result<Self, EngineError> {
        let server = Arc::new(Server::new(addresses, options)?);
        Ok(Self { wakeups: Subscriptions::new(server.clone()), server, options })
    }

    /// One attempt. An unknown outcome is asked for again: the script knows its owner.
    async fn attempt(&self, pending: &Pending, value: &str, lease: Duration) -> Result<TakeAnswer, CallError> {
        let arguments = [pending.owner.to_string(), value.to_owned(), millis(lease).to_string()];
        let run = || self.server.run::<(i64, i64)>(&ACQUIRE, &pending.keys, &arguments);
        let answer = match run().await {
            Err(CallError::Unknown(why)) => {
                tracing::debug!(why, "asking again whether the lock is held");
                // The first call may have taken effect, whatever stops the second.
                run().await.map_err(|again| CallError::Unknown(format!("{why}; then {again}")))
            }
            answer => answer,
        };
        Ok(match answer? {
            (1, _) => TakeAnswer::Held,
            (_, left) => TakeAnswer::Busy(u64::try_from(left).ok().map(Duration::from_millis)),
        })
    }

    /// Waits for a release, or for the end of the lease of the holder, or a while.
    async fn wait(&self, listener: Option<&WakeupSubscription>, left: Option<Duration>, deadline: Deadline) {
        let nap = left.map_or(self.options.poll_interval, |left| (left + SHORTEST_NAP).min(self.options.poll_interval));
        let nap = deadline.left(nap);
        match listener {
            Some(listener) => tokio::select! {
                () = listener.released() => {}
                () = sleep(nap) => {}
            },
            None => sleep(nap).await,
        }
    }
}

#[async_trait]
impl LockEngine for RedisEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        let (deadline, owner) = (request.wait.deadline(), Uuid::new_v4());
        let value = value(owner, request);
        let servers = vec![self.server.clone()];
        let mut pending = Pending { servers, keys: keys(request.locks()), owner, undecided: true };
        let mut listener: Option<WakeupSubscription> = None;
        loop {
            let ends_at = Moment::now() + request.lease;
            match self.attempt(&pending, &value, request.lease).await {
                Ok(TakeAnswer::Held) if Moment::now() < ends_at => {
                    pending.undecided = false;
                    let locks = request.locks().to_vec();
                    return Ok(Some(Lease { locks, owner, tokens: Vec::new(), length: request.lease, ends_at }));
                }
                // The answer took longer than the lease.
                Ok(TakeAnswer::Held) if deadline.is_over() => return Ok(None),
                Ok(TakeAnswer::Held) => {}
                Ok(TakeAnswer::Busy(_)) if deadline.is_over() => {
                    pending.undecided = false;
                    return Ok(None);
                }
                Ok(TakeAnswer::Busy(left)) => {
                    if listener.as_ref().is_none_or(|listener| !listener.is_alive()) {
                        listener = self.wakeups.listen(&pending.keys).await;
                        if listener.is_some() {
                            // A release before the subscription was not heard.
                            continue;
                        }
                    }
                    self.wait(listener.as_ref(), left, deadline).await;
                }
                Err(error) => {
                    pending.undecided = matches!(error, CallError::Unknown(_));
                    return Err(error.into_engine_error(NAME));
                }
            }
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let ends_at = Moment::now() + lease.length;
        let arguments = [lease.owner.to_string(), millis(lease.length).to_string()];
        match self.server.run::<i64>(&RENEW, &keys(&lease.locks), &arguments).await {
            Ok(1) => Ok(ends_at),
            Ok(_) => Err(EngineError::Lost("its key has expired, or belongs to another owner".into())),
            Err(error) => Err(error.into_engine_error(NAME)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let run =
            || async { self.server.run::<usize>(&RELEASE, &keys(&lease.locks), &[lease.owner.to_string()]).await };
        match run().await {
            Ok(released) if released == lease.locks.len() => Ok(()),
            Ok(_) => Err(EngineError::Lost("its key has expired, or belongs to another owner".into())),
            Err(CallError::Unknown(why)) => match run().await {
                // The first attempt may have released it, or the lease may have ended.
                Ok(_) => Ok(()),
                Err(_) => Err(EngineError::UnknownOutcome(why)),
            },
            Err(error) => Err(error.into_engine_error(NAME)),
        }
    }

    async fn verify(&self, _lock: &str, _token: u64) -> Result<bool, EngineError> {
        Err(EngineError::Missing { engine: NAME.into(), capability: Capability::FencingToken })
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let value = self.server.get(&key(lock)).await.map_err(|error| error.into_engine_error(NAME))?;
        Ok(value.as_deref().map(holder))
    }
}
