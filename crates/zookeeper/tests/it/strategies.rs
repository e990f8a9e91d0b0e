//! Strategies for every message.

use bytes::Bytes;
use lockkeeper_zookeeper::request::{
    AddWatchRequest, AuthRequest, CreateRequest, CreateTtlRequest, PathVersion, PathWatch, ReconfigRequest,
    SetAclRequest, SetDataRequest, SetWatches2Request, SetWatchesRequest, WatchesRequest,
};
use lockkeeper_zookeeper::{
    Acl, ClientInfo, ConnectRequest, ConnectResponse, EventType, Id, KeeperState, MultiOp, MultiReadOp, MultiResult,
    OpCode, Permissions, Reply, Request, Stat, WatcherEvent,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::{option, sample};

fn text() -> impl Strategy<Value = String> {
    "[/a-z0-9 éß漢🚪\u{0}-]{0,12}"
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..5)
}

fn buffer() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    option::of(buffer())
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    let line = (any::<i32>(), text(), text())
        .prop_map(|(bits, scheme, id)| Acl { permissions: Permissions(bits), id: Id { scheme, id } });
    vec(line, 0..4)
}

prop_compose! {
    fn stat()(
        zxids in any::<[i64; 3]>(), times in any::<[i64; 2]>(), versions in any::<[i32; 3]>(),
        ephemeral_owner in any::<i64>(), sizes in any::<[i32; 2]>(),
    ) -> Stat {
        Stat {
            czxid: zxids[0], mzxid: zxids[1], ctime_ms: times[0], mtime_ms: times[1],
            version: versions[0], cversion: versions[1], aversion: versions[2],
            ephemeral_owner, data_length: sizes[0], num_children: sizes[1], pzxid: zxids[2],
        }
    }
}

prop_compose! {
    fn create()(path in text(), data in data(), acl in acl(), flags in any::<i32>()) -> CreateRequest {
        CreateRequest { path, data, acl, flags }
    }
}

prop_compose! {
    fn create_ttl()(create in create(), ttl_ms in any::<i64>()) -> CreateTtlRequest {
        let CreateRequest { path, data, acl, flags } = create;
        CreateTtlRequest { path, data, acl, flags, ttl_ms }
    }
}

prop_compose! {
    fn path_version()(path in text(), version in any::<i32>()) -> PathVersion {
        PathVersion { path, version }
    }
}

prop_compose! {
    fn path_watch()(path in text(), watch in any::<bool>()) -> PathWatch {
        PathWatch { path, watch }
    }
}

prop_compose! {
    fn set_data()(path in text(), data in data(), version in any::<i32>()) -> SetDataRequest {
        SetDataRequest { path, data, version }
    }
}

prop_compose! {
    fn set_acl()(path in text(), acl in acl(), version in any::<i32>()) -> SetAclRequest {
        SetAclRequest { path, acl, version }
    }
}

prop_compose! {
    fn auth()(auth_type in any::<i32>(), scheme in text(), credentials in buffer()) -> AuthRequest {
        AuthRequest { auth_type, scheme, credentials }
    }
}

prop_compose! {
    fn set_watches()(
        relative_zxid in any::<i64>(), data_watches in texts(), exist_watches in texts(), child_watches in texts(),
    ) -> SetWatchesRequest {
        SetWatchesRequest { relative_zxid, data_watches, exist_watches, child_watches }
    }
}

prop_compose! {
    fn set_watches2()(
        old in set_watches(), persistent_watches in texts(), persistent_recursive_watches in texts(),
    ) -> SetWatches2Request {
        let SetWatchesRequest { relative_zxid, data_watches, exist_watches, child_watches } = old;
        SetWatches2Request {
            relative_zxid, data_watches, exist_watches, child_watches, persistent_watches, persistent_recursive_watches,
        }
    }
}

prop_compose! {
    fn reconfig()(servers in any::<[bool; 3]>(), name in text(), current_config_id in any::<i64>()) -> ReconfigRequest {
        let [joining_servers, leaving_servers, new_members] =
            servers.map(|given| if given { name.clone() } else { String::new() });
        ReconfigRequest { joining_servers, leaving_servers, new_members, current_config_id }
    }
}

fn watches() -> impl Strategy<Value = WatchesRequest> {
    (text(), any::<i32>()).prop_map(|(path, watcher_type)| WatchesRequest { path, watcher_type })
}

fn multi_op() -> impl Strategy<Value = MultiOp> {
    prop_oneof![
        create().prop_map(MultiOp::Create),
        create().prop_map(MultiOp::Create2),
        create().prop_map(MultiOp::CreateContainer),
        create_ttl().prop_map(MultiOp::CreateTtl),
        path_version().prop_map(MultiOp::Delete),
        set_data().prop_map(MultiOp::SetData),
        path_version().prop_map(MultiOp::Check),
    ]
}

fn multi_read_op() -> impl Strategy<Value = MultiReadOp> {
    prop_oneof![path_watch().prop_map(MultiReadOp::GetChildren), path_watch().prop_map(MultiReadOp::GetData)]
}

fn multi_result() -> impl Strategy<Value = MultiResult> {
    prop_oneof![
        text().prop_map(MultiResult::Create),
        (text(), stat()).prop_map(|(path, stat)| MultiResult::Create2 { path, stat }),
        Just(MultiResult::Delete),
        stat().prop_map(MultiResult::SetData),
        Just(MultiResult::Check),
        texts().prop_map(MultiResult::GetChildren),
        (data(), stat()).prop_map(|(data, stat)| MultiResult::GetData { data, stat }),
        any::<i32>().prop_map(MultiResult::Error),
    ]
}

