//! Redlock: a lock is held while a majority of independent Redis servers has it.
//!
//! Exclusion relies on clocks and on data that survive: a server whose clock jumps forward, or which restarts without
//! what it had acknowledged, gives its vote a second time while the first holder still holds.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{FuturesUnordered, StreamExt as _};
use lockkeeper_client::Moment;
use rand::Rng as _;
use redis::FromRedisValue;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::pending::Pending;
use super::scripts::{ACQUIRE, RELEASE, RENEW, Script};
use super::server::Server;
use super::{CAPABILITIES, RedisOptions, holder, key, keys, millis, unreachable, value};
use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{Holder, Lease, LockEngine, LockRequest};
use crate::error::EngineError;
use crate::names::check_name;

const NAME: &str = "redlock";
/// With two servers one failure stops everything, and one is no majority of several.
const FEWEST_SERVERS: usize = 3;

/// Several Redis servers that do not replicate each other.
///
/// Lacks fencing tokens, order of waiters, a report of the loss, one holder across a failover, and shared mode. Two
/// clients hold at once after a clock jump on as many servers as two majorities have in common (one of five is enough),
/// and after restarts without persistence, or with a persistence that is behind, within a lease.
#[derive(Debug)]
pub struct RedlockEngine {
    servers: Vec<Arc<Server>>,
    options: RedisOptions,
}

/// The votes for one question.
#[derive(Clone, Debug, Default)]
struct Votes {
    for_it: usize,
    against: usize,
    failed: Vec<String>,
}

impl RedlockEngine {
    /// The servers at these addresses, at least three, best five.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if there are fewer, or an address cannot be used.
    pub fn new(
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        options: RedisOptions,
    ) -> Result<Self, EngineError> {
        let open = |address| Ok(Arc::new(Server::new([address], options)?));
        let servers: Vec<Arc<Server>> = addresses.into_iter().map(open).collect::<Result<_, EngineError>>()?;
        if servers.len() < FEWEST_SERVERS {
            let why = format!("Redlock needs at least {FEWEST_SERVERS} servers, not {}; best are five", servers.len());
            return Err(EngineError::Refused(why));
        }
        Ok(Self { servers, options })
    }

    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Runs a script everywhere and counts the answers that `is_vote` accepts, until a majority has decided.
    async fn ask<T: FromRedisValue>(
        &self,
        script: &'static Script,
        keys: &[String],
        arguments: &[String],
        lease: Duration,
        is_vote: impl Fn(T) -> bool,
    ) -> Votes {
        let within = self.options.response_timeout.min(lease / 10);
        let mut answers: FuturesUnordered<_> = self
            .servers
            .iter()
            .map(|server| async move { (server, timeout(within, server.run::<T>(script, keys, arguments)).await) })
            .collect();
        let mut votes = Votes::default();
        while let Some((server, answer)) = answers.next().await {
            match answer {
                Ok(Ok(answer)) => {
                    if is_vote(answer) {
                        votes.for_it += 1;
                    } else {
                        votes.against += 1;
                    }
                }
                Ok(Err(why)) => votes.failed.push(why.to_string()),
                Err(_) => votes.failed.push(format!("{}: no answer within {within:?}", server.address())),
            }
            if votes.for_it >= self.majority() || votes.against > self.servers.len() - self.majority() {
                break;
            }
        }
        votes
    }

    fn too_few(&self, votes: &Votes) -> EngineError {
        let (all, failed) = (self.servers.len(), votes.failed.join("; "));
        unreachable(NAME, format!("{} of {all} servers did not answer: {failed}", votes.failed.len()))
    }
}

/// The time that clocks of servers may gain in a lease, as Redlock's description has it.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

