//! Every reply and event, byte by byte.

use crate::bytes_by_hand::{DONE, OPEN, STAT, bytes, content, stat};
use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::{
    Acl, ClientInfo, ConnectRequest, ConnectResponse, DecodeError, ErrorCode, EventType, KeeperState, MultiResult,
    OpCode, Reply, ReplyHeader, UnknownNumber, WatcherEvent, decode_reply, encode_reply_with,
};

/// A name, the operation replied to, the reply, and what follows the header.
pub(crate) type Case = (&'static str, OpCode, Reply, String);

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|&name| name.to_owned()).collect()
}

fn with_a_body() -> Vec<Case> {
    let created = || Reply::Created { path: "/a".into(), stat: stat() };
    let a_and_stat = format!("00000002 '/a' {STAT}");
    let children = "00000002 00000001 'b' 00000002 'cd'";
    let data = || Reply::Data { data: Some(Bytes::from_static(b"xy")), stat: stat() };
    let identity = ClientInfo { auth_scheme: "ip".into(), user: "::1".into() };
    vec![
        ("create", OpCode::Create, Reply::Path("/a".into()), "00000002 '/a'".into()),
        ("sync", OpCode::Sync, Reply::Path("/a".into()), "00000002 '/a'".into()),
        ("create2", OpCode::Create2, created(), a_and_stat.clone()),
        ("create-container", OpCode::CreateContainer, created(), a_and_stat.clone()),
        ("create-ttl", OpCode::CreateTtl, created(), a_and_stat),
        ("exists", OpCode::Exists, Reply::Stat(stat()), STAT.into()),
        ("set-data", OpCode::SetData, Reply::Stat(stat()), STAT.into()),
        ("set-acl", OpCode::SetAcl, Reply::Stat(stat()), STAT.into()),
        ("check-with-stat", OpCode::Check, Reply::Stat(stat()), STAT.into()),
        ("get-data", OpCode::GetData, data(), format!("00000002 'xy' {STAT}")),
        ("get-data-null", OpCode::GetData, Reply::Data { data: None, stat: stat() }, format!("ffffffff {STAT}")),
        ("reconfig", OpCode::Reconfig, data(), format!("00000002 'xy' {STAT}")),
        (
            "get-acl",
            OpCode::GetAcl,
            Reply::Acl { acl: vec![Acl::open()], stat: stat() },
            format!("00000001 {OPEN} {STAT}"),
        ),
        ("get-children", OpCode::GetChildren, Reply::Children(names(&["b", "cd"])), children.into()),
        (
            "get-children2",
            OpCode::GetChildren2,
            Reply::ChildrenAndStat { children: names(&["b", "cd"]), stat: stat() },
            format!("{children} {STAT}"),
        ),
        ("add-watch", OpCode::AddWatch, Reply::Error(0), "00000000".into()),
        ("get-ephemerals", OpCode::GetEphemerals, Reply::Ephemerals(names(&["b", "cd"])), children.into()),
        ("get-all-children-number", OpCode::GetAllChildrenNumber, Reply::ChildrenNumber(258), "00000102".into()),
        ("who-am-i", OpCode::WhoAmI, Reply::Identities(vec![identity]), "00000001 00000002 'ip' 00000003 '::1'".into()),
        ("sasl", OpCode::Sasl, Reply::Token(Bytes::from_static(b"tok")), "00000003 'tok'".into()),
    ]
}

fn with_an_empty_body() -> Vec<Case> {
    [
        ("delete", OpCode::Delete),
        ("ping", OpCode::Ping),
        ("auth", OpCode::Auth),
        ("set-watches", OpCode::SetWatches),
        ("set-watches2", OpCode::SetWatches2),
        ("check-watches", OpCode::CheckWatches),
        ("remove-watches", OpCode::RemoveWatches),
        ("close-session", OpCode::CloseSession),
        ("check", OpCode::Check),
    ]
    .map(|(name, operation)| (name, operation, Reply::Empty, String::new()))
    .to_vec()
}

fn of_several() -> Vec<Case> {
    let done_all = vec![
        MultiResult::Create("/a".into()),
        MultiResult::Create2 { path: "/a".into(), stat: stat() },
        MultiResult::Delete,
        MultiResult::SetData(stat()),
        MultiResult::Check,
    ];
    let reads = vec![
        MultiResult::GetChildren(names(&["b"])),
        MultiResult::GetData { data: Some(Bytes::from_static(b"xy")), stat: stat() },
        MultiResult::error(ErrorCode::NoNode),
    ];
    vec![
        (
            "multi",
            OpCode::Multi,
            Reply::Multi(done_all),
            format!(
                "00000001 00 00000000 00000002 '/a' \
                 0000000f 00 00000000 00000002 '/a' {STAT} \
                 00000002 00 00000000 \
                 00000005 00 00000000 {STAT} \
                 0000000d 00 00000000 {DONE}"
            ),
        ),
        (
            "multi-failed",
            OpCode::Multi,
            Reply::Multi(MultiResult::of_failure(4, 1, ErrorCode::NodeExists)),
            format!(
                "ffffffff 00 00000000 00000000 \
                 ffffffff 00 ffffff92 ffffff92 \
                 ffffffff 00 fffffffe fffffffe \
                 ffffffff 00 fffffffe fffffffe {DONE}"
            ),
        ),
        (
            "multi-read",
            OpCode::MultiRead,
            Reply::Multi(reads),
            format!(
                "00000008 00 00000000 00000001 00000001 'b' \
                 00000004 00 00000000 00000002 'xy' {STAT} \
                 ffffffff 00 ffffff9b ffffff9b {DONE}"
            ),
        ),
    ]
}

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    [with_a_body(), with_an_empty_body(), of_several()].concat()
}

