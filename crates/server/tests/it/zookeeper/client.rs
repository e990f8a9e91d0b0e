//! A raw client of ZooKeeper's protocol. It sends exactly what a test gives it and keeps events apart from replies.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::request::{CreateRequest, PathVersion, PathWatch, SetDataRequest};
use lockkeeper_zookeeper::{
    Acl, ConnectRequest, ConnectResponse, ErrorCode, EventType, FrameDecoder, Inbound, OpCode, Reply, ReplyHeader,
    Request, WatcherEvent,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::harness::PATIENCE;

/// Longest frame that the client accepts.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// A received frame: a reply or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Answer { xid: i32, zxid: i64, answer: Result<Bytes, ErrorCode> },
    Event { zxid: i64, kind: EventType, path: String },
}

/// See the module's text. After [`split`](Self::split) it can only read.
pub(super) struct Client {
    reading: OwnedReadHalf,
    writing: Option<OwnedWriteHalf>,
    decoder: FrameDecoder,
    pub(super) session: ConnectResponse,
    pub(super) zxid: i64,
    next_xid: i32,
    /// Received events that no test has taken yet, in order.
    pub(super) events: VecDeque<(EventType, String)>,
}

impl Client {
    /// Opens a session with a timeout of ten seconds.
    pub(super) async fn open(at: SocketAddr) -> Self {
        Self::connect(at, &ConnectRequest::new_session(10_000)).await.expect("the session opens")
    }

    /// `None` if the server has no room for the connection.
    pub(super) async fn try_open(at: SocketAddr) -> Option<Self> {
        Self::connect(at, &ConnectRequest::new_session(10_000)).await
    }

    /// Moves the session of another connection to a new one.
    pub(super) async fn resume(at: SocketAddr, session: &ConnectResponse, seen: i64) -> Option<Self> {
        let request = ConnectRequest {
            session_id: session.session_id,
            password: session.password.clone(),
            last_zxid_seen: seen,
            ..ConnectRequest::new_session(session.timeout_ms)
        };
        Self::connect(at, &request).await
    }

    /// `None` if the connection was closed without a reply.
    pub(super) async fn connect(at: SocketAddr, request: &ConnectRequest) -> Option<Self> {
        let stream = TcpStream::connect(at).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let decoder = FrameDecoder::for_client(MAX_FRAME_BYTES);
        let session = ConnectResponse {
            protocol_version: 0,
            timeout_ms: 0,
            session_id: 0,
            password: Bytes::new(),
            read_only: None,
        };
        let (reading, writing) = stream.into_split();
        let writing = Some(writing);
        let mut client = Self { reading, writing, decoder, session, zxid: 0, next_xid: 1, events: VecDeque::new() };
        let mut out = BytesMut::new();
        request.encode(&mut out);
        // The server may have closed the connection already.
        let _ = client.writing().write_all(&out).await;
        client.session = ConnectResponse::decode(client.frame().await?).unwrap();
        client.zxid = request.last_zxid_seen;
        Some(client)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.writing().write_all(bytes).await.unwrap();
    }

    fn writing(&mut self) -> &mut OwnedWriteHalf {
        self.writing.as_mut().expect("it can write")
    }

    /// Gives the writing half to another task.
    pub(super) fn split(mut self) -> (Self, OwnedWriteHalf) {
        let writing = self.writing.take().expect("it can write");
        (self, writing)
    }

    /// Closes the writing side.
    pub(super) async fn stop_writing(&mut self) {
        self.writing().shutdown().await.unwrap();
    }

    /// Writes for as long as the server reads. Returns whether everything was written.
    pub(super) async fn try_write(&mut self, bytes: &[u8], within: Duration) -> bool {
        matches!(timeout(within, self.writing().write_all(bytes)).await, Ok(Ok(())))
    }

