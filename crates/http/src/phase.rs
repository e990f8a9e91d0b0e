//! The phase of a connection, from which one coarse timer tells an idle connection from a stuck one. No timer is set or
//! cleared per request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use lockkeeper_service::socket::Socket;
use lockkeeper_service::tls::TLS_HANDSHAKE_BYTE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing, since it was accepted or the client last read something of a reply.
    Idle = 0,
    /// A request's header has begun and is not complete.
    Header = 1,
    /// A request is at work; it has bounds of its own.
    Busy = 2,
}

/// The phase and since when, shared by the socket and the service of one connection.
#[derive(Debug)]
pub(crate) struct PhaseClock {
    opened: Instant,
    /// Milliseconds since `opened`, times four, plus the phase.
    word: AtomicU64,
    begins_as_tls: AtomicBool,
}

impl PhaseClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            word: AtomicU64::new(Phase::Idle as u64),
            begins_as_tls: AtomicBool::new(false),
        })
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let since_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX / 8);
        self.word.store(since_ms * 4 + phase as u64, Ordering::Relaxed);
    }

    /// Whether a request began as a TLS handshake does.
    pub(crate) fn begins_as_tls(&self) -> bool {
        self.begins_as_tls.load(Ordering::Relaxed)
    }

    fn phase_in(word: u64) -> Phase {
        match word % 4 {
            0 => Phase::Idle,
            1 => Phase::Header,
            _ => Phase::Busy,
        }
    }

    /// The phase; unlike [`now`](Self::now) it does not read the clock.
    fn phase(&self) -> Phase {
        Self::phase_in(self.word.load(Ordering::Relaxed))
    }

    /// The phase and its duration so far.
    pub(crate) fn now(&self) -> (Phase, Duration) {
        let word = self.word.load(Ordering::Relaxed);
        (Self::phase_in(word), self.opened.elapsed().saturating_sub(Duration::from_millis(word / 4)))
    }
}

/// A socket that notes when a header begins, and when the client reads something of a reply.
#[derive(Debug)]
pub(crate) struct PhasedSocket {
    stream: Socket,
    phase_clock: Arc<PhaseClock>,
}

impl PhasedSocket {
    pub(crate) fn new(stream: Socket, phase_clock: Arc<PhaseClock>) -> Self {
        Self { stream, phase_clock }
    }

    /// Whose reply is being sent has not been idle.
    fn went_on(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(_))) && self.phase_clock.phase() == Phase::Idle {
            self.phase_clock.enter(Phase::Idle);
        }
    }

    /// The socket alone: what follows on it has another phase clock.
    pub(crate) fn into_stream(self) -> Socket {
        self.stream
    }
}

impl AsyncRead for PhasedSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before && self.phase_clock.phase() == Phase::Idle {
            if buf.filled()[before] == TLS_HANDSHAKE_BYTE {
                self.phase_clock.begins_as_tls.store(true, Ordering::Relaxed);
            }
            self.phase_clock.enter(Phase::Header);
        }
        polled
    }
}

impl AsyncWrite for PhasedSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.went_on(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.went_on(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
