//! What stands before each request and each reply once a session is open.

use crate::frame::write_frame;
use crate::jute::{DecodeError, Reader, Wire};
use crate::{ErrorCode, OpCode};
use bytes::{Bytes, BytesMut};

/// Numbers that a client may not give to requests of its own choosing: they tell their replies apart from the rest.
pub mod xid {
    /// A watch event; no request asked for it.
    pub const NOTIFICATION: i32 = -1;
    /// A ping and its reply.
    pub const PING: i32 = -2;
    /// Authentication and its reply.
    pub const AUTH: i32 = -4;
    /// Setting watches again, and its reply.
    pub const SET_WATCHES: i32 = -8;
}

record! {
    /// What stands before a request.
    #[derive(Copy)]
    RequestHeader {
        /// Chosen by the client; its reply carries the same.
        xid: i32,
        /// The number of an [`OpCode`], or one that nobody knows.
        opcode: i32,
    }
}

impl RequestHeader {
    /// Takes the header off a frame and leaves the body.
    pub fn split(frame: Bytes) -> Result<(Self, Bytes), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = Self::read(&mut reader, "RequestHeader")?;
        Ok((header, reader.into_rest()))
    }

    /// The operation, if it is one that this crate knows.
    #[must_use]
    pub fn operation(&self) -> Option<OpCode> {
        OpCode::from_number(self.opcode)
    }
}

record! {
    /// What stands before a reply or a watch event.
    #[derive(Copy)]
    ReplyHeader {
        /// That of the request, or one of [`xid`].
        xid: i32,
        /// The newest zxid that the server had applied when it answered.
        zxid: i64,
        /// The number of an [`ErrorCode`]. A body follows only where this is 0.
        error: i32,
    }
}

impl ReplyHeader {
    /// Of a request that was done.
    #[must_use]
    pub const fn ok(xid: i32, zxid: i64) -> Self {
        Self { xid, zxid, error: 0 }
    }

    /// Of a request that was not.
    #[must_use]
    pub const fn failed(xid: i32, zxid: i64, error: ErrorCode) -> Self {
        Self { xid, zxid, error: error.number() }
    }

    /// Takes the header off a frame and leaves the body.
    pub fn split(frame: Bytes) -> Result<(Self, Bytes), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = Self::read(&mut reader, "ReplyHeader")?;
        Ok((header, reader.into_rest()))
    }

    /// Appends a frame of this header and nothing else: every error, and every reply without a body.
    pub fn encode(&self, out: &mut BytesMut) {
        write_frame(out, |writer| self.write(writer));
    }

    /// Whether the frame is a watch event rather than a reply.
    #[must_use]
    pub const fn is_notification(&self) -> bool {
        self.xid == xid::NOTIFICATION
    }

    /// The error by name, if it has one; [`ErrorCode::Ok`] where there is none.
    #[must_use]
    pub fn error_code(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.error)
    }
}
