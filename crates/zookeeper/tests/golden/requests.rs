//! Every request with its bytes.

use super::{DONE, OPEN};
use bytes::Bytes;
use lockkeeper_zookeeper::request::{
    AddWatchRequest, AuthRequest, CreateRequest, CreateTtlRequest, PathVersion, PathWatch, ReconfigRequest,
    SetAclRequest, SetDataRequest, SetWatches2Request, SetWatchesRequest, WatchesRequest,
};
use lockkeeper_zookeeper::{Acl, MultiOp, MultiReadOp, Request};

/// Name, xid, request, and the content of its frame.
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
        ("create-session", 29, Request::Unknown { opcode: -10 }, "0000001d fffffff6".into()),
        ("notification", 30, Request::Unknown { opcode: 0 }, "0000001e 00000000".into()),
        ("delete-container", 31, Request::Unknown { opcode: 20 }, "0000001f 00000014".into()),
        ("error", 32, Request::Unknown { opcode: -1 }, "00000020 ffffffff".into()),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [of_nodes(), of_several(), of_watches(), of_connections()].concat()
}
