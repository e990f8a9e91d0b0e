//! The socket of a connection: TCP, or TLS over it. What is above need not know which.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lockkeeper_core::access;
use lockkeeper_core::limits::MAX_ACL_ID_BYTES;
use lockkeeper_tls::{CertificateDer, ClientNameRule, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::either::Either;

/// See the module's text.
#[derive(Debug)]
pub enum Socket {
    /// Without TLS.
    Plain(TcpStream),
    /// Its state is large.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Whether the client of a connection is on this machine: at a loopback address, or at the address that it connected
/// to. Nobody else can answer from this machine's own address, which the handshake of TCP asks for.
pub fn is_local(stream: &TcpStream, client: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|own| is_own_address(client.ip(), own.ip()))
}

fn is_own_address(client: IpAddr, own: IpAddr) -> bool {
    let (client, own) = (client.to_canonical(), own.to_canonical());
    client.is_loopback() || client == own
}

/// Most bytes that the kernel buffers for a client that does not read. By default it takes megabytes, which no budget
/// counts.
pub const UNSENT_BYTES: u32 = 128 * 1024;

/// Keeps a reply that its client does not read in the node, where `limits.reply_bytes_in_flight` counts it.
pub fn bound_unsent(stream: &TcpStream) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
    let _ = stream;
    Ok(())
}

/// The direction from the client.
pub type SocketReader = Either<OwnedReadHalf, ReadHalf<Box<TlsStream<TcpStream>>>>;
/// The direction to the client.
pub type SocketWriter = Either<OwnedWriteHalf, WriteHalf<Box<TlsStream<TcpStream>>>>;

/// The certificate that a client has proved to be its own, signed by the listener's authority.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificate in DER.
    pub encoded: Arc<CertificateDer<'static>>,
    /// The principal that it proves by the listener's rule, read once for all requests of the connection.
    pub principal: Option<Arc<str>>,
}

impl ClientCertificate {
    /// The certificate of a peer, which proves no principal.
    pub(crate) fn of_peer(certificate: &CertificateDer<'_>) -> Self {
        Self { encoded: Arc::new(certificate.clone().into_owned()), principal: None }
    }

    /// The certificate of a client, and why it proves no principal.
    pub fn new(certificate: &CertificateDer<'_>, rule: &ClientNameRule) -> (Self, Option<String>) {
        let named = rule.name_in(certificate).map_err(|error| error.to_string()).and_then(principal_of_name);
        let (principal, nobody) = match named {
            Ok(name) => (Some(name.into()), None),
            Err(why) => (None, Some(why)),
        };
        (Self { principal, ..Self::of_peer(certificate) }, nobody)
    }
}

/// A name as a principal, if a role can be granted to it.
fn principal_of_name(name: String) -> Result<String, String> {
    if !access::is_name(&name) || name.len() > MAX_ACL_ID_BYTES {
        return Err(format!("no role can be granted to its name {:?}", name.chars().take(64).collect::<String>()));
    }
    if access::is_reserved(&name) {
        return Err(format!("its name {name:?} is reserved"));
    }
    Ok(name)
}

impl Socket {
    /// The connection below, for its options.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// The certificate that the client showed.
    pub(crate) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        let Self::Tls(stream) = self else { return None };
        stream.get_ref().1.peer_certificates()?.first()
    }

    /// Its directions, for two tasks.
    pub fn into_split(self) -> (SocketReader, SocketWriter) {
        match self {
            Self::Plain(stream) => {
                let (reading, writing) = stream.into_split();
                (Either::Left(reading), Either::Left(writing))
            }
            Self::Tls(stream) => {
                let (reading, writing) = tokio::io::split(stream);
                (Either::Right(reading), Either::Right(writing))
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// Bytes that the kernel takes for a client that reads nothing.
    async fn taken(prepare: impl Fn(&TcpStream)) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpSocket::new_v4().unwrap();
        client.set_recv_buffer_size(4096).unwrap();
        let (client, accepted) = tokio::join!(client.connect(listener.local_addr().unwrap()), listener.accept());
        let (client, (accepted, _)) = (client.unwrap(), accepted.unwrap());
        prepare(&accepted);
        let (some, mut taken) = (vec![0; 64 * 1024], 0);
        accepted.writable().await.unwrap();
        while let Ok(bytes) = accepted.try_write(&some) {
            taken += bytes;
        }
        drop(client);
        taken
    }

    #[test]
    fn a_client_is_local_at_loopback_and_at_the_address_it_connected_to() {
        for (client, own, local) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.2", "10.0.0.1", false),
            ("::ffff:10.0.0.2", "10.0.0.1", false),
            ("fe80::1", "fe80::2", false),
        ] {
            assert_eq!(is_own_address(client.parse().unwrap(), own.parse().unwrap()), local, "{client} at {own}");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_takes_little_for_a_client_that_reads_nothing() {
        let bounded = taken(|stream| bound_unsent(stream).unwrap()).await;
        let unbounded = taken(|_| ()).await;
        assert!(bounded < 512 * 1024, "{bounded} bytes, {unbounded} without the bound");
    }
}
