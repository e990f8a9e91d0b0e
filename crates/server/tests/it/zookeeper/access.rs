//! Access control lists, enforced over HTTP and over ZooKeeper's protocol.

use bytes::Bytes;
use futures::StreamExt;
use lockkeeper_api::Code;
use lockkeeper_zookeeper::request::{AddWatchRequest, AuthRequest, CreateRequest, SetAclRequest};
use lockkeeper_zookeeper::{Acl, ErrorCode, EventType, Id, Permissions, Reply, Request};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::client::Client;
use super::{cluster, cluster_with};
use crate::harness::{Cluster, Got};

pub(super) fn auth(credentials: &'static str) -> Request {
    Request::Auth(AuthRequest {
        auth_type: 0,
        scheme: "digest".into(),
        credentials: Bytes::from_static(credentials.as_bytes()),
    })
}

fn acl(scheme: &str, id: &str, permissions: Permissions) -> Acl {
    Acl { permissions, id: Id { scheme: scheme.into(), id: id.into() } }
}

/// Creates a node that only its creator may use.
async fn private(client: &mut Client, path: &str) {
    let create = CreateRequest {
        path: path.into(),
        data: Some(Bytes::from_static(b"secret")),
        acl: vec![acl("auth", "", Permissions::ALL)],
        flags: 0,
    };
    client.ask(Request::Create(create)).await.unwrap();
}

async fn over_http(cluster: &Cluster, method: Method, path: &str, user: Option<(&str, &str)>) -> Got {
    let mut request = cluster.request(method, path);
    if let Some((name, password)) = user {
        request = request.basic_auth(name, Some(password));
    }
    Got::of(request.send().await.unwrap()).await
}

#[tokio::test]
async fn a_node_is_read_and_written_by_those_in_its_acl() {
    let cluster = cluster(1).await;
    let mut bob = Client::open(cluster.zookeeper(0)).await;
    let mut eve = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(bob.ask(auth("bob:pw")).await, Ok(Reply::Empty));
    eve.ask(auth("eve:pw")).await.unwrap();
    private(&mut bob, "/bobs").await;
    assert_eq!(eve.data("/bobs").await, Err(ErrorCode::NoAuth));
    assert_eq!(eve.children("/bobs").await, Err(ErrorCode::NoAuth));
    assert_eq!(eve.set("/bobs", b"x").await, Err(ErrorCode::NoAuth));
    assert_eq!(eve.create("/bobs/child", 0).await, Err(ErrorCode::NoAuth));
    assert_eq!(eve.ask(Request::GetAcl("/bobs".into())).await, Err(ErrorCode::NoAuth));
    let open = SetAclRequest { path: "/bobs".into(), acl: vec![Acl::open()], version: -1 };
    assert_eq!(eve.ask(Request::SetAcl(open)).await, Err(ErrorCode::NoAuth));
    eve.exists("/bobs", false).await.unwrap();
    assert_eq!(bob.data("/bobs").await.unwrap(), "secret");
    bob.create("/bobs/child", 0).await.unwrap();
    // Deletion needs the right on the parent.
    assert_eq!(eve.delete("/bobs/child").await, Err(ErrorCode::NoAuth));
    bob.delete("/bobs/child").await.unwrap();
    eve.delete("/bobs").await.unwrap();
}

#[tokio::test]
async fn nobody_may_change_system_nodes() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(client.create("/zookeeper/mine", 0).await, Err(ErrorCode::NoAuth));
    for path in ["zookeeper", "zookeeper/mine"] {
        let create = cluster.request(Method::POST, &format!("/v1/nodes/{path}")).json(&json!({}));
        Got::of(create.send().await.unwrap()).await.problem(Code::Forbidden);
    }
    let txn = json!({"operations": [{"op": "create", "path": "/zookeeper"}]});
    cluster.post("/v1/txn", None, txn).await.problem(Code::Forbidden);
    assert_eq!(client.children("/").await.unwrap(), ["zookeeper"]);
}

