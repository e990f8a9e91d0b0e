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
use crate::harness::{Cluster, Got, PATIENCE, Running, eventually};
use crate::stream_client::StreamClient;

/// Calls with a token.
pub(crate) struct As<'a> {
    pub(crate) node: &'a Running,
    pub(crate) token: Option<&'a str>,
}

impl As<'_> {
    pub(crate) async fn call(&self, method: Method, path: &str, session: Option<&str>, body: Option<Value>) -> Got {
        let mut request = self.node.request(method, path);
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some(session) = session {
            request = request.header("lockkeeper-session", session);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        Got::of(request.send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.call(Method::GET, path, None, None).await
    }

    pub(crate) async fn post(&self, path: &str, session: Option<&str>, body: Value) -> Got {
        self.call(Method::POST, path, session, Some(body)).await
    }

    pub(crate) async fn change(&self, change: Value) -> AccessChanged {
        self.post("/v1/access", None, change).await.json()
    }

    pub(crate) async fn session(&self) -> SessionOpened {
        self.post("/v1/sessions", None, json!({})).await.json()
    }
}

pub(crate) fn with<'a>(node: &'a Running, token: &'a str) -> As<'a> {
    As { node, token: Some(token) }
}

/// Enables access control; the first administrator's token.
pub(crate) async fn enable(node: &Running) -> String {
    As { node, token: None }.change(json!({ "enable": {} })).await.token.unwrap()
}

/// A token of a principal with one role of these rules.
pub(crate) async fn principal(node: &Running, admin: &str, name: &str, rules: Value) -> AccessChanged {
    let admin = with(node, admin);
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
    let nobody = As { node, token: None };
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
    let session = nobody.session().await;
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
    with(node, &admin).change(json!({ "disable": {} })).await;
    As { node, token: None }.post("/v1/access", None, json!({ "enable": {} })).await.problem(Code::Forbidden);
    with(node, &admin).change(json!({ "enable": {} })).await;
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
    let nobody = As { node: &node, token: None };
    let view: Access = nobody.get("/v1/access").await.json();
    assert!(!view.enabled && view.roles.is_empty() && view.tokens.is_empty());
    let made = principal(&node, "lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "p", json!([])).await;
    let token = made.token.unwrap();
    let me: WhoAmI = with(&node, &token).get("/v1/access/me").await.json();
    assert_eq!((me.enabled, me.principals, me.roles), (false, vec!["p".to_owned()], vec!["p".to_owned()]));
    nobody.session().await;
    with(&node, &token).session().await;
    let view: Access = nobody.get("/v1/access").await.json();
    assert_eq!(view.anonymous_sessions, 1);
    assert_eq!(view.tokens[0].id, made.token_id.unwrap());
    assert_eq!(view.tokens[0].id.len(), 16);
}

#[tokio::test]
async fn without_a_right_nothing_is_done() {
    let node = Cluster::start(1).await;
    let before = node.session(60_000).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "locks", "prefix": "orders", "rights": ["acquire"] }]);
    let orders = principal(&node, &admin, "orders", rules).await.token.unwrap();
    let nobody = As { node: &node, token: None };
    let calls: [(Method, &str, Value); 14] = [
        (Method::POST, "/v1/sessions", json!({})),
        (Method::GET, "/v1/sessions", Value::Null),
        (Method::GET, "/v1/locks", Value::Null),
        (Method::GET, "/v1/locks/other", Value::Null),
        (Method::POST, "/v1/locks/other/acquire", json!({ "ttl_ms": 1_000 })),
        (Method::POST, "/v1/locks/other/verify", json!({ "token": 1 })),
        (Method::DELETE, "/v1/locks/orders/holders/1", Value::Null),
        (Method::GET, "/v1/nodes/a", Value::Null),
        (Method::POST, "/v1/nodes/a", json!({})),
        (Method::POST, "/v1/txn", json!({ "operations": [{ "op": "check", "path": "/" }] })),
        (Method::GET, "/v1/watch?path=/", Value::Null),
        (Method::GET, "/v1/cluster", Value::Null),
        (Method::POST, "/v1/cluster/transfer", json!({})),
        (Method::POST, "/v1/access", json!({ "disable": {} })),
    ];
    let unknown = "lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (method, path, body) in calls {
        let body = Some(body).filter(|body| !body.is_null());
        nobody.call(method.clone(), path, None, body.clone()).await.problem(Code::Unauthenticated);
        with(&node, unknown).call(method.clone(), path, None, body.clone()).await.problem(Code::Unauthenticated);
        if path != "/v1/sessions" || method != Method::POST {
            let refused = with(&node, &orders).call(method.clone(), path, None, body).await;
            let detail = refused.problem(Code::Forbidden).detail;
            assert!(detail.contains("orders"), "{method} {path}: {detail}");
        }
    }
    let stranger = Some(before.credential.as_str());
    nobody.post("/v1/locks/orders/acquire", stranger, json!({})).await.problem(Code::Unauthenticated);
    for open in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/access/me"] {
        assert_eq!(nobody.get(open).await.status, StatusCode::OK, "{open}");
    }
}

