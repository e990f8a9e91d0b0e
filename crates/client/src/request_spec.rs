//! What one call asks for, and whether it may be repeated. Knows no connection.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::locks::Acquire;
use lockkeeper_api::row::Retry;
use lockkeeper_api::{Call, Code};
use tokio::time::Instant;

use crate::error::Error;
use crate::traces::{self, TraceHeaders};

/// Longest answer that the client reads.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Longer bodies go over HTTP, where the server refuses one that is too long with an explanation; a stream would break.
pub(crate) const MAX_STREAMED_BODY_BYTES: usize = 256 << 10;

/// One call, independent of the endpoint and the connection that it is sent to.
#[derive(Clone)]
pub(crate) struct RequestSpec {
    /// Shared, because a copy of the request is queued on the stream and data may be large.
    call: Arc<Call>,
    pub(crate) retry: Retry,
    /// How long the request itself asks the server to wait.
    pub(crate) wait: Duration,
    wait_until: Instant,
    /// Whether the session's credential is sent with it, where there is a session.
    pub(crate) as_session: bool,
    /// Whether its body is too long for a stream.
    pub(crate) large: bool,
    /// The trace of the caller.
    pub(crate) trace: Option<Arc<TraceHeaders>>,
}

/// Without the body, which may be a secret of the application.
impl fmt::Debug for RequestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call.route().0, self.call.target())
    }
}

impl RequestSpec {
    /// As the row of the call says.
    pub(crate) fn new(call: Call) -> Self {
        let rules = &call.row().rules;
        let wait = match &call {
            Call::AcquireLock { body, .. } => Duration::from_millis(body.wait_ms),
            _ => Duration::ZERO,
        };
        // A call that cannot be encoded is refused when it is sent.
        let bytes = match &call {
            // Their names are bounded.
            Call::AcquireLock { .. } | Call::ReleaseLock { .. } => 0,
            _ => call.body().ok().flatten().map_or(0, |body| body.len()),
        };
        let large = bytes > MAX_STREAMED_BODY_BYTES;
        Self {
            retry: rules.retry,
            as_session: rules.as_session,
            call: Arc::new(call),
            wait,
            wait_until: Instant::now() + wait,
            large,
            trace: traces::current(),
        }
    }

    /// For a call whose body says whether it may be repeated.
    pub(crate) fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    pub(crate) fn untraced(mut self) -> Self {
        self.trace = None;
        self
    }

    /// The call for an attempt that begins now: a lock request asks for the rest of its wait.
    pub(crate) fn call(&self) -> Cow<'_, Call> {
        match &*self.call {
            Call::AcquireLock { name, body } if !self.wait.is_zero() => {
                let left = self.wait_until.saturating_duration_since(Instant::now());
                let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                Cow::Owned(Call::AcquireLock { name: name.clone(), body: Acquire { wait_ms, ..body.clone() } })
            }
            call => Cow::Borrowed(call),
        }
    }
}

/// The error of a request that cannot be encoded.
pub(crate) fn unencodable(error: impl fmt::Display) -> Error {
    Error::refused(Code::BadRequest, error.to_string())
}
