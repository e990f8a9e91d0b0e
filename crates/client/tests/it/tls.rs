//! TLS towards the cluster. In front of a node, a listener takes TLS off each connection, so that this is the client's
//! part alone: which certificates it accepts, what it says about the others, and that it does not go on asking.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_client::{
    Client, EndpointError, Error, Options, Paging, Session, SessionOptions, Tls, TlsFiles, Transport, WatchOptions,
};
use lockkeeper_tls::{ClientCertificates, ServerTls};
use rcgen::CertificateParams;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::authority::{Authority, expired, not_yet_valid};
use crate::test_cluster::{TestCluster, soon};

/// The certificate of a node that a client may trust.
fn node(authority: &Authority) -> TlsFiles {
    authority.issue("node", |_| {})
}

/// Of one name, so that a certificate of the other one fails by its signature.
fn two_authorities() -> (Authority, Authority) {
    (Authority::new("authority of a test"), Authority::new("authority of a test"))
}

/// What a client needs that trusts this authority.
fn trust(authority: &Authority) -> Tls {
    trust_as(authority, None)
}

fn trust_as(authority: &Authority, identity: Option<&TlsFiles>) -> Tls {
    Tls::from_files(&authority.file(), identity).unwrap()
}

fn client(endpoints: &[&str], tls: Tls) -> Client {
    Client::new_with_tls(endpoints, Options::default(), Some(tls)).unwrap()
}

/// A TLS listener in front of a node.
struct Frontend {
    address: String,
    handshakes: Arc<AtomicUsize>,
}

impl Frontend {
    async fn start(node: &str, tls: ServerTls) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tls, handshakes) = (Arc::new(tls), Arc::new(AtomicUsize::new(0)));
        let (node, counted) = (node.trim_start_matches("http://").to_owned(), handshakes.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, node, counted) = (tls.clone(), node.clone(), counted.clone());
                tokio::spawn(async move {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let Ok(mut near) = tls.accept(stream).await else { return };
                    let mut far = TcpStream::connect(node).await.unwrap();
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self { address, handshakes }
    }

    /// In front of that node, with this certificate, and asking for none.
    async fn with(node: &str, files: &TlsFiles) -> Self {
        Self::start(node, ServerTls::open(files, None, ClientCertificates::None).unwrap()).await
    }

    fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::SeqCst)
    }
}

async fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

/// A call's error, and how long it took.
async fn refused(client: &Client) -> (Error, Duration) {
    let began = Instant::now();
    let error = soon(client.locks(None, &Paging::default())).await.unwrap_err();
    (error, began.elapsed())
}

