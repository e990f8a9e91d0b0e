//! A connection of a raw client, over TCP or TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use lockkeeper_tls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Its bytes.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Connects.
pub(super) async fn connect(to: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Box<dyn Socket>> {
    let tcp = TcpStream::connect(to).await?;
    tcp.set_nodelay(true)?;
    let socket: Box<dyn Socket> = match tls {
        Some(config) => {
            let connector = TlsConnector::from(Arc::clone(config));
            Box::new(connector.connect(ServerName::from(to.ip()), tcp).await?)
        }
        None => Box::new(tcp),
    };
    Ok(socket)
}
