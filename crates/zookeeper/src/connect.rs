//! The connect request and response, the first frame in each direction: they open a session or attach to one.
//!
//! Before version 3.4 there was no `readOnly` flag at the end (a request of 44 bytes instead of 45). A server replies
//! in the form of the request.

use crate::frame::write_frame;
use crate::jute::{DecodeError, Reader, Wire, Writer};
use bytes::{Bytes, BytesMut};

/// Length of a session's password. Other lengths decode, but a server refuses them.
pub const PASSWORD_BYTES: usize = 16;

/// A client's request for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Always 0 so far.
    pub protocol_version: i32,
    /// The latest zxid that the client has seen. A server that has not applied it must not serve the client yet.
    pub last_zxid_seen: i64,
    /// The session timeout that the client asks for.
    pub timeout_ms: i32,
    /// 0 for a new session.
    pub session_id: i64,
    /// Zeroes for a new session.
    pub password: Bytes,
    /// Whether the client accepts a server without a quorum; `None` if the client does not send the flag.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// A request for a new session, as clients of version 3.4 and later send it.
    pub fn new_session(timeout_ms: i32) -> Self {
        Self {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms,
            session_id: 0,
            password: Bytes::from_static(&[0; PASSWORD_BYTES]),
            read_only: Some(false),
        }
    }

    /// Decodes a client's first frame.
    pub fn decode(frame: Bytes) -> Result<Self, DecodeError> {
        let reader = &mut Reader::new(frame);
        Ok(Self {
            protocol_version: reader.int("ConnectRequest.protocol_version")?,
            last_zxid_seen: reader.long("ConnectRequest.last_zxid_seen")?,
            timeout_ms: reader.int("ConnectRequest.timeout_ms")?,
            session_id: reader.long("ConnectRequest.session_id")?,
            password: Wire::read(reader, "ConnectRequest.password")?,
            read_only: optional_flag(reader)?,
        })
    }

    /// Appends a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        write_frame(out, |writer| {
            writer.int(self.protocol_version);
            writer.long(self.last_zxid_seen);
            writer.int(self.timeout_ms);
            writer.long(self.session_id);
            writer.buffer(&self.password);
            write_optional_flag(writer, self.read_only);
        });
    }
}

/// A server's reply to a [`ConnectRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Always 0 so far.
    pub protocol_version: i32,
    /// The negotiated session timeout, 0 for a refusal.
    pub timeout_ms: i32,
    /// The session, 0 for a refusal.
    pub session_id: i64,
    /// Authorizes re-attaching to the session; zeroes for a refusal.
    pub password: Bytes,
    /// Whether this server is read-only; `None` for a client that did not send the flag.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// The reply for an expired session or a wrong password. The connection is closed after it.
    #[must_use]
    pub fn refused(request: &ConnectRequest) -> Self {
        Self {
            protocol_version: 0,
            timeout_ms: 0,
            session_id: 0,
            password: Bytes::from_static(&[0; PASSWORD_BYTES]),
            read_only: request.read_only.map(|_| false),
        }
    }

    /// Decodes a server's first frame.
    pub fn decode(frame: Bytes) -> Result<Self, DecodeError> {
        let reader = &mut Reader::new(frame);
        Ok(Self {
            protocol_version: reader.int("ConnectResponse.protocol_version")?,
            timeout_ms: reader.int("ConnectResponse.timeout_ms")?,
            session_id: reader.long("ConnectResponse.session_id")?,
            password: Wire::read(reader, "ConnectResponse.password")?,
            read_only: optional_flag(reader)?,
        })
    }

    /// Appends a frame.
    pub fn encode(&self, out: &mut BytesMut) {
        write_frame(out, |writer| {
            writer.int(self.protocol_version);
            writer.int(self.timeout_ms);
            writer.long(self.session_id);
            writer.buffer(&self.password);
            write_optional_flag(writer, self.read_only);
        });
    }
}

fn optional_flag(reader: &mut Reader) -> Result<Option<bool>, DecodeError> {
    if reader.left() == 0 { Ok(None) } else { reader.bool("read_only").map(Some) }
}

fn write_optional_flag(writer: &mut Writer<'_>, flag: Option<bool>) {
    if let Some(flag) = flag {
        writer.bool(flag);
    }
}