/// The failures of an error that is TLS's.
fn tls_failures(error: &Error) -> Vec<String> {
    let Error::Tls { tried } = error else { panic!("not a failure of TLS: {error:?}") };
    tried.iter().map(|tried| format!("{}: {}", tried.endpoint, tried.why)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_locks_over_its_stream_and_over_http() {
    let test = TestCluster::new().await;
    let authority = Authority::new("authority of a test");
    let frontend = Frontend::with(&test.cluster.endpoints()[0], &node(&authority)).await;
    // Both forms are https: TLS is configured.
    for endpoint in [frontend.address.clone(), format!("https://{}", frontend.address)] {
        let client = client(&[&endpoint], trust(&authority));
        assert_eq!(client.endpoints()[0].as_str(), format!("https://{}", frontend.address));
        for transport in [Transport::Stream, Transport::Http] {
            let options = SessionOptions { transport, ..SessionOptions::default() };
            let session = soon(Session::open(&client, &options)).await.unwrap();
            let guard = soon(session.lock("orders/42").lock()).await.unwrap();
            test.until("orders/42", 1, 0).await;
            soon(guard.release()).await.unwrap();
            soon(session.close()).await.unwrap();
        }
    }
    assert!(frontend.handshakes() >= 4, "a stream and HTTP each have connections of their own");
}

#[tokio::test]
async fn a_bad_certificate_of_a_node_ends_the_call_at_once_with_its_cause() {
    let (authority, stranger) = two_authorities();
    let far = nobody().await;
    let other = authority.issue("other", |params| {
        params.subject_alt_names = CertificateParams::new(vec!["lock-1.example".to_owned()]).unwrap().subject_alt_names;
    });
    for (files, cause) in [
        (authority.issue("expired", expired), "expired"),
        (authority.issue("early", not_yet_valid), "not valid yet"),
        (other, "does not name the host"),
        (authority.client("client"), "not a server's"),
        (node(&stranger), "certificate authorities that this client trusts"),
    ] {
        let frontend = Frontend::with(&far, &files).await;
        let (error, took) = refused(&client(&[&frontend.address], trust(&authority))).await;
        let failures = tls_failures(&error);
        assert!(failures.len() == 1 && failures[0].contains(cause), "{failures:?}");
        assert!(failures[0].starts_with(&format!("https://{}: ", frontend.address)), "{failures:?}");
        assert!(took < Duration::from_secs(5), "it was retried for {took:?}");
        assert_eq!(frontend.handshakes(), 1);
    }
}

#[tokio::test]
async fn a_node_that_requires_a_certificate_turns_others_away() {
    let test = TestCluster::new().await;
    let (authority, stranger) = two_authorities();
    let tls = ServerTls::open(&node(&authority), Some(&authority.file()), ClientCertificates::Required).unwrap();
    let frontend = Frontend::start(&test.cluster.endpoints()[0], tls).await;
    let identity = authority.client("client");
    let known = client(&[&frontend.address], trust_as(&authority, Some(&identity)));
    let session = soon(Session::open(&known, &SessionOptions::default())).await.unwrap();
    let _guard = soon(session.lock("a").lock()).await.unwrap();

    let (error, _) = refused(&client(&[&frontend.address], trust(&authority))).await;
    assert!(tls_failures(&error)[0].contains("requires a client certificate"), "{error}");
    let strange = trust_as(&authority, Some(&stranger.client("x")));
    let (error, _) = refused(&client(&[&frontend.address], strange)).await;
    assert!(tls_failures(&error)[0].contains("rejects this client's certificate"), "{error}");
}

#[tokio::test]
async fn a_node_with_a_bad_certificate_costs_nothing_while_another_serves() {
    let test = TestCluster::new().await;
    let (authority, stranger) = two_authorities();
    let far = &test.cluster.endpoints()[0];
    let (bad, good) = (Frontend::with(far, &node(&stranger)).await, Frontend::with(far, &node(&authority)).await);
    let client = client(&[&bad.address, &good.address], trust(&authority));
    let session = soon(Session::open(&client, &SessionOptions::default())).await.unwrap();
    let _guard = soon(session.lock("a").lock()).await.unwrap();
    assert!(client.preferred().as_str().ends_with(&good.address));
}

#[tokio::test]
async fn an_unreachable_node_is_waited_for_beside_one_with_a_bad_certificate() {
    let (authority, stranger) = two_authorities();
    let (bad, absent) = (Frontend::with(&nobody().await, &node(&stranger)).await, nobody().await);
    let options = Options { patience: Duration::from_millis(600), ..Options::default() };
    let client = Client::new_with_tls([&bad.address, &absent], options, Some(trust(&authority))).unwrap();
    let (error, took) = refused(&client).await;
    assert!(matches!(&error, Error::Unreachable { tried } if tried.len() == 2), "{error}");
    assert!(error.to_string().contains("certificate authorities"), "{error}");
    assert!(took >= Duration::from_millis(300), "{took:?}");
}

#[tokio::test]
async fn a_patient_watch_ends_where_no_node_can_be_trusted() {
    let (authority, stranger) = two_authorities();
    let far = nobody().await;
    let (one, two) = (Frontend::with(&far, &node(&stranger)).await, Frontend::with(&far, &node(&stranger)).await);
    let client = client(&[&one.address, &two.address], trust(&authority));
    let error = soon(client.watch(WatchOptions::new("/a")).next()).await.unwrap().unwrap_err();
    assert_eq!(tls_failures(&error).len(), 2);
}

#[tokio::test]
async fn the_wrong_scheme_is_named() {
    let test = TestCluster::new().await;
    let authority = Authority::new("authority of a test");
    let plain = test.cluster.endpoints()[0].replace("http://", "https://");
    let (error, _) = refused(&client(&[&plain], trust(&authority))).await;
    assert!(tls_failures(&error)[0].contains("does not speak TLS"), "{error}");

    let frontend = Frontend::with(&nobody().await, &node(&authority)).await;
    let options = Options { patience: Duration::from_millis(300), ..Options::default() };
    let http = format!("http://{}", frontend.address);
    let (error, _) = refused(&Client::new_with_tls([&http], options, Some(trust(&authority))).unwrap()).await;
    assert!(error.to_string().contains("https"), "{error}");

    let error = Client::new([&plain], Options::default()).unwrap_err();
    assert!(matches!(error, EndpointError::NoAuthority(_)), "{error}");
}

#[tokio::test]
async fn files_are_checked_at_once_and_no_key_is_printed() {
    let authority = Authority::new("authority of a test");
    let (identity, other) = (authority.issue("one", |_| {}), authority.issue("two", |_| {}));
    let mismatched = TlsFiles { certificate: identity.certificate.clone(), key: other.key };
    assert!(Tls::from_files(&authority.file(), Some(&mismatched)).is_err());
    assert!(Tls::from_files(&authority.directory().join("absent.pem"), None).is_err());
    let client = client(&["127.0.0.1:1"], trust_as(&authority, Some(&identity)));
    let printed = format!("{client:?} {:#?}", trust_as(&authority, Some(&identity)));
    assert!(printed.contains("one.pem"), "{printed}");
    let key = fs::read_to_string(&identity.key).unwrap();
    let secret = key.lines().nth(1).unwrap();
    assert!(!printed.contains(secret) && !printed.contains("PRIVATE"), "{printed}");
}
