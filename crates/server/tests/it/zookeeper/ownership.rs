//! Nodes of other sessions and of the service are protected on every path: HTTP, transactions, ZooKeeper's protocol and
//! its multi.

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquired, Lock};
use lockkeeper_zookeeper::request::{CreateRequest, PathVersion, SetAclRequest, SetDataRequest};
use lockkeeper_zookeeper::{Acl, ErrorCode, Id, MultiOp, MultiResult, Permissions, Reply, Request};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::client::Client;
use super::{cluster, cluster_with};
use crate::audit;
use crate::harness::{Cluster, Got};

const CONTAINER: i32 = 4;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const PERSISTENT_SEQUENTIAL: i32 = 2;
const SUPER_DIGEST: &str = "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=";

/// Acquires lock `x`.
async fn held(cluster: &Cluster) -> Acquired {
    let session = cluster.session(60_000).await;
    cluster.post("/v1/locks/x/acquire", Some(&session.credential), json!({"label": "holder"})).await.json()
}

fn list(scheme: &str, id: &str, permissions: Permissions) -> Acl {
    Acl { permissions, id: Id { scheme: scheme.into(), id: id.into() } }
}

fn set_acl(path: &str, acl: Acl) -> Request {
    Request::SetAcl(SetAclRequest { path: path.into(), acl: vec![acl], version: -1 })
}

