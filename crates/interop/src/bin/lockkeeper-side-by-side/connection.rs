//! A bare client connection: sends and receives whole frames.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::{ConnectRequest, FrameDecoder, Inbound};

use crate::error::CompareError;

/// A server that sends nothing for this long counts as silent.
const PATIENCE: Duration = Duration::from_secs(20);
/// Timeout of the session that another server opens after a stall.
const FREEING_SESSION_MS: i32 = 20_000;
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

/// A way to free a server that stalls.
///
/// ZooKeeper 3.6.0 to 3.8.0 may leave a request unanswered until the next change is committed (ZOOKEEPER-4537, a missed
/// wake-up in its CommitProcessor). Opening a session is such a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedBy {
    /// The server that opens the session.
    pub(crate) server: SocketAddr,
    /// Silence that counts as a stall.
    pub(crate) after: Duration,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    freed_by: Option<FreedBy>,
    decoder: FrameDecoder,
    ended: bool,
    silent: bool,
    last_xid: i32,
    /// The latest zxid in a header.
    pub(crate) last_zxid: i64,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr, freed_by: Option<FreedBy>) -> Result<Self, CompareError> {
        let stream = TcpStream::connect(address).map_err(CompareError::io("connect to a server"))?;
        stream.set_nodelay(true).map_err(CompareError::io("set up a connection"))?;
        let decoder = FrameDecoder::for_client(MAX_FRAME_BYTES);
        let (ended, silent) = (false, false);
        Ok(Self { stream, freed_by, decoder, ended, silent, last_xid: 0, last_zxid: 0 })
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
        let mut stall = self.freed_by.map(|freed_by| (freed_by.server, Instant::now() + freed_by.after));
        loop {
            match self.decoder.next_inbound() {
                Ok(Some(Inbound::Frame(frame))) => return Heard::Frame(frame),
                Ok(None) => {}
                Ok(Some(Inbound::Word(_))) | Err(_) => {
                    self.ended = true;
                    return Heard::End;
                }
            }
            match self.receive(stall.map_or(until, |(_, at)| at)) {
                Received::Some => {}
                Received::End => {
                    self.ended = true;
                    return Heard::End;
                }
                Received::Silence => match stall.take() {
                    Some((server, _)) => open_session(server),
                    None => return Heard::Silence,
                },
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

/// Opens a session and leaves it to its timeout. A failure shows as the silence of the server that stalls.
fn open_session(server: SocketAddr) {
    eprintln!(
        "a server does not answer: opening a session at {server}, because ZOOKEEPER-4537 ends with the next change"
    );
    let Ok(mut connection) = Connection::open(server, None) else { return };
    let mut bytes = BytesMut::new();
    ConnectRequest::new_session(FREEING_SESSION_MS).encode(&mut bytes);
    connection.send(&bytes);
    connection.hear();
}

enum Received {
    Some,
    End,
    Silence,
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Frame with one byte in it.
    const REPLY: [u8; 5] = [0, 0, 0, 1, 7];

    #[test]
    fn stalled_server_answers_after_another_session_is_opened() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let server = thread::spawn(move || {
            let (mut stalled, _) = listener.accept().expect("the client connects");
            let (mut opened, _) = listener.accept().expect("the session's client connects");
            let mut request = [0; 4];
            opened.read_exact(&mut request).expect("a session is asked for");
            opened.write_all(&REPLY).expect("the session is opened");
            stalled.write_all(&REPLY).expect("the reply is sent");
        });
        let freed_by = FreedBy { server: address, after: Duration::from_millis(20) };
        let mut connection = Connection::open(address, Some(freed_by)).expect("the server listens");
        assert!(matches!(connection.hear(), Heard::Frame(frame) if frame[..] == [7]));
        server.join().expect("the server ends");
    }
}
