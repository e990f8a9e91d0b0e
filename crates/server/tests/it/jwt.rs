//! JWTs of an issuer as credentials, over HTTP and on the stream.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lockkeeper_api::Code;
use lockkeeper_api::access::WhoAmI;
use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_server::config::JwtSection;
use reqwest::{Method, StatusCode};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::enable;
use crate::harness::{Cluster, eventually};
use crate::stream_client::StreamClient;

/// An issuer with one P-256 key.
struct Issuer {
    id: &'static str,
    key: EcdsaKeyPair,
}

fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims(name: &str, lives_s: u64) -> Value {
    json!({ "iss": "https://issuer.example", "aud": "test", "sub": name, "exp": now_s() + lives_s })
}

impl Issuer {
    fn new(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random).unwrap();
        Self { id, key }
    }

    fn keys(&self) -> String {
        let point = self.key.public_key().as_ref();
        let (x, y) = (text(&point[1..33]), text(&point[33..]));
        json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y }] }).to_string()
    }

    fn sign(&self, header: Value, claims: &Value) -> String {
        let signed = format!("{}.{}", text(header.to_string().as_bytes()), text(claims.to_string().as_bytes()));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", text(signature.as_ref()))
    }

    fn jwt(&self, claims: &Value) -> String {
        self.sign(json!({ "alg": "ES256", "kid": self.id }), claims)
    }

    /// A directory with the file of its keys.
    fn published(&self) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        publish(directory.path(), &self.keys());
        directory
    }
}

/// Replaces the file of keys at once.
fn publish(directory: &Path, keys: &str) {
    std::fs::write(directory.join("new"), keys).unwrap();
    std::fs::rename(directory.join("new"), directory.join("jwks.json")).unwrap();
}

fn section() -> JwtSection {
    serde_json::from_value(json!({ "issuer": "https://issuer.example", "audience": "test", "leeway_s": 0 })).unwrap()
}

async fn start(keys: &Path) -> Cluster {
    let section = JwtSection { jwks_file: Some(keys.join("jwks.json")), ..section() };
    Cluster::start_with(1, |config| config.auth.jwt = Some(section.clone())).await
}

/// Gives the principal of a JWT a role with these rules.
async fn grant(cluster: &Cluster, admin: &str, name: &str, rules: Value) {
    let admin = cluster.with(admin);
    admin.change(json!({ "put_role": { "name": "role", "rules": rules } })).await;
    admin.change(json!({ "grant": { "principal": format!("jwt:{name}"), "role": "role" } })).await;
}

async fn proves(cluster: &Cluster, jwt: &str) -> bool {
    cluster.with(jwt).get("/v1/access/me").await.status == StatusCode::OK
}

#[tokio::test]
async fn a_role_lets_the_bearer_of_a_jwt_acquire_a_lock() {
    let issuer = Issuer::new("one");
    let published = issuer.published();
    let cluster = start(published.path()).await;
    let admin = enable(&cluster).await;
    grant(&cluster, &admin, "alice", json!([{ "resource": "locks", "prefix": "orders", "rights": ["acquire"] }])).await;
    let alice = issuer.jwt(&claims("alice", 300));
    let alice = cluster.with(&alice);
    let me: WhoAmI = alice.get("/v1/access/me").await.json();
    assert_eq!((me.principals, me.roles), (vec!["jwt:alice".to_owned()], vec!["role".to_owned()]));
    let session: SessionOpened = alice.post("/v1/sessions", None, json!({})).await.json();
    let own = Some(session.credential.as_str());
    alice.post("/v1/locks/orders/acquire", own, json!({})).await.json::<Value>();
    let refused = alice.post("/v1/locks/other/acquire", own, json!({})).await.problem(Code::Forbidden);
    assert!(refused.detail.contains("jwt:alice"), "{}", refused.detail);
    let bob = issuer.jwt(&claims("bob", 300));
    cluster.with(&bob).post("/v1/locks/orders/acquire", own, json!({})).await.problem(Code::Forbidden);
}

#[tokio::test]
async fn a_bad_jwt_does_nothing_and_is_not_repeated() {
    let issuer = Issuer::new("one");
    let published = issuer.published();
    let cluster = start(published.path()).await;
    let admin = enable(&cluster).await;
    grant(&cluster, &admin, "alice", json!([{ "resource": "locks", "rights": ["acquire"] }])).await;
    for (why, jwt) in [
        ("has expired", issuer.jwt(&claims("alice", 0))),
        ("no key of the issuer", Issuer::new("two").jwt(&claims("alice", 300))),
        ("nor a JWT", "no.jwt.atall".to_owned()),
    ] {
        let caller = cluster.with(&jwt);
        let refused = caller.post("/v1/locks/l/acquire", None, json!({ "ttl_ms": 60_000 })).await;
        let detail = refused.problem(Code::Unauthenticated).detail;
        assert!(detail.contains(why), "{why}: {detail}");
        assert!(!detail.contains(&jwt), "{detail}");
    }
    let lock: Value = cluster.with(&admin).get("/v1/locks").await.json();
    assert_eq!(lock["locks"], json!([]), "nothing was acquired");
}

