//! One bare session stream: no retries, no keepalives (every request renews the session).

use futures::{SinkExt, StreamExt};
use lockkeeper_api::stream::{FromClient, StreamRequest};
use lockkeeper_api::{Call, Problem, SESSION_HEADER};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::BenchError;
use crate::connection::{Connection, Granted, Security, Socket, connect};

/// Messages are short.
const READ_BUFFER_BYTES: usize = 4 << 10;

pub(crate) type StreamSocket = WebSocketStream<Socket>;

/// One session stream.
pub(crate) struct Stream {
    /// Opens and closes the session.
    session: Connection,
    socket: StreamSocket,
    last_id: u64,
}

/// The parts of a server message that matter here.
#[derive(Deserialize)]
struct Received<'a> {
    #[serde(borrow)]
    answer: Option<Answer<'a>>,
    goodbye: Option<Problem>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    id: u64,
    status: u16,
    #[serde(borrow)]
    body: &'a RawValue,
}

impl Stream {
    /// Opens the stream of a session, at the session's endpoint.
    pub(crate) async fn of(session: Connection) -> Result<Self, BenchError> {
        let (endpoint, security) = (session.endpoint(), session.security());
        let socket = connect_stream(endpoint, session.session_id(), session.credential(), security).await?;
        Ok(Self { session, socket, last_id: 0 })
    }

    /// Buffers a request and returns its id.
    async fn send(&mut self, call: Call) -> Result<u64, String> {
        self.last_id += 1;
        let id = self.last_id;
        let request = StreamRequest { id, request_id: None, acknowledge: Vec::new(), traceparent: None, call };
        let text = serde_json::to_string(&FromClient::Request(request)).map_err(|e| e.to_string())?;
        self.socket.feed(Message::text(text)).await.map_err(lost)?;
        Ok(id)
    }

    /// Makes a call and returns the token in its answer. No other answer may be under way.
    pub(crate) async fn call(&mut self, call: Call) -> Result<u64, String> {
        let sent = self.send(call).await?;
        self.flush().await?;
        match self.next_answer().await? {
            (id, outcome) if id == sent => outcome,
            (id, _) => Err(format!("an answer with the unknown id {id}")),
        }
    }

    /// Sends two calls together, and returns the token in the answer to the second. Says when the first is answered.
    pub(crate) async fn call_both(
        &mut self,
        first: Call,
        second: Call,
        first_answered: &mut (dyn FnMut() + Send),
    ) -> Result<u64, String> {
        let (first, second) = (self.send(first).await?, self.send(second).await?);
        self.flush().await?;
        let (mut is_first_answered, mut token) = (false, None);
        loop {
            match self.next_answer().await? {
                (id, outcome) if id == first => {
                    outcome?;
                    is_first_answered = true;
                    first_answered();
                }
                (id, outcome) if id == second => token = Some(outcome?),
                (id, _) => return Err(format!("an answer with the unknown id {id}")),
            }
            if let Some(token) = token.filter(|_| is_first_answered) {
                return Ok(token);
            }
        }
    }

    /// Sends all buffered requests.
    async fn flush(&mut self) -> Result<(), String> {
        self.socket.flush().await.map_err(lost)
    }

    /// The next answer: its id, and the token or the error.
    async fn next_answer(&mut self) -> Result<(u64, Result<u64, String>), String> {
        loop {
            let message = self.socket.next().await.ok_or("connection lost")?.map_err(lost)?;
            let Message::Text(text) = message else { continue };
            let received: Received = serde_json::from_str(text.as_str()).map_err(|e| e.to_string())?;
            if let Some(problem) = received.goodbye {
                return Err(problem.to_string());
            }
            let Some(Answer { id, status, body }) = received.answer else { continue };
            let outcome = match status {
                ..400 => {
                    serde_json::from_str::<Granted>(body.get()).map(|granted| granted.token).map_err(|e| e.to_string())
                }
                _ => Err(serde_json::from_str::<Problem>(body.get())
                    .map_or_else(|_| format!("status {status}"), |problem| problem.to_string())),
            };
            return Ok((id, outcome));
        }
    }

    /// Closes the session.
    pub(crate) async fn close(&mut self) -> Result<(), BenchError> {
        self.session.close().await
    }
}

/// Opens the stream of a session.
pub(crate) async fn connect_stream(
    endpoint: &str,
    session_id: u64,
    credential: &str,
    security: &Security,
) -> Result<StreamSocket, BenchError> {
    let failed = |why: String| BenchError::endpoint(endpoint, why);
    let (host, stream) = connect(endpoint, security.tls.as_ref()).await.map_err(failed)?;
    let scheme = if endpoint.starts_with("https://") { "wss" } else { "ws" };
    let url = format!("{scheme}://{host}/v1/sessions/{session_id}/stream");
    let mut request = url.into_client_request().map_err(|e| failed(e.to_string()))?;
    let credential = HeaderValue::from_str(credential).map_err(|e| failed(e.to_string()))?;
    request.headers_mut().insert(SESSION_HEADER, credential);
    if let Some(token) = &security.token {
        request.headers_mut().insert(AUTHORIZATION, token.header());
    }
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
    let opened = client_async_with_config(request, stream, Some(config)).await;
    opened.map(|(socket, _)| socket).map_err(|e| failed(format!("no session stream: {e}")))
}

fn lost(error: tokio_tungstenite::tungstenite::Error) -> String {
    format!("connection lost: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_fields_are_skipped() {
        let received = |text| serde_json::from_str::<Received>(text).unwrap();
        let answer =
            received(r#"{"answer":{"id":3,"status":200,"zxid":9,"body":{"lock":"a","token":7}}}"#).answer.unwrap();
        assert_eq!((answer.id, answer.status), (3, 200));
        assert_eq!(serde_json::from_str::<Granted>(answer.body.get()).unwrap().token, 7);
        let hello = received(r#"{"hello":{"version":1,"timeout_ms":1,"zxid":2,"held":[]}}"#);
        assert!(hello.answer.is_none() && hello.goodbye.is_none());
    }
}