#[tokio::test]
async fn a_right_is_for_its_names_alone() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "locks", "prefix": "orders", "rights": ["acquire"] }]);
    let orders = principal(&node, &admin, "orders", rules).await.token.unwrap();
    let orders = with(&node, &orders);
    let session = orders.session().await;
    let own = Some(session.credential.as_str());
    for name in ["orders", "orders/42"] {
        let held = orders.post(&format!("/v1/locks/{name}/acquire"), own, json!({})).await;
        let token = held.json::<Value>()["token"].clone();
        orders.post(&format!("/v1/locks/{name}/verify"), None, json!({ "token": token })).await.json::<Value>();
        orders.get(&format!("/v1/locks/{name}")).await.json::<Value>();
    }
    orders.post("/v1/locks/orders2/acquire", own, json!({})).await.problem(Code::Forbidden);
    let with_ttl = orders.post("/v1/locks/orders/1/acquire", None, json!({ "ttl_ms": 5_000 })).await;
    assert_eq!(with_ttl.status, StatusCode::OK, "{}", with_ttl.text);
    let listed: Value = orders.get("/v1/locks?prefix=orders").await.json();
    assert_eq!(listed["locks"].as_array().unwrap().len(), 3, "{listed}");
    orders.get("/v1/locks?prefix=ord").await.problem(Code::Forbidden);
    orders.get(&format!("/v1/sessions/{}", session.session_id)).await.json::<Value>();
    let ask = async |caller: &As<'_>, query: &str| -> AccessAnswer {
        caller.get(&format!("/v1/access/check?{query}")).await.json()
    };
    let answer = ask(&orders, "resource=locks&name=orders/7&right=acquire").await;
    assert_eq!((answer.allowed, answer.role.as_deref()), (true, Some("orders")));
    assert!(!ask(&orders, "resource=locks&name=orders/7&right=force").await.allowed);
    orders.get("/v1/access/check?resource=locks&right=read&principal=admin").await.problem(Code::Forbidden);
    let admin = with(&node, &admin);
    assert!(ask(&admin, "resource=locks&name=orders&right=acquire&principal=orders").await.allowed);
    assert!(ask(&admin, "resource=cluster&right=admin").await.allowed);
    assert!(ask(&admin, "resource=cluster&right=backup").await.allowed, "as an administrator takes backups");
}

#[tokio::test]
async fn what_is_no_token_is_refused_as_such() {
    let node = Cluster::start(1).await;
    for wrong in ["lk_short", "lk_!AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "lk_"] {
        let refused = with(&node, wrong).get("/v1/access/me").await.problem(Code::Unauthenticated);
        assert!(!refused.detail.contains(wrong) || wrong == "lk_", "{}", refused.detail);
    }
    with(&node, "a.token.of.a.proxy").get("/v1/access/me").await.json::<WhoAmI>();
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
    with(&node, &admin).get("/v1/locks?prefix=bulk_lk_x").await.json::<Value>();
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
    with(&node, &long).get("/v1/access/me").await.problem(Code::Unauthenticated);
    with(&node, &admin).get("/v1/access/me").await.json::<WhoAmI>();
}

