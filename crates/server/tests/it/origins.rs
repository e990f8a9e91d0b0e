//! Requests sent by web pages, requests without a valid `Host`, and misleading names.

use lockkeeper_api::{Code, Problem};
use reqwest::Method;
use serde_json::json;

use crate::harness::{Cluster, Running};

/// Sends a request with these fields and no body; gives the status and the problem, if there is one.
async fn send(
    node: &Running,
    version: &str,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> (u16, Option<Problem>) {
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!("{method} {path} {version}\r\nconnection: close\r\ncontent-length: 0\r\n{fields}\r\n");
    let reply = node.raw(text.as_bytes()).await;
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{reply}"));
    let body = reply.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    (status, serde_json::from_str(body).ok())
}

#[tokio::test]
async fn a_request_says_once_to_whom_it_is_sent() {
    let node = Cluster::start(1).await;
    for hosts in [&[][..], &[("host", "a"), ("host", "a")], &[("host", "a"), ("Host", "b")], &[("host", "")]] {
        for (method, path) in [("GET", "/healthz"), ("POST", "/v1/sessions"), ("GET", "/nowhere")] {
            let (status, problem) = send(&node, "HTTP/1.1", method, path, hosts).await;
            if path == "/healthz" && hosts.len() == 1 {
                assert_eq!(status, 200, "probes may say whatever they like, once");
                continue;
            }
            assert_eq!(status, 400, "{method} {path} {hosts:?}");
            let problem = problem.unwrap();
            assert!(problem.code == Code::BadRequest && problem.detail.contains("Host"), "{problem}");
        }
    }
    assert_eq!(send(&node, "HTTP/1.1", "GET", "/healthz", &[("host", "a")]).await.0, 200);
    assert_eq!(send(&node, "HTTP/1.0", "GET", "/healthz", &[]).await.0, 200);
}

#[tokio::test]
async fn pages_of_strangers_change_nothing() {
    let node =
        Cluster::start_with(1, |config| config.listen.allowed_origins = vec!["https://console.example".into()]).await;
    let own = node.client.to_string();
    let before = node.zxid().await;
    for (host, origin) in [
        (own.as_str(), "http://evil.example"),
        (own.as_str(), "null"),
        // A name pointed at this node.
        ("evil.example:7001", "http://evil.example:7001"),
    ] {
        let fields = [("host", host), ("origin", origin)];
        for (method, path) in [
            ("POST", "/v1/sessions"),
            ("PUT", "/v1/nodes/a"),
            ("DELETE", "/v1/nodes/a"),
            ("DELETE", "/v1/locks/a/holders/1"),
        ] {
            let (status, problem) = send(&node, "HTTP/1.1", method, path, &fields).await;
            assert_eq!(status, 403, "{method} {path} from {origin}");
            let problem = problem.unwrap();
            assert!(problem.code == Code::Forbidden && problem.detail.contains("listen.allowed_origins"), "{problem}");
        }
        assert_eq!(send(&node, "HTTP/1.1", "GET", "/healthz", &fields).await.0, 200);
    }
    assert_eq!(node.zxid().await, before, "nothing changed");
    for origin in [format!("http://{own}"), "https://console.example".to_owned()] {
        let fields = [("host", own.as_str()), ("origin", origin.as_str())];
        assert_eq!(send(&node, "HTTP/1.1", "POST", "/v1/sessions", &fields).await.0, 201, "{origin}");
    }
}

#[tokio::test]
async fn names_that_mislead_are_refused() {
    let node = Cluster::start(1).await;
    let session = node.session(60_000).await;
    let credential = Some(session.credential.as_str());
    // Reads as "gnp.exe"; a line break that is no control character; a character that ZooKeeper's clients
    // cannot send.
    for (name, code) in [
        ("exe%E2%80%AEpng", Code::BadRequest),
        ("a%E2%80%A8b", Code::BadRequest),
        ("a%F0%9F%94%92", Code::BadPath),
        ("a%EE%80%80", Code::BadPath),
    ] {
        let asked = node.post(&format!("/v1/locks/{name}/acquire"), credential, json!({ "wait_ms": 0 })).await;
        assert!(asked.problem(code).detail.contains("U+"), "{}", asked.text);
        let ask = json!({ "fingerprint": "f", "pending_ms": 1_000 });
        node.post(&format!("/v1/gates/{name}/begin"), credential, ask).await.problem(code);
    }
    let created = node.call(Method::POST, "/v1/nodes/exe%E2%80%AEpng", None, Some(json!({}))).await;
    assert_eq!(created.status.as_u16(), 201, "ZooKeeper takes it: {}", created.text);
    node.call(Method::POST, "/v1/nodes/a%F0%9F%94%92", None, Some(json!({}))).await.problem(Code::BadPath);
}
