//! Finds a node that serves the stream: the preferred endpoint first, the next one too as soon as that one is slow, or
//! all at once to find the nearest; the first that is ready wins. A node that is frozen, or accepts connections and
//! stays silent, costs a fraction of the session's timeout.

use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Sink, SinkExt, StreamExt};
use lockkeeper_api::{CLUSTER_HEADER, Code, Problem, SESSION_HEADER, TRACES_HEADER};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Response};
use tokio_tungstenite::tungstenite::protocol::frame::Utf8Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use tokio_util::either::Either;

use super::handle::StreamHandle;
use crate::clock::Moment;
use crate::context::Context;
use crate::endpoints::{Endpoint, PreferredNode};
use crate::error::Tried;
use crate::lease::hedge_after;
use crate::request_spec::MAX_ANSWER_BYTES;
use crate::tls::{self, HandshakeError};

/// Small, since each session has a buffer and messages are small.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Without or with TLS.
type Connection = Either<TcpStream, Box<TlsStream<TcpStream>>>;
pub(super) type Socket = WebSocketStream<Connection>;

/// An open stream, and the state of the client when its handshake was begun.
pub(super) struct OpenedStream {
    pub(super) index: usize,
    pub(super) socket: Box<Socket>,
    /// Whether the node takes the traces of requests.
    pub(super) traces: bool,
    /// When the handshake was begun.
    pub(super) sent: Moment,
    /// The grants that guards watched then.
    pub(super) watched: Vec<(String, u64)>,
}

impl OpenedStream {
    /// Closes a stream that was opened to see whether the node serves it.
    pub(super) async fn close(mut self) {
        close_away(&mut *self.socket, "the client only tried it").await;
    }
}

/// Sends a close frame with the code "away", for a client that goes on elsewhere, where that is quick.
pub(super) async fn close_away(sink: &mut (impl Sink<Message> + Unpin), why: &'static str) {
    const LONGEST: Duration = Duration::from_millis(200);
    let away = CloseFrame { code: CloseCode::Away, reason: Utf8Bytes::from_static(why) };
    let _ = timeout(LONGEST, sink.send(Message::Close(Some(away)))).await;
}

/// Why an endpoint gave no stream.
#[derive(Debug)]
enum ConnectFailure {
    /// The endpoint cannot be reached or cannot serve now.
    Now(String),
    /// The endpoint answers, but serves no stream.
    NoStream(String),
    /// TLS failed.
    Tls(String),
    /// The session is over.
    Over(String),
}

/// The result of asking all endpoints.
pub(super) enum SearchResult {
    Stream(OpenedStream),
    /// Requests are left to HTTP where some endpoint answers without a stream, and where TLS fails at every endpoint:
    /// HTTP reports that to callers.
    Nothing {
        tried: Vec<Tried>,
        leave_to_http: bool,
    },
    Over(String),
}

/// Asks all endpoints once, from that one on, or from the preferred one.
pub(super) async fn connect_any(stream: &StreamHandle, first: Option<usize>) -> SearchResult {
    let context = &stream.context;
    let first = first.unwrap_or_else(|| context.endpoints.preferred());
    let count = context.endpoints.all().len();
    let (mut next, mut tried, mut without_stream, mut without_tls) = (0, Vec::new(), 0, 0);
    let at_once = asked_at_once(context.options.prefer, count);
    let mut asked = FuturesUnordered::new();
    loop {
        if asked.is_empty() && next == count {
            return SearchResult::Nothing { tried, leave_to_http: without_stream > 0 || without_tls == count };
        }
        while next < count && (asked.is_empty() || next < at_once) {
            asked.push(connect_one(stream, (first + next) % count));
            next += 1;
        }
        tokio::select! {
            Some((index, outcome)) = asked.next() => {
                let why = match outcome {
                    Ok(opened) => return SearchResult::Stream(opened),
                    Err(ConnectFailure::Over(why)) => return SearchResult::Over(why),
                    Err(ConnectFailure::NoStream(why)) => {
                        without_stream += 1;
                        why
                    }
                    Err(ConnectFailure::Tls(why)) => {
                        without_tls += 1;
                        why
                    }
                    Err(ConnectFailure::Now(why)) => why,
                };
                tried.push(Tried { endpoint: context.endpoints.at(index).to_string(), why, code: None });
            }
            () = sleep(hedge_after(stream.timeout)), if next < count => {
                asked.push(connect_one(stream, (first + next) % count));
                next += 1;
            }
        }
    }
}

/// How many endpoints a search asks before it waits for any.
fn asked_at_once(prefer: PreferredNode, count: usize) -> usize {
    match prefer {
        PreferredNode::Nearest => count,
        PreferredNode::Leader | PreferredNode::First | PreferredNode::Spread => 1,
    }
}

/// Opens a stream at one endpoint.
pub(super) async fn connect_at(stream: &StreamHandle, index: usize) -> Result<OpenedStream, String> {
    let (_, opened) = connect_one(stream, index).await;
    opened.map_err(|failure| match failure {
        ConnectFailure::Now(why)
        | ConnectFailure::NoStream(why)
        | ConnectFailure::Tls(why)
        | ConnectFailure::Over(why) => why,
    })
}

