//! TLS of the listeners for clients: HTTP, session streams, ZooKeeper's protocol.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use lockkeeper_api::Code;
use lockkeeper_api::access::WhoAmI;
use lockkeeper_checkers::skip::{has, has_programs};
use lockkeeper_server::config::ListenerTls;
use lockkeeper_server::{Config, Server};
use lockkeeper_tls::{ClientCertificates, ClientConfig, NameSource, TlsFiles, client_config};
use reqwest::{Client, ClientBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::access::enable;
use crate::authority::{Authority, add_uri, expired, not_yet_valid};
use crate::harness::{Got, PATIENCE, Running, config_of, eventually, spawn, spawn_for};

pub(crate) fn section(files: &TlsFiles) -> ListenerTls {
    ListenerTls {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        authority: None,
        client_certificates: ClientCertificates::None,
        principal_from: NameSource::CommonName,
        principal_prefix: String::new(),
    }
}

pub(crate) fn https(authority: &Authority, identity: Option<&TlsFiles>) -> ClientBuilder {
    Client::builder().use_preconfigured_tls(client_config(Some(&authority.file()), identity).unwrap())
}

/// One node, its data, and the authority of its certificates.
pub(crate) struct Secured {
    pub(crate) node: Running,
    pub(crate) authority: Authority,
    _directory: TempDir,
}

impl Secured {
    pub(crate) async fn start(adjust: impl FnOnce(&mut Config, &Authority)) -> Self {
        let secured = Self::spawn(adjust, None);
        secured.node.ready().await;
        secured
    }

    fn spawn(adjust: impl FnOnce(&mut Config, &Authority), identity: Option<&str>) -> Self {
        let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new("one"));
        let mut config = alone(&directory);
        config.tls.client = Some(section(&authority.server("server")));
        adjust(&mut config, &authority);
        let identity = identity.map(|name| authority.client(name));
        // No connection of its own stays open beside those of a test.
        let http = https(&authority, identity.as_ref()).pool_max_idle_per_host(0);
        let node = spawn_for(Server::bind(config).unwrap(), "https", http);
        Self { node, authority, _directory: directory }
    }

    /// Connects over TLS, without HTTP.
    pub(crate) async fn connect(&self, at: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        connect(at, client_config(Some(&self.authority.file()), None).unwrap()).await
    }
}

/// No certificate, and those that a listener of this authority turns away: of a stranger, expired, not valid yet, and
/// one that is for servers alone.
pub(crate) fn bad_identities(authority: &Authority) -> [Option<TlsFiles>; 5] {
    let another = Authority::new("another");
    let stranger = another.client("foreign");
    // Its directory goes with its authority.
    let kept = authority.files("foreign");
    std::fs::copy(&stranger.certificate, &kept.certificate).unwrap();
    std::fs::copy(&stranger.key, &kept.key).unwrap();
    [
        None,
        Some(kept),
        Some(authority.issue("old", expired)),
        Some(authority.issue("early", not_yet_valid)),
        Some(authority.server("server-only")),
    ]
}

fn alone(directory: &TempDir) -> Config {
    let mut config = config_of(1, directory.path().join("data"));
    config.zookeeper.listen = "127.0.0.1:0".into();
    config
}

