//! Access control over HTTP and on the stream.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use lockkeeper_api::Code;
use lockkeeper_api::access::{Access, AccessAnswer, AccessChanged, WhoAmI};
use lockkeeper_api::locks::{Lock, Locks};
use lockkeeper_api::sessions::{SessionOpened, Sessions};
use lockkeeper_checkers::skip::skip;
use lockkeeper_server::config::AdminFrom;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::audit::{records, with_file};
use crate::harness::{Caller, Cluster, Got, PATIENCE, Running, eventually};
use crate::stream_client::StreamClient;

/// Enables access control; the first administrator's token.
pub(crate) async fn enable(node: &Caller) -> String {
    node.change(json!({ "enable": {} })).await.token.unwrap()
}

/// A token of a principal with one role of these rules.
pub(crate) async fn principal(node: &Caller, admin: &str, name: &str, rules: Value) -> AccessChanged {
    let admin = node.with(admin);
    admin.change(json!({ "put_role": { "name": name, "rules": rules } })).await;
    admin.change(json!({ "grant": { "principal": name, "role": name } })).await;
    admin.change(json!({ "create_token": { "principal": name } })).await
}

/// An address of this machine from which a client looks to a node at 127.0.0.1 as one on another machine does. `None`
/// where there are loopback addresses only; the test is skipped then.
fn elsewhere() -> Option<IpAddr> {
    let chosen = || {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        // Sends nothing: the system chooses the address from which it would.
        socket.connect("198.51.100.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|own| !own.is_loopback())
    };
    let found = chosen();
    if found.is_none() {
        skip("an address that is no loopback address");
    }
    found
}

#[tokio::test]
async fn while_it_is_off_only_the_nodes_own_machine_sets_it_up() {
    let Some(elsewhere) = elsewhere() else { return };
    let mut cluster = Cluster::start_with(1, with_file).await;
    let node = &mut cluster.nodes[0];
    node.call_from(Some(elsewhere));
    let nobody = node.caller.clone();
    let rules = json!([{ "resource": "cluster", "prefix": "", "rights": ["admin"] }]);
    let mine = hash("mine");
    let changes = [
        json!({ "enable": {} }),
        json!({ "put_role": { "name": "mine", "rules": rules } }),
        json!({ "grant": { "principal": "anyone", "role": "mine" } }),
        json!({ "create_token": { "principal": "admin", "token_hash": mine } }),
    ];
    for change in &changes {
        let refused = nobody.post("/v1/access", None, change.clone()).await.problem(Code::Forbidden);
        assert!(refused.detail.contains("admin.access_setup_from"), "{}", refused.detail);
    }
    let session = nobody.session(30_000).await;
    let mut stream = StreamClient::open(node, session.session_id, Some(&session.credential)).await.unwrap();
    for change in &changes {
        assert_eq!(stream.code(json!({ "change_access": { "body": change } })).await, "forbidden", "{change}");
    }
    let view: Access = nobody.get("/v1/access").await.json();
    assert!(!view.enabled && view.roles.is_empty() && view.tokens.is_empty(), "{view:?}");
    // A namespace is bounded by anybody, as before.
    nobody.change(json!({ "put_namespace": { "name": "orders", "limits": { "nodes": 5 } } })).await;
    node.call_from(None);
    let admin = enable(node).await;
    node.call_from(Some(elsewhere));
    node.with(&admin).change(json!({ "disable": {} })).await;
    node.post("/v1/access", None, json!({ "enable": {} })).await.problem(Code::Forbidden);
    node.with(&admin).change(json!({ "enable": {} })).await;
    // Nine refusals; a namespace, and three changes of the switch.
    let records = records(&cluster, 13).await;
    let refused = records.iter().filter(|record| record["method"] == "access_setup");
    assert_eq!(refused.count(), 9, "{records:?}");
}

#[tokio::test]
async fn the_configuration_may_let_it_be_set_up_from_anywhere() {
    let mut cluster = Cluster::start_with(1, |config| config.admin.access_setup_from = AdminFrom::Anywhere).await;
    let node = &mut cluster.nodes[0];
    let Some(elsewhere) = elsewhere() else { return };
    node.call_from(Some(elsewhere));
    enable(node).await;
}

#[tokio::test]
async fn it_is_off_by_default_and_can_be_prepared() {
    let node = Cluster::start(1).await;
    let nobody = node.caller.clone();
    let view: Access = nobody.get("/v1/access").await.json();
    assert!(!view.enabled && view.roles.is_empty() && view.tokens.is_empty());
    let made = principal(&node, "lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "p", json!([])).await;
    let token = made.token.unwrap();
    let me: WhoAmI = node.with(&token).get("/v1/access/me").await.json();
    assert_eq!((me.enabled, me.principals, me.roles), (false, vec!["p".to_owned()], vec!["p".to_owned()]));
    nobody.session(30_000).await;
    node.with(&token).session(30_000).await;
    let view: Access = nobody.get("/v1/access").await.json();
    assert_eq!(view.anonymous_sessions, 1);
    assert_eq!(view.tokens[0].id, made.token_id.unwrap());
    assert_eq!(view.tokens[0].id.len(), 16);
}

/// Lists are for whole parts of names; and only who may read the cluster learns what another may do.
#[tokio::test]
async fn a_list_has_the_locks_of_the_callers_names() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "locks", "prefix": "orders", "rights": ["acquire"] }]);
    let orders = principal(&node, &admin, "orders", rules).await.token.unwrap();
    let (orders, admin) = (node.with(&orders), node.with(&admin));
    for name in ["orders", "orders/42"] {
        let held = orders.post(&format!("/v1/locks/{name}/acquire"), None, json!({ "ttl_ms": 5_000 })).await;
        assert_eq!(held.status, StatusCode::OK, "{}", held.text);
    }
    let listed: Value = orders.get("/v1/locks?prefix=orders").await.json();
    assert_eq!(listed["locks"].as_array().unwrap().len(), 2, "{listed}");
    orders.get("/v1/locks?prefix=ord").await.problem(Code::Forbidden);
    let of_another = "/v1/access/check?resource=locks&name=orders&right=acquire&principal=orders";
    orders.get(of_another).await.problem(Code::Forbidden);
    let answer: AccessAnswer = admin.get(of_another).await.json();
    assert_eq!((answer.allowed, answer.role.as_deref()), (true, Some("orders")));
}

