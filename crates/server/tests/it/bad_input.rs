//! Malformed, oversized and misdirected requests: each gets a problem with cause and remedy, and changes nothing.

use lockkeeper_api::{Code, Problem};
use reqwest::{Method, StatusCode, header};
use serde_json::json;

use crate::harness::{Cluster, Got};

fn problem_in(reply: &str) -> Problem {
    let (_, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply: {reply:?}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {reply}"))
}

#[tokio::test]
async fn bodies() {
    let node = Cluster::start(1).await;
    let before = node.zxid().await;
    let send = async |content_type: &str, body: &str| {
        let request = node.request(Method::POST, "/v1/sessions").header(header::CONTENT_TYPE, content_type);
        Got::of(request.body(body.to_owned()).send().await.unwrap()).await
    };
    const JSON: &str = "application/json";
    for body in [
        "{",
        "nonsense",
        "[]",
        "null",
        "7",
        "\"x\"",
        "{\"timeout_ms\":\"soon\"}",
        "{\"timeout_ms\":-1}",
        "{\"timeout_ms\":1,\"timeout_ms\":2}",
        "{\"timeout\":1}",
        "{} {}",
        "\u{0}",
    ] {
        let problem = send(JSON, body).await.problem(Code::BadRequest);
        assert!(problem.detail.contains("openapi"), "{}", problem.detail);
    }
    let unknown = send(JSON, "{\"timeout\":1}").await.problem(Code::BadRequest);
    assert!(unknown.detail.contains("`timeout`") && unknown.detail.contains("`timeout_ms`"), "{}", unknown.detail);
    send(JSON, &"[".repeat(100_000)).await.problem(Code::BadRequest);
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
        let problem = send(content_type, "{}").await.problem(Code::UnsupportedMediaType);
        assert!(problem.detail.contains("application/json"), "{}", problem.detail);
    }
    let compressed = |coding| {
        let request = node.request(Method::POST, "/v1/sessions").header(header::CONTENT_TYPE, JSON);
        request.header(header::CONTENT_ENCODING, coding).body("{}").send()
    };
    for coding in ["gzip", "br", "gzip, identity"] {
        let problem = Got::of(compressed(coding).await.unwrap()).await.problem(Code::UnsupportedMediaType);
        assert!(problem.detail.contains(coding) && problem.detail.contains("Content-Encoding"), "{}", problem.detail);
    }
    assert_eq!(node.zxid().await, before, "nothing changed");
    assert_eq!(compressed("identity").await.unwrap().status(), StatusCode::CREATED);
    assert_eq!(send("application/json; charset=utf-8", "{}").await.status, StatusCode::CREATED);
    let without = node.call(Method::POST, "/v1/sessions", None, None).await;
    assert_eq!(without.status, StatusCode::CREATED, "every field is optional, so no body is needed");
}

