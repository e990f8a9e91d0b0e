//! Every request, byte by byte.

use crate::bytes_by_hand::{DONE, OPEN, bytes, content};
use bytes::{Bytes, BytesMut};
use lockkeeper_zookeeper::request::{
    AddWatchRequest, AuthRequest, CreateRequest, CreateTtlRequest, PathVersion, PathWatch, ReconfigRequest,
    SetAclRequest, SetDataRequest, SetWatches2Request, SetWatchesRequest, WatchesRequest,
};
use lockkeeper_zookeeper::{Acl, ConnectRequest, DecodeError, MultiOp, MultiReadOp, Request, RequestHeader};

/// A name, the xid, the request, and the content of its frame.
pub(crate) type Case = (&'static str, i32, Request, String);

fn create(flags: i32) -> CreateRequest {
    let data = Some(Bytes::from_static(b"xy"));
    CreateRequest { path: "/a".into(), data, acl: vec![Acl::open()], flags }
}

fn create_ttl() -> CreateTtlRequest {
    let data = Some(Bytes::new());
    CreateTtlRequest { path: "/a".into(), data, acl: vec![Acl::open()], flags: 5, ttl_ms: 60_000 }
}

fn path_version() -> PathVersion {
    PathVersion { path: "/a".into(), version: -1 }
}

fn path_watch(watch: bool) -> PathWatch {
    PathWatch { path: "/a".into(), watch }
}

fn set_data() -> SetDataRequest {
    SetDataRequest { path: "/a".into(), data: Some(Bytes::from_static(b"xy")), version: 3 }
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|&name| name.to_owned()).collect()
}

fn of_nodes() -> Vec<Case> {
    let a = "00000002 '/a'";
    let created = format!("{a} 00000002 'xy' 00000001 {OPEN}");
    vec![
        ("create", 1, Request::Create(create(0)), format!("00000001 00000001 {created} 00000000")),
        ("create2", 2, Request::Create2(create(3)), format!("00000002 0000000f {created} 00000003")),
        ("create-container", 3, Request::CreateContainer(create(4)), format!("00000003 00000013 {created} 00000004")),
        (
            "create-ttl",
            4,
            Request::CreateTtl(create_ttl()),
            format!("00000004 00000015 {a} 00000000 00000001 {OPEN} 00000005 000000000000ea60"),
        ),
        (
            "create-null-data",
            5,
            Request::Create(CreateRequest { data: None, acl: Vec::new(), ..create(1) }),
            format!("00000005 00000001 {a} ffffffff 00000000 00000001"),
        ),
        ("delete", 6, Request::Delete(path_version()), format!("00000006 00000002 {a} ffffffff")),
        ("exists", 7, Request::Exists(path_watch(true)), format!("00000007 00000003 {a} 01")),
        ("get-data", 8, Request::GetData(path_watch(false)), format!("00000008 00000004 {a} 00")),
        ("set-data", 9, Request::SetData(set_data()), format!("00000009 00000005 {a} 00000002 'xy' 00000003")),
        ("get-acl", 10, Request::GetAcl("/a".into()), format!("0000000a 00000006 {a}")),
        (
            "set-acl",
            11,
            Request::SetAcl(SetAclRequest { path: "/a".into(), acl: vec![Acl::open()], version: 2 }),
            format!("0000000b 00000007 {a} 00000001 {OPEN} 00000002"),
        ),
        ("get-children", 12, Request::GetChildren(path_watch(true)), format!("0000000c 00000008 {a} 01")),
        ("get-children2", 13, Request::GetChildren2(path_watch(false)), format!("0000000d 0000000c {a} 00")),
        ("sync", 14, Request::Sync("/a".into()), format!("0000000e 00000009 {a}")),
        ("check", 15, Request::Check(path_version()), format!("0000000f 0000000d {a} ffffffff")),
        ("get-ephemerals", 16, Request::GetEphemerals("/a".into()), format!("00000010 00000067 {a}")),
        ("get-all-children-number", 17, Request::GetAllChildrenNumber("/a".into()), format!("00000011 00000068 {a}")),
    ]
}