#[tokio::test]
async fn a_role_without_rules_gives_nothing() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let token = principal(&node, &admin, "guest", json!([])).await.token.unwrap();
    let guest = with(&node, &token);
    let me: WhoAmI = guest.get("/v1/access/me").await.json();
    assert_eq!(me.roles, ["guest"]);
    // A session is for everybody with a role, and is good for nothing.
    let session = guest.session().await;
    let own = Some(session.credential.as_str());
    guest.post("/v1/locks/l/acquire", own, json!({})).await.problem(Code::Forbidden);
    guest.post("/v1/gates/g/begin", own, json!({ "fingerprint": "f" })).await.problem(Code::Forbidden);
    guest.post("/v1/nodes/n", own, json!({})).await.problem(Code::Forbidden);
    for path in ["/v1/locks/l", "/v1/locks", "/v1/nodes/", "/v1/sessions", "/v1/cluster", "/v1/access"] {
        guest.get(path).await.problem(Code::Forbidden);
    }
    let grant = json!({ "grant": { "principal": "guest", "role": "admin" } });
    guest.post("/v1/access", None, grant).await.problem(Code::Forbidden);
    for resource in ["locks", "nodes", "gates", "sessions", "cluster"] {
        for right in ["read", "acquire", "write", "force", "admin"] {
            let query = format!("/v1/access/check?resource={resource}&right={right}");
            assert!(!guest.get(&query).await.json::<AccessAnswer>().allowed, "{query}");
        }
    }
}

/// At two nodes, with the version that both have read.
#[tokio::test]
async fn of_two_administrators_who_edit_one_role_at_once_one_is_refused() {
    let cluster = Cluster::start(3).await;
    let admin = enable(&cluster).await;
    let nodes = [with(&cluster.nodes[0], &admin), with(&cluster.nodes[1], &admin)];
    nodes[0].change(json!({ "put_role": { "name": "r", "rules": [] } })).await;
    for round in 0..5 {
        let view: Access = nodes[0].get("/v1/access").await.json();
        let version = view.roles.iter().find(|role| role.name == "r").unwrap().version;
        let put = |prefix: &str| {
            let rules = json!([{ "resource": "locks", "prefix": format!("{prefix}{round}"), "rights": ["read"] }]);
            json!({ "put_role": { "name": "r", "rules": rules, "version": version } })
        };
        let (one, other) =
            tokio::join!(nodes[0].post("/v1/access", None, put("a")), nodes[1].post("/v1/access", None, put("b")));
        let won = if one.status.is_success() { "a" } else { "b" };
        let lost = if one.status.is_success() { &other } else { &one };
        assert!(one.status.is_success() || other.status.is_success(), "{} {}", one.text, other.text);
        lost.problem(Code::BadVersion);
        let view: Access = nodes[1].get("/v1/access").await.json();
        let role = view.roles.iter().find(|role| role.name == "r").unwrap();
        assert_eq!(role.rules[0].prefix, format!("{won}{round}"));
    }
}

