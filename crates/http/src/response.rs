//! Answers as HTTP responses: JSON with the zxid at which it is true in `Lockkeeper-Zxid`, or a problem document
//! (RFC 9457).

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockkeeper_api::{Code, ZXID_HEADER};
use lockkeeper_service::failure::Failure;
use lockkeeper_service::reply::{Answered, Reply};

/// The answer of a call.
pub(crate) struct HttpAnswer(Answered);

impl From<Answered> for HttpAnswer {
    fn from(answered: Answered) -> Self {
        Self(answered)
    }
}

impl IntoResponse for HttpAnswer {
    fn into_response(self) -> Response {
        self.0.map_or_else(failure_response, |reply| reply_response(&reply))
    }
}

/// A failure, from whatever can become one.
#[derive(Debug)]
pub(crate) struct HttpFailure(pub(crate) Failure);

impl<E> From<E> for HttpFailure
where
    Failure: From<E>,
{
    fn from(error: E) -> Self {
        Self(Failure::from(error))
    }
}

impl IntoResponse for HttpFailure {
    fn into_response(self) -> Response {
        failure_response(self.0)
    }
}

fn reply_response(reply: &Reply) -> Response {
    let body = match serde_json::to_vec(&reply.body) {
        Ok(body) => body,
        Err(error) => {
            return failure_response(Failure::new(Code::Internal, format!("the reply cannot be written: {error}")));
        }
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(zxid) = reply.zxid {
        headers.insert(ZXID_HEADER, HeaderValue::from(zxid.0));
    }
    response
}

/// A failure as a problem document.
pub(crate) fn failure_response(failure: Failure) -> Response {
    let zxid = failure.zxid();
    let problem = failure.into_problem();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // A problem is made of strings and numbers: writing it does not fail.
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(retry_after_ms) = problem.retry_after_ms {
        // The header knows only whole seconds; `retry_after_ms` in the body is finer.
        headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_ms.div_ceil(1000).max(1)));
    }
    if let Some(zxid) = zxid {
        headers.insert(ZXID_HEADER, HeaderValue::from(zxid.0));
    }
    response.extensions_mut().insert(problem.code);
    response
}