fn of_several() -> Vec<Case> {
    let a = "00000002 '/a'";
    let created = format!("{a} 00000002 'xy' 00000001 {OPEN}");
    let multi = Request::Multi(vec![
        MultiOp::Create(create(0)),
        MultiOp::Create2(create(1)),
        MultiOp::CreateContainer(create(4)),
        MultiOp::CreateTtl(create_ttl()),
        MultiOp::Delete(path_version()),
        MultiOp::SetData(set_data()),
        MultiOp::Check(path_version()),
    ]);
    let reads =
        Request::MultiRead(vec![MultiReadOp::GetChildren(path_watch(false)), MultiReadOp::GetData(path_watch(false))]);
    vec![
        (
            "multi",
            18,
            multi,
            format!(
                "00000012 0000000e \
                 00000001 00 ffffffff {created} 00000000 \
                 0000000f 00 ffffffff {created} 00000001 \
                 00000013 00 ffffffff {created} 00000004 \
                 00000015 00 ffffffff {a} 00000000 00000001 {OPEN} 00000005 000000000000ea60 \
                 00000002 00 ffffffff {a} ffffffff \
                 00000005 00 ffffffff {a} 00000002 'xy' 00000003 \
                 0000000d 00 ffffffff {a} ffffffff {DONE}"
            ),
        ),
        ("multi-empty", 19, Request::Multi(Vec::new()), format!("00000013 0000000e {DONE}")),
        (
            "multi-read",
            20,
            reads,
            format!("00000014 00000016 00000008 00 ffffffff {a} 00 00000004 00 ffffffff {a} 00 {DONE}"),
        ),
    ]
}

fn of_watches() -> Vec<Case> {
    let a = "00000002 '/a'";
    let set = SetWatchesRequest {
        relative_zxid: 0x1_0000_0002,
        data_watches: names(&["/a"]),
        exist_watches: names(&["/a", "/bc"]),
        child_watches: Vec::new(),
    };
    let set2 = SetWatches2Request {
        relative_zxid: 7,
        data_watches: names(&["/a"]),
        exist_watches: Vec::new(),
        child_watches: names(&["/a"]),
        persistent_watches: names(&["/bc"]),
        persistent_recursive_watches: names(&["/a", "/bc"]),
    };
    let any = WatchesRequest { path: "/a".into(), watcher_type: 3 };
    let add = AddWatchRequest { path: "/a".into(), mode: 1 };
    vec![
        (
            "set-watches",
            -8,
            Request::SetWatches(set),
            format!("fffffff8 00000065 0000000100000002 00000001 {a} 00000002 {a} 00000003 '/bc' 00000000"),
        ),
        (
            "set-watches2",
            -8,
            Request::SetWatches2(set2),
            format!(
                "fffffff8 00000069 0000000000000007 00000001 {a} 00000000 00000001 {a} \
                 00000001 00000003 '/bc' 00000002 {a} 00000003 '/bc'"
            ),
        ),
        ("add-watch", 21, Request::AddWatch(add), format!("00000015 0000006a {a} 00000001")),
        ("check-watches", 22, Request::CheckWatches(any.clone()), format!("00000016 00000011 {a} 00000003")),
        ("remove-watches", 23, Request::RemoveWatches(any), format!("00000017 00000012 {a} 00000003")),
    ]
}

fn of_connections() -> Vec<Case> {
    let credentials = Bytes::from_static(b"joe:secret");
    let auth = AuthRequest { auth_type: 0, scheme: "digest".into(), credentials };
    let reconfig = ReconfigRequest {
        joining_servers: String::new(),
        leaving_servers: "3".into(),
        new_members: String::new(),
        current_config_id: -1,
    };
    vec![
        ("ping", -2, Request::Ping, "fffffffe 0000000b".into()),
        ("auth", -4, Request::Auth(auth), "fffffffc 00000064 00000000 00000006 'digest' 0000000a 'joe:secret'".into()),
        ("who-am-i", 24, Request::WhoAmI, "00000018 0000006b".into()),
        (
            "reconfig",
            25,
            Request::Reconfig(reconfig),
            "00000019 00000010 00000000 00000001 '3' 00000000 ffffffffffffffff".into(),
        ),
        ("sasl", 26, Request::Sasl(Bytes::from_static(b"\x00\xff")), "0000001a 00000066 00000002 00ff".into()),
        ("close-session", 27, Request::CloseSession, "0000001b fffffff5".into()),
        ("unknown", 28, Request::Unknown { opcode: 999 }, "0000001c 000003e7".into()),
        ("servers-own", 29, Request::Unknown { opcode: -10 }, "0000001d fffffff6".into()),
    ]
}

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    [of_nodes(), of_several(), of_watches(), of_connections()].concat()
}

