//! A middleware for axum that fences a resource: the header `Lockkeeper-Token`, checked in one step with the write.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lockkeeper_client::fencing::{FencedFile, FileError, http};
use tokio::sync::Mutex;

/// The fence of one resource. A file remembers the token, so that a restart of the service does not forget it.
#[derive(Clone)]
pub(crate) struct Fence(Arc<Mutex<FencedFile>>);

impl Fence {
    /// A fence whose token is in that file. All writes of the resource must go through one process.
    pub(crate) fn new(file: FencedFile) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }
}

fn refusal(status: u16, why: impl ToString) -> Response {
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), why.to_string()).into_response()
}

/// Put it before the handlers that write: `.layer(axum::middleware::from_fn_with_state(fence, fenced))`.
pub(crate) async fn fenced(State(fence): State<Fence>, request: Request, next: Next) -> Response {
    let values = request.headers().get_all(http::TOKEN_HEADER).into_iter().map(|value| value.as_bytes());
    let token = match http::token(values) {
        Ok(token) => token,
        Err(error) => return refusal(error.status(), error),
    };
    // Held until the handler is done. A check that is over before the write begins lets a larger token in between.
    let file = fence.0.lock_owned().await;
    let (file, raised) = match tokio::task::spawn_blocking(move || (file.write(token, b""), file)).await {
        Ok((raised, file)) => (file, raised),
        Err(error) => return refusal(500, error),
    };
    let response = match raised {
        Ok(()) => next.run(request).await,
        Err(FileError::Stale(stale)) => refusal(http::STALE_STATUS, stale),
        Err(error) => refusal(503, error),
    };
    drop(file);
    response
}
