//! A successful reply: JSON, and the zxid at which it is true in `Lockkeeper-Zxid`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockkeeper_api::watch::ChangeKind;
use lockkeeper_api::{Answer, Code, ZXID_HEADER};
use lockkeeper_core::{NodeEventKind, Zxid};

use crate::failure::Failure;

/// The result of every call.
pub(crate) type Answered = Result<Reply, Failure>;

/// An answer with its status and zxid.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) zxid: Option<Zxid>,
    pub(crate) body: Answer,
}

impl Reply {
    pub(crate) fn ok(zxid: Zxid, body: Answer) -> Self {
        Self { status: StatusCode::OK, zxid: Some(zxid), body }
    }

    pub(crate) fn created(zxid: Zxid, body: Answer) -> Self {
        Self { status: StatusCode::CREATED, zxid: Some(zxid), body }
    }

    pub(crate) fn timeless(body: Answer) -> Self {
        Self { status: StatusCode::OK, zxid: None, body }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let body = match serde_json::to_vec(&self.body) {
            Ok(body) => body,
            Err(error) => {
                return Failure::new(Code::Internal, format!("the reply cannot be written: {error}")).into_response();
            }
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(zxid) = self.zxid {
            headers.insert(ZXID_HEADER, HeaderValue::from(zxid.0));
        }
        response
    }
}

/// A change of a node, as watches over HTTP and on streams name it.
pub(crate) fn kind_out(kind: NodeEventKind) -> ChangeKind {
    match kind {
        NodeEventKind::Created => ChangeKind::Created,
        NodeEventKind::Deleted => ChangeKind::Deleted,
        NodeEventKind::DataChanged => ChangeKind::DataChanged,
        NodeEventKind::ChildrenChanged => ChangeKind::ChildrenChanged,
    }
}
