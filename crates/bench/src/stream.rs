//! One session stream with nothing around it: no retries, no keepalives (every request is a sign of life), texts put together by hand.

use futures::{SinkExt, StreamExt};
use lockkeeper_api::{Problem, SESSION_HEADER};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::BenchError;
use crate::connection::{Connection, WAIT_MS, connect};

/// One buffer for each client; its messages are short.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// See the module's text.
pub(crate) struct Stream {
    /// Opened the session, and closes it.
    session: Connection,
    socket: WebSocketStream<TcpStream>,
    last_id: u64,
}

/// What a client hears, as far as it matters here.
#[derive(Deserialize)]
struct Heard<'a> {
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

#[derive(Deserialize)]
struct Granted {
    token: u64,
}

impl Stream {
    /// Opens a session and its stream.
    pub(crate) async fn open(endpoint: &str, label: &str) -> Result<Self, BenchError> {
        let session = Connection::open(endpoint, label).await?;
        let failed = |why: String| BenchError::Endpoint { endpoint: endpoint.to_owned(), why };
        let (host, stream) = connect(endpoint).await.map_err(failed)?;
        let url = format!("ws://{host}/v1/sessions/{}/stream", session.session_id());
        let mut request = url.into_client_request().map_err(|e| failed(e.to_string()))?;
        let credential = HeaderValue::from_str(session.credential()).map_err(|e| failed(e.to_string()))?;
        request.headers_mut().insert(SESSION_HEADER, credential);
        let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
        let opened = client_async_with_config(request, stream, Some(config)).await;
        let (socket, _) = opened.map_err(|e| failed(format!("no session stream: {e}")))?;
        Ok(Self { session, socket, last_id: 0 })
    }

    /// Writes a request to the buffer; its id.
    async fn ask(&mut self, target: &str, body: &str) -> Result<u64, String> {
        self.last_id += 1;
        let id = self.last_id;
        let text = format!("{{\"request\":{{\"id\":{id},\"method\":\"POST\",\"path\":\"{target}\",\"body\":{body}}}}}");
        self.socket.feed(Message::text(text)).await.map_err(lost)?;
        Ok(id)
    }

    /// Writes an acquire to the buffer.
    pub(crate) async fn ask_acquire(&mut self, target: &str) -> Result<u64, String> {
        self.ask(target, &format!("{{\"wait_ms\":{WAIT_MS}}}")).await
    }

    /// Writes a release to the buffer.
    pub(crate) async fn ask_release(&mut self, target: &str, token: u64) -> Result<u64, String> {
        self.ask(target, &format!("{{\"token\":{token}}}")).await
    }

    /// Sends what is in the buffer.
    pub(crate) async fn flush(&mut self) -> Result<(), String> {
        self.socket.flush().await.map_err(lost)
    }

    /// The next answer: its id, and the token that it names or why it was refused.
    pub(crate) async fn answer(&mut self) -> Result<(u64, Result<u64, String>), String> {
        loop {
            let message = self.socket.next().await.ok_or("connection lost")?.map_err(lost)?;
            let Message::Text(text) = message else { continue };
            let heard: Heard = serde_json::from_str(text.as_str()).map_err(|e| e.to_string())?;
            if let Some(problem) = heard.goodbye {
                return Err(problem.to_string());
            }
            let Some(Answer { id, status, body }) = heard.answer else { continue };
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

    /// Ends the session.
    pub(crate) async fn close(self) -> Result<(), BenchError> {
        self.session.close().await
    }
}

fn lost(error: tokio_tungstenite::tungstenite::Error) -> String {
    format!("connection lost: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_skipped() {
        let heard = |text| serde_json::from_str::<Heard>(text).unwrap();
        let answer =
            heard(r#"{"answer":{"id":3,"status":200,"zxid":9,"body":{"lock":"a","token":7}}}"#).answer.unwrap();
        assert_eq!((answer.id, answer.status), (3, 200));
        assert_eq!(serde_json::from_str::<Granted>(answer.body.get()).unwrap().token, 7);
        let hello = heard(r#"{"hello":{"timeout_ms":1,"zxid":2,"held":[]}}"#);
        assert!(hello.answer.is_none() && hello.goodbye.is_none());
    }
}