#[async_trait]
impl LockEngine for RedlockEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        let (deadline, keys) = (request.wait.deadline(), keys(request.locks()));
        loop {
            // Each attempt has an owner of its own, so that a late release of one cannot delete the keys of the next.
            let owner = Uuid::new_v4();
            let mut pending = Pending { servers: self.servers.clone(), keys: keys.clone(), owner, undecided: true };
            let arguments = [owner.to_string(), value(owner, request), millis(request.lease).to_string()];
            let ends_at = Moment::now() + request.lease.saturating_sub(drift(request.lease));
            let votes = self.ask(&ACQUIRE, &keys, &arguments, request.lease, |(held, _): (i64, i64)| held == 1).await;
            if votes.for_it >= self.majority() && Moment::now() < ends_at {
                pending.undecided = false;
                let locks = request.locks().to_vec();
                return Ok(Some(Lease { locks, owner, tokens: Vec::new(), length: request.lease, ends_at }));
            }
            drop(pending);
            if votes.failed.len() > self.servers.len() - self.majority() {
                return Err(self.too_few(&votes));
            }
            if deadline.is_over() {
                return Ok(None);
            }
            // Waiters that failed together must not try again together.
            let pause = self.options.poll_interval.mul_f64(rand::rng().random_range(0.1..1.0));
            sleep(deadline.left(pause)).await;
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let ends_at = Moment::now() + lease.length.saturating_sub(drift(lease.length));
        let arguments = [lease.owner.to_string(), millis(lease.length).to_string()];
        let votes = self.ask(&RENEW, &keys(&lease.locks), &arguments, lease.length, |renewed: i64| renewed == 1).await;
        if votes.for_it >= self.majority() {
            Ok(ends_at)
        } else if votes.against > self.servers.len() - self.majority() {
            Err(EngineError::Lost("its key has expired, or belongs to another owner, on too many servers".into()))
        } else {
            Err(self.too_few(&votes))
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let (keys, all) = (keys(&lease.locks), lease.locks.len());
        // On all servers, also on those that are slower than a majority.
        let pending =
            Pending { servers: self.servers.clone(), keys: keys.clone(), owner: lease.owner, undecided: true };
        let owner = [lease.owner.to_string()];
        let votes = self.ask(&RELEASE, &keys, &owner, lease.length, |released: usize| released == all).await;
        drop(pending);
        if votes.for_it >= self.majority() {
            Ok(())
        } else if votes.against > self.servers.len() - self.majority() {
            Err(EngineError::Lost("its key has expired, or belongs to another owner, on too many servers".into()))
        } else {
            Err(EngineError::UnknownOutcome(self.too_few(&votes).to_string()))
        }
    }

    async fn verify(&self, _lock: &str, _token: u64) -> Result<bool, EngineError> {
        Err(EngineError::Missing { engine: NAME.into(), capability: Capability::FencingToken })
    }

    /// The owner that a majority names. Votes of attempts under way may hide it for a moment.
    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let key = key(lock);
        let within = self.options.response_timeout;
        let answers = self.servers.iter().map(|server| timeout(within, server.get(&key)));
        let answers: Vec<_> = futures::future::join_all(answers).await;
        let mut votes = Votes::default();
        let mut values: Vec<Option<String>> = Vec::new();
        for answer in answers {
            match answer {
                Ok(Ok(value)) => values.push(value),
                Ok(Err(why)) => votes.failed.push(why.to_string()),
                Err(_) => votes.failed.push("no answer".into()),
            }
        }
        if values.len() < self.majority() {
            return Err(self.too_few(&votes));
        }
        let majority =
            |value: &&String| values.iter().flatten().filter(|other| other == value).count() >= self.majority();
        Ok(values.iter().flatten().find(majority).map(|value| holder(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_three_servers_are_refused() {
        let two = RedlockEngine::new(["redis://127.0.0.1:1", "redis://127.0.0.1:2"], RedisOptions::default());
        assert!(matches!(two, Err(EngineError::Refused(why)) if why.contains("at least 3")));
    }

    #[test]
    fn drift_is_a_hundredth_and_two_milliseconds() {
        assert_eq!(drift(Duration::from_secs(10)), Duration::from_millis(102));
    }
}
