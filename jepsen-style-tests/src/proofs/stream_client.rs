//! A session stream, over TCP or TLS and perhaps with a token, as `docs/stream.md` has it.

use std::io;
use std::net::SocketAddr;

use futures::{SinkExt as _, StreamExt as _};
use lockkeeper_tls::ClientConfig;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::socket::{self, Socket};
use crate::proofs::prelude::*;

/// How long the handshake, or an answer, may take.
const WITHIN: Duration = Duration::from_secs(5);

/// Why a call on a stream gave nothing.
pub(super) enum StreamFailure {
    /// The call was refused. The stream goes on.
    Refused(String),
    /// The stream has ended.
    Ended(String),
}

/// See the module's text.
pub(super) struct StreamClient {
    socket: WebSocketStream<Box<dyn Socket>>,
    next_id: u64,
}

impl StreamClient {
    /// Opens the stream of a session.
    pub(super) async fn open(
        to: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
        session: u64,
        (credential, token): (&str, Option<&str>),
    ) -> Result<Self, String> {
        let header = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        // Also over TLS: the request has no scheme, and the connection is made here.
        let url = format!("ws://{to}/v1/sessions/{session}/stream");
        let mut request = url.into_client_request().map_err(|error| error.to_string())?;
        request.headers_mut().insert("lockkeeper-session", header(credential)?);
        if let Some(token) = token {
            request.headers_mut().insert("authorization", header(&format!("Bearer {token}"))?);
        }
        let opening = async {
            let socket = socket::connect(to, tls).await.map_err(|error| error.to_string())?;
            let (socket, _) =
                tokio_tungstenite::client_async(request, socket).await.map_err(|error| refusal(&error))?;
            Ok(Self { socket, next_id: 1 })
        };
        timeout(WITHIN, opening).await.map_err(|_| format!("no handshake within {WITHIN:?}"))?
    }

    /// Sends a message, and waits for nothing.
    pub(super) async fn send(&mut self, message: Message) -> io::Result<()> {
        self.socket.send(message).await.map_err(io::Error::other)
    }

    /// Makes a call, in its JSON, and waits for its answer.
    pub(super) async fn call(&mut self, call: &Value) -> Result<(), StreamFailure> {
        let late = |_| StreamFailure::Ended(format!("no answer within {WITHIN:?}"));
        timeout(WITHIN, self.call_unbounded(call)).await.map_err(late)?
    }

    async fn call_unbounded(&mut self, call: &Value) -> Result<(), StreamFailure> {
        let ended = |why: &str| StreamFailure::Ended(why.to_owned());
        let id = self.next_id;
        self.next_id += 1;
        let message = Message::text(json!({ "request": { "id": id, "call": call } }).to_string());
        self.socket.send(message).await.map_err(|error| ended(&error.to_string()))?;
        loop {
            let text = match self.socket.next().await {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Close(frame))) => return Err(ended(&format!("closed: {frame:?}"))),
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(ended(&error.to_string())),
                None => return Err(ended("closed")),
            };
            let message: Value = serde_json::from_str(&text).map_err(|error| ended(&error.to_string()))?;
            if message.get("goodbye").is_some() {
                return Err(ended(&message.to_string()));
            }
            let answer = &message["answer"];
            if answer["id"] == id {
                return match answer["status"].as_u64() {
                    Some(status) if status < 300 => Ok(()),
                    _ => Err(StreamFailure::Refused(answer["body"]["code"].to_string())),
                };
            }
        }
    }
}

/// What a refused handshake says.
fn refusal(error: &Error) -> String {
    match error {
        Error::Http(response) => format!("handshake refused with status {}", response.status()),
        error => error.to_string(),
    }
}
