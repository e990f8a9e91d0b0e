//! A client of ZooKeeper's protocol that says just what it is told, and keeps apart what comes without having been asked for.

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

/// Longest frame that the client takes.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// What came: an answer or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Answer { xid: i32, zxid: i64, answer: Result<Bytes, ErrorCode> },
    Event { zxid: i64, kind: EventType, path: String },
}

/// See the module's text. One whose writing half was taken away can only listen.
pub(super) struct Client {
    reading: OwnedReadHalf,
    writing: Option<OwnedWriteHalf>,
    decoder: FrameDecoder,
    pub(super) session: ConnectResponse,
    pub(super) zxid: i64,
    next_xid: i32,
    /// In the order in which they came, but for those that were taken.
    pub(super) events: VecDeque<(EventType, String)>,
}

pub(super) fn new_session(timeout_ms: i32) -> ConnectRequest {
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms,
        session_id: 0,
        password: Bytes::from_static(&[0; 16]),
        read_only: Some(false),
    }
}

impl Client {
    /// A new session of ten seconds.
    pub(super) async fn open(at: SocketAddr) -> Self {
        Self::greet(at, &new_session(10_000)).await.expect("a new session is let in")
    }

    /// None if there is no room for it.
    pub(super) async fn try_open(at: SocketAddr) -> Option<Self> {
        Self::greet(at, &new_session(10_000)).await
    }

    /// The session of another connection.
    pub(super) async fn resume(at: SocketAddr, session: &ConnectResponse, seen: i64) -> Option<Self> {
        let greeting = ConnectRequest {
            session_id: session.session_id,
            password: session.password.clone(),
            last_zxid_seen: seen,
            ..new_session(session.timeout_ms)
        };
        Self::greet(at, &greeting).await
    }

    /// None if the connection was closed without an answer.
    pub(super) async fn greet(at: SocketAddr, greeting: &ConnectRequest) -> Option<Self> {
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
        greeting.encode(&mut out);
        // It may have been closed already.
        let _ = client.writing().write_all(&out).await;
        client.session = ConnectResponse::decode(client.frame().await?).unwrap();
        client.zxid = greeting.last_zxid_seen;
        Some(client)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.writing().write_all(bytes).await.unwrap();
    }

    fn writing(&mut self) -> &mut OwnedWriteHalf {
        self.writing.as_mut().expect("it can write")
    }

    /// Lets go of the half that writes, so that another task can.
    pub(super) fn split(mut self) -> (Self, OwnedWriteHalf) {
        let writing = self.writing.take().expect("it can write");
        (self, writing)
    }

    /// Nothing more will come from this side.
    pub(super) async fn stop_writing(&mut self) {
        self.writing().shutdown().await.unwrap();
    }

    /// Writes for as long as the server takes it in; whether it took all of it.
    pub(super) async fn try_write(&mut self, bytes: &[u8], within: Duration) -> bool {
        matches!(timeout(within, self.writing().write_all(bytes)).await, Ok(Ok(())))
    }

    /// The next frame; none if the connection is closed.
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

    /// The next thing that comes; none if the connection is closed.
    pub(super) async fn hear(&mut self) -> Option<Heard> {
        let (header, body) = ReplyHeader::split(self.frame().await?).unwrap();
        if header.is_notification() {
            let event = WatcherEvent::decode(body).unwrap();
            return Some(Heard::Event { zxid: header.zxid, kind: event.event_type, path: event.path });
        }
        self.zxid = self.zxid.max(header.zxid);
        let answer = match header.error {
            0 => Ok(body),
            number => Err(ErrorCode::from_number(number).unwrap()),
        };
        Some(Heard::Answer { xid: header.xid, zxid: header.zxid, answer })
    }

    /// Whether the server closes the connection, whatever it says before.
    pub(super) async fn is_closed(&mut self) -> bool {
        while self.hear().await.is_some() {}
        true
    }

    /// Begins a request and gives its number.
    pub(super) async fn send(&mut self, request: &Request) -> i32 {
        let mut out = BytesMut::new();
        let xid = self.encode(request, &mut out);
        self.write(&out).await;
        xid
    }

    /// Appends a request to what is to be sent.
    pub(super) fn encode(&mut self, request: &Request, out: &mut BytesMut) -> i32 {
        let xid = request.reserved_xid().unwrap_or(self.next_xid);
        self.next_xid += 1;
        request.encode(xid, out);
        xid
    }

    /// The next answer, which must be to this request. Events before it are kept.
    pub(super) async fn answer(&mut self, xid: i32, operation: OpCode) -> Result<Reply, ErrorCode> {
        loop {
            match self.hear().await.expect("the connection stands") {
                Heard::Event { kind, path, .. } => self.events.push_back((kind, path)),
                Heard::Answer { xid: of, answer, .. } => {
                    assert_eq!(of, xid, "answers come in the order of the requests");
                    return answer.map(|body| Reply::decode(operation, body).unwrap());
                }
            }
        }
    }

    pub(super) async fn ask(&mut self, request: Request) -> Result<Reply, ErrorCode> {
        let xid = self.send(&request).await;
        self.answer(xid, OpCode::from_number(request.opcode()).unwrap()).await
    }

    /// The path of a new node.
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

    /// The next event, waited for.
    pub(super) async fn event(&mut self) -> (EventType, String) {
        if let Some(event) = self.events.pop_front() {
            return event;
        }
        match self.hear().await.expect("the connection stands") {
            Heard::Event { kind, path, .. } => (kind, path),
            other => panic!("an event was to come, and not {other:?}"),
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
