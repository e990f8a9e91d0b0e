//! The headers of requests and replies in an open session.

use crate::frame::write_frame;
use crate::jute::{DecodeError, Reader, Wire};
use crate::opcode::OpCode;
use crate::{ErrorCode, xid};
use bytes::{Bytes, BytesMut};

record! {
    /// The header of a request.
    #[derive(Copy)]
    RequestHeader {
        /// Chosen by the client and repeated in the reply.
        xid: i32,
        /// The number of an [`OpCode`], or an unknown number.
        opcode: i32,
    }
}

impl RequestHeader {
    /// Splits a frame into header and body.
    pub fn split(frame: Bytes) -> Result<(Self, Bytes), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = Self::read(&mut reader, "RequestHeader")?;
        Ok((header, reader.into_rest()))
    }

    /// The operation, if its number is known.
    #[must_use]
    pub fn operation(&self) -> Option<OpCode> {
        OpCode::from_number(self.opcode)
    }
}

record! {
    /// The header of a reply or a watch event.
    #[derive(Copy)]
    ReplyHeader {
        /// The request's xid, or one of [`xid`].
        xid: i32,
        /// The latest zxid that the server had applied when it replied.
        zxid: i64,
        /// The number of an [`ErrorCode`]. A body follows only if it is 0.
        error: i32,
    }
}

impl ReplyHeader {
    /// The header of a request that succeeded.
    #[must_use]
    pub const fn ok(xid: i32, zxid: i64) -> Self {
        Self { xid, zxid, error: 0 }
    }

    /// The header of a request that failed.
    #[must_use]
    pub const fn failed(xid: i32, zxid: i64, error: ErrorCode) -> Self {
        Self { xid, zxid, error: error.number() }
    }

    /// Splits a frame into header and body.
    pub fn split(frame: Bytes) -> Result<(Self, Bytes), DecodeError> {
        let mut reader = Reader::new(frame);
        let header = Self::read(&mut reader, "ReplyHeader")?;
        Ok((header, reader.into_rest()))
    }

    /// Appends a frame with only this header: an error, or a reply without a body.
    pub fn encode(&self, out: &mut BytesMut) {
        write_frame(out, |writer| self.write(writer));
    }

    /// Whether the frame is a watch event rather than a reply.
    #[must_use]
    pub const fn is_notification(&self) -> bool {
        self.xid == xid::NOTIFICATION
    }

    /// The error code, if its number is known; [`ErrorCode::Ok`] for success.
    #[must_use]
    pub fn error_code(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.error)
    }
}
