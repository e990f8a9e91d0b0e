//! A place in the queue of a lock, or of several together.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquire, Acquired, Mode};
use lockkeeper_client::{Error, Session};
use tokio::time::{Instant, sleep};

use super::before_command;
use crate::failure::{EXIT_WAIT_TIMED_OUT, Failure};
use crate::output::{ago, shown};

/// Longest wait in one request; a longer one queues anew.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What is asked for.
pub(crate) struct Request<'a> {
    pub(crate) name: &'a str,
    pub(crate) mode: Mode,
    /// How long to wait; as long as it takes where it is left out.
    pub(crate) wait: Option<Duration>,
    pub(crate) label: String,
}

/// Waits for the lock. A request that the cluster no longer knows, or whose longest wait is over, is made anew.
pub(crate) async fn acquire(session: &Session, request: &Request<'_>) -> Result<Acquired, Failure> {
    let until = request.wait.map(|wait| Instant::now() + wait);
    loop {
        let left = until.map_or(LONGEST_WAIT, |until| until.saturating_duration_since(Instant::now()));
        let wait = left.min(LONGEST_WAIT);
        let ask = Acquire {
            mode: request.mode,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            label: Some(request.label.clone()),
            ..Acquire::default()
        };
        let error = match session.client().acquire(request.name, &ask).await {
            Ok(acquired) => return Ok(acquired),
            Err(error) => error,
        };
        let over = until.is_some_and(|until| Instant::now() >= until);
        match error {
            Error::Refused(problem) if matches!(problem.code, Code::LockBusy | Code::NotQueued) && !over => {}
            Error::Refused(problem) if matches!(problem.code, Code::LockBusy | Code::NotQueued) => {
                let holder = problem.holders.first().map_or(String::new(), |holder| {
                    format!(" by {} since {} (token {})", shown(&holder.label), ago(holder.since_ms), holder.token)
                });
                let waited = humantime::format_duration(request.wait.unwrap_or_default());
                let message =
                    format!("{} is still held{holder} after a wait of {waited}; wait longer with --wait", request.name);
                return Err(Failure::new(EXIT_WAIT_TIMED_OUT, message));
            }
            other => return Err(before_command(other)),
        }
    }
}

/// Asks again and again whether the token still holds; completes when it does not.
pub(crate) async fn taken(session: &Session, lock: &str, token: u64) -> String {
    let every = session.timeout() / 3;
    loop {
        sleep(every).await;
        // No answer says nothing about the lock; the session's own clock runs.
        if let Ok(verified) = session.client().verify(lock, token).await
            && !verified.held
        {
            return "it was taken away by force".into();
        }
    }
}

/// Whether an attempt to give something back says that it was no longer held.
pub(crate) fn says_lost(error: &Error) -> bool {
    matches!(error, Error::Lost(_)) || error.code() == Some(Code::NotHeld)
}
