//! `/v1/watch`: what changes, as server-sent events in the replicated order, resumable from a zxid.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::ready;
use futures::stream::{self, StreamExt};
use lockkeeper_api::Problem;
use lockkeeper_api::watch::{Bookmark, Change};
use lockkeeper_core::{Need, NodePath, Principals, Refusal, Zxid};
use lockkeeper_node::{Node, NodeError, WatchEvent, WatchItem, WatchSpec};
use lockkeeper_service::calls::CallScope;
use lockkeeper_service::failure::{Failure, compacted};
use lockkeeper_service::principals::{may_read, readable};
use lockkeeper_service::reply::kind_out;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval};
use utoipa::IntoParams;

use crate::connection::Endless;
use crate::extract::{Query, Reader};
use crate::response::HttpFailure;

/// How often something is sent, so that both ends notice when the other has gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How often the rights of a watch's owner are looked at, so that it does not stay open in silence without them.
const LOOK_AT_RIGHTS_EVERY: Duration = Duration::from_millis(500);

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchQuery {
    /// The path, with its first slash.
    path: String,
    /// Everything below it as well.
    recursive: Option<bool>,
    /// Changes after this zxid; from now on where it is left out. `Last-Event-ID` goes before it.
    from: Option<u64>,
}

/// Streams the changes of a path. Messages: `change`, `bookmark` (nothing more happened up to here), and as the last
/// one `compacted` (a problem document: read anew, then watch from there) or `ended` (a problem document: the caller
/// has lost the right to watch this, because its token was revoked, its token or JWT has expired, or a role was taken
/// away). The id is the zxid to resume from; of the changes of one transaction the last alone has it, so a stream that
/// broke off in the middle of one tells all of it again.
#[utoipa::path(get, path = "/v1/watch", operation_id = "watchNodes", tag = "watch",
    params(WatchQuery, ("Last-Event-ID" = Option<String>, Header, description = "The id of the last message that a stream before this one gave")),
    responses((status = 200, description = "Server-sent events whose data is a `Change`, a `Bookmark` or a `Problem`",
               body = Change, content_type = "text/event-stream"),
              (status = "4XX", description = "Refused; 410 `compacted`: the history does not reach back that far",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn watch(
    Reader(scope): Reader,
    headers: HeaderMap,
    Query(asked): Query<WatchQuery>,
) -> Result<Response, HttpFailure> {
    let CallScope { context, at_work, caller, expires, .. } = scope;
    let principals = caller.principals;
    let from = resume_from(&headers)?.or(asked.from).map(Zxid);
    let spec = WatchSpec { path: NodePath::parse(&asked.path)?, recursive: asked.recursive.unwrap_or(false), from };
    // A node that was off may have missed that a right was taken away.
    context.node.rights_are_current().await?;
    context.node.look(|state| may_read(&principals, state, &spec.path)).map_err(NodeError::Refused)?;
    let waiting = at_work.wait(&context.admission, None)?;
    let watch = context.admission.watches.take(at_work.holder(None), 1)?;
    let path = spec.path.clone();
    let items = context.node.watch(spec).await?;
    let lost = right_lost(context.node.clone(), (principals.clone(), expires), path).boxed().shared();
    let node = context.node.clone();
    let messages = items.flat_map(move |item| {
        let _for_as_long = (&waiting, &watch);
        stream::iter(messages(node.look(|state| readable(&principals, state, item))))
    });
    let messages = messages.take_until(lost.clone()).chain(
        stream::once(async move { lost.peek().cloned() })
            .filter_map(|lost| ready(lost.map(|refusal| Ok(ended(refusal))))),
    );
    // A first comment opens the stream, so that a client knows at once that it is being watched for.
    let opening = stream::once(async { Ok(Event::default().comment("watching")) });
    let stopping = context.stopping.clone();
    let stream = opening.chain(messages).take_until(stopping.cancelled_owned());
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The connection ends with the stream: nothing can follow on it.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response.extensions_mut().insert(Endless);
    Ok(response)
}

/// Waits until the caller has lost the right to read the watched path. Lists of nodes do not count: they hide single
/// changes.
async fn right_lost(node: Node, (principals, expires): (Principals, Option<Instant>), path: NodePath) -> Refusal {
    let mut looks = interval(LOOK_AT_RIGHTS_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = looks.tick().await;
        if expires.is_some_and(|at| now >= at) {
            return Refusal::Unauthenticated("the JWT has expired".into());
        }
        if let Err(refusal) = node.look(|state| state.check_right(&principals, &Need::to_read(&path))) {
            return refusal;
        }
    }
}

/// The last message of a watch whose owner has lost the right to it. It has no id: nothing is to be resumed.
fn ended(refusal: Refusal) -> Event {
    filled(Event::default().event("ended"), &Failure::from(NodeError::Refused(refusal)).into_problem())
}

fn resume_from(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    id.map(Some)
        .ok_or_else(|| Failure::bad_request("Last-Event-ID must be the id of a message of this stream, a number"))
}

/// Only the last message of a transaction has an id: a client that was cut off in its middle resumes before it, and
/// hears all of it.
fn messages(item: WatchItem) -> Vec<Result<Event, Infallible>> {
    let messages = match item {
        WatchItem::Changes(events) => {
            let last = events.len().saturating_sub(1);
            events.iter().enumerate().map(|(at, event)| change(event, at == last)).collect()
        }
        WatchItem::Bookmark(zxid) => {
            vec![filled(Event::default().event("bookmark").id(zxid.to_string()), &Bookmark { zxid: zxid.0 })]
        }
        // No id: a client that reconnects by itself must not believe that it has seen up to here.
        WatchItem::Lost { oldest } => {
            vec![filled(Event::default().event("compacted"), &compacted(oldest).into_problem())]
        }
    };
    messages.into_iter().map(Ok).collect()
}

fn change(event: &WatchEvent, last: bool) -> Event {
    let change = Change { zxid: event.zxid.0, kind: kind_out(event.kind), path: event.path.to_string() };
    let message = Event::default().event("change");
    filled(if last { message.id(event.zxid.to_string()) } else { message }, &change)
}

fn filled(event: Event, body: &impl Serialize) -> Event {
    // Numbers and strings: writing them does not fail, and an event without data would be skipped by its reader.
    event.json_data(body).unwrap_or_else(|error| Event::default().event("error").data(error.to_string()))
}