async fn connect_one(stream: &StreamHandle, index: usize) -> (usize, Result<OpenedStream, ConnectFailure>) {
    let context = &stream.context;
    let (watched, sent) = (stream.loss_reports.watched(), Moment::now());
    let limit = context.options.attempt_timeout;
    let outcome = match timeout(limit, connect_to(context, context.endpoints.at(index))).await {
        Ok(outcome) => outcome.map(|(socket, traces)| OpenedStream { index, socket, traces, sent, watched }),
        Err(_) => Err(ConnectFailure::Now(format!("no stream within {} ms", limit.as_millis()))),
    };
    (index, outcome)
}

async fn connect_to(context: &Context, endpoint: &Endpoint) -> Result<(Box<Socket>, bool), ConnectFailure> {
    let now = |why: String| ConnectFailure::Now(why);
    let request = request(context, endpoint).map_err(now)?;
    let connecting = TcpStream::connect(endpoint.authority());
    let limit = context.options.connect_timeout;
    let connected = timeout(limit, connecting).await.map_err(|_| now("no connection in time".into()))?;
    let tcp = connected.map_err(|e| now(e.to_string()))?;
    tcp.set_nodelay(true).map_err(|e| now(e.to_string()))?;
    let connection = secure(context, endpoint, tcp).await?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(MAX_ANSWER_BYTES))
        .max_frame_size(Some(MAX_ANSWER_BYTES));
    match client_async_with_config(request, connection, Some(config)).await {
        Ok((socket, response)) => match context.cluster.note(endpoint, response.headers()) {
            Ok(()) => Ok((Box::new(socket), response.headers().contains_key(TRACES_HEADER))),
            Err(problem) => Err(ConnectFailure::NoStream(problem.to_string())),
        },
        Err(tungstenite::Error::Http(response)) => Err(refusal(&response)),
        Err(tungstenite::Error::Io(error)) => match tls::rejection(&error) {
            Some(why) => Err(ConnectFailure::Tls(why)),
            None => Err(now(error.to_string())),
        },
        // A handshake that is cut off does not show which protocol the endpoint speaks.
        Err(error @ tungstenite::Error::Protocol(ProtocolError::HandshakeIncomplete)) => Err(now(error.to_string())),
        Err(other) => Err(ConnectFailure::NoStream(other.to_string())),
    }
}

/// The connection for an endpoint: with TLS where its URL says so.
async fn secure(context: &Context, endpoint: &Endpoint, tcp: TcpStream) -> Result<Connection, ConnectFailure> {
    if !endpoint.is_tls() {
        return Ok(Either::Left(tcp));
    }
    // Cannot happen: such an endpoint is refused when the client is created.
    let Some(tls) = &context.tls else { return Err(ConnectFailure::Tls("TLS is not configured".into())) };
    match tls.connect(endpoint, tcp).await {
        Ok(connection) => Ok(Either::Right(Box::new(connection))),
        Err(HandshakeError::Tls(why)) => Err(ConnectFailure::Tls(why)),
        Err(HandshakeError::Broken(why)) => Err(ConnectFailure::Now(why)),
    }
}

fn request(context: &Context, endpoint: &Endpoint) -> Result<Request, String> {
    let credential = context.credential().map_err(|e| e.to_string())?;
    let scheme = if endpoint.is_tls() { "wss" } else { "ws" };
    let url = format!("{scheme}://{}/v1/sessions/{}/stream", endpoint.authority(), credential.session_id);
    let mut request = url.into_client_request().map_err(|e| e.to_string())?;
    let mut value = HeaderValue::from_str(&credential.to_string()).map_err(|e| e.to_string())?;
    value.set_sensitive(true);
    request.headers_mut().insert(SESSION_HEADER, value);
    if let Some(cluster) = context.cluster.header() {
        request.headers_mut().insert(CLUSTER_HEADER, cluster);
    }
    if let Some(token) = &context.options.token {
        request.headers_mut().insert(AUTHORIZATION, token.header());
    }
    Ok(request)
}

fn refusal(response: &Response<Option<Vec<u8>>>) -> ConnectFailure {
    let body = response.body().as_deref().unwrap_or_default();
    let status = response.status();
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => match problem.code {
            Code::SessionExpired | Code::WrongSecret => ConnectFailure::Over(problem.detail),
            // The token does not count any more, or the session belongs to another principal: every node says so.
            Code::Unauthenticated | Code::Forbidden => ConnectFailure::Over(problem.detail),
            code if code.is_transient() || code == Code::UnknownOutcome => ConnectFailure::Now(problem.to_string()),
            _ => ConnectFailure::NoStream(problem.to_string()),
        },
        // The body may come after the head; then only the status is known.
        Err(_) => match status.as_u16() {
            410 => ConnectFailure::Over("the cluster does not know this session any more".into()),
            429 | 503 | 504 => ConnectFailure::Now(format!("status {status}")),
            _ => ConnectFailure::NoStream(format!("status {status} in answer to the upgrade")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_node_is_found_by_asking_all_at_the_same_time() {
        assert_eq!(asked_at_once(PreferredNode::Nearest, 5), 5);
        for prefer in [PreferredNode::Leader, PreferredNode::First, PreferredNode::Spread] {
            assert_eq!(asked_at_once(prefer, 5), 1);
        }
    }
}