/// What [`cases`] leave out: xid 3, zxid 4, no error.
pub(crate) const HEADER: &str = "00000003 0000000000000004 00000000";

#[test]
fn every_reply_has_exactly_these_bytes() {
    for (name, operation, reply, notation) in cases() {
        let whole = bytes(&format!("{HEADER} {notation}"));
        let mut out = BytesMut::new();
        reply.encode(3, 4, &mut out);
        assert_eq!(content(&out), whole, "{name}");
        let expected = (ReplyHeader { xid: 3, zxid: 4, error: 0 }, Some(reply));
        assert_eq!(decode_reply(operation, whole.clone()).unwrap(), expected, "{name}");
        let longer = [&whole[..], b"more"].concat().into();
        assert_eq!(decode_reply(operation, longer).unwrap(), expected, "{name} with more behind it");
        if operation != OpCode::Check {
            for length in 0..whole.len() {
                assert!(decode_reply(operation, whole.slice(..length)).is_err(), "{name} cut to {length} bytes");
            }
        }
    }
}

#[test]
fn an_error_has_a_header_and_no_body() {
    let mut out = BytesMut::new();
    let header = ReplyHeader::failed(3, 4, ErrorCode::NoNode);
    header.encode(&mut out);
    assert_eq!(&out[..], &bytes("00000010 00000003 0000000000000004 ffffff9b")[..]);
    assert_eq!(decode_reply(OpCode::GetData, content(&out)).unwrap(), (header, None));
    assert_eq!(header.error_code(), Some(ErrorCode::NoNode));
    assert!(!header.is_notification());
}

#[test]
fn operations_of_servers_have_no_reply() {
    for operation in [OpCode::Notification, OpCode::DeleteContainer, OpCode::CreateSession, OpCode::Error] {
        let error = Reply::decode(operation, Bytes::new()).unwrap_err();
        assert_eq!(error, DecodeError::Misplaced { field: "Reply", opcode: operation.number() });
    }
}

#[test]
fn children_written_one_by_one_are_the_same_bytes() {
    let children = names(&["b", "cd"]);
    let (mut collected, mut streamed) = (BytesMut::new(), BytesMut::new());
    Reply::Children(children.clone()).encode(3, 4, &mut collected);
    encode_reply_with(3, 4, &mut streamed, |writer| writer.strings(children.iter().map(String::as_str)));
    assert_eq!(collected, streamed);
}

#[test]
fn events_have_exactly_these_bytes() {
    let event = WatcherEvent::of_node(EventType::NodeChildrenChanged, "/a".into());
    let notation = "ffffffff ffffffffffffffff 00000000 00000004 00000003 00000002 '/a'";
    let mut out = BytesMut::new();
    event.encode(WatcherEvent::NO_ZXID, &mut out);
    assert_eq!(content(&out), bytes(notation));

    let (header, body) = ReplyHeader::split(bytes(notation)).unwrap();
    assert!(header.is_notification());
    assert_eq!(WatcherEvent::decode(body).unwrap(), event);

    let expired = WatcherEvent::decode(bytes("ffffffff ffffff90 00000000")).unwrap();
    let expected = WatcherEvent { event_type: EventType::None, state: KeeperState::Expired, path: String::new() };
    assert_eq!(expired, expected);
    let unknown = UnknownNumber { what: "event type", number: 8 };
    let error = WatcherEvent::decode(bytes("00000008 00000003 00000000")).unwrap_err();
    assert_eq!(error, DecodeError::Unknown { field: "WatcherEvent.event_type", unknown });
    assert_eq!(error.to_string(), "WatcherEvent.event_type: 8 is no event type");
}

#[test]
fn connect_responses_have_exactly_these_bytes() {
    let fields = "00000000 00007530 0000000000000007 00000010 0102030405060708090a0b0c0d0e0f10";
    let response = |read_only| ConnectResponse {
        protocol_version: 0,
        timeout_ms: 30_000,
        session_id: 7,
        password: (1..=16).collect::<Vec<u8>>().into(),
        read_only,
    };
    for (read_only, notation) in [(Some(true), format!("{fields} 01")), (None, fields.to_owned())] {
        let mut out = BytesMut::new();
        response(read_only).encode(&mut out);
        assert_eq!(content(&out), bytes(&notation));
        assert_eq!(ConnectResponse::decode(bytes(&notation)).unwrap(), response(read_only));
    }
}

#[test]
fn a_refusal_is_all_zeroes_in_the_form_that_was_asked_for() {
    for (read_only, flag) in [(None, ""), (Some(false), "00"), (Some(true), "00")] {
        let password = Bytes::from_static(&[9; 16]);
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 1,
            timeout_ms: 1,
            session_id: 1,
            password,
            read_only,
        };
        let mut out = BytesMut::new();
        ConnectResponse::refused(&request).encode(&mut out);
        let zeroes = "00000000 00000000 0000000000000000 00000010 00000000000000000000000000000000";
        assert_eq!(content(&out), bytes(&format!("{zeroes} {flag}")));
    }
}