#[tokio::test]
async fn a_stream_and_a_watch_end_with_their_jwt_and_the_session_lives_on() {
    let issuer = Issuer::new("one");
    let published = issuer.published();
    let cluster = start(published.path()).await;
    let admin = enable(&cluster).await;
    let rules = json!([
        { "resource": "locks", "rights": ["acquire"] },
        { "resource": "nodes", "rights": ["read"] },
    ]);
    grant(&cluster, &admin, "alice", rules).await;
    let (began, long) = (Instant::now(), issuer.jwt(&claims("alice", 300)));
    let long = cluster.with(&long);
    let opened: SessionOpened = long.post("/v1/sessions", None, json!({ "timeout_ms": 60_000 })).await.json();
    let short = issuer.jwt(&claims("alice", 6));
    let watch = cluster.request(Method::GET, "/v1/watch?path=/").bearer_auth(&short).send().await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    let (mut stream, _) = StreamClient::greeted_as(&cluster, &opened.credential, Some(&short)).await;
    let told = watch.text().await.unwrap();
    assert!(told.contains("watching") && told.contains("event: ended"), "{told}");
    let ended = stream.ended().await;
    assert_eq!(ended.code, Some(4_004), "{ended:?}");
    assert_eq!(ended.goodbye.unwrap()["code"], json!("unauthenticated"));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let own = Some(opened.credential.as_str());
    cluster.with(&short).post("/v1/locks/l/acquire", own, json!({})).await.problem(Code::Unauthenticated);
    long.post("/v1/locks/l/acquire", own, json!({})).await.json::<Value>();
}

/// Whoever waits for a lock with a JWT that expires meanwhile is not granted it.
#[tokio::test]
async fn nobody_is_granted_a_lock_by_a_jwt_that_has_expired() {
    let issuer = Issuer::new("one");
    let published = issuer.published();
    let cluster = start(published.path()).await;
    let admin = enable(&cluster).await;
    grant(&cluster, &admin, "alice", json!([{ "resource": "locks", "rights": ["acquire", "read"] }])).await;
    let long = issuer.jwt(&claims("alice", 300));
    let long = cluster.with(&long);
    let held = long.post("/v1/locks/l/acquire", None, json!({ "ttl_ms": 60_000 })).await;
    assert_eq!(held.status, StatusCode::OK, "{}", held.text);
    let short = issuer.jwt(&claims("alice", 6));
    let waits = json!({ "ttl_ms": 60_000, "wait_ms": 60_000 });
    let refused = cluster.with(&short).post("/v1/locks/l/acquire", None, waits).await.problem(Code::Unauthenticated);
    assert!(refused.detail.contains("while the request waited"), "{refused}");
    let lock: Value = long.get("/v1/locks/l").await.json();
    assert_eq!(lock["waiting"], 0, "it has left the queue: {lock}");
}

#[tokio::test]
async fn the_secret_of_a_session_alone_does_not_keep_it_alive() {
    let issuer = Issuer::new("one");
    let published = issuer.published();
    let cluster = start(published.path()).await;
    let admin = enable(&cluster).await;
    grant(&cluster, &admin, "alice", json!([{ "resource": "locks", "rights": ["acquire"] }])).await;
    let alice = issuer.jwt(&claims("alice", 300));
    let opened: SessionOpened =
        cluster.with(&alice).post("/v1/sessions", None, json!({ "timeout_ms": 1_000 })).await.json();
    let expired = issuer.jwt(&claims("alice", 0));
    let path = format!("/v1/sessions/{}/keepalive", opened.session_id);
    let credential = opened.credential.as_str();
    eventually("its end", async || {
        for caller in [cluster.caller.clone(), cluster.with(&expired)] {
            let own = Some(credential);
            let kept = caller.call(Method::POST, &path, own, None).await;
            let acquired = caller.post("/v1/locks/l/acquire", own, json!({})).await;
            assert!(!kept.status.is_success() && !acquired.status.is_success(), "{kept:?} {acquired:?}");
            caller.call(Method::GET, "/v1/access/me", own, None).await;
            assert!(StreamClient::open(&cluster, opened.session_id, own).await.is_err());
        }
        let listed: Value = cluster.with(&admin).get("/v1/sessions").await.json();
        listed["sessions"].as_array().unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn new_keys_in_the_file_are_used_and_bad_ones_are_not() {
    let (one, two) = (Issuer::new("one"), Issuer::new("two"));
    let published = one.published();
    let cluster = start(published.path()).await;
    let (of_one, of_two) = (one.jwt(&claims("alice", 300)), two.jwt(&claims("alice", 300)));
    assert!(proves(&cluster, &of_one).await && !proves(&cluster, &of_two).await);
    publish(published.path(), "no keys");
    eventually("the trouble to be shown", async || {
        cluster.get("/metrics").await.text.contains("lockkeeper_jwt_keys_failed 1")
    })
    .await;
    assert!(proves(&cluster, &of_one).await, "the former keys stay in use");
    publish(published.path(), &two.keys());
    eventually("the new keys", async || proves(&cluster, &of_two).await).await;
    assert!(!proves(&cluster, &of_one).await);
}

/// Serves what is in the cell as the body of each answer; an error of the server where it is empty.
fn serve_keys(body: Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let body = body.lock().unwrap().clone();
            let status = if body.is_empty() { "500 Internal Server Error" } else { "200 OK" };
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    url
}

#[tokio::test]
async fn keys_are_fetched_again_for_a_key_that_is_not_there() {
    let (one, two) = (Issuer::new("one"), Issuer::new("two"));
    let body = Arc::new(Mutex::new(one.keys()));
    let section = JwtSection { jwks_url: Some(serve_keys(body.clone())), ..section() };
    let cluster = Cluster::start_with(1, |config| config.auth.jwt = Some(section.clone())).await;
    let (of_one, of_two) = (one.jwt(&claims("alice", 300)), two.jwt(&claims("alice", 300)));
    eventually("the first fetch", async || proves(&cluster, &of_one).await).await;
    *body.lock().unwrap() = two.keys();
    assert!(!proves(&cluster, &of_two).await, "this asks for the next fetch, which comes after a pause");
    eventually("the second fetch", async || proves(&cluster, &of_two).await).await;
    body.lock().unwrap().clear();
    assert!(!proves(&cluster, &of_one).await);
    assert!(proves(&cluster, &of_two).await, "the last keys stay in use");
}