#[tokio::test]
async fn what_is_no_token_is_refused_as_such() {
    let node = Cluster::start(1).await;
    for wrong in ["lk_short", "lk_!AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "lk_"] {
        let refused = node.with(wrong).get("/v1/access/me").await.problem(Code::Unauthenticated);
        assert!(!refused.detail.contains(wrong) || wrong == "lk_", "{}", refused.detail);
    }
    node.with("a.token.of.a.proxy").get("/v1/access/me").await.json::<WhoAmI>();
}

#[tokio::test]
async fn a_token_in_a_url_is_refused_with_the_reason_wherever_it_is() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    for url in [
        format!("/v1/access/me?token={admin}"),
        format!("/v1/locks?prefix=a&access_token={admin}"),
        "/v1/access/me?access_token=x".to_owned(),
        format!("/v1/watch?path=/&authorization={admin}"),
        format!("/v1/sessions/1/stream?t={admin}"),
        format!("/nowhere?token={admin}"),
    ] {
        let detail = node.get(&url).await.problem(Code::BadRequest).detail;
        assert!(detail.contains("in a URL") && detail.contains("revoke"), "{url}: {detail}");
        assert!(!detail.contains(&admin), "{detail}");
    }
    // Names that merely look like one.
    node.with(&admin).get("/v1/locks?prefix=bulk_lk_x").await.json::<Value>();
}

