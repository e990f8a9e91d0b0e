//! Malformed input, and valid input in excess of limits.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use lockkeeper_zookeeper::request::{CreateRequest, PathWatch, SetWatchesRequest};
use lockkeeper_zookeeper::{Acl, ErrorCode, Id, MultiReadOp, OpCode, Permissions, Reply, Request};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::admin_commands::word;
use super::client::{Client, create, get};
use super::{cluster, cluster_with};
use crate::harness::eventually;

#[tokio::test]
async fn garbage_ends_its_connection_and_nothing_else() {
    let cluster = cluster(1).await;
    let mut bystander = Client::open(cluster.zookeeper(0)).await;
    let frames: [&[u8]; 6] = [
        &[0xff; 64],                                   // a negative length
        &[0x7f, 0xff, 0xff, 0xff],                     // far too long
        &[0, 0, 0, 0],                                 // empty
        &[0, 0, 0, 3, 1, 2, 3],                        // no header
        b"GET / HTTP/1.1\r\nHost: lockkeeper\r\n\r\n", // another protocol
        &[0, 0, 0, 44, 0, 0, 0, 0],                    // incomplete
    ];
    for frame in frames {
        for connected in [false, true] {
            if connected {
                let mut client = Client::open(cluster.zookeeper(0)).await;
                client.write(frame).await;
                client.stop_writing().await;
                assert!(client.is_closed().await, "{frame:?}");
            } else {
                let mut stream = TcpStream::connect(cluster.zookeeper(0)).await.unwrap();
                tokio::io::AsyncWriteExt::write_all(&mut stream, frame).await.unwrap();
                tokio::io::AsyncWriteExt::shutdown(&mut stream).await.unwrap();
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                assert_eq!(rest, [0; 0], "{frame:?}");
            }
        }
    }
    bystander.create("/still-here", 0).await.unwrap();
    let metrics = cluster.get("/metrics").await.text;
    for why in ["too_long", "malformed"] {
        let counted = format!("lockkeeper_zookeeper_frames_refused_total{{why=\"{why}\"}}");
        assert!(metrics.contains(&counted), "{counted} is not in {metrics}");
    }
}

#[tokio::test]
async fn invalid_requests_are_answered_and_the_connection_stays_open() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let unknown = client.send(&Request::Unknown { opcode: 4711 }).await;
    assert_eq!(client.answer(unknown, OpCode::Ping).await, Err(ErrorCode::Unimplemented));
    // A truncated body.
    let mut frame = BytesMut::new();
    frame.put_slice(&[0, 0, 0, 12]);
    frame.put_i32(77);
    frame.put_i32(OpCode::GetData.number());
    frame.put_i32(1_000);
    client.write(&frame).await;
    assert_eq!(client.answer(77, OpCode::GetData).await, Err(ErrorCode::MarshallingError));
    for path in ["", "relative", "/a//b", "/a/", "/a/./b", "/\u{0}", "/\u{1}"] {
        assert_eq!(client.create(path, 0).await, Err(ErrorCode::BadArguments), "{path:?}");
        if !path.is_empty() && path != "/\u{0}" {
            assert_eq!(client.exists(path, true).await, Err(ErrorCode::NoNode), "{path:?}");
        }
    }
    assert_eq!(client.exists("/\u{0}", false).await, Err(ErrorCode::BadArguments));
    assert_eq!(client.create("/flags", 99).await, Err(ErrorCode::BadArguments));
    let no_acl = CreateRequest { path: "/acl".into(), data: None, acl: Vec::<Acl>::new(), flags: 0 };
    assert_eq!(client.ask(Request::Create(no_acl)).await, Err(ErrorCode::InvalidAcl));
    assert_eq!(client.ask(Request::Sasl(Bytes::new())).await, Err(ErrorCode::Unimplemented));
    assert_eq!(client.children("/").await.unwrap(), ["zookeeper"]);
}

#[tokio::test]
async fn half_a_mebibyte_is_stored_and_two_are_refused() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let data = vec![7_u8; 512 * 1024];
    client.ask(create("/half", &data, 0)).await.unwrap();
    assert_eq!(client.data("/half").await.unwrap(), data);
    let mut out = BytesMut::new();
    client.encode(&create("/two", &vec![7; 2 << 20], 0), &mut out);
    client.try_write(&out, Duration::from_secs(5)).await;
    assert!(client.is_closed().await);
    let mut other = Client::open(cluster.zookeeper(0)).await;
    assert_eq!(other.exists("/two", false).await, Err(ErrorCode::NoNode));
}

#[tokio::test]
async fn a_short_request_for_a_large_reply_is_refused() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.ask(create("/big", &vec![7; 512 * 1024], 0)).await.unwrap();
    let read = |count| {
        let part = || MultiReadOp::GetData(PathWatch { path: "/big".into(), watch: false });
        Request::MultiRead((0..count).map(|_| part()).collect())
    };
    let Ok(Reply::Multi(few)) = client.ask(read(4)).await else { panic!("a few will do") };
    assert_eq!(few.len(), 4);
    assert_eq!(client.ask(read(100)).await, Err(ErrorCode::BadArguments), "fifty megabytes");
    assert_eq!(client.ask(read(20_000)).await, Err(ErrorCode::BadArguments));
    let many: Vec<Acl> = (0..20_000)
        .map(|number| Acl {
            permissions: Permissions::ALL,
            id: Id { scheme: "digest".into(), id: format!("u{number}:hash") },
        })
        .collect();
    let create = CreateRequest { path: "/acl".into(), data: None, acl: many, flags: 0 };
    assert_eq!(client.ask(Request::Create(create)).await, Err(ErrorCode::InvalidAcl));
}

