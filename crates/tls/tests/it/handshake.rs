//! One connection in memory.

use std::sync::Arc;

use lockkeeper_tls::{ClientConfig, ServerTls, TlsStream};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

/// Both ends of a connection.
pub(crate) type Ends = (client::TlsStream<DuplexStream>, TlsStream<DuplexStream>);

/// Connects to `localhost`, and exchanges a byte both ways: with TLS 1.3 a client learns only then that it was turned
/// away.
pub(crate) async fn connect(server: &ServerTls, client: ClientConfig) -> Result<Ends, String> {
    let (near, far) = duplex(64 * 1024);
    let name = ServerName::try_from("localhost").unwrap();
    let client = async move {
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, near).await?;
        stream.write_all(b"?").await?;
        stream.flush().await?;
        stream.read_u8().await?;
        Ok::<_, std::io::Error>(stream)
    };
    let server = async move {
        let mut stream = server.accept(far).await?;
        stream.read_u8().await?;
        stream.write_all(b"!").await?;
        stream.flush().await?;
        Ok::<_, std::io::Error>(stream)
    };
    match tokio::join!(client, server) {
        (Ok(client), Ok(server)) => Ok((client, server)),
        (client, server) => Err(format!("client: {:?}; server: {:?}", client.err(), server.err())),
    }
}

/// The connection fails, for this reason at one of its ends.
#[track_caller]
pub(crate) fn assert_refused(refused: &Result<Ends, String>, reason: &str) {
    match refused {
        Ok(_) => panic!("connected, but must be refused: {reason}"),
        Err(why) => assert!(why.contains(reason), "not for {reason}: {why}"),
    }
}

/// Exchanges bytes on an open connection.
pub(crate) async fn exchange((client, server): &mut Ends) {
    client.write_all(b"still there").await.unwrap();
    client.flush().await.unwrap();
    let mut read = [0; 11];
    server.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"still there");
}
