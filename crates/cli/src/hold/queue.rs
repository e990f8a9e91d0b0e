//! A place in the queue of a lock or semaphore, or in those of several locks together.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquire, Acquired, Mode, Release};
use lockkeeper_client::{Error, Session};
use tokio::time::{Instant, sleep};

use super::{Hold, before_command, lost};
use crate::failure::{EXIT_WAIT_TIMED_OUT, Failure, say};
use crate::output::{ago, shown};

/// Longest wait in one request; a longer one queues anew.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What is asked for.
pub(crate) struct Request {
    /// The lock, or the first of several.
    pub(crate) name: String,
    /// Those that are taken together with it.
    pub(crate) also: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) permits: Option<u16>,
    /// How long to wait; as long as it takes where it is left out.
    pub(crate) wait: Option<Duration>,
    pub(crate) delay: Duration,
    pub(crate) label: String,
}

impl Request {
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.also).map(String::as_str)
    }

    fn acquire(&self, wait: Duration) -> Acquire {
        Acquire {
            mode: self.mode,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            label: Some(self.label.clone()),
            also: self.also.clone(),
            permits: self.permits,
            delay_ms: u32::try_from(self.delay.as_millis()).unwrap_or(u32::MAX),
            ..Acquire::default()
        }
    }

    fn timed_out(&self, holder: Option<&lockkeeper_api::locks::Request>) -> Failure {
        let names: Vec<&str> = self.names().collect();
        let holder = holder.map_or(String::new(), |holder| {
            format!(" by {} since {} (token {})", shown(&holder.label), ago(holder.since_ms), holder.token)
        });
        let waited = humantime::format_duration(self.wait.unwrap_or_default());
        Failure::new(
            EXIT_WAIT_TIMED_OUT,
            format!("{} is still held{holder} after a wait of {waited}; wait longer with --wait", names.join(" or ")),
        )
    }
}

/// A grant, and what was asked for.
pub(crate) struct Place {
    request: Request,
    pub(crate) token: u64,
}

impl Place {
    /// Waits for it. A request that the cluster no longer knows, or whose longest wait is over, is made anew.
    pub(crate) async fn obtain(session: &Session, request: Request) -> Result<Self, Failure> {
        let until = request.wait.map(|wait| Instant::now() + wait);
        loop {
            let left = until.map_or(LONGEST_WAIT, |until| until.saturating_duration_since(Instant::now()));
            let ask = request.acquire(left.min(LONGEST_WAIT));
            let error = match session.client().acquire(&request.name, &ask).await {
                Ok(Acquired { token, .. }) => return Ok(Self { request, token }),
                Err(error) => error,
            };
            let over = until.is_some_and(|until| Instant::now() >= until);
            match error {
                Error::Refused(problem) if matches!(problem.code, Code::LockBusy | Code::NotQueued) && !over => {}
                Error::Refused(problem) if matches!(problem.code, Code::LockBusy | Code::NotQueued) => {
                    return Err(request.timed_out(problem.holders.first()));
                }
                other => return Err(before_command(other)),
            }
        }
    }

    /// Asks again and again whether the token still holds; completes when it does not.
    pub(crate) async fn taken(&self, session: &Session) -> String {
        let every = session.timeout() / 3;
        loop {
            sleep(every).await;
            for name in self.request.names() {
                // No answer says nothing about the lock; the session's own clock runs.
                if let Ok(verified) = session.client().verify(name, self.token).await
                    && !verified.held
                {
                    return format!("{} was taken away by force", shown(name));
                }
            }
        }
    }

    /// Gives it back after CMD has ended with that code.
    pub(crate) async fn give_back(&self, session: &Session, hold: &impl Hold, code: u8) -> Result<u8, Failure> {
        let release = Release { token: self.token, also: self.request.also.clone() };
        match session.client().release_together(&self.request.name, &release).await {
            Err(error) if matches!(error, Error::Lost(_)) || error.code() == Some(Code::NotHeld) => {
                return Err(lost(hold, "it had been taken away before CMD ended"));
            }
            Err(error) => say(&format!(
                "lockkeeper {}: {} could not be released, it is free within {} s: {error}",
                hold.command(),
                hold.name(),
                (session.timeout() + self.request.delay).as_secs_f32()
            )),
            Ok(_) => {}
        }
        Ok(code)
    }
}
