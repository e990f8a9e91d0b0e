//! Rate limits: so many permits in so much time, over all processes of a cluster.
//!
//! The cluster decides, by its own clock. This module must never hand out a permit that the cluster has not granted.

use std::time::Duration;

use lockkeeper_api::rates::{PermitsTaken, TakePermits};
use rand::Rng;
use tokio::time::{Instant, sleep};

use super::error::RecipeError;
use crate::client::Client;
use crate::error::Error;
use crate::session::Session;

/// Longest time of a rate; the server's own bound.
const LONGEST_PER: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The clock is read at least this often: timers of the runtime do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_secs(60);
/// Waiting callers that learn the same moment come at different times: later by up to this part of the wait.
const JITTER: f64 = 0.1;
/// And by up to this time, so that a short wait is spread too.
const SPREAD: Duration = Duration::from_millis(20);

impl Session {
    /// The rate limit of that name, such as `mails/welcome`: `n` permits that come back within `per`. Sends no request.
    /// See [`RateLimit`].
    ///
    /// # Errors
    /// [`RecipeError::BadArgument`] for 0 permits, or a time that is less than a millisecond or more than 366 days.
    pub fn rate_limit(&self, name: impl Into<String>, n: u32, per: Duration) -> Result<RateLimit, RecipeError> {
        self.client().rate_limit(name, n, per)
    }
}

impl Client {
    /// As [`Session::rate_limit`]: a rate limit belongs to no session.
    ///
    /// # Errors
    /// As [`Session::rate_limit`].
    pub fn rate_limit(&self, name: impl Into<String>, n: u32, per: Duration) -> Result<RateLimit, RecipeError> {
        let bad = |why: &str| Err(RecipeError::BadArgument(why.into()));
        if n == 0 {
            return bad("a rate limit has at least one permit");
        }
        match u64::try_from(per.as_millis()) {
            Ok(per_ms @ 1..) if per <= LONGEST_PER => {
                let take = TakePermits::one_of(n, per_ms);
                Ok(RateLimit { client: self.clone(), name: name.into(), take })
            }
            _ => bad("the time of a rate limit is from a millisecond to 366 days"),
        }
    }
}

/// At most `n` permits in any time `per`, and never more than `n` + `n` × t / `per` in a time t: a token bucket that
/// holds `n` permits and refills at a constant rate, by the replicated clock, for all processes that use the name.
///
/// All of them state the same rate. Another one is refused with
/// [`RateMismatch`](lockkeeper_api::Code::RateMismatch) while the bucket is not full, because two programs that
/// disagree would both be wrong; [`reconfigure`](Self::reconfigure) changes it on purpose.
///
/// A permit is used up when it is granted: there is nothing to give back, and no session is needed. If an answer is
/// lost, the client asks again, and the permits of the lost answer are gone: never too many, at worst too few.
///
/// **Fairness is not promised.** A caller that waits has no place in a queue: it comes back when its permits should be
/// there, and another one may be faster. One that wants many permits of a busy limit may wait for long; for a fair
/// queue use a semaphore.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = lockkeeper_server::local::Cluster::start(1).await?;
/// # let client = lockkeeper_client::Client::connect(cluster.endpoints()).await?;
/// # let session = lockkeeper_client::Session::open(&client, &Default::default()).await?;
/// use std::time::Duration;
///
/// let mails = session.rate_limit("mails/welcome", 2, Duration::from_secs(3600))?;
/// assert!(mails.try_take(1).await?.granted);
/// assert!(mails.take(1, Duration::from_secs(1)).await?.granted);
/// let refused = mails.try_take(1).await?;
/// assert!(!refused.granted && refused.retry_after_ms > 1_000_000);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimit {
    client: Client,
    name: String,
    take: TakePermits,
}

impl RateLimit {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes over a bucket that is in use with another rate, instead of being refused: permits that are gone stay gone.
    /// For a change of the rate while programs with the old one still run; those are refused from then on.
    #[must_use]
    pub fn reconfigure(mut self) -> Self {
        self.take.reconfigure = true;
        self
    }

    /// Takes permits, all or none, or learns when they will be there. Does not wait.
    ///
    /// # Errors
    /// [`Code::RateMismatch`](lockkeeper_api::Code::RateMismatch) if the limit is in use with another rate; otherwise
    /// see [`Error`].
    pub async fn try_take(&self, permits: u32) -> Result<PermitsTaken, Error> {
        self.client.take_permits(&self.name, &TakePermits { permits, ..self.take.clone() }).await
    }

    /// Takes permits, all or none, and waits for them for at most `wait`. A wait that would take longer ends at once.
    ///
    /// # Errors
    /// As [`try_take`](Self::try_take).
    pub async fn take(&self, permits: u32, wait: Duration) -> Result<PermitsTaken, Error> {
        let give_up_at = Instant::now().checked_add(wait);
        loop {
            let taken = self.try_take(permits).await?;
            let pause = pause(Duration::from_millis(taken.retry_after_ms));
            let is_too_late = give_up_at.is_some_and(|at| {
                at.saturating_duration_since(Instant::now()) < Duration::from_millis(taken.retry_after_ms)
            });
            if taken.granted || is_too_late {
                return Ok(taken);
            }
            let left = give_up_at.map_or(pause, |at| at.saturating_duration_since(Instant::now()));
            sleep(pause.min(left).min(LONGEST_NAP)).await;
        }
    }
}

/// How long to wait before asking again.
fn pause(wait: Duration) -> Duration {
    let mut random = rand::rng();
    wait + wait.mul_f64(random.random_range(0.0..JITTER)) + SPREAD.mul_f64(random.random_range(0.0..1.0))
}