#[tokio::test]
async fn sessions_and_gates_show_only_what_the_caller_may_read() {
    let cluster = cluster(1).await;
    let mut bob = Client::open(cluster.zookeeper(0)).await;
    bob.ask(auth("bob:pw")).await.unwrap();
    private(&mut bob, "/bobs").await;
    bob.create("/bobs/hidden", 1).await.unwrap();
    bob.create("/shown", 1).await.unwrap();
    let session = format!("/v1/sessions/{}", bob.session.session_id);
    let paths = async |path: &str, user| -> String { over_http(&cluster, Method::GET, path, user).await.text };
    for path in [session.as_str(), "/v1/sessions"] {
        let (nobody, owner) = (paths(path, None).await, paths(path, Some(("bob", "pw"))).await);
        assert!(nobody.contains("/shown") && !nobody.contains("/bobs/hidden"), "{nobody}");
        assert!(owner.contains("/shown") && owner.contains("/bobs/hidden"), "{owner}");
    }
    // Everybody may begin gates in this directory, but only bob may read them.
    bob.create("/gates", 4).await.unwrap();
    let lists = vec![acl("world", "anyone", Permissions(4)), acl("auth", "", Permissions::ALL)];
    let directory = CreateRequest { path: "/gates/d".into(), data: None, acl: lists, flags: 4 };
    bob.ask(Request::CreateContainer(directory)).await.unwrap();
    let begin = json!({"fingerprint": "f"});
    let begun: serde_json::Value = cluster.post("/v1/gates/d/g/begin", None, begin.clone()).await.json();
    over_http(&cluster, Method::GET, "/v1/gates/d/g", None).await.problem(Code::Forbidden);
    cluster.post("/v1/gates/d/g/begin", None, begin).await.problem(Code::Forbidden);
    let finish = json!({"token": begun["token"], "result": {"text": "secret"}});
    assert!(cluster.post("/v1/gates/d/g/finish", None, finish).await.status.is_success());
    over_http(&cluster, Method::GET, "/v1/gates/d/g", None).await.problem(Code::Forbidden);
    assert!(over_http(&cluster, Method::GET, "/v1/gates/d/g", Some(("bob", "pw"))).await.text.contains("secret"));
}

#[tokio::test]
async fn events_reach_only_those_who_may_read_the_node() {
    let cluster = cluster(1).await;
    let mut bob = Client::open(cluster.zookeeper(0)).await;
    let mut eve = Client::open(cluster.zookeeper(0)).await;
    bob.ask(auth("bob:pw")).await.unwrap();
    let recursive = || Request::AddWatch(AddWatchRequest { path: "/".into(), mode: 1 });
    for client in [&mut bob, &mut eve] {
        client.ask(recursive()).await.unwrap();
        client.exists("/bobs", true).await.unwrap_err();
    }
    let watch = cluster.request(Method::GET, "/v1/watch?path=/&recursive=true").send().await.unwrap();
    private(&mut bob, "/bobs").await;
    bob.set("/bobs", b"2").await.unwrap();
    bob.delete("/bobs").await.unwrap();
    bob.create("/everybodys", 0).await.unwrap();
    let seen = [EventType::NodeCreated, EventType::NodeDataChanged, EventType::NodeDeleted];
    let mut all = seen.map(|kind| (kind, "/bobs".to_owned())).to_vec();
    all.push((EventType::NodeCreated, "/everybodys".to_owned()));
    assert_eq!(bob.events, all);
    assert_eq!(eve.event().await, (EventType::NodeCreated, "/everybodys".into()), "and nothing before it");
    let mut text = String::new();
    let mut watch = watch.bytes_stream();
    while !text.contains("/everybodys") {
        text.push_str(std::str::from_utf8(&watch.next().await.unwrap().unwrap()).unwrap());
    }
    assert!(!text.contains("/bobs"), "{text}");
}

#[tokio::test]
async fn http_asks_for_the_same_credentials() {
    let cluster = cluster(1).await;
    let mut bob = Client::open(cluster.zookeeper(0)).await;
    bob.ask(auth("bob:pw")).await.unwrap();
    private(&mut bob, "/bobs").await;
    let right = Some(("bob", "pw"));
    for user in [None, Some(("bob", "wrong")), Some(("eve", "pw"))] {
        for path in ["/v1/nodes/bobs", "/v1/nodes/bobs?children=true&consistency=stale", "/v1/watch?path=/bobs"] {
            over_http(&cluster, Method::GET, path, user).await.problem(Code::Forbidden);
        }
        let request = cluster.request(Method::PUT, "/v1/nodes/bobs").json(&json!({"data": {"text": "x"}}));
        let request = match user {
            Some((name, password)) => request.basic_auth(name, Some(password)),
            None => request,
        };
        Got::of(request.send().await.unwrap()).await.problem(Code::Forbidden);
    }
    let node: serde_json::Value = over_http(&cluster, Method::GET, "/v1/nodes/bobs", right).await.json();
    assert_eq!(node["data"]["text"], "secret", "{node}");
    assert_eq!(node["acl"][0]["id"], "bob:ikIaKsbtGweaHnb/jKn7OHqbunM=", "the administrator sees the hash");
    let set = cluster
        .request(Method::PUT, "/v1/nodes/bobs")
        .basic_auth("bob", Some("pw"))
        .json(&json!({"data": {"text": "y"}}));
    assert_eq!(Got::of(set.send().await.unwrap()).await.status, StatusCode::OK);
    assert_eq!(bob.data("/bobs").await.unwrap(), "y");
    let bearer = cluster.request(Method::GET, "/v1/nodes/bobs").bearer_auth("token");
    Got::of(bearer.send().await.unwrap()).await.problem(Code::Forbidden);
    let broken = cluster.request(Method::GET, "/v1/nodes/bobs").header("authorization", "Basic !");
    Got::of(broken.send().await.unwrap()).await.problem(Code::BadRequest);
}