#[tokio::test]
async fn an_enormous_authorization_header_is_refused_and_the_node_goes_on() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    for header in [format!("Bearer lk_{}", "A".repeat(17_000)), format!("Basic {}", "QUFB".repeat(4_500))] {
        let request = node.request(Method::GET, "/v1/access/me").header("authorization", &header);
        let problem = Got::of(request.send().await.unwrap()).await.problem(Code::HeaderTooLarge);
        assert!(problem.detail.contains("limits.header_bytes") && !problem.detail.contains("AAAA"), "{problem}");
    }
    let request = node.request(Method::GET, "/v1/access/me").header("authorization", "x".repeat(200_000));
    assert_eq!(request.send().await.unwrap().status().as_u16(), 431);
    // One that fits, and is too long for a token.
    let long = format!("lk_{}", "A".repeat(10_000));
    node.with(&long).get("/v1/access/me").await.problem(Code::Unauthenticated);
    node.with(&admin).get("/v1/access/me").await.json::<WhoAmI>();
}

/// The hash of a token, as its owner tells it.
pub(crate) fn hash(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A watch without a session, which nothing else would end.
#[tokio::test]
async fn a_watch_ends_when_its_token_counts_no_more() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "nodes", "prefix": "/a", "rights": ["read"] }]);
    principal(&node, &admin, "watcher", rules).await;
    let admin = node.with(&admin);
    let token = async |ttl_s: Value| -> AccessChanged {
        admin.change(json!({ "create_token": { "principal": "watcher", "ttl_s": ttl_s } })).await
    };
    let watch = async |token: &AccessChanged| {
        let path = "/v1/watch?path=/a&recursive=true";
        let request = node.request(Method::GET, path).bearer_auth(token.token.as_ref().unwrap());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response
    };
    let (revoked, expiring, other) = (token(Value::Null).await, token(json!(5)).await, token(Value::Null).await);
    let (of_revoked, of_expiring, of_other) = (watch(&revoked).await, watch(&expiring).await, watch(&other).await);
    let began = Instant::now();
    admin.change(json!({ "revoke_token": { "id": revoked.token_id.unwrap() } })).await;
    // Read to its end: the server closes it.
    let last = timeout(PATIENCE, of_revoked.text()).await.expect("it ends").unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(last.contains("event: ended") && last.contains("\"unauthenticated\""), "{last}");
    assert!(!last.contains("\nid:"), "nothing is to be resumed: {last}");
    let last = timeout(PATIENCE, of_expiring.text()).await.expect("it ends").unwrap();
    assert!(last.contains("event: ended"), "{last}");

    // A right that is taken away, of a token that counts.
    admin.change(json!({ "revoke": { "principal": "watcher", "role": "watcher" } })).await;
    let last = timeout(PATIENCE, of_other.text()).await.expect("it ends").unwrap();
    assert!(last.contains("event: ended") && last.contains("\"forbidden\""), "{last}");
}

#[tokio::test]
async fn an_expired_token_counts_no_more() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "locks", "rights": ["acquire"] }]);
    principal(&node, &admin, "worker", rules).await;
    let admin = node.with(&admin);
    let made = admin.change(json!({ "create_token": { "principal": "worker", "ttl_s": 1 } })).await;
    let token = made.token.unwrap();
    let session = node.with(&token).session(30_000).await;
    node.with(&token).post("/v1/locks/l/acquire", Some(&session.credential), json!({})).await.json::<Value>();
    eventually("the end of its session", async || {
        let listed: Value = admin.get("/v1/sessions").await.json();
        listed["sessions"].as_array().unwrap().is_empty()
    })
    .await;
    node.with(&token).get("/v1/locks/l").await.problem(Code::Unauthenticated);
}

#[tokio::test]
async fn the_super_user_of_a_node_is_the_way_back() {
    // super:superpw
    let node = Cluster::start_with(1, |config| config.admin.super_digest = "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=".into());
    let node = node.await;
    enable(&node).await;
    let create = json!({ "create_token": { "principal": "admin" } });
    let request = node.request(Method::POST, "/v1/access").basic_auth("super", Some("wrong")).json(&create);
    Got::of(request.send().await.unwrap()).await.problem(Code::Forbidden);
    let request = node.request(Method::POST, "/v1/access").basic_auth("super", Some("superpw")).json(&create);
    let made: AccessChanged = Got::of(request.send().await.unwrap()).await.json();
    node.with(&made.token.unwrap()).get("/v1/access").await.json::<Access>();
}

