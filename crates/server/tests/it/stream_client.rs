//! A client of the session stream, written from `docs/stream.md` alone: a WebSocket, JSON values, and nothing of this
//! project's types.

use std::collections::VecDeque;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::harness::{PATIENCE, Running};

pub(crate) struct StreamClient {
    pub(crate) socket: WebSocketStream<TcpStream>,
    /// Messages that came while the test waited for another one, in order.
    pub(crate) seen: VecDeque<Value>,
    next_id: u64,
}

/// How a stream ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) goodbye: Option<Value>,
    pub(crate) code: Option<u16>,
    pub(crate) reason: String,
}

impl StreamClient {
    /// The handshake; a refusal is a status and a problem document.
    pub(crate) async fn open(node: &Running, session: u64, credential: Option<&str>) -> Result<Self, (u16, Value)> {
        Self::open_as(node, session, credential, None).await
    }

    /// The same with an `Authorization` header.
    pub(crate) async fn open_as(
        node: &Running,
        session: u64,
        credential: Option<&str>,
        authorization: Option<&str>,
    ) -> Result<Self, (u16, Value)> {
        let url = format!("ws://{}/v1/sessions/{session}/stream", node.client);
        let mut request = url.into_client_request().unwrap();
        if let Some(credential) = credential {
            request.headers_mut().insert("lockkeeper-session", credential.parse().unwrap());
        }
        if let Some(authorization) = authorization {
            request.headers_mut().insert("authorization", authorization.parse().unwrap());
        }
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(from) = node.from {
            socket.bind((from, 0).into()).unwrap();
        }
        let socket = socket.connect(node.client).await.unwrap();
        // A message must not wait for the acknowledgement of the one before.
        socket.set_nodelay(true).unwrap();
        match tokio_tungstenite::client_async(request, socket).await {
            Ok((socket, response)) => {
                assert_eq!(response.status().as_u16(), 101);
                Ok(Self { socket, seen: VecDeque::new(), next_id: 1 })
            }
            Err(Error::Http(response)) => {
                let status = response.status().as_u16();
                let body = response.body().as_deref().unwrap_or_default().to_vec();
                Err((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens the stream and reads the hello.
    pub(crate) async fn greeted(node: &Running, credential: &str) -> (Self, Value) {
        Self::greeted_as(node, credential, None).await
    }

    /// The same with a token.
    pub(crate) async fn greeted_as(node: &Running, credential: &str, token: Option<&str>) -> (Self, Value) {
        let session = credential.split_once('.').unwrap().0.parse().unwrap();
        let authorization = token.map(|token| format!("Bearer {token}"));
        let mut wire = Self::open_as(node, session, Some(credential), authorization.as_deref()).await.unwrap();
        let hello = wire.next().await["hello"].clone();
        assert!(hello.is_object());
        (wire, hello)
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    /// Sends a request without waiting for its answer; returns its id.
    pub(crate) async fn ask(&mut self, call: Value) -> u64 {
        self.ask_as(None, call).await
    }

    pub(crate) async fn ask_as(&mut self, request_id: Option<&str>, call: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut request = json!({ "id": id, "call": call });
        if let Some(request_id) = request_id {
            request["request_id"] = request_id.into();
        }
        self.send(json!({ "request": request })).await;
        id
    }

    /// The next message as it comes.
    pub(crate) async fn next(&mut self) -> Value {
        match self.seen.pop_front() {
            Some(message) => message,
            None => self.read().await.unwrap_or_else(|ended| panic!("the stream ended: {ended:?}")),
        }
    }

    async fn read(&mut self) -> Result<Value, Ended> {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await.expect("a message in time");
            match message {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => {
                    let code = frame.as_ref().map(|frame| frame.code.into());
                    let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    return Err(Ended { goodbye: None, code, reason });
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Ended { goodbye: None, code: None, reason: error.to_string() }),
                None => return Err(Ended { goodbye: None, code: None, reason: String::new() }),
            }
        }
    }

    /// The first message that `wanted` takes; those before it are kept.
    pub(crate) async fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.seen.iter().position(&wanted) {
            return self.seen.remove(at).unwrap();
        }
        loop {
            let message = self.read().await.unwrap_or_else(|ended| panic!("the stream ended: {ended:?}"));
            if wanted(&message) {
                return message;
            }
            self.seen.push_back(message);
        }
    }

    /// The next message of a kind.
    pub(crate) async fn kind(&mut self, kind: &str) -> Value {
        self.find(|message| message.get(kind).is_some()).await[kind].clone()
    }

    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        self.find(|message| message["answer"]["id"] == id).await["answer"].clone()
    }

    /// Sends a call and returns the body of the answer, which must be a success.
    pub(crate) async fn get(&mut self, call: Value) -> Value {
        let id = self.ask(call).await;
        let answer = self.answer(id).await;
        assert!(answer["status"].as_u64().unwrap() < 300, "{answer}");
        answer["body"].clone()
    }

    /// Sends a call that must fail and returns the code of its problem.
    pub(crate) async fn code(&mut self, call: Value) -> String {
        let id = self.ask(call).await;
        let answer = self.answer(id).await;
        assert_eq!(answer["status"], answer["body"]["status"], "{answer}");
        assert!(answer["body"]["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{answer}");
        answer["body"]["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Reads to the end.
    pub(crate) async fn ended(&mut self) -> Ended {
        loop {
            match self.read().await {
                Ok(message) => self.seen.push_back(message),
                Err(mut ended) => {
                    ended.goodbye = self.seen.back().and_then(|last| last.get("goodbye")).cloned();
                    return ended;
                }
            }
        }
    }
}
