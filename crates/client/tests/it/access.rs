//! Access control through the client library, against a cluster that enforces it.

use lockkeeper_client::api::Code;
use lockkeeper_client::api::access::{AccessChange, AccessChanged, AccessQuestion, Resource, Right, Rule};
use lockkeeper_client::{Client, Error, Options, Session, SessionOptions, Transport, WatchOptions};
use tokio::time::{Duration, sleep};

use crate::test_cluster::{TestCluster, soon};

fn with_token(test: &TestCluster, made: &AccessChanged) -> Client {
    let token = made.token.as_ref().unwrap().parse().unwrap();
    Client::new(test.cluster.endpoints(), Options { token: Some(token), ..Options::default() }).unwrap()
}

/// Enforces access control. Returns a client of its administrator.
async fn enforced(test: &TestCluster) -> Client {
    let made = soon(test.client.change_access(&AccessChange::Enable { token_hash: None })).await.unwrap();
    with_token(test, &made)
}

/// A client of the principal `billing`, which may acquire and read the locks below `orders`, and the id of its token.
async fn billing(test: &TestCluster, admin: &Client) -> (Client, String) {
    let rule = Rule { resource: Resource::Locks, prefix: "orders".into(), rights: vec![Right::Acquire, Right::Read] };
    let put = AccessChange::PutRole { name: "orders".into(), rules: vec![rule], version: Some(0) };
    soon(admin.change_access(&put)).await.unwrap();
    assert!(soon(admin.change_access(&put)).await.is_err(), "the role exists, and version 0 stands for none");
    let grant = AccessChange::Grant { principal: "billing".into(), role: "orders".into() };
    soon(admin.change_access(&grant)).await.unwrap();
    let token = AccessChange::CreateToken { principal: "billing".into(), ttl_s: Some(3_600), token_hash: None };
    let made = soon(admin.change_access(&token)).await.unwrap();
    (with_token(test, &made), made.token_id.unwrap())
}

fn question(right: Right, name: &str) -> AccessQuestion {
    AccessQuestion { resource: Resource::Locks, name: name.into(), right, principal: None, consistency: None }
}

async fn open(client: &Client, transport: Transport) -> Result<Session, Error> {
    soon(Session::open(client, &SessionOptions { transport, ..SessionOptions::default() })).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_may_do_what_a_rule_of_its_roles_allows() {
    let test = TestCluster::new().await;
    let admin = enforced(&test).await;
    let (billing, token_id) = billing(&test, &admin).await;
    let known = soon(billing.who_am_i()).await.unwrap();
    assert_eq!((known.principals, known.roles), (vec!["billing".to_owned()], vec!["orders".to_owned()]));
    for (right, name, allowed) in [
        (Right::Acquire, "orders", true),
        (Right::Acquire, "orders/42", true),
        (Right::Acquire, "orders2", false),
        (Right::Force, "orders/42", false),
    ] {
        let answer = soon(billing.check_access(&question(right, name))).await.unwrap();
        assert_eq!((answer.allowed, answer.role.is_some()), (allowed, allowed), "{right} {name}");
    }
    let mut of_another = question(Right::Admin, "");
    (of_another.resource, of_another.principal) = (Resource::Cluster, Some("admin".into()));
    assert!(soon(admin.check_access(&of_another)).await.unwrap().allowed);
    let error = soon(billing.check_access(&of_another)).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Forbidden), "to ask about another needs the right to read the cluster");

    for transport in [Transport::Stream, Transport::Http] {
        let session = open(&billing, transport).await.unwrap();
        soon(soon(session.lock("orders/42").lock()).await.unwrap().release()).await.unwrap();
        let error = soon(session.lock("invoices").lock()).await.err().unwrap();
        assert_eq!(error.code(), Some(Code::Forbidden), "{transport:?}: {error}");
        assert!(error.to_string().contains("acquire") && error.to_string().contains("invoices"), "{error}");
        let watched = soon(session.client().watch(WatchOptions::new("/config")).next()).await.unwrap();
        assert_eq!(watched.err().and_then(|error| error.code()), Some(Code::Forbidden), "{transport:?}");
        soon(session.close()).await.unwrap();
    }

    let access = soon(admin.access()).await.unwrap();
    assert!(access.enabled && access.roles.iter().any(|role| role.name == "orders"), "{access:?}");
    let token = access.tokens.iter().find(|token| token.id == token_id).unwrap();
    assert!(token.principal == "billing" && token.expires_ms.is_some(), "{token:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_ends_the_sessions_that_were_opened_with_it() {
    for transport in [Transport::Stream, Transport::Http] {
        let test = TestCluster::new().await;
        let admin = enforced(&test).await;
        let (billing, id) = billing(&test, &admin).await;
        let session = open(&billing, transport).await.unwrap();
        let guard = soon(session.lock("orders/42").lock()).await.unwrap();
        soon(admin.change_access(&AccessChange::RevokeToken { id })).await.unwrap();
        soon(session.lost()).await;
        let until_released = async {
            while !admin.lock("orders/42").await.unwrap().holders.is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        soon(until_released).await;
        drop(guard);
        let error = soon(billing.lock("orders/42")).await.err().unwrap();
        assert_eq!(error.code(), Some(Code::Unauthenticated), "{transport:?}: {error}");
    }
}

/// Labels are replicated, and shown to everybody who may look at sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_labelled_with_its_process_and_none_of_its_arguments() {
    let test = TestCluster::new().await;
    let session = open(&test.client, Transport::Stream).await.unwrap();
    let shown = soon(test.client.session(session.id())).await.unwrap();
    let program = std::env::args_os().next().unwrap();
    let program = std::path::Path::new(&program).file_name().unwrap().to_string_lossy().into_owned();
    let expected = format!(", {}, {program}", std::process::id());
    assert!(shown.label.contains('@') && shown.label.ends_with(&expected), "{}", shown.label);
}