/// The beginning of the hour of each token's last use, by the id of the token.
async fn uses(node: &Running, admin: &str, id: &str) -> Option<u64> {
    let view: Access = node.with(admin).get("/v1/access").await.json();
    view.tokens.iter().find(|token| token.id == id).unwrap().last_used_ms
}

#[tokio::test]
async fn every_node_shows_when_a_token_was_last_used() {
    let cluster = Cluster::start(3).await;
    let admin = enable(&cluster).await;
    // Without a role it may do nothing, and writes nothing; that it is shown is recorded all the same.
    let made = cluster.with(&admin).change(json!({ "create_token": { "principal": "idle" } })).await;
    let (token, id) = (made.token.unwrap(), made.token_id.unwrap());
    let unused = cluster.with(&admin).change(json!({ "create_token": { "principal": "idle" } })).await;
    let unused = unused.token_id.unwrap();
    assert_eq!(uses(&cluster, &admin, &id).await, None);
    let unknown = "lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    cluster.nodes[1].with(unknown).get("/v1/locks").await.problem(Code::Unauthenticated);
    cluster.nodes[1].with(&token).get("/v1/locks").await.problem(Code::Forbidden);
    for node in &cluster.nodes {
        eventually("the record of the use", async || uses(node, &admin, &id).await.is_some()).await;
    }
    let used = uses(&cluster, &admin, &id).await.unwrap();
    assert_eq!(used % 3_600_000, 0, "no more than the hour");
    let view: Access = cluster.with(&admin).get("/v1/access").await.json();
    assert_eq!(view.tokens.len(), 3, "an unknown token leaves no trace");
    assert!(used.abs_diff(view.tokens[0].created_ms) < 2 * 3_600_000, "by the replicated clock");
    assert_eq!(uses(&cluster, &admin, &unused).await, None);
}

#[tokio::test]
async fn locks_and_sessions_name_the_principal_of_their_owner() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "locks", "prefix": "", "rights": ["read", "acquire"] }]);
    let billing = principal(&node, &admin, "billing", rules).await;
    let token = billing.token.unwrap();
    let billing_calls = node.with(&token);
    let session = billing_calls.session(30_000).await;
    let held = billing_calls.post("/v1/locks/orders/1/acquire", Some(&session.credential), json!({})).await;
    assert_eq!(held.status, StatusCode::OK, "{}", held.text);
    let lock: Lock = billing_calls.get("/v1/locks/orders/1").await.json();
    assert_eq!(lock.holders[0].principal.as_deref(), Some("billing"));
    let locks: Locks = billing_calls.get("/v1/locks").await.json();
    assert_eq!(locks.locks[0].holder.as_ref().unwrap().principal.as_deref(), Some("billing"));
    // Of a user of the digest scheme only the name is shown.
    let digest = |method, path: &str| node.request(method, path).basic_auth("alice", Some("secret"));
    let me: WhoAmI = Got::of(digest(Method::GET, "/v1/access/me").send().await.unwrap()).await.json();
    let admin = node.with(&admin);
    admin.change(json!({ "grant": { "principal": me.principals[0], "role": "billing" } })).await;
    let opened = digest(Method::POST, "/v1/sessions").json(&json!({})).send().await.unwrap();
    let opened: SessionOpened = Got::of(opened).await.json();
    let shown: Sessions = admin.get("/v1/sessions").await.json();
    let principal = |id| shown.sessions.iter().find(|one| one.session_id == id).unwrap().principal.clone();
    assert_eq!(principal(opened.session_id).as_deref(), Some("digest:alice"));
    assert_eq!(principal(session.session_id).as_deref(), Some("billing"));
    let refused = digest(Method::POST, "/v1/locks/orders/1/acquire").header("lockkeeper-session", &opened.credential);
    let refused = Got::of(refused.json(&json!({})).send().await.unwrap()).await.problem(Code::LockBusy);
    assert_eq!(refused.holders[0].principal.as_deref(), Some("billing"));
}