pub(crate) async fn connect(at: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(at).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// What comes until the other end closes.
pub(crate) async fn rest(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut read = Vec::new();
    // A connection that is cut off ends with an error.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("the server closes");
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn clients_speak_https() {
    let Secured { node, .. } = &Secured::start(|_, _| ()).await;
    let session = node.session(10_000).await;
    let body = json!({ "mode": "exclusive", "wait_ms": 0 });
    let acquired: Value = node.post("/v1/locks/a/acquire", Some(&session.credential), body).await.json();
    assert!(acquired["token"].as_u64().is_some(), "{acquired}");
    eventually("the expiry to be known", async || {
        let metrics = node.get("/metrics").await.text;
        let expiry = "lockkeeper_certificate_expiry_seconds{listener=\"client\"} ";
        metrics.lines().filter_map(|line| line.strip_prefix(expiry)).any(|left| left.parse::<f64>().unwrap() > 1e9)
    })
    .await;
}

#[tokio::test]
async fn a_session_stream_runs_over_tls() {
    let secured = Secured::start(|_, _| ()).await;
    let session = secured.node.session(10_000).await;
    let url = format!("wss://localhost/v1/sessions/{}/stream", session.session_id);
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("lockkeeper-session", session.credential.parse().unwrap());
    let socket = secured.connect(secured.node.client).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, socket).await.unwrap();
    let mut next = async |send: Option<Value>| {
        if let Some(message) = send {
            socket.send(Message::text(message.to_string())).await.unwrap();
        }
        let message = timeout(PATIENCE, socket.next()).await.expect("it answers").unwrap().unwrap();
        serde_json::from_str::<Value>(message.to_text().unwrap()).unwrap()
    };
    assert!(next(None).await["hello"].is_object());
    let call = json!({ "request": { "id": 1, "call": { "acquire_lock": { "name": "a" } } } });
    let answer = next(Some(call)).await;
    assert!(answer.to_string().contains("token"), "{answer}");
}

#[tokio::test]
async fn http_on_a_tls_port_gets_a_hint() {
    let Secured { node, .. } = &Secured::start(|_, _| ()).await;
    let body = "x".repeat(20_000);
    for request in [
        "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n".into(),
        format!("POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
    ] {
        let reply = node.raw(request.as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 400 ") && reply.ends_with("use https\n"), "{reply}");
    }
    let response = Client::builder().no_proxy().build().unwrap().get(format!("http://{}/", node.client)).send().await;
    assert_eq!(response.unwrap().status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn tls_on_a_plain_port_ends_soon() {
    let directory = tempfile::tempdir().unwrap();
    let node = spawn(Server::bind(alone(&directory)).unwrap());
    node.ready().await;
    let authority = Authority::new("one");
    for at in [node.client, node.peer, node.zookeeper.unwrap()] {
        let config = client_config(Some(&authority.file()), None).unwrap();
        let refused = timeout(PATIENCE, connect(at, config)).await.expect("it does not hang");
        assert!(refused.is_err(), "{at}");
    }
    node.ready().await;
}

#[tokio::test]
async fn a_slow_handshake_is_cut_off() {
    let secured = Secured::start(|config, _| config.limits.header_read_timeout_ms = 300).await;
    let mut silent = TcpStream::connect(secured.node.client).await.unwrap();
    let mut slow = TcpStream::connect(secured.node.client).await.unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    assert_eq!(rest(&mut silent).await, "");
    assert_eq!(rest(&mut slow).await, "");
    secured.node.ready().await;
}

/// By a client that can: rustls has no such thing, at either end.
#[tokio::test]
async fn a_client_that_renegotiates_is_refused() {
    if !has("openssl", || has_programs(&["openssl"])) {
        return;
    }
    let secured = Secured::start(|_, _| ()).await;
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-tls1_2", "-connect", &secured.node.client.to_string()])
        .args(["-CAfile".as_ref(), secured.authority.file().as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // Its command to renegotiate, which it reads once it is connected.
    let mut commands = openssl.stdin.take().unwrap();
    commands.write_all(b"R\n").await.unwrap();
    let ended = timeout(PATIENCE, openssl.wait_with_output()).await.expect("it is refused").unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("RENEGOTIATING") && said.contains("no renegotiation"), "{said}");
    secured.node.ready().await;
}

/// They take room from the moment they are accepted, and idle ones go first when others come.
#[tokio::test]
async fn handshakes_count_as_connections() {
    // One address may have two.
    let secured = Secured::start(|config, _| config.limits.connections = 4).await;
    let connecting = (0..4).map(|_| TcpStream::connect(secured.node.client));
    let mut silent = futures::future::try_join_all(connecting).await.unwrap();
    eventually("one more to be served", async || {
        let Ok(mut open) = secured.connect(secured.node.client).await else { return false };
        open.write_all(b"GET /v1/cluster HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut reply = [0; 12];
        open.read_exact(&mut reply).await.is_ok() && &reply == b"HTTP/1.1 200"
    })
    .await;
    // Their handshakes would time out later.
    let ending = silent.iter_mut().map(|stream| timeout(Duration::from_secs(5), stream.read_u8()));
    let ended = futures::future::join_all(ending).await.into_iter().filter(|end| matches!(end, Ok(Err(_)))).count();
    assert!(ended >= 3, "only {ended} of 4 have made way");
}

/// A member's certificate lets it in where its authority is trusted, under its own name, which has no rights.
#[tokio::test]
async fn a_peers_certificate_gives_a_client_no_rights() {
    let secured = Secured::start(|config, authority| {
        let tls = config.tls.client.as_mut().unwrap();
        tls.authority = Some(authority.file());
        tls.client_certificates = ClientCertificates::Optional;
    })
    .await;
    let admin = enable(&secured.node).await;
    let http = https(&secured.authority, Some(&secured.authority.node("test", 1))).build().unwrap();
    let get = async |path: &str| Got::of(http.get(format!("{}{path}", secured.node.base)).send().await.unwrap()).await;
    let me: Value = get("/v1/access/me").await.json();
    assert_eq!((&me["principals"], &me["roles"]), (&json!([]), &json!([])), "it proves no client");
    for path in ["/v1/nodes/", "/v1/cluster", "/v1/access", "/v1/locks/a"] {
        get(path).await.problem(Code::Unauthenticated);
    }
    secured.node.with(&admin).get("/v1/cluster").await.json::<Value>();
}

#[tokio::test]
async fn a_rule_says_which_name_in_a_certificate_is_the_principal() {
    let by_uri = |config: &mut Config, authority: &Authority| {
        let tls = config.tls.client.as_mut().unwrap();
        tls.authority = Some(authority.file());
        tls.client_certificates = ClientCertificates::Required;
        tls.principal_from = NameSource::Uri;
        tls.principal_prefix = "lockkeeper://test/client/".into();
    };
    let secured = Secured::spawn(by_uri, Some("somebody"));
    secured.node.ready().await;
    let who = async |name: &str, uris: &[&str]| -> Vec<String> {
        let identity = secured.authority.issue(name, |params| uris.iter().for_each(|uri| add_uri(params, uri)));
        let http = https(&secured.authority, Some(&identity)).build().unwrap();
        let me = http.get(format!("{}/v1/access/me", secured.node.base)).send().await.unwrap();
        me.json::<WhoAmI>().await.unwrap().principals
    };
    let own = "lockkeeper://test/client/billing";
    assert_eq!(who("any", &["https://billing.example", own]).await, ["billing"]);
    for (why, uris) in [
        ("no URI", &[][..]),
        ("of another cluster", &["lockkeeper://other/client/billing"]),
        ("several", &[own, "lockkeeper://test/client/orders"]),
        ("a node's", &[own, "lockkeeper://test/node/1"]),
        ("no role can be granted to it", &["lockkeeper://test/client/a%20b"]),
        ("reserved", &["lockkeeper://test/client/digest:bob:x"]),
        ("everybody", &["lockkeeper://test/client/anyone"]),
    ] {
        assert_eq!(who("admin", uris).await, [""; 0], "{why}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_one_line() {
    let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new("one"));
    let mut files = authority.server("server");
    files.key = authority.server("other").key;
    let mut config = alone(&directory);
    config.tls.client = Some(section(&files));
    let error = Server::bind(config).unwrap_err();
    let line = error.to_string();
    assert!(line.starts_with("[tls.client]: ") && line.contains("other.key") && !line.contains('\n'), "{line}");
    assert_eq!(error.exit_code(), 2);
}
