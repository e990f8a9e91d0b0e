//! A client whose endpoints lead to two clusters, from the beginning or later: it takes the answers of one only.

use lockkeeper_client::api::Code;
use lockkeeper_client::api::sessions::OpenSession;
use lockkeeper_client::{
    Client, Error, Options, Paging, PreferredNode, Session, SessionOptions, SessionState, Transport, WatchOptions,
};

use crate::test_cluster::{SOON, TestCluster, soon};
use crate::wire::Wire;

/// Name and uid.
async fn identity(of: &TestCluster) -> String {
    let status = of.client.status_of(of.client.preferred(), false, SOON).await.unwrap();
    assert!(status.cluster_uid.is_some());
    status.identity().to_string()
}

async fn sessions(of: &TestCluster) -> usize {
    of.client.sessions(&Paging::default()).await.unwrap().sessions.len()
}

#[track_caller]
fn is_refused(error: &Error, clusters: &[String; 2]) {
    assert_eq!(error.code(), Some(Code::OtherCluster), "{error}");
    assert!(!error.may_pass() && !error.is_outage());
    assert!(clusters.iter().all(|cluster| error.to_string().contains(cluster)), "{error} names {clusters:?}");
}

#[tokio::test]
async fn endpoints_of_two_clusters_are_refused_before_anything_is_asked_of_either() {
    let (one, other) = (TestCluster::new().await, TestCluster::new().await);
    let clusters = [identity(&one).await, identity(&other).await];
    assert_ne!(clusters[0], clusters[1]);
    let held_elsewhere = one.session().await;
    let endpoints = [one.cluster.endpoints(), other.cluster.endpoints()].concat();
    for prefer in [PreferredNode::Leader, PreferredNode::Nearest, PreferredNode::First, PreferredNode::Spread] {
        let client = || Client::new(&endpoints, Options { prefer, ..Options::default() }).unwrap();
        for transport in [Transport::Stream, Transport::Http] {
            let options = SessionOptions { transport, ..SessionOptions::default() };
            is_refused(&soon(Session::open(&client(), &options)).await.unwrap_err(), &clusters);
        }
        is_refused(&soon(client().open_session(&OpenSession::default())).await.unwrap_err(), &clusters);
        // The session is alive, and half of the endpoints call it expired.
        is_refused(&soon(Session::adopt(&client(), held_elsewhere.credential())).await.unwrap_err(), &clusters);
        is_refused(&soon(client().backup()).await.err().unwrap(), &clusters);
        let mut watch = client().watch(WatchOptions::new("/"));
        is_refused(&soon(watch.next()).await.unwrap().unwrap_err(), &clusters);
    }
    assert_eq!((sessions(&one).await, sessions(&other).await), (1, 0));
    // What reports on endpoints sees each as it is.
    let client = Client::new(&endpoints, Options::default()).unwrap();
    let seen = client.status_of_all(false, SOON).await;
    let seen: Vec<String> = seen.into_iter().map(|(_, status)| status.unwrap().identity().to_string()).collect();
    assert_eq!(seen, clusters);
}

#[tokio::test]
async fn a_cluster_that_is_replaced_under_a_client_is_refused_and_the_session_lives_on_in_its_own() {
    let (one, other) = (TestCluster::new().await, TestCluster::new().await);
    let clusters = [identity(&one).await, identity(&other).await];
    for transport in [Transport::Stream, Transport::Http] {
        let wire = Wire::to(&one.cluster.endpoints()[0]).await;
        let session = wire.session(transport).await;
        let mut state = session.state();
        state.mark_unchanged();
        wire.lead_to(&other.cluster.endpoints()[0]);
        is_refused(&soon(session.client().session(session.id())).await.unwrap_err(), &clusters);
        is_refused(&soon(session.client().keepalive()).await.unwrap_err(), &clusters);
        assert!(!matches!(*state.borrow(), SessionState::Lost { .. }), "it did not hear that from its own cluster");
        // A program that is started now finds one cluster.
        let restarted = Client::new([&wire.address], Options::default()).unwrap();
        assert!(soon(restarted.sessions(&Paging::default())).await.unwrap().sessions.is_empty());

        wire.lead_to(&one.cluster.endpoints()[0]);
        soon(session.client().session(session.id())).await.unwrap();
        soon(session.close()).await.unwrap();
        assert_eq!(sessions(&other).await, 0);
    }
}
