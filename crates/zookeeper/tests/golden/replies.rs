//! Every reply with its bytes.

use super::{DONE, OPEN, STAT, stat};
use bytes::Bytes;
use lockkeeper_zookeeper::{Acl, ClientInfo, ErrorCode, MultiResult, OpCode, Reply};

/// Name, operation, reply, and the bytes that follow the header.
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

pub(crate) fn cases() -> Vec<Case> {
    [with_a_body(), with_an_empty_body(), of_several()].concat()
}

/// The header of every reply in [`cases`]: xid 3, zxid 4, no error.
pub(crate) const HEADER: &str = "00000003 0000000000000004 00000000";
