//! The routes of the table of calls (`api/src/calls.rs`): from a request to the `Call` that its row describes. The
//! parts of the path are checked first, then the caller, then query and body.

use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::routing::{MethodFilter, on};
use lockkeeper_api::CallKind;
use lockkeeper_api::access::Resource;
use lockkeeper_api::call::CallSource;
use lockkeeper_api::row::{Headers, Row};
use lockkeeper_core::{GateKey, LockName, NodePath, RateName};
use lockkeeper_service::failure::Failure;
use serde::de::DeserializeOwned;

use crate::context::HttpContext;
use crate::extract::{Identified, Query, Reader, json_body, path_params};
use crate::response::{HttpAnswer, HttpFailure};

pub(super) fn router() -> Router<Arc<HttpContext>> {
    CallKind::ALL.iter().fold(Router::new(), |router, kind| {
        let row = kind.row();
        let handler = move |State(http): State<Arc<HttpContext>>, request: Request| carry_out(*kind, http, request);
        router.route(row.route, on(filter(row.method), handler))
    })
}

fn filter(method: &str) -> MethodFilter {
    match method {
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}

async fn carry_out(kind: CallKind, http: Arc<HttpContext>, request: Request) -> Result<HttpAnswer, HttpFailure> {
    let row = kind.row();
    let (mut parts, body) = request.into_parts();
    let path = path(row, &mut parts).await?;
    let scope = match row.rules.headers {
        Headers::None => Reader::from_request_parts(&mut parts, &http).await?.0,
        Headers::Undocumented | Headers::Session | Headers::SessionAndRequestId => {
            Identified::from_request_parts(&mut parts, &http).await?.0
        }
    };
    let mut source = RequestSource { http: &http, path, request: Request::from_parts(parts, body) };
    let call = kind.read(&mut source).await?;
    // What is left of the request takes no room while the call waits.
    drop(source);
    Ok(scope.dispatch(call).await.into())
}

/// The parts of the path, each with its name: numbers, and valid names of the row's resource.
async fn path(row: &Row, parts: &mut Parts) -> Result<Vec<(String, String)>, Failure> {
    if row.parts.is_empty() {
        return Ok(Vec::new());
    }
    let mut values: Vec<(String, String)> = path_params(parts).await?;
    for (part, (_, value)) in row.parts.iter().zip(&mut values) {
        if part.is_number() {
            value.parse::<u64>().map_err(|_| {
                let why = format!("Invalid URL: Cannot parse `{value}` to a `u64`");
                Failure::bad_request(format!("the path is not what this call takes: {why}"))
            })?;
            continue;
        }
        match row.resource() {
            Resource::Locks => drop(LockName::parse(value)?),
            Resource::Gates => drop(GateKey::parse(value)?),
            Resource::Rates => drop(RateName::parse(value)?),
            Resource::Nodes => {
                // The root has no name; `paths` puts a slash for it.
                if value != "/" {
                    value.insert(0, '/');
                }
                NodePath::parse(value)?;
            }
            Resource::Sessions | Resource::Cluster => {}
        }
    }
    Ok(values)
}

/// A request whose path and caller are known.
struct RequestSource<'a> {
    http: &'a HttpContext,
    path: Vec<(String, String)>,
    request: Request,
}

impl CallSource for RequestSource<'_> {
    type Error = Failure;

    fn part<T: FromStr>(&mut self, name: &str) -> Result<T, Failure> {
        let value = self.path.iter().find(|(known, _)| known == name);
        let parsed = value.and_then(|(_, value)| value.parse().ok());
        parsed.ok_or_else(|| Failure::bad_request(format!("the path is not what this call takes: it has no '{name}'")))
    }

    async fn query<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        Query::of(self.request.uri()).map(|Query(query)| query)
    }

    async fn body<T: DeserializeOwned + Send + 'static>(&mut self) -> Result<T, Failure> {
        json_body(std::mem::take(&mut self.request), self.http).await
    }
}