/// Any request.
pub(crate) fn request() -> impl Strategy<Value = Request> {
    let of_nodes = prop_oneof![
        create().prop_map(Request::Create),
        create().prop_map(Request::Create2),
        create().prop_map(Request::CreateContainer),
        create_ttl().prop_map(Request::CreateTtl),
        path_version().prop_map(Request::Delete),
        path_watch().prop_map(Request::Exists),
        path_watch().prop_map(Request::GetData),
        set_data().prop_map(Request::SetData),
        text().prop_map(Request::GetAcl),
        set_acl().prop_map(Request::SetAcl),
        path_watch().prop_map(Request::GetChildren),
        path_watch().prop_map(Request::GetChildren2),
        text().prop_map(Request::Sync),
        path_version().prop_map(Request::Check),
        vec(multi_op(), 0..6).prop_map(Request::Multi),
        vec(multi_read_op(), 0..6).prop_map(Request::MultiRead),
    ];
    let add_watch = (text(), any::<i32>()).prop_map(|(path, mode)| AddWatchRequest { path, mode });
    let of_sessions = prop_oneof![
        Just(Request::Ping),
        auth().prop_map(Request::Auth),
        set_watches().prop_map(Request::SetWatches),
        set_watches2().prop_map(Request::SetWatches2),
        add_watch.prop_map(Request::AddWatch),
        watches().prop_map(Request::CheckWatches),
        watches().prop_map(Request::RemoveWatches),
        text().prop_map(Request::GetEphemerals),
        text().prop_map(Request::GetAllChildrenNumber),
        Just(Request::WhoAmI),
        reconfig().prop_map(Request::Reconfig),
        buffer().prop_map(Request::Sasl),
        Just(Request::CloseSession),
        (1000..i32::MAX).prop_map(|opcode| Request::Unknown { opcode }),
    ];
    prop_oneof![of_nodes, of_sessions]
}

/// Any reply, with an operation that it may be to.
pub(crate) fn reply() -> impl Strategy<Value = (OpCode, Reply)> {
    let identity = (text(), text()).prop_map(|(auth_scheme, user)| ClientInfo { auth_scheme, user });
    let to = |operations: &'static [OpCode]| sample::select(operations);
    use OpCode as Op;
    prop_oneof![
        to(&[Op::Delete, Op::Ping, Op::Auth, Op::SetWatches, Op::SetWatches2, Op::CheckWatches, Op::RemoveWatches])
            .prop_map(|operation| (operation, Reply::Empty)),
        to(&[Op::CloseSession, Op::Check]).prop_map(|operation| (operation, Reply::Empty)),
        (to(&[Op::Create, Op::Sync]), text()).prop_map(|(operation, path)| (operation, Reply::Path(path))),
        (to(&[Op::Create2, Op::CreateContainer, Op::CreateTtl]), text(), stat())
            .prop_map(|(operation, path, stat)| (operation, Reply::Created { path, stat })),
        (to(&[Op::Exists, Op::SetData, Op::SetAcl]), stat())
            .prop_map(|(operation, stat)| (operation, Reply::Stat(stat))),
        (to(&[Op::GetData, Op::Reconfig]), data(), stat())
            .prop_map(|(operation, data, stat)| (operation, Reply::Data { data, stat })),
        (acl(), stat()).prop_map(|(acl, stat)| (Op::GetAcl, Reply::Acl { acl, stat })),
        texts().prop_map(|children| (Op::GetChildren, Reply::Children(children))),
        (texts(), stat()).prop_map(|(children, stat)| (Op::GetChildren2, Reply::ChildrenAndStat { children, stat })),
        (to(&[Op::Multi, Op::MultiRead]), vec(multi_result(), 0..6))
            .prop_map(|(operation, results)| (operation, Reply::Multi(results))),
        any::<i32>().prop_map(|number| (Op::AddWatch, Reply::Error(number))),
        texts().prop_map(|paths| (Op::GetEphemerals, Reply::Ephemerals(paths))),
        any::<i32>().prop_map(|number| (Op::GetAllChildrenNumber, Reply::ChildrenNumber(number))),
        vec(identity, 0..4).prop_map(|identities| (Op::WhoAmI, Reply::Identities(identities))),
        buffer().prop_map(|token| (Op::Sasl, Reply::Token(token))),
    ]
}

/// Any watch event.
pub(crate) fn event() -> impl Strategy<Value = WatcherEvent> {
    (sample::select(EventType::ALL), sample::select(KeeperState::ALL), text())
        .prop_map(|(event_type, state, path)| WatcherEvent { event_type, state, path })
}

prop_compose! {
    /// Any wish for a session.
    pub(crate) fn connect_request()(
        protocol_version in any::<i32>(), last_zxid_seen in any::<i64>(), timeout_ms in any::<i32>(),
        session_id in any::<i64>(), password in buffer(), read_only in any::<Option<bool>>(),
    ) -> ConnectRequest {
        ConnectRequest { protocol_version, last_zxid_seen, timeout_ms, session_id, password, read_only }
    }
}

prop_compose! {
    /// Any answer to it.
    pub(crate) fn connect_response()(
        protocol_version in any::<i32>(), timeout_ms in any::<i32>(), session_id in any::<i64>(),
        password in buffer(), read_only in any::<Option<bool>>(),
    ) -> ConnectResponse {
        ConnectResponse { protocol_version, timeout_ms, session_id, password, read_only }
    }
}
