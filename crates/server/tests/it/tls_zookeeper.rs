//! TLS of the listeners for ZooKeeper's clients: one port or two, with clients without TLS or without them.

use bytes::BytesMut;
use lockkeeper_server::Config;
use lockkeeper_tls::{ClientCertificates, TlsFiles, client_config};
use lockkeeper_zookeeper::ConnectRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::authority::Authority;
use crate::harness::PATIENCE;
use crate::tls::{Secured, bad_identities, connect, rest, section};

/// Length of the reply to a connect request: a timeout, an id, a password, and whether the session only reads.
const SESSION_REPLY_BYTES: u32 = 37;

/// A node whose `[tls.zookeeper]` is there.
async fn start(adjust: impl FnOnce(&mut Config)) -> Secured {
    Secured::start(|config, authority: &Authority| {
        config.tls.zookeeper = Some(section(&authority.server("zookeeper")));
        adjust(config);
    })
    .await
}

fn connect_request() -> BytesMut {
    let mut out = BytesMut::new();
    ConnectRequest::new_session(10_000).encode(&mut out);
    out
}

/// Whether a session opens on this connection.
async fn opens_session(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> bool {
    if stream.write_all(&connect_request()).await.is_err() {
        return false;
    }
    let length = timeout(PATIENCE, stream.read_u32()).await.expect("it answers or closes");
    length.is_ok_and(|length| length == SESSION_REPLY_BYTES)
}

#[tokio::test]
async fn zookeeper_clients_speak_tls() {
    let secured = start(|_| ()).await;
    let at = secured.node.zookeeper.unwrap();
    assert!(opens_session(&mut secured.connect(at).await.unwrap()).await);
    let mut words = secured.connect(at).await.unwrap();
    words.write_all(b"ruok").await.unwrap();
    assert_eq!(rest(&mut words).await, "imok");

    let mut plain = TcpStream::connect(at).await.unwrap();
    plain.write_all(&connect_request()).await.unwrap();
    assert_eq!(rest(&mut plain).await, "", "a client without TLS");
}

/// As `clientPort`, `secureClientPort` and `client.portUnification`, which is about the first port alone: the second
/// one speaks TLS whatever the first one does.
#[tokio::test]
async fn each_port_takes_the_clients_that_it_is_for() {
    const ANY: &str = "127.0.0.1:0";
    /// Which clients a port takes: those without TLS, and those with it.
    type Takes = Option<(bool, bool)>;
    let rows: [(&str, &str, bool, Takes, Takes); 4] = [
        (ANY, ANY, false, Some((true, false)), Some((false, true))),
        ("", ANY, false, None, Some((false, true))),
        (ANY, "", true, Some((true, true)), None),
        (ANY, ANY, true, Some((true, true)), Some((false, true))),
    ];
    for (listen, listen_secure, port_unification, main, secure) in rows {
        let secured = start(|config| {
            (config.zookeeper.listen, config.zookeeper.listen_secure) = (listen.into(), listen_secure.into());
            config.zookeeper.port_unification = port_unification;
        })
        .await;
        for (at, takes) in [(secured.node.zookeeper, main), (secured.node.zookeeper_secure, secure)] {
            assert_eq!(at.is_some(), takes.is_some(), "{listen:?} {listen_secure:?}");
            let Some((at, (plain, tls))) = at.zip(takes) else { continue };
            assert_eq!(opens_session(&mut TcpStream::connect(at).await.unwrap()).await, plain, "{at} without TLS");
            match secured.connect(at).await {
                Ok(mut stream) => assert!(opens_session(&mut stream).await && tls, "{at} with TLS"),
                Err(error) => assert!(!tls, "{error}"),
            }
            if plain && tls {
                let mut words = TcpStream::connect(at).await.unwrap();
                words.write_all(b"ruok").await.unwrap();
                assert_eq!(rest(&mut words).await, "imok");
            }
        }
    }
}

/// The bound on connections is one for both ports.
#[tokio::test]
async fn both_ports_share_their_connections() {
    let secured = start(|config| {
        config.zookeeper.listen_secure = "127.0.0.1:0".into();
        config.zookeeper.connections = 1;
    })
    .await;
    let mut first = TcpStream::connect(secured.node.zookeeper.unwrap()).await.unwrap();
    assert!(opens_session(&mut first).await);
    assert!(secured.connect(secured.node.zookeeper_secure.unwrap()).await.is_err(), "there is room for one alone");
    drop(first);
    crate::harness::eventually("the room to be free", async || {
        match secured.connect(secured.node.zookeeper_secure.unwrap()).await {
            Ok(mut stream) => opens_session(&mut stream).await,
            Err(_) => false,
        }
    })
    .await;
}

#[tokio::test]
async fn zookeeper_clients_need_a_certificate_that_is_good_now() {
    let secured = Secured::start(|config, authority| {
        let mut tls = section(&authority.server("zookeeper"));
        tls.authority = Some(authority.file());
        tls.client_certificates = ClientCertificates::Required;
        config.tls.zookeeper = Some(tls);
    })
    .await;
    let at = secured.node.zookeeper.unwrap();
    let opens = async |identity: Option<&TlsFiles>| {
        let config = client_config(Some(&secured.authority.file()), identity).unwrap();
        // With TLS 1.3 a client learns only from the first reply that it was turned away.
        match connect(at, config).await {
            Ok(mut stream) => opens_session(&mut stream).await,
            Err(_) => false,
        }
    };
    for identity in bad_identities(&secured.authority) {
        assert!(!opens(identity.as_ref()).await, "{identity:?}");
    }
    assert!(opens(Some(&secured.authority.client("billing"))).await);
}

/// After 10 seconds: long enough for a slow client, and too short to collect connections.
#[tokio::test]
async fn a_slow_handshake_is_cut_off() {
    let secured = start(|_| ()).await;
    let mut slow = TcpStream::connect(secured.node.zookeeper.unwrap()).await.unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    assert_eq!(rest(&mut slow).await, "");
}