#[test]
fn every_request_has_exactly_these_bytes() {
    for (name, xid, request, notation) in cases() {
        let mut out = BytesMut::new();
        request.encode(xid, &mut out);
        assert_eq!(content(&out), bytes(&notation), "{name}");

        let (header, body) = RequestHeader::split(bytes(&notation)).unwrap();
        assert_eq!(header, RequestHeader { xid, opcode: request.opcode() }, "{name}");
        assert_eq!(Request::decode(header.opcode, body).unwrap(), request, "{name}");
        if let Some(reserved) = request.reserved_xid() {
            assert_eq!(reserved, xid, "{name}");
        }
    }
}

#[test]
fn the_table_names_every_operation_of_the_protocol() {
    let named: std::collections::BTreeSet<i32> = cases().iter().map(|(_, _, request, _)| request.opcode()).collect();
    for number in (1..=9).chain(11..=19).chain([21, 22]).chain(100..=107).chain([-11]) {
        assert!(named.contains(&number), "operation {number} has no case");
    }
}

#[test]
fn a_cut_body_is_an_error_and_keeps_its_header() {
    for (name, xid, request, notation) in cases() {
        let whole = bytes(&notation);
        for length in 8..whole.len() {
            let (header, body) = RequestHeader::split(whole.slice(..length)).unwrap();
            assert_eq!(header.xid, xid, "{name}");
            assert!(Request::decode(header.opcode, body).is_err(), "{name} cut to {length} bytes");
        }
        assert!(RequestHeader::split(whole.slice(..7)).is_err());
        let (header, body) = RequestHeader::split([&whole[..], b"more"].concat().into()).unwrap();
        assert_eq!(Request::decode(header.opcode, body).unwrap(), request, "{name} with more behind it");
    }
}

#[test]
fn null_strings_and_vectors_read_as_empty_ones_and_null_data_does_not() {
    let (_, body) = RequestHeader::split(bytes("00000001 00000001 ffffffff ffffffff ffffffff 00000000")).unwrap();
    let expected = CreateRequest { path: String::new(), data: None, acl: Vec::new(), flags: 0 };
    assert_eq!(Request::decode(1, body).unwrap(), Request::Create(expected));
}

#[test]
fn lengths_that_cannot_be_are_refused_by_name() {
    let decode = |opcode, notation| Request::decode(opcode, bytes(notation)).unwrap_err();
    let field = "PathWatch.path";
    assert_eq!(decode(4, "fffffffe 00"), DecodeError::NegativeLength { field, length: -2 });
    assert_eq!(decode(4, "7fffffff 00"), DecodeError::Truncated { field, needed: 0x7fff_ffff, left: 1 });
    assert_eq!(decode(4, "00000002 c328 00"), DecodeError::NotUtf8 { field, valid_up_to: 0 });
    let field = "CreateRequest.acl";
    let error = decode(1, "00000000 00000000 20000000 00000000 00000000 00000000");
    assert_eq!(error, DecodeError::Truncated { field, needed: 0x2000_0000 * 12, left: 12 });
    assert!(error.to_string().starts_with("CreateRequest.acl needs"), "{error}");
    let error = decode(14, "00000004 00 ffffffff 00000000 00");
    assert_eq!(error, DecodeError::Misplaced { field: "Multi.op", opcode: 4 });
    let error = decode(22, "00000002 00 ffffffff 00000000 00000000");
    assert_eq!(error, DecodeError::Misplaced { field: "MultiRead.op", opcode: 2 });
}

/// The three forms: 45 bytes, 44 bytes, and one with more at its end than we know.
#[test]
fn connect_requests_have_exactly_these_bytes() {
    let fields = "00000000 0000000000000005 00007530 0000000000000007 00000010 0102030405060708090a0b0c0d0e0f10";
    let request = |read_only| ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 5,
        timeout_ms: 30_000,
        session_id: 7,
        password: (1..=16).collect::<Vec<u8>>().into(),
        read_only,
    };
    for (read_only, notation, length) in [
        (Some(true), format!("{fields} 01"), 45),
        (Some(false), format!("{fields} 00"), 45),
        (None, fields.to_owned(), 44),
    ] {
        let mut out = BytesMut::new();
        request(read_only).encode(&mut out);
        assert_eq!(content(&out), bytes(&notation));
        assert_eq!(content(&out).len(), length);
        assert_eq!(ConnectRequest::decode(bytes(&notation)).unwrap(), request(read_only));
    }
    assert_eq!(ConnectRequest::decode(bytes(&format!("{fields} 00 '-and-more'"))).unwrap(), request(Some(false)));
    assert!(ConnectRequest::decode(bytes(fields).slice(..43)).is_err());
}
