//! A raw client of ZooKeeper's protocol, over TCP or TLS. It reports what it is answered and never reconnects.

use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use lockkeeper_tls::ClientConfig;
use lockkeeper_zookeeper::request::AuthRequest;
use lockkeeper_zookeeper::{
    ConnectRequest, ConnectResponse, DEFAULT_MAX_FRAME_BYTES, FrameDecoder, Inbound, OpCode, Reply, ReplyHeader,
    Request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::socket::{self, Socket};
use crate::proofs::prelude::*;

/// How long a connection, or an answer, may take.
const WITHIN: Duration = Duration::from_secs(10);

/// See the module's text.
pub(super) struct ZooKeeperClient {
    socket: Box<dyn Socket>,
    decoder: FrameDecoder,
    next_xid: i32,
    /// The session that it opened, or attached to.
    pub(super) session: u64,
    /// What shows that session over HTTP.
    pub(super) credential: String,
    /// Its timeout.
    pub(super) timeout: Duration,
}

impl ZooKeeperClient {
    /// Connects and opens the session, or attaches to it.
    pub(super) async fn connect(
        to: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
        request: &ConnectRequest,
    ) -> io::Result<Self> {
        let connecting = async {
            let socket = socket::connect(to, tls).await?;
            let decoder = FrameDecoder::for_client(DEFAULT_MAX_FRAME_BYTES);
            let (credential, timeout) = (String::new(), Duration::ZERO);
            let mut client = Self { socket, decoder, next_xid: 1, session: 0, credential, timeout };
            let mut out = BytesMut::new();
            request.encode(&mut out);
            client.socket.write_all(&out).await?;
            client.socket.flush().await?;
            let response = ConnectResponse::decode(client.frame().await?).map_err(io::Error::other)?;
            if response.session_id == 0 || response.timeout_ms == 0 {
                return Err(io::Error::other("the session is refused"));
            }
            client.session = response.session_id.cast_unsigned();
            let secret: String = response.password.iter().map(|byte| format!("{byte:02x}")).collect();
            client.credential = format!("{}.{secret}", client.session);
            client.timeout = Duration::from_millis(response.timeout_ms.unsigned_abs().into());
            Ok(client)
        };
        timeout(WITHIN, connecting).await.map_err(|_| late())?
    }

    /// The answer to a request: what it gives, or the number of the error.
    pub(super) async fn ask(&mut self, request: &Request) -> io::Result<Result<Reply, i32>> {
        timeout(WITHIN, self.ask_unbounded(request)).await.map_err(|_| late())?
    }

    /// Proves an identity of the digest scheme.
    pub(super) async fn add_digest(&mut self, user_and_password: &str) -> io::Result<Result<Reply, i32>> {
        let credentials = Bytes::copy_from_slice(user_and_password.as_bytes());
        self.ask(&Request::Auth(AuthRequest { auth_type: 0, scheme: "digest".into(), credentials })).await
    }

    async fn ask_unbounded(&mut self, request: &Request) -> io::Result<Result<Reply, i32>> {
        let xid = request.reserved_xid().unwrap_or(self.next_xid);
        self.next_xid += 1;
        let mut out = BytesMut::new();
        request.encode(xid, &mut out);
        self.socket.write_all(&out).await?;
        self.socket.flush().await?;
        let operation = OpCode::from_number(request.opcode()).ok_or_else(|| io::Error::other("no such operation"))?;
        loop {
            let (header, body) = ReplyHeader::split(self.frame().await?).map_err(io::Error::other)?;
            if header.xid != xid {
                // An event.
                continue;
            }
            return match header.error {
                0 => Reply::decode(operation, body).map(Ok).map_err(io::Error::other),
                error => Ok(Err(error)),
            };
        }
    }

    async fn frame(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(Inbound::Frame(frame)) = self.decoder.next_inbound().map_err(io::Error::other)? {
                return Ok(frame);
            }
            if self.socket.read_buf(self.decoder.buffer_mut()).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {WITHIN:?}"))
}