async fn first_failure(client: &mut Client, op: MultiOp) -> ErrorCode {
    match client.ask(Request::Multi(vec![op])).await.unwrap() {
        Reply::Multi(results) => match results[..] {
            [MultiResult::Error(code)] => ErrorCode::from_number(code).unwrap(),
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_the_right_to_force_nobody_breaks_a_lock_on_any_path() {
    let cluster = cluster_with(1, |config| config.admin.allow_force_release = false).await;
    let grant = held(&cluster).await;
    let other = cluster.session(60_000).await;
    let stranger = Some(other.credential.as_str());
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let at = format!("/v1/nodes{}", grant.path);
    for credential in [None, stranger] {
        cluster.call(Method::DELETE, &at, credential, None).await.problem(Code::Forbidden);
        let txn = json!({"operations": [{"op": "delete", "path": grant.path}]});
        let refused = cluster.post("/v1/txn", credential, txn).await.problem(Code::TransactionFailed);
        assert_eq!(refused.cause, Some(Code::Forbidden));
        let label = json!({"data": {"text": "mallory"}});
        cluster.call(Method::PUT, &at, credential, Some(label)).await.problem(Code::Forbidden);
        let holder = format!("/v1/locks/x/holders/{}", grant.token);
        cluster.call(Method::DELETE, &holder, credential, None).await.problem(Code::Forbidden);
    }
    assert_eq!(client.delete(&grant.path).await, Err(ErrorCode::NoAuth));
    assert_eq!(client.set(&grant.path, b"mallory").await, Err(ErrorCode::NoAuth));
    assert_eq!(client.ask(set_acl(&grant.path, Acl::open())).await, Err(ErrorCode::NoAuth));
    let path = || grant.path.clone();
    let delete = MultiOp::Delete(PathVersion { path: path(), version: -1 });
    assert_eq!(first_failure(&mut client, delete).await, ErrorCode::NoAuth);
    let set = MultiOp::SetData(SetDataRequest { path: path(), data: None, version: -1 });
    assert_eq!(first_failure(&mut client, set).await, ErrorCode::NoAuth);
    assert!(cluster.verify("x", grant.token).await.held);
    let lock: Lock = cluster.get("/v1/locks/x").await.json();
    assert_eq!(lock.holders[0].label, "holder");
    // Its own session may, as Curator's and kazoo's do.
    let own =
        client.create("/locks/x/_c_8f14e45f-ceea-467f-a0b1-c8e5d3f90ab1-lock-", EPHEMERAL_SEQUENTIAL).await.unwrap();
    client.set(&own, b"renamed").await.unwrap();
    client.delete(&own).await.unwrap();
}

#[tokio::test]
async fn the_right_to_force_allows_only_deletion_as_a_forced_release() {
    let cluster = cluster_with(1, audit::with_file).await;
    let grant = held(&cluster).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let forced = async || -> u64 {
        let figures = cluster.get("/metrics").await.text;
        let line = figures.lines().find(|line| line.starts_with("lockkeeper_forced_releases_total "));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    assert_eq!(client.set(&grant.path, b"mallory").await, Err(ErrorCode::NoAuth));
    let nobodys = client.create("/locks/x/_c_8f14e45f-ceea-467f-a0b1-c8e5d3f90ab1-lock-", PERSISTENT_SEQUENTIAL).await;
    assert_eq!(nobodys, Err(ErrorCode::BadArguments));
    let over_http = json!({"sequential": true});
    cluster.post("/v1/nodes/locks/x/lock-", None, over_http).await.problem(Code::BadRequest);
    let before = forced().await;
    client.delete(&grant.path).await.unwrap();
    assert!(forced().await > before, "it is counted");
    let record = &audit::records(&cluster, 1).await[0];
    assert_eq!((&record["event"], &record["lock"]), (&json!("forced_release"), &json!("x")), "{record}");
    assert_eq!((&record["path"], &record["token"]), (&json!(grant.path), &json!(grant.token)), "{record}");
    assert!(record["session"].is_u64() && record["address"] == "127.0.0.1", "{record}");
    assert!(!cluster.verify("x", grant.token).await.held);
}

#[tokio::test]
async fn the_roots_of_the_services_trees_belong_to_the_super_user() {
    let cluster = cluster_with(1, |config| config.admin.super_digest = SUPER_DIGEST.into()).await;
    let mut eve = Client::open(cluster.zookeeper(0)).await;
    let eves = list("digest", "eve:x", Permissions::ALL);
    // The first to create them creates them open.
    let create = CreateRequest { path: "/locks".into(), data: None, acl: vec![eves.clone()], flags: 0 };
    eve.ask(Request::Create(create)).await.unwrap();
    for path in ["/", "/locks"] {
        assert_eq!(eve.ask(set_acl(path, eves.clone())).await, Err(ErrorCode::NoAuth), "{path}");
    }
    assert_eq!(eve.delete("/locks").await, Err(ErrorCode::NoAuth));
    cluster.call(Method::DELETE, "/v1/nodes/locks", None, None).await.problem(Code::Forbidden);
    let grant = held(&cluster).await;
    assert!(cluster.verify("x", grant.token).await.held);
    // The super user may. The root's ACL does not apply to locks and gates.
    let mut root = Client::open(cluster.zookeeper(0)).await;
    root.ask(super::access::auth("super:superpw")).await.unwrap();
    root.ask(set_acl("/", list("digest", "ops:x", Permissions::ALL))).await.unwrap();
    assert_eq!(eve.create("/more", 0).await, Err(ErrorCode::NoAuth));
    let session = cluster.session(60_000).await;
    let taken = cluster.post("/v1/locks/y/acquire", Some(&session.credential), json!({})).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.text);
    let begun = cluster.post("/v1/gates/g/begin", None, json!({"fingerprint": "f"})).await;
    assert_eq!(begun.status, StatusCode::OK, "{}", begun.text);
}

#[tokio::test]
async fn gates_are_created_and_changed_only_by_their_own_calls() {
    let cluster = cluster_with(1, |config| config.admin.allow_force_release = false).await;
    let begun = cluster.post("/v1/gates/pay/begin", None, json!({"fingerprint": "f"})).await;
    assert_eq!(begun.status, StatusCode::OK, "{}", begun.text);
    let mut client = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(client.delete("/gates/pay").await, Err(ErrorCode::NoAuth));
    assert_eq!(client.set("/gates/pay", b"x").await, Err(ErrorCode::NoAuth));
    assert_eq!(client.create("/gates/forged", 0).await, Err(ErrorCode::NoAuth));
    cluster.call(Method::DELETE, "/v1/nodes/gates/pay", None, None).await.problem(Code::Forbidden);
    let forged = json!({"data": {"text": "done"}, "kind": "ttl", "ttl_ms": 60_000});
    cluster.post("/v1/nodes/gates/forged", None, forged).await.problem(Code::Forbidden);
    cluster
        .post("/v1/gates/pay/finish", None, json!({"token": 999, "result": {"text": "x"}}))
        .await
        .problem(Code::GateNotPending);
}

/// Only bob may read the lock's directory; everybody may queue in it.
#[tokio::test]
async fn the_holder_is_hidden_from_those_who_may_not_read_the_lock() {
    let cluster = cluster(1).await;
    let mut bob = Client::open(cluster.zookeeper(0)).await;
    bob.ask(super::access::auth("bob:pw")).await.unwrap();
    for path in ["/locks", "/locks/secret"] {
        bob.create(path, CONTAINER).await.unwrap();
    }
    let everybody = list("world", "anyone", Permissions(4));
    let acl = vec![everybody, list("auth", "", Permissions::ALL)];
    bob.ask(Request::SetAcl(SetAclRequest { path: "/locks/secret".into(), acl, version: -1 })).await.unwrap();
    let session = cluster.session(60_000).await;
    let label = json!({"label": "alices payroll"});
    let held = cluster.post("/v1/locks/secret/deep/acquire", Some(&session.credential), label).await;
    let held: Acquired = held.json();
    let other = cluster.session(60_000).await;
    for ask in [json!({}), json!({"wait_ms": 50})] {
        let busy = cluster.post("/v1/locks/secret/deep/acquire", Some(&other.credential), ask).await;
        let problem = busy.problem(Code::LockBusy);
        assert!(problem.holders.is_empty() && !busy.text.contains("payroll"), "{}", busy.text);
    }
    cluster.get("/v1/locks/secret/deep").await.problem(Code::Forbidden);
    cluster.get(&format!("/v1/nodes{}", held.path)).await.problem(Code::Forbidden);
    let listed = cluster.get("/v1/locks").await.text;
    assert!(!listed.contains("payroll") && !listed.contains("deep"), "{listed}");
    let request = cluster.request(Method::GET, "/v1/locks/secret/deep").basic_auth("bob", Some("pw"));
    let lock: Lock = Got::of(request.send().await.unwrap()).await.json();
    assert_eq!(lock.holders[0].label, "alices payroll");
    // The session may release its own lock.
    let released =
        cluster.post("/v1/locks/secret/deep/release", Some(&session.credential), json!({"token": held.token}));
    assert_eq!(released.await.status, StatusCode::OK);
}

#[tokio::test]
async fn clients_with_incompatible_names_do_not_share_a_queue() {
    let cluster = cluster(1).await;
    held(&cluster).await;
    let mut kazoo = Client::open(cluster.zookeeper(0)).await;
    let own = "8f14e45fceea467fa0b1c8e5d3f90ab2__lock__";
    assert_eq!(kazoo.create(&format!("/locks/x/{own}"), EPHEMERAL_SEQUENTIAL).await, Err(ErrorCode::BadArguments));
    let c_recipe = kazoo.create("/locks/x/x-0000000000000007-", EPHEMERAL_SEQUENTIAL).await;
    assert_eq!(c_recipe, Err(ErrorCode::BadArguments));
    // The other direction: kazoo is in the queue first.
    kazoo.create("/locks/k", CONTAINER).await.unwrap();
    let node = kazoo.create(&format!("/locks/k/{own}"), EPHEMERAL_SEQUENTIAL).await.unwrap();
    let session = cluster.session(60_000).await;
    let mine = Some(session.credential.as_str());
    let refused =
        cluster.post("/v1/locks/k/acquire", mine, json!({"wait_ms": 5_000})).await.problem(Code::ForeignNames);
    assert!(refused.detail.contains("kazoo") && refused.detail.contains("locks.foreign_names"), "{}", refused.detail);
    let both = json!({"also": ["free"]});
    cluster.post("/v1/locks/k/acquire", mine, both).await.problem(Code::ForeignNames);
    kazoo.delete(&node).await.unwrap();
    assert_eq!(cluster.post("/v1/locks/k/acquire", mine, json!({})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn foreign_names_can_be_allowed() {
    let allow = |config: &mut lockkeeper_server::Config| {
        config.locks.foreign_names = lockkeeper_server::config::ForeignNames::Allow;
    };
    let cluster = cluster_with(1, allow).await;
    held(&cluster).await;
    let mut kazoo = Client::open(cluster.zookeeper(0)).await;
    kazoo.create("/locks/x/8f14e45fceea467fa0b1c8e5d3f90ab2__lock__", EPHEMERAL_SEQUENTIAL).await.unwrap();
}