#[tokio::test]
async fn ten_megabytes() {
    let node = Cluster::start(1).await;
    let before = node.zxid().await;
    let body = vec![b'x'; 10 * 1024 * 1024];
    let request = node.request(Method::POST, "/v1/nodes/big").header(header::CONTENT_TYPE, "application/json");
    let problem = Got::of(request.body(body.clone()).send().await.unwrap()).await.problem(Code::TooLarge);
    assert!(problem.detail.contains("limits.body_bytes"), "{}", problem.detail);
    // The same without Content-Length.
    let chunks = futures::stream::iter(
        body.chunks(65_536).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect::<Vec<_>>(),
    );
    let request = node.request(Method::POST, "/v1/nodes/big").header(header::CONTENT_TYPE, "application/json");
    Got::of(request.body(reqwest::Body::wrap_stream(chunks)).send().await.unwrap()).await.problem(Code::TooLarge);
    // A client that sends `Expect: 100-continue` is refused at once.
    let ask = "POST /v1/nodes/big HTTP/1.1\r\nhost: x\r\ncontent-length: 10485760\r\nexpect: 100-continue\r\n\
               content-type: application/json\r\n\r\n";
    let reply = node.raw(ask.as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    assert_eq!(problem_in(&reply).code, Code::TooLarge);
    assert_eq!(node.zxid().await, before, "nothing changed");
}

#[tokio::test]
async fn paths() {
    let node = Cluster::start(1).await;
    let before = node.zxid().await;
    // As bytes on the wire: HTTP clients tidy paths before they send them.
    let send = async |method: &str, path: &str| {
        let body = if method == "POST" { "content-type: application/json\r\ncontent-length: 2\r\n" } else { "" };
        let end = if method == "POST" { "{}" } else { "" };
        let text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{body}\r\n{end}");
        problem_in(&node.raw(text.as_bytes()).await)
    };
    for path in [
        "/v1/nodes/a/../b",
        "/v1/nodes/%2e%2e/x",
        "/v1/nodes//a",
        "/v1/nodes/a%2F",
        "/v1/nodes/a%00b",
        "/v1/nodes/%zz",
        "/v1/locks/a/../../b",
        "/v1/locks/..",
        &format!("/v1/nodes/{}", "x".repeat(256)),
        &format!("/v1/nodes{}", "/x".repeat(513)),
        &format!("/v1/locks/{}", "x/".repeat(480)),
    ] {
        let problem = send("GET", path).await;
        assert_eq!(problem.code, Code::BadPath, "{path}: {problem}");
    }
    for path in ["/v1/locks//acquire", "/v1/locks/../acquire", "/v1/locks/a//acquire", "/v1/nodes/a/../b"] {
        assert_eq!(send("POST", path).await.code, Code::BadPath, "{path}");
    }
    // Bytes that are not UTF-8.
    assert_eq!(send("GET", "/v1/nodes/%ff").await.status, 400);
    // Decoded once, not twice: this is the node named `%2e%2e`.
    assert_eq!(send("GET", "/v1/nodes/%252e%252e").await.code, Code::NoNode);
    assert_eq!(node.zxid().await, before, "nothing changed");
}

#[tokio::test]
async fn queries_and_headers() {
    let node = Cluster::start(1).await;
    let session = node.session(60_000).await;
    let before = node.zxid().await;
    for path in [
        "/v1/nodes/?childen=true",
        "/v1/nodes/?children=maybe",
        "/v1/nodes/?children=true&children=true",
        "/v1/nodes/?consistency=eventual",
        "/v1/sessions?limit=0",
        "/v1/sessions?limit=1001",
        "/v1/sessions?limit=x",
        "/v1/sessions?after=-1",
        "/v1/locks?limit=99999999999999999999",
        "/v1/watch?path=%2F&recursive=2",
        "/v1/watch",
        "/v1/watch?path=/&from=x",
        "/v1/sessions/x",
        "/v1/sessions/-1",
        "/v1/cluster?checksum=1",
    ] {
        node.get(path).await.problem(Code::BadRequest);
    }
    for path in ["/v1/locks?after=..", "/v1/watch?path=", "/v1/watch?path=a"] {
        node.get(path).await.problem(Code::BadPath);
    }
    node.call(Method::DELETE, "/v1/nodes/x?version=x", None, None).await.problem(Code::BadRequest);
    node.call(Method::DELETE, "/v1/nodes/x?version=99999999999", None, None).await.problem(Code::BadRequest);
    let with = async |headers: &[(&str, &str)]| {
        let mut request = node.request(Method::POST, "/v1/nodes/x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Got::of(request.send().await.unwrap()).await
    };
    let (credential, id) = (session.credential.as_str(), "7b0d4f8e-3c52-4a53-9d46-0f3a6f5d2f11");
    with(&[("lockkeeper-session", credential), ("lockkeeper-session", credential)]).await.problem(Code::BadRequest);
    with(&[("lockkeeper-session", credential), ("lockkeeper-request-id", "seven")]).await.problem(Code::BadRequest);
    with(&[("lockkeeper-request-id", id)]).await.problem(Code::SessionRequired);
    with(&[("lockkeeper-session", credential), ("lockkeeper-acknowledge", id)]).await.problem(Code::BadRequest);
    let bad_list =
        [("lockkeeper-session", credential), ("lockkeeper-request-id", id), ("lockkeeper-acknowledge", "a,b")];
    with(&bad_list).await.problem(Code::BadRequest);
    let long_list = vec![id; 257].join(",");
    let long_list =
        [("lockkeeper-session", credential), ("lockkeeper-request-id", id), ("lockkeeper-acknowledge", &long_list)];
    with(&long_list).await.problem(Code::BadRequest);
    for limit in ["0", "600001", "-1", "2.5", "soon", "99999999999999999999"] {
        let problem = with(&[("lockkeeper-timeout-ms", limit)]).await.problem(Code::BadRequest);
        assert!(problem.detail.contains("Lockkeeper-Timeout-Ms"), "{problem}");
    }
    with(&[("lockkeeper-timeout-ms", "5"), ("lockkeeper-timeout-ms", "5")]).await.problem(Code::BadRequest);
    let large = "x".repeat(17_000);
    let problem = with(&[("x-large", &large)]).await.problem(Code::HeaderTooLarge);
    assert!(problem.detail.contains("limits.header_bytes"), "{}", problem.detail);
    assert_eq!(with(&[("x-large", &"x".repeat(100_000))]).await.status.as_u16(), 431);
    assert_eq!(node.zxid().await, before, "nothing changed");
}

#[tokio::test]
async fn nowhere_and_wrong_methods() {
    let node = Cluster::start(1).await;
    for path in ["/", "/v1", "/v2/locks", "/v1/nodesx", "/v1/sessions/1/2/3", "/admin", "/v1/cluster/members/1/demote"]
    {
        let problem = node.get(path).await.problem(Code::NotFound);
        assert!(problem.detail.contains("openapi"), "{}", problem.detail);
    }
    for (method, path, allowed) in [
        (Method::PATCH, "/v1/nodes/a", "PUT"),
        (Method::GET, "/v1/txn", "POST"),
        (Method::DELETE, "/v1/locks/a", "GET"),
        (Method::PUT, "/v1/locks/a/acquire", "POST"),
        (Method::POST, "/healthz", "GET"),
        (Method::from_bytes(b"BREW").unwrap(), "/v1/sessions", "POST"),
    ] {
        let got = node.call(method, path, None, None).await;
        got.problem(Code::MethodNotAllowed);
        assert!(got.headers["allow"].to_str().unwrap().contains(allowed), "{:?}", got.headers);
    }
    assert_eq!(node.raw(b"nonsense\r\n\r\n").await.split(' ').nth(1), Some("400"));
    let json = json!({ "node_id": 0, "peer_address": "127.0.0.1:1" });
    node.post("/v1/cluster/members", None, json).await.problem(Code::BadRequest);
    for field in ["peer_address", "client_address", "zookeeper_address"] {
        let mut json = json!({ "node_id": 9, "peer_address": "127.0.0.1:1" });
        json[field] = "nowhere".into();
        let problem = node.post("/v1/cluster/members", None, json).await.problem(Code::BadRequest);
        assert!(problem.detail.contains(field), "{problem}");
    }
}
