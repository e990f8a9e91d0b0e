//! The ports of listeners.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that the system queues to be accepted: all clients of a cluster may reconnect at once.
const BACKLOG: i32 = 4096;

/// A socket that is bound and not listening yet: the port is taken, and connections are refused while the node cannot
/// answer.
#[derive(Debug)]
pub struct Bound {
    socket: Socket,
    address: SocketAddr,
}

impl Bound {
    /// Takes the port.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Allows a port that lingers from a process that has ended, or that `lockkeeper dev` keeps for this one; never
        // one in use.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { socket, address })
    }

    /// The address, with the port that the system chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(self) -> io::Result<TcpListener> {
        self.socket.listen(BACKLOG)?;
        TcpListener::from_std(self.socket.into())
    }
}

/// A port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {key} = {address}: {why}")]
pub struct PortError {
    /// The key of the configuration.
    key: &'static str,
    /// The address.
    address: SocketAddr,
    /// Cause and remedy.
    why: String,
}

impl PortError {
    /// Says which key of the configuration named the port.
    pub fn new(key: &'static str, address: SocketAddr, error: &std::io::Error) -> Self {
        let why = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("another process has this port; stop it, or set {key} to a free one")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!("this machine has no such address; set {key} to one it has")
            }
            std::io::ErrorKind::PermissionDenied => format!("not permitted; set {key} to a port from 1024 on"),
            _ => format!("{error}; correct {key}"),
        };
        Self { key, address, why }
    }
}