    /// The next frame; `None` if the connection is closed.
    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(Inbound::Frame(frame)) = self.decoder.next_inbound().unwrap() {
                return Some(frame);
            }
            let read = timeout(PATIENCE, self.reading.read_buf(self.decoder.buffer_mut())).await;
            match read.expect("the server answers or closes") {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
        }
    }

    /// The next reply or event; `None` if the connection is closed.
    pub(super) async fn receive(&mut self) -> Option<Received> {
        let (header, body) = ReplyHeader::split(self.frame().await?).unwrap();
        if header.is_notification() {
            let event = WatcherEvent::decode(body).unwrap();
            return Some(Received::Event { zxid: header.zxid, kind: event.event_type, path: event.path });
        }
        self.zxid = self.zxid.max(header.zxid);
        let answer = match header.error {
            0 => Ok(body),
            number => Err(ErrorCode::from_number(number).unwrap()),
        };
        Some(Received::Answer { xid: header.xid, zxid: header.zxid, answer })
    }

    /// Waits until the server closes the connection, ignoring what it sends before.
    pub(super) async fn is_closed(&mut self) -> bool {
        while self.receive().await.is_some() {}
        true
    }

    /// Sends a request and returns its xid.
    pub(super) async fn send(&mut self, request: &Request) -> i32 {
        let mut out = BytesMut::new();
        let xid = self.encode(request, &mut out);
        self.write(&out).await;
        xid
    }

    /// Encodes a request without sending it and returns its xid.
    pub(super) fn encode(&mut self, request: &Request, out: &mut BytesMut) -> i32 {
        let xid = request.reserved_xid().unwrap_or(self.next_xid);
        self.next_xid += 1;
        request.encode(xid, out);
        xid
    }

    /// The next reply, which must be to this request. Events before it are kept.
    pub(super) async fn answer(&mut self, xid: i32, operation: OpCode) -> Result<Reply, ErrorCode> {
        loop {
            match self.receive().await.expect("the connection stands") {
                Received::Event { kind, path, .. } => self.events.push_back((kind, path)),
                Received::Answer { xid: of, answer, .. } => {
                    assert_eq!(of, xid, "replies come in the order of the requests");
                    return answer.map(|body| Reply::decode(operation, body).unwrap());
                }
            }
        }
    }

    pub(super) async fn ask(&mut self, request: Request) -> Result<Reply, ErrorCode> {
        let xid = self.send(&request).await;
        self.answer(xid, OpCode::from_number(request.opcode()).unwrap()).await
    }

    /// Creates a node and returns its path.
    pub(super) async fn create(&mut self, path: &str, flags: i32) -> Result<String, ErrorCode> {
        match self.ask(create(path, b"", flags)).await? {
            Reply::Path(path) => Ok(path),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn set(&mut self, path: &str, data: &[u8]) -> Result<Reply, ErrorCode> {
        self.ask(set(path, data)).await
    }

    pub(super) async fn delete(&mut self, path: &str) -> Result<Reply, ErrorCode> {
        self.ask(Request::Delete(PathVersion { path: path.into(), version: -1 })).await
    }

    pub(super) async fn data(&mut self, path: &str) -> Result<Bytes, ErrorCode> {
        match self.ask(get(path, false)).await? {
            Reply::Data { data, .. } => Ok(data.unwrap_or_default()),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn exists(&mut self, path: &str, watch: bool) -> Result<Reply, ErrorCode> {
        self.ask(Request::Exists(PathWatch { path: path.into(), watch })).await
    }

    pub(super) async fn children(&mut self, path: &str) -> Result<Vec<String>, ErrorCode> {
        match self.ask(Request::GetChildren(PathWatch { path: path.into(), watch: false })).await? {
            Reply::Children(names) => Ok(names),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the next event.
    pub(super) async fn event(&mut self) -> (EventType, String) {
        if let Some(event) = self.events.pop_front() {
            return event;
        }
        match self.receive().await.expect("the connection stands") {
            Received::Event { kind, path, .. } => (kind, path),
            other => panic!("expected an event, got {other:?}"),
        }
    }
}

pub(super) fn create(path: &str, data: &[u8], flags: i32) -> Request {
    Request::Create(CreateRequest {
        path: path.into(),
        data: Some(Bytes::copy_from_slice(data)),
        acl: vec![Acl::open()],
        flags,
    })
}

pub(super) fn get(path: &str, watch: bool) -> Request {
    Request::GetData(PathWatch { path: path.into(), watch })
}

pub(super) fn set(path: &str, data: &[u8]) -> Request {
    Request::SetData(SetDataRequest { path: path.into(), data: Some(Bytes::copy_from_slice(data)), version: -1 })
}
