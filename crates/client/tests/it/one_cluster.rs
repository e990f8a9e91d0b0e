//! A client whose endpoints lead to two clusters, from the beginning or later: it takes the answers of one only.

use std::time::{Duration, Instant};

use lockkeeper_client::api::Code;
use lockkeeper_client::api::nodes::Create;
use lockkeeper_client::api::sessions::OpenSession;
use lockkeeper_client::{
    Client, Error, Options, Paging, PreferredNode, Session, SessionOptions, SessionState, Transport, WatchOptions,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::stream::node::read_request;
use crate::test_cluster::{SOON, TestCluster, soon};
use crate::wire::{Wire, impatient};

/// Name and uid.
async fn identity(of: &TestCluster) -> String {
    let status = of.client.status_of(of.client.preferred(), false, SOON).await.unwrap();
    assert!(status.cluster_uid.is_some());
    status.identity().to_string()
}

async fn sessions(of: &TestCluster) -> usize {
    of.client.sessions(&Paging::default()).await.unwrap().sessions.len()
}

async fn read(client: &Client) -> Result<(), Error> {
    soon(client.sessions(&Paging::default())).await.map(drop)
}

async fn wires(one: &TestCluster, other: &TestCluster) -> [Wire; 2] {
    [Wire::to(&one.cluster.endpoints()[0]).await, Wire::to(&other.cluster.endpoints()[0]).await]
}

/// A client of two endpoints, the first of which it prefers.
fn client_of(endpoints: [&str; 2], options: Options) -> Client {
    Client::new(endpoints, Options { prefer: PreferredNode::First, ..options }).unwrap()
}

/// An endpoint that takes connections and never answers.
async fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A node of another cluster that does not compare what a request names, and carries out everything.
async fn careless(cluster: &'static str) -> String {
    let (listener, address) = silent().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while read_request(&mut stream).await.is_some() {
                    let head = format!("HTTP/1.1 200 x\r\nlockkeeper-cluster: {cluster}\r\ncontent-length: 2");
                    if stream.write_all(format!("{head}\r\n\r\n{{}}").as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
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

#[tokio::test]
async fn what_a_node_of_another_cluster_answers_to_may_have_been_done_there() {
    let one = TestCluster::new().await;
    let clusters = [identity(&one).await, "local/00000000000000ff".to_owned()];
    let wire = Wire::to(&one.cluster.endpoints()[0]).await;
    let client = Client::new([&wire.address], Options::default()).unwrap();
    read(&client).await.unwrap();
    wire.lead_to(&careless("local/00000000000000ff").await);
    is_refused(&read(&client).await.unwrap_err(), &clusters);
    let changed = soon(client.create("/a", &Create::default())).await.unwrap_err();
    assert!(matches!(&changed, Error::UnknownOutcome(why) if why.contains(&clusters[1])), "{changed}");
}

#[tokio::test]
async fn endpoints_of_which_none_answered_are_compared_by_the_next_call() {
    let (one, other) = (TestCluster::new().await, TestCluster::new().await);
    let clusters = [identity(&one).await, identity(&other).await];
    let wires = wires(&one, &other).await;
    let options = Options { patience: Duration::from_secs(2), ..Options::default() };
    let client = client_of([&wires[0].address, &wires[1].address], options);
    wires.iter().for_each(Wire::mute);
    let unanswered = read(&client).await.unwrap_err();
    assert!(unanswered.is_outage(), "{unanswered}");
    wires.iter().for_each(Wire::mend);
    is_refused(&read(&client).await.unwrap_err(), &clusters);
}

#[tokio::test]
async fn endpoints_that_belong_to_one_cluster_after_a_refusal_are_of_use() {
    let (one, other) = (TestCluster::new().await, TestCluster::new().await);
    let clusters = [identity(&one).await, identity(&other).await];
    // Whichever of the two answered first.
    for right in [&one, &other] {
        let wires = wires(&one, &other).await;
        let client = client_of([&wires[0].address, &wires[1].address], Options::default());
        is_refused(&read(&client).await.unwrap_err(), &clusters);
        wires.iter().for_each(|wire| wire.lead_to(&right.cluster.endpoints()[0]));
        soon(async { while read(&client).await.is_err() {} }).await;
    }
}

#[tokio::test]
async fn after_the_refusal_of_one_endpoint_the_next_call_goes_to_another() {
    let (one, other) = (TestCluster::new().await, TestCluster::new().await);
    let clusters = [identity(&one).await, identity(&other).await];
    let [stray, right] = wires(&one, &one).await;
    let client = client_of([&stray.address, &right.address], Options::default());
    read(&client).await.unwrap();
    stray.lead_to(&other.cluster.endpoints()[0]);
    right.cut();
    is_refused(&read(&client).await.unwrap_err(), &clusters);
    right.mend();
    read(&client).await.unwrap();
}

#[tokio::test]
async fn silent_endpoints_take_no_longer_than_the_caller_waits() {
    let ((_one, one), (_other, other)) = (silent().await, silent().await);
    let client = client_of([&one, &other], Options { connect_timeout: SOON * 10, ..impatient() });
    let error = read(&client).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    let mut watch =
        client.watch(WatchOptions { patience: Some(Duration::from_millis(300)), ..WatchOptions::new("/a") });
    assert!(matches!(soon(watch.next()).await, Some(Err(Error::Unreachable { .. }))));
}

#[tokio::test]
async fn a_short_session_beside_a_silent_endpoint_does_not_lose_its_lease_to_the_comparison() {
    const LEASE: Duration = Duration::from_secs(1);
    let one = TestCluster::new().await;
    let (_silent, silent) = silent().await;
    let client =
        client_of([&one.cluster.endpoints()[0], &silent], Options { connect_timeout: LEASE * 4, ..Options::default() });
    let options = SessionOptions { timeout: LEASE, transport: Transport::Http, ..SessionOptions::default() };
    let began = Instant::now();
    let session = soon(Session::open(&client, &options)).await.unwrap();
    assert!(began.elapsed() > LEASE, "the comparison waits for the silent endpoint: {:?}", began.elapsed());
    assert!(!session.left().is_zero(), "{:?}", *session.state().borrow());
    soon(session.close()).await.unwrap();
}