#[tokio::test]
async fn an_acl_set_over_http_holds_for_zookeeper_clients() {
    let cluster = cluster(1).await;
    let list = json!({"data": {"text": "d"}, "acl": [{"permissions": 31, "scheme": "auth", "id": ""}]});
    let create = cluster.request(Method::POST, "/v1/nodes/hers").json(&list);
    Got::of(create.send().await.unwrap()).await.problem(Code::InvalidAcl);
    let create = cluster.request(Method::POST, "/v1/nodes/hers").basic_auth("ann", Some("pw")).json(&list);
    assert_eq!(Got::of(create.send().await.unwrap()).await.status, StatusCode::CREATED);
    let mut ann = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(ann.data("/hers").await, Err(ErrorCode::NoAuth));
    ann.ask(auth("ann:pw")).await.unwrap();
    assert_eq!(ann.data("/hers").await.unwrap(), "d");
}

#[tokio::test]
async fn acls_by_address_and_the_super_user_whom_no_acl_stops() {
    let digest = "super:g9oN2HttPfn8MMWJZ2r45Np/LIA=";
    let cluster = cluster_with(1, |config| config.admin.super_digest = digest.into()).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let create = |path: &str, entry: Acl| {
        Request::Create(CreateRequest { path: path.into(), data: None, acl: vec![entry], flags: 0 })
    };
    client.ask(create("/near", acl("ip", "127.0.0.0/8", Permissions::ALL))).await.unwrap();
    client.ask(create("/far", acl("ip", "10.0.0.0/8", Permissions::ALL))).await.unwrap();
    client.data("/near").await.unwrap();
    assert_eq!(client.data("/far").await, Err(ErrorCode::NoAuth));
    client.ask(auth("super:superpw")).await.unwrap();
    client.data("/far").await.unwrap();
    let got = over_http(&cluster, Method::GET, "/v1/nodes/far", None).await;
    got.problem(Code::Forbidden);
    let got = over_http(&cluster, Method::GET, "/v1/nodes/far", Some(("super", "superpw"))).await;
    assert_eq!(got.status, StatusCode::OK);
}

#[tokio::test]
async fn wrong_credentials_close_the_connection() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let wrong = Request::Auth(AuthRequest { auth_type: 0, scheme: "magic".into(), credentials: Bytes::new() });
    assert_eq!(client.ask(wrong).await, Err(ErrorCode::AuthFailed));
    assert!(client.is_closed().await);
}

/// Roles stand above the lists of nodes: clients that have proved nothing may connect, and do nothing.
#[tokio::test]
async fn roles_are_enforced_for_clients_of_zookeeper() {
    let cluster = cluster(1).await;
    let admin = crate::access::enable(&cluster).await;
    let caller = cluster.with(&admin);
    let rules = json!([{ "resource": "locks", "prefix": "orders", "rights": ["acquire"] }]);
    caller.change(json!({ "put_role": { "name": "orders", "rules": rules } })).await;
    let mut bob = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(bob.create("/a", 0).await, Err(ErrorCode::NoAuth), "nobody");
    assert_eq!(bob.ask(auth("bob:pw")).await, Ok(Reply::Empty));
    assert_eq!(bob.create("/a", 0).await, Err(ErrorCode::NoAuth), "without a role");
    let named: lockkeeper_api::access::WhoAmI =
        Got::of(cluster.request(Method::GET, "/v1/access/me").basic_auth("bob", Some("pw")).send().await.unwrap())
            .await
            .json();
    assert!(named.principals[0].starts_with("digest:bob:"), "{named:?}");
    let grant = json!({ "grant": { "principal": named.principals[0], "role": "orders" } });
    caller.change(grant).await;
    for directory in ["/locks", "/locks/orders", "/locks/orders/42"] {
        if bob.exists(directory, false).await.is_err() {
            bob.create(directory, 0).await.unwrap();
        }
    }
    let mine = bob.create("/locks/orders/42/lock-", 3).await.unwrap();
    assert_eq!(bob.children("/locks/orders/42").await.unwrap().len(), 1);
    assert_eq!(bob.children("/locks").await, Err(ErrorCode::NoAuth), "other names");
    assert_eq!(bob.data("/locks").await, Err(ErrorCode::NoAuth));
    assert_eq!(bob.create("/locks/other", 0).await, Err(ErrorCode::NoAuth));
    assert_eq!(bob.data("/zookeeper/quota").await.map(drop), Ok(()));
    let mut eve = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(eve.exists(&mine, true).await, Err(ErrorCode::NoAuth));
    assert_eq!(eve.delete(&mine).await, Err(ErrorCode::NoAuth));
    assert_eq!(eve.data("/zookeeper/quota").await.map(drop), Err(ErrorCode::NoAuth));
    let revoke = json!({ "revoke": { "principal": named.principals[0], "role": "orders" } });
    caller.change(revoke).await;
    assert!(bob.is_closed().await, "its session ends with its last role");
}
