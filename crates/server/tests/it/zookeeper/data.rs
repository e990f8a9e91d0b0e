//! Null data, and replies whose order the protocol leaves open but clients' test suites depend on.

use bytes::Bytes;
use lockkeeper_api::Data;
use lockkeeper_api::nodes::Node;
use lockkeeper_zookeeper::request::{AuthRequest, CreateRequest, PathWatch, SetDataRequest};
use lockkeeper_zookeeper::{Acl, ErrorCode, MultiOp, MultiReadOp, MultiResult, Reply, Request};

use super::client::{Client, get};
use super::cluster;

async fn read(client: &mut Client, path: &str) -> Result<Option<Bytes>, ErrorCode> {
    match client.ask(get(path, false)).await? {
        Reply::Data { data, stat } => {
            assert_eq!(stat.data_length, data.as_ref().map_or(0, |data| data.len() as i32));
            Ok(data)
        }
        other => panic!("{other:?}"),
    }
}

/// At each node of the cluster, over both protocols, and within transactions.
#[tokio::test]
async fn null_data_are_read_back_as_null() {
    let cluster = cluster(3).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let null = |path: &str| CreateRequest { path: path.into(), data: None, acl: vec![Acl::open()], flags: 0 };
    let set = |path: &str, data| SetDataRequest { path: path.into(), data, version: -1 };
    client.ask(Request::Create(null("/null"))).await.unwrap();
    client.ask(Request::Multi(vec![MultiOp::Create(null("/both")), MultiOp::Create(null("/set"))])).await.unwrap();
    client.ask(Request::SetData(set("/set", Some(Bytes::new())))).await.unwrap();
    assert_eq!(read(&mut client, "/null").await, Ok(None));
    assert_eq!(read(&mut client, "/set").await, Ok(Some(Bytes::new())));
    let ask = |path: &str| MultiReadOp::GetData(PathWatch { path: path.into(), watch: false });
    let Ok(Reply::Multi(results)) = client.ask(Request::MultiRead(vec![ask("/both"), ask("/set")])).await else {
        panic!("a multi is answered")
    };
    let data = |result: &MultiResult| match result {
        MultiResult::GetData { data, .. } => data.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(results.iter().map(data).collect::<Vec<_>>(), [None, Some(Bytes::new())]);
    for node in 1..3 {
        let mut other = Client::open(cluster.zookeeper(node)).await;
        other.ask(Request::Sync("/".into())).await.unwrap();
        assert_eq!(
            (read(&mut other, "/null").await, read(&mut other, "/set").await),
            (Ok(None), Ok(Some(Bytes::new())))
        );
    }
    let over_http = async |path: &str| cluster.get(path).await.json::<Node>().data;
    assert_eq!((over_http("/v1/nodes/null").await, over_http("/v1/nodes/set").await), (Data::Null, Data::default()));
    client.ask(Request::SetData(set("/set", None))).await.unwrap();
    assert_eq!((read(&mut client, "/set").await, over_http("/v1/nodes/set").await), (Ok(None), Data::Null));
}

/// Expected orders are those of ZooKeeper 3.8 on OpenJDK 17.
#[tokio::test]
async fn ephemerals_and_identities_come_in_the_order_of_zookeeper() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/e", 0).await.unwrap();
    for number in 0..7 {
        client.create(&format!("/e/n-{number}"), 1).await.unwrap();
    }
    let ephemerals = client.ask(Request::GetEphemerals("/e/n-".into())).await;
    let expected = [2, 3, 0, 1, 6, 4, 5].map(|number| format!("/e/n-{number}"));
    assert_eq!(ephemerals, Ok(Reply::Ephemerals(expected.into())));
    let auth = |credentials: &'static str| AuthRequest {
        auth_type: 0,
        scheme: "digest".into(),
        credentials: credentials.into(),
    };
    for credentials in ["user1:abcXYZ", "user2:xyzABC"] {
        client.ask(Request::Auth(auth(credentials))).await.unwrap();
    }
    let Ok(Reply::Identities(identities)) = client.ask(Request::WhoAmI).await else { panic!("identities") };
    let names: Vec<&str> = identities.iter().map(|each| each.user.as_str()).collect();
    assert_eq!(names.join(" "), "user1 127.0.0.1 user2");
}
