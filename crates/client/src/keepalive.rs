//! One round of keepalives: to the preferred endpoint, and to another one as soon as that is slow, so that a dead or
//! frozen node does not cost the session.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockkeeper_api::Code;
use lockkeeper_mutants::mutant;
use tokio::time::sleep;

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Tried};
use crate::lease::hedge_after;
use crate::stream::StreamHandle;

/// How a round of keepalives ended.
pub(crate) enum RoundOutcome {
    /// Acknowledged; `sent` is when the acknowledged request itself was sent.
    Acknowledged { sent: Moment, timeout: Duration },
    /// The cluster says that the session is over.
    Over(Error),
    /// No endpoint acknowledged.
    Failed(String),
}

/// Where a round sends a keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepaliveTarget {
    /// The session's stream, in that generation, after that many received messages.
    Stream { generation: u64, messages_received: u64 },
    /// The endpoint at that index, over HTTP.
    Http(usize),
}

/// The stream first, where there is one, and the endpoint that serves it last; otherwise all endpoints from the
/// preferred one on.
fn targets(client: &Client) -> VecDeque<KeepaliveTarget> {
    let count = client.context.endpoints.all().len();
    let up = client.stream.as_ref().and_then(|stream| Some((stream.up()?, stream.messages_received())));
    let first = up.map_or(client.context.endpoints.preferred(), |((index, _), _)| index + 1);
    let stream =
        up.map(|((_, generation), messages_received)| KeepaliveTarget::Stream { generation, messages_received });
    stream.into_iter().chain((0..count).map(|step| KeepaliveTarget::Http((first + step) % count))).collect()
}

/// Sends keepalives until one is acknowledged, an endpoint says that the session is over, or all have failed within
/// `limit`.
pub(crate) async fn keepalive_round(client: &Client, timeout: Duration, limit: Duration) -> RoundOutcome {
    let mut targets = targets(client);
    let first = targets.front().copied();
    let mut asked = FuturesUnordered::new();
    let mut failures = Vec::new();
    let mut refused = false;
    loop {
        if asked.is_empty() {
            match targets.pop_front() {
                Some(target) => asked.push(ask(client, target, limit)),
                None => {
                    reconnect_stream(client, first, false, "it answered no keepalive, and no other endpoint did");
                    return RoundOutcome::Failed(failures.join("; "));
                }
            }
        }
        tokio::select! {
            Some((target, sent, answer)) = asked.next() => match answer {
                Ok(timeout) => {
                    if let KeepaliveTarget::Http(index) = target {
                        client.context.endpoints.prefer(index);
                        reconnect_stream(client, first, refused, "another endpoint answered a keepalive, and it did not");
                    }
                    return RoundOutcome::Acknowledged { sent, timeout };
                }
                Err(error) if says_over(&error) => return RoundOutcome::Over(error),
                Err(error) => {
                    refused |= matches!(target, KeepaliveTarget::Stream { .. });
                    failures.push(error.to_string());
                    if let Some(target) = targets.pop_front() {
                        asked.push(ask(client, target, limit));
                    }
                }
            },
            () = sleep(hedge_after(timeout)), if !targets.is_empty() => {
                if let Some(target) = targets.pop_front() {
                    asked.push(ask(client, target, limit));
                }
            }
        }
    }
}

/// Moves the stream to another node if no message came since the keepalive, whatever the state of its connection, or if
/// its node could not confirm a keepalive that another node has confirmed: it is cut off from the cluster.
fn reconnect_stream(client: &Client, target: Option<KeepaliveTarget>, refused: bool, why: &str) {
    if let (Some(stream), Some(KeepaliveTarget::Stream { generation, messages_received })) = (&client.stream, target)
        && (refused || stream.messages_received() == messages_received)
    {
        stream.request_reconnect(generation, why);
    }
}

async fn ask(
    client: &Client,
    target: KeepaliveTarget,
    limit: Duration,
) -> (KeepaliveTarget, Moment, Result<Duration, Error>) {
    // Taken before the request reaches a socket, so that an answer does not confirm too much.
    let sent = Moment::now();
    let answer = match (target, &client.stream) {
        (KeepaliveTarget::Http(index), _) => {
            let kept = client.keepalive_at(client.context.endpoints.at(index), limit).await;
            kept.map(|kept| Duration::from_millis(kept.timeout_ms.into()))
        }
        (KeepaliveTarget::Stream { .. }, Some(stream)) => over_stream(stream, limit).await,
        (KeepaliveTarget::Stream { .. }, None) => Err(unanswered("there is no stream")),
    };
    let counted = if mutant!(LeaseFromAnswer) { Moment::now() } else { sent };
    (target, counted, answer)
}

async fn over_stream(stream: &StreamHandle, limit: Duration) -> Result<Duration, Error> {
    let answer = stream.keepalive().ok_or_else(|| unanswered("the stream has just broken"))?;
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(Ok(timeout))) => Ok(timeout),
        Ok(Ok(Err(why))) => Err(unanswered(&why)),
        Ok(Err(_)) => Err(unanswered("the stream broke")),
        Err(_) => Err(unanswered(&format!("no answer within {} ms", limit.as_millis()))),
    }
}

fn unanswered(why: &str) -> Error {
    Error::Unreachable {
        tried: vec![Tried { endpoint: "the session's stream".into(), why: why.to_owned(), code: None }],
    }
}

/// Whether an error says that the session is over, or that this client cannot use it any more: its token does not
/// count, or the session belongs to another principal. Any other error says something about the node only.
fn says_over(error: &Error) -> bool {
    let of_session = |code| {
        matches!(
            code,
            Code::SessionExpired | Code::WrongSecret | Code::NotFound | Code::Unauthenticated | Code::Forbidden
        )
    };
    matches!(error, Error::Lost(_)) || error.code().is_some_and(of_session)
}
