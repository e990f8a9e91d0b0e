//! What one call asks for, and whether it may be repeated. Knows no connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_api::Code;
use reqwest::Method;
use serde::Serialize;

use crate::error::Error;

/// Longest answer that the client reads.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Longer bodies go over HTTP, where the server refuses one that is too long with an explanation; a stream would break.
pub(crate) const MAX_STREAMED_BODY_BYTES: usize = 256 << 10;

/// Whether a request may be sent again while the outcome of an earlier attempt is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// Always: it changes nothing, or a second time changes nothing more.
    Always,
    /// Yes: its body identifies it, so that the cluster carries it out once.
    Idempotent,
    /// With a session, under the same request id; without a session never.
    ByRequestId,
    /// Never.
    Never,
}

type MakeBody = Arc<dyn Fn() -> Result<Bytes, Error> + Send + Sync>;

/// One request, independent of the endpoint and the connection that it is sent to.
#[derive(Clone)]
pub(crate) struct RequestSpec {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// Built for each attempt, since some bodies say how much longer to wait.
    pub(crate) body: Option<MakeBody>,
    pub(crate) retry: RetryPolicy,
    /// How long the request itself asks the server to wait.
    pub(crate) wait: Duration,
    /// Whether the session's credential is sent with it, where there is a session.
    pub(crate) as_session: bool,
    /// Whether its body is too long for a stream.
    pub(crate) large: bool,
}

impl fmt::Debug for RequestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)
    }
}

impl RequestSpec {
    pub(crate) fn new(method: Method, target: String, retry: RetryPolicy) -> Self {
        Self { method, target, body: None, retry, wait: Duration::ZERO, as_session: true, large: false }
    }

    pub(crate) fn get(target: String) -> Self {
        Self::new(Method::GET, target, RetryPolicy::Always)
    }

    pub(crate) fn json(mut self, body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let bytes = to_json(body)?;
        self.large = bytes.len() > MAX_STREAMED_BODY_BYTES;
        self.body = Some(Arc::new(move || Ok(bytes.clone())));
        Ok(self)
    }

    pub(crate) fn json_with(mut self, make: impl Fn() -> Result<Bytes, Error> + Send + Sync + 'static) -> Self {
        self.body = Some(Arc::new(make));
        self
    }

    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    pub(crate) fn anonymous(mut self) -> Self {
        self.as_session = false;
        self
    }
}

pub(crate) fn to_json(body: &(impl Serialize + ?Sized)) -> Result<Bytes, Error> {
    let bytes = serde_json::to_vec(body).map_err(|e| Error::refused(Code::BadRequest, e.to_string()))?;
    Ok(Bytes::from(bytes))
}