/// The hash of a token, as its owner tells it.
pub(crate) fn hash(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The caller draws the token, so that it has it even if the answer is lost.
#[tokio::test]
async fn a_caller_that_draws_its_token_may_repeat_the_call() {
    let cluster = Cluster::start(3).await;
    let (admin, worker) = (format!("lk_{}", "A".repeat(43)), format!("lk_{}", "w".repeat(42) + "A"));
    let enable = json!({ "enable": { "token_hash": hash(&admin) } });
    for node in &cluster.nodes {
        let made = As { node, token: None }.change(enable.clone()).await;
        assert_eq!((made.token, made.token_id.as_deref()), (None, Some(&hash(&admin)[..16])));
    }
    let stranger = json!({ "enable": { "token_hash": hash(&worker) } });
    cluster.post("/v1/access", None, stranger.clone()).await.problem(Code::Unauthenticated);
    let admin = with(&cluster, &admin);
    let there_is_one = admin.change(stranger).await;
    assert_eq!((there_is_one.token, there_is_one.token_id), (None, None), "there is an administrator already");
    admin.change(json!({ "put_role": { "name": "worker", "rules": [] } })).await;
    admin.change(json!({ "grant": { "principal": "worker", "role": "worker" } })).await;
    let create = json!({ "create_token": { "principal": "worker", "ttl_s": 3_600, "token_hash": hash(&worker) } });
    let (first, again) = (admin.change(create.clone()).await, admin.change(create).await);
    assert!(first == again && first.token.is_none(), "{first:?} {again:?}");
    with(&cluster, &worker).session().await;
    let of_another = json!({ "create_token": { "principal": "other", "ttl_s": 3_600, "token_hash": hash(&worker) } });
    admin.post("/v1/access", None, of_another).await.problem(Code::BadRequest);
    for wrong in [worker.as_str(), "", &hash(&worker).to_uppercase()] {
        let create = json!({ "create_token": { "principal": "worker", "token_hash": wrong } });
        let detail = admin.post("/v1/access", None, create).await.problem(Code::BadRequest).detail;
        assert!(detail.contains("SHA-256") && !detail.contains(&worker), "{detail}");
    }
    let view: Access = admin.get("/v1/access").await.json();
    assert_eq!(view.tokens.len(), 2);
}

#[tokio::test]
async fn a_session_is_useless_to_another_principal() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "locks", "rights": ["acquire", "read"] }]);
    let (victim, thief) =
        (principal(&node, &admin, "victim", rules.clone()).await, principal(&node, &admin, "thief", rules).await);
    let (victim, thief) = (victim.token.unwrap(), thief.token.unwrap());
    let session = with(&node, &victim).session().await;
    let stolen = Some(session.credential.as_str());
    let thief = with(&node, &thief);
    thief.post("/v1/locks/l/acquire", stolen, json!({})).await.problem(Code::Forbidden);
    let path = format!("/v1/sessions/{}", session.session_id);
    thief.call(Method::POST, &format!("{path}/keepalive"), stolen, None).await.problem(Code::Forbidden);
    thief.call(Method::DELETE, &path, stolen, None).await.problem(Code::Forbidden);
    node.call(Method::DELETE, &path, stolen, None).await.problem(Code::Unauthenticated);
    with(&node, &victim).call(Method::DELETE, &path, stolen, None).await.json::<Value>();
}

