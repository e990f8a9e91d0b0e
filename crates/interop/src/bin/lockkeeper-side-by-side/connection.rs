//! A bare client connection: sends and receives whole frames.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_zookeeper::{FrameDecoder, Inbound};

use crate::error::CompareError;

/// A server that sends nothing for this long counts as silent.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest reply that the script asks for.
const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;

/// What was received next.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The content of a frame.
    Frame(Bytes),
    /// The server has closed the connection.
    End,
    /// Nothing, within the time limit.
    Silence,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    decoder: FrameDecoder,
    ended: bool,
    silent: bool,
    last_xid: i32,
    /// The latest zxid in a header.
    pub(crate) last_zxid: i64,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self, CompareError> {
        let stream = TcpStream::connect(address).map_err(CompareError::io("connect to a server"))?;
        stream.set_nodelay(true).map_err(CompareError::io("set up a connection"))?;
        let decoder = FrameDecoder::for_client(MAX_FRAME_BYTES);
        Ok(Self { stream, decoder, ended: false, silent: false, last_xid: 0, last_zxid: 0 })
    }

    pub(crate) fn next_xid(&mut self) -> i32 {
        self.last_xid += 1;
        self.last_xid
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Nothing more is expected: the server has closed it or is silent.
    pub(crate) fn give_up(&mut self) {
        self.silent = !self.ended;
        self.ended = true;
    }

    pub(crate) fn was_silent(&self) -> bool {
        self.silent
    }

    /// Sends bytes. A closed connection is noticed when reading.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn hear(&mut self) -> Heard {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.decoder.next_inbound() {
                Ok(Some(Inbound::Frame(frame))) => return Heard::Frame(frame),
                Ok(None) => {}
                Ok(Some(Inbound::Word(_))) | Err(_) => {
                    self.ended = true;
                    return Heard::End;
                }
            }
            match self.receive(until) {
                Received::Some => {}
                Received::End => {
                    self.ended = true;
                    return Heard::End;
                }
                Received::Silence => return Heard::Silence,
            }
        }
    }

    /// Reads until the server closes: the reply to a four-letter word.
    pub(crate) fn hear_out(&mut self) -> String {
        let mut all = Vec::new();
        let _ = self.stream.set_read_timeout(Some(PATIENCE));
        let _ = self.stream.read_to_end(&mut all);
        self.ended = true;
        String::from_utf8_lossy(&all).into_owned()
    }

    fn receive(&mut self, until: Instant) -> Received {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
            return Received::Silence;
        }
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Received::End,
            Ok(count) => {
                self.decoder.feed(&buffer[..count]);
                Received::Some
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Received::Silence,
            Err(error) if error.kind() == ErrorKind::Interrupted => Received::Some,
            Err(_) => Received::End,
        }
    }
}

enum Received {
    Some,
    End,
    Silence,
}