#[tokio::test]
async fn too_many_watches_are_refused_and_in_set_watches_close_the_connection() {
    let cluster = cluster_with(1, |config| config.zookeeper.watches_per_connection = 10).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    for number in 0..10 {
        client.exists(&format!("/w{number}"), true).await.unwrap_err();
    }
    let watched = client.exists("/w0", true).await;
    assert!(matches!(watched, Err(ErrorCode::NoNode)), "it has that watch already");
    for one_more in [PathWatch { path: "/one-more".into(), watch: true }, PathWatch { path: "/".into(), watch: true }] {
        assert_eq!(client.ask(Request::Exists(one_more)).await, Err(ErrorCode::OperationTimeout));
    }
    let began = Instant::now();
    for _ in 0..10 {
        assert_eq!(client.exists("/one-more", true).await, Err(ErrorCode::OperationTimeout));
    }
    assert!(began.elapsed() >= Duration::from_millis(180), "each next request waits, so that repeating costs little");
    let read = client.exists("/", false).await;
    assert!(read.is_ok(), "the connection stays open");
    client.create("/w3", 0).await.unwrap();
    assert_eq!(client.events.len(), 1);
    client.exists("/one-more", true).await.unwrap_err();
    let again = SetWatchesRequest {
        relative_zxid: client.zxid,
        data_watches: Vec::new(),
        exist_watches: vec!["/many".into(), "/more".into()],
        child_watches: Vec::new(),
    };
    client.send(&Request::SetWatches(again)).await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let cluster = cluster(1).await;
    let mut inside = Vec::new();
    for _ in 0..60 {
        inside.push(Client::open(cluster.zookeeper(0)).await);
    }
    let mut outside = Vec::new();
    for _ in 0..940 {
        outside.push(TcpStream::connect(cluster.zookeeper(0)).await.unwrap());
    }
    for stream in &mut outside {
        assert!(matches!(stream.read(&mut [0; 8]).await, Ok(0) | Err(_)), "closed without a reply");
    }
    for client in &mut inside {
        client.exists("/", false).await.unwrap();
    }
    inside.pop();
    eventually("room", async || Client::try_open(cluster.zookeeper(0)).await.is_some()).await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_held_back_and_then_disconnected() {
    let unread = 4 << 20;
    let cluster = cluster_with(1, |config| {
        config.zookeeper.max_unread_bytes = unread;
        config.zookeeper.max_frame_bytes = 1 << 20;
        config.limits.write_timeout_ms = 2_000;
    })
    .await;
    let mut bystander = Client::open(cluster.zookeeper(0)).await;
    bystander.ask(create("/big", &vec![1; 10_000], 0)).await.unwrap();
    let mut greedy = Client::open(cluster.zookeeper(0)).await;
    let mut out = BytesMut::new();
    for _ in 0..100_000 {
        greedy.encode(&get("/big", false), &mut out);
    }
    // A gigabyte of answers.
    greedy.try_write(&out, Duration::from_secs(60)).await;
    bystander.create("/meanwhile", 0).await.unwrap();
    // The bystander and the connection of `srvr` itself.
    eventually("only two to be connected", async || {
        word(cluster.zookeeper(0), "srvr").await.contains("\nConnections: 2\n")
    })
    .await;
    let mut answers = 0;
    while greedy.receive().await.is_some() {
        answers += 1;
    }
    assert!(answers < 50_000, "{answers} answers waited for it");
}

#[tokio::test]
async fn a_client_with_many_requests_that_reads_gets_all_replies() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    client.create("/n", 0).await.unwrap();
    let mut out = BytesMut::new();
    let mut asked = Vec::new();
    for number in 0..20_000 {
        let request = match number % 20 {
            0 => super::client::set("/n", number.to_string().as_bytes()),
            _ => get("/n", false),
        };
        asked.push((client.encode(&request, &mut out), request.opcode()));
    }
    let (mut reading, mut writing) = client.split();
    let writer = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut writing, &out).await.unwrap();
        writing
    });
    for (xid, opcode) in asked {
        reading.answer(xid, OpCode::from_number(opcode).unwrap()).await.unwrap();
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn many_watches_are_set_again_at_once() {
    let cluster = cluster(1).await;
    let mut client = Client::open(cluster.zookeeper(0)).await;
    let paths: Vec<String> = (0..5_000).map(|number| format!("/missing-{number}")).collect();
    let again = SetWatchesRequest {
        relative_zxid: client.zxid,
        data_watches: Vec::new(),
        exist_watches: paths.clone(),
        child_watches: Vec::new(),
    };
    assert_eq!(client.ask(Request::SetWatches(again)).await, Ok(Reply::Empty));
    client.create(&paths[4_999], 0).await.unwrap();
    assert_eq!(client.events.len(), 1);
}
