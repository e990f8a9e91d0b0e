//! The socket of a stream. It counts the bytes of a message that is not complete yet, so that many half messages cannot
//! fill the memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use lockkeeper_service::bounds::Room;
use lockkeeper_service::budget::Exceeded;
use lockkeeper_service::socket::Socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// See the module's text.
#[derive(Debug)]
pub(super) struct StreamSocket {
    stream: Socket,
    room: Room,
    partial_bytes: usize,
    /// The refusal after which nothing more is read.
    exceeded: Option<Exceeded>,
}

impl StreamSocket {
    /// Some of a message may have been read already.
    pub(super) fn new(stream: Socket, room: Room) -> Self {
        Self { stream, room, partial_bytes: 0, exceeded: None }
    }

    /// The message is complete.
    pub(super) fn whole(&mut self) {
        if self.partial_bytes > 0 {
            self.partial_bytes = 0;
            self.room.release();
        }
    }

    pub(super) fn exceeded(&self) -> Option<&Exceeded> {
        self.exceeded.as_ref()
    }
}

impl AsyncRead for StreamSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let this = &mut *self;
        if this.exceeded.is_some() {
            return polled;
        }
        this.partial_bytes += buf.filled().len() - before;
        if let Err(exceeded) = this.room.fit(this.partial_bytes) {
            this.exceeded = Some(exceeded);
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        polled
    }
}

impl AsyncWrite for StreamSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