#[tokio::test]
async fn a_revoked_token_ends_what_it_began() {
    let cluster = Cluster::start(3).await;
    let admin = enable(&cluster).await;
    let rules = json!([{ "resource": "locks", "rights": ["acquire", "read"] }]);
    let made = principal(&cluster, &admin, "worker", rules).await;
    let token = made.token.unwrap();
    let session = with(&cluster, &token).session().await;
    let own = Some(session.credential.as_str());
    with(&cluster, &token).post("/v1/locks/l/acquire", own, json!({})).await.json::<Value>();
    with(&cluster, &admin).change(json!({ "revoke_token": { "id": made.token_id.unwrap() } })).await;
    let began = Instant::now();
    for node in &cluster.nodes {
        // A node that has not applied it yet applies it before it carries this out.
        with(node, &token).post("/v1/locks/m/acquire", own, json!({})).await.problem(Code::Unauthenticated);
    }
    let (admin, sessions) = (with(&cluster, &admin), "/v1/sessions");
    eventually("the end of its session", async || {
        let listed: Value = admin.get(sessions).await.json();
        listed["sessions"].as_array().unwrap().is_empty()
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let lock: Value = admin.get("/v1/locks/l").await.json();
    assert_eq!(lock["holders"], json!([]), "its lock is free");
}

/// A watch without a session, which nothing else would end.
#[tokio::test]
async fn a_watch_ends_when_its_token_counts_no_more() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let rules = json!([{ "resource": "nodes", "prefix": "/a", "rights": ["read"] }]);
    principal(&node, &admin, "watcher", rules).await;
    let admin = with(&node, &admin);
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
    let admin = with(&node, &admin);
    let made = admin.change(json!({ "create_token": { "principal": "worker", "ttl_s": 1 } })).await;
    let token = made.token.unwrap();
    let session = with(&node, &token).session().await;
    with(&node, &token).post("/v1/locks/l/acquire", Some(&session.credential), json!({})).await.json::<Value>();
    eventually("the end of its session", async || {
        let listed: Value = admin.get("/v1/sessions").await.json();
        listed["sessions"].as_array().unwrap().is_empty()
    })
    .await;
    with(&node, &token).get("/v1/locks/l").await.problem(Code::Unauthenticated);
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
    with(&node, &made.token.unwrap()).get("/v1/access").await.json::<Access>();
}

#[tokio::test]
async fn roles_are_changed_by_one_administrator_at_a_time() {
    let node = Cluster::start(1).await;
    let admin = enable(&node).await;
    let admin = with(&node, &admin);
    let put = |version: u64| json!({ "put_role": { "name": "r", "rules": [], "version": version } });
    admin.change(put(0)).await;
    admin.post("/v1/access", None, put(0)).await.problem(Code::BadVersion);
    let view: Access = admin.get("/v1/access").await.json();
    let role = view.roles.iter().find(|role| role.name == "r").unwrap();
    admin.change(put(role.version)).await;
    admin
        .post("/v1/access", None, json!({ "revoke_token": { "id": view.tokens[0].id } }))
        .await
        .problem(Code::Forbidden);
    admin.post("/v1/access", None, json!({ "delete_role": { "name": "none" } })).await.problem(Code::NotFound);
}

/// The beginning of the hour of each token's last use, by the id of the token.
async fn uses(node: &Running, admin: &str, id: &str) -> Option<u64> {
    let view: Access = with(node, admin).get("/v1/access").await.json();
    view.tokens.iter().find(|token| token.id == id).unwrap().last_used_ms
}

#[tokio::test]
async fn every_node_shows_when_a_token_was_last_used() {
    let cluster = Cluster::start(3).await;
    let admin = enable(&cluster).await;
    // Without a role it may do nothing, and writes nothing; that it is shown is recorded all the same.
    let made = with(&cluster, &admin).change(json!({ "create_token": { "principal": "idle" } })).await;
    let (token, id) = (made.token.unwrap(), made.token_id.unwrap());
    let unused = with(&cluster, &admin).change(json!({ "create_token": { "principal": "idle" } })).await;
    let unused = unused.token_id.unwrap();
    assert_eq!(uses(&cluster, &admin, &id).await, None);
    let unknown = "lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    with(&cluster.nodes[1], unknown).get("/v1/locks").await.problem(Code::Unauthenticated);
    with(&cluster.nodes[1], &token).get("/v1/locks").await.problem(Code::Forbidden);
    for node in &cluster.nodes {
        eventually("the record of the use", async || uses(node, &admin, &id).await.is_some()).await;
    }
    let used = uses(&cluster, &admin, &id).await.unwrap();
    assert_eq!(used % 3_600_000, 0, "no more than the hour");
    let view: Access = with(&cluster, &admin).get("/v1/access").await.json();
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
    let billing_calls = with(&node, &token);
    let session = billing_calls.session().await;
    let held = billing_calls.post("/v1/locks/orders/1/acquire", Some(&session.credential), json!({})).await;
    assert_eq!(held.status, StatusCode::OK, "{}", held.text);
    let lock: Lock = billing_calls.get("/v1/locks/orders/1").await.json();
    assert_eq!(lock.holders[0].principal.as_deref(), Some("billing"));
    let locks: Locks = billing_calls.get("/v1/locks").await.json();
    assert_eq!(locks.locks[0].holder.as_ref().unwrap().principal.as_deref(), Some("billing"));
    // Of a user of the digest scheme only the name is shown.
    let digest = |method, path: &str| node.request(method, path).basic_auth("alice", Some("secret"));
    let me: WhoAmI = Got::of(digest(Method::GET, "/v1/access/me").send().await.unwrap()).await.json();
    let admin = with(&node, &admin);
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
