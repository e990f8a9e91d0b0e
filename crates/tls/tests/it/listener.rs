//! A listener and its clients.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_tls::{ClientCertificates, ClientConfig, ServerTls, TlsError, TlsFiles, client_config, tls_failure};
use rustls::pki_types::ServerName;
use rustls::{ProtocolVersion, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use crate::authority::{Authority, expired, not_yet_valid};
use crate::handshake::{assert_refused, connect};

fn listener(files: &TlsFiles) -> ServerTls {
    ServerTls::open(files, None, ClientCertificates::None).unwrap()
}

#[tokio::test]
async fn both_versions_connect_and_the_later_one_is_preferred() {
    let authority = Authority::new("one");
    let server = listener(&authority.server("server"));
    let (client, _) = connect(&server, client_config(Some(&authority.file()), None).unwrap()).await.unwrap();
    assert_eq!(client.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let mut roots = RootCertStore::empty();
    roots.add(pem(&authority)).unwrap();
    let old = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (client, _) = connect(&server, old).await.unwrap();
    assert_eq!(client.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_2));
}

fn pem(authority: &Authority) -> rustls::pki_types::CertificateDer<'static> {
    rustls::pki_types::pem::PemObject::from_pem_slice(authority.pem().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_client_refuses_a_server_that_is_not_the_one() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    let client = || client_config(Some(&authority.file()), None).unwrap();
    for (files, reason) in [
        (authority.issue("expired", expired), "Expired"),
        (authority.issue("early", not_yet_valid), "NotValidYet"),
        (other.server("foreign"), "UnknownIssuer"),
        (authority.client("client"), "Purpose"),
        (authority.issue("elsewhere", |params| params.subject_alt_names.clear()), "NotValidForName"),
    ] {
        assert_refused(&connect(&listener(&files), client()).await, reason);
    }
}

#[tokio::test]
async fn a_listener_asks_for_certificates_as_configured() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    let ca = authority.file();
    let server = |asks| ServerTls::open(&authority.server("server"), Some(&ca), asks).unwrap();
    let (optional, required) = (server(ClientCertificates::Optional), server(ClientCertificates::Required));
    let good = authority.client("good");
    let client = |identity: Option<&TlsFiles>| client_config(Some(&ca), identity).unwrap();

    let (_, without) = connect(&optional, client(None)).await.unwrap();
    assert!(without.get_ref().1.peer_certificates().is_none());
    assert_refused(&connect(&required, client(None)).await, "NoCertificatesPresented");
    for listener in [&optional, &required] {
        let (_, with) = connect(listener, client(Some(&good))).await.unwrap();
        assert_eq!(with.get_ref().1.peer_certificates().map(<[_]>::len), Some(1));
        for (bad, reason) in [
            (authority.issue("expired", expired), "Expired"),
            (authority.issue("early", not_yet_valid), "NotValidYet"),
            (other.client("foreign"), "UnknownIssuer"),
            (authority.server("server"), "Purpose"),
        ] {
            assert_refused(&connect(listener, client(Some(&bad))).await, reason);
        }
    }
    let (_, unasked) = connect(&server(ClientCertificates::None), client(Some(&good))).await.unwrap();
    assert!(unasked.get_ref().1.peer_certificates().is_none());
}

#[tokio::test]
async fn a_certificate_is_checked_at_each_connection() {
    let authority = Authority::new("one");
    let ca = authority.file();
    let server = ServerTls::open(&authority.server("server"), Some(&ca), ClientCertificates::Required).unwrap();
    // One configuration would resume the session of its first connection.
    let client = client_config(Some(&ca), Some(&authority.client("client"))).unwrap();
    for _ in 0..3 {
        let (client, server) = connect(&server, client.clone()).await.unwrap();
        assert_eq!(server.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        drop(client);
    }
}

#[test]
fn nothing_is_checked_without_an_authority() {
    let authority = Authority::new("one");
    let files = authority.server("server");
    for asks in [ClientCertificates::Optional, ClientCertificates::Required] {
        assert!(matches!(ServerTls::open(&files, None, asks), Err(TlsError::NoAuthority)));
    }
    assert!(matches!(client_config(None, Some(&files)), Err(TlsError::NoAuthority)));
}

#[tokio::test]
async fn bytes_that_are_no_handshake_are_an_error_of_tls() {
    let authority = Authority::new("one");
    let server = listener(&authority.server("server"));
    let (mut near, far) = duplex(1024);
    near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let error = server.accept(far).await.unwrap_err();
    assert!(tls_failure(&error).is_some(), "{error:?}");
    let (near, far) = duplex(1024);
    drop(near);
    let error = server.accept(far).await.unwrap_err();
    assert_eq!(tls_failure(&error), None, "{error:?}");
}

/// With TLS 1.3 a client sends requests before it learns that it was turned away. If the connection were reset, the
/// client could not tell whether they were carried out.
#[tokio::test]
async fn a_client_that_is_turned_away_can_send_its_request_and_reads_why() {
    let authority = Authority::new("one");
    let ca = authority.file();
    let server = ServerTls::open(&authority.server("server"), Some(&ca), ClientCertificates::Required).unwrap();
    let connector = TlsConnector::from(Arc::new(client_config(Some(&ca), None).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        for _ in 0..3 {
            // The server has turned it away meanwhile.
            sleep(Duration::from_millis(50)).await;
            stream.write_all(&[b'x'; 1024]).await.unwrap();
            stream.flush().await.unwrap();
        }
        stream.read_u8().await.unwrap_err()
    };
    let accepting = async { server.accept(listener.accept().await.unwrap().0).await };
    let (told, refused) = tokio::join!(client, accepting);
    let failure = tls_failure(&told).unwrap_or_else(|| panic!("not an alert: {told:?}"));
    assert!(failure.contains("alert"), "{failure}");
    assert!(tls_failure(&refused.unwrap_err()).is_some());
}

#[tokio::test]
async fn a_client_can_tell_that_the_certificate_is_to_blame() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    let server = listener(&other.server("server"));
    let client = TlsConnector::from(Arc::new(client_config(Some(&authority.file()), None).unwrap()));
    let (near, far) = duplex(64 * 1024);
    let (refused, _) =
        tokio::join!(client.connect(ServerName::try_from("localhost").unwrap(), near), server.accept(far));
    let failure = tls_failure(&refused.unwrap_err()).unwrap();
    assert!(failure.contains("UnknownIssuer"), "{failure}");
}
