//! Strategies for every message.

use bytes::Bytes;
use lockkeeper_zookeeper::request::{
    AddWatchRequest, AuthRequest, CreateRequest, CreateTtlRequest, PathVersion, PathWatch, ReconfigRequest,
    SetAclRequest, SetDataRequest, SetWatches2Request, SetWatchesRequest, WatchesRequest,
};
use lockkeeper_zookeeper::row::ReplyKind;
use lockkeeper_zookeeper::{
    Acl, ClientInfo, ConnectRequest, ConnectResponse, EventType, Id, KeeperState, MultiOp, MultiReadOp, MultiResult,
    OpCode, Permissions, Reply, Request, Stat, WatcherEvent,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;
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

/// Any value of a type that stands in a row.
trait AnyBody: Sized {
    fn any() -> impl Strategy<Value = Self> + 'static;
}

macro_rules! any_body {
    ($($body:ty: $strategy:expr,)*) => {
        $(impl AnyBody for $body {
            fn any() -> impl Strategy<Value = Self> + 'static {
                $strategy
            }
        })*
    };
}

any_body! {
    String: text(),
    Bytes: buffer(),
    CreateRequest: create(),
    CreateTtlRequest: create_ttl(),
    PathVersion: path_version(),
    PathWatch: path_watch(),
    SetDataRequest: set_data(),
    SetAclRequest: set_acl(),
    AuthRequest: auth(),
    SetWatchesRequest: set_watches(),
    SetWatches2Request: set_watches2(),
    AddWatchRequest: (text(), any::<i32>()).prop_map(|(path, mode)| AddWatchRequest { path, mode }),
    WatchesRequest: watches(),
    ReconfigRequest: reconfig(),
    Vec<MultiOp>: vec(multi_op(), 0..6),
    Vec<MultiReadOp>: vec(multi_read_op(), 0..6),
}

macro_rules! any_of {
    ($request:expr) => {
        Just($request).boxed()
    };
    ($request:expr, $body:ty) => {
        <$body>::any().prop_map($request).boxed()
    };
}

macro_rules! strategies {
    ($($group:ident { $(
        $(#[doc = $line:literal])*
        $operation:ident = $number:literal $name:literal $abbreviation:literal
        $($field:ident: $body:ty,)?
        -> $reply:ident
        { $($rules:tt)* }
    )* })*) => {
        /// Any request.
        pub(crate) fn request() -> impl Strategy<Value = Request> {
            let unknown = (1000..i32::MAX).prop_map(|opcode| Request::Unknown { opcode }).boxed();
            let known = [$($(any_of!(Request::$operation $(, $body)?),)*)*];
            Union::new(known.into_iter().chain([unknown]))
        }
    };
}

lockkeeper_zookeeper::each_operation!(strategies);

/// Any reply, with an operation that it may be to.
pub(crate) fn reply() -> impl Strategy<Value = (OpCode, Reply)> {
    let answered: Vec<_> =
        OpCode::ALL.iter().filter_map(|&operation| Some((operation, operation.row().reply?))).collect();
    sample::select(answered).prop_flat_map(|(operation, kind)| (Just(operation), reply_of(kind)))
}

fn reply_of(kind: ReplyKind) -> BoxedStrategy<Reply> {
    let identity = (text(), text()).prop_map(|(auth_scheme, user)| ClientInfo { auth_scheme, user });
    match kind {
        ReplyKind::Empty => Just(Reply::Empty).boxed(),
        ReplyKind::Path => text().prop_map(Reply::Path).boxed(),
        ReplyKind::Created => (text(), stat()).prop_map(|(path, stat)| Reply::Created { path, stat }).boxed(),
        ReplyKind::Stat => stat().prop_map(Reply::Stat).boxed(),
        ReplyKind::Data => (data(), stat()).prop_map(|(data, stat)| Reply::Data { data, stat }).boxed(),
        ReplyKind::Acl => (acl(), stat()).prop_map(|(acl, stat)| Reply::Acl { acl, stat }).boxed(),
        ReplyKind::Children => texts().prop_map(Reply::Children).boxed(),
        ReplyKind::ChildrenAndStat => {
            (texts(), stat()).prop_map(|(children, stat)| Reply::ChildrenAndStat { children, stat }).boxed()
        }
        ReplyKind::Multi => vec(multi_result(), 0..6).prop_map(Reply::Multi).boxed(),
        ReplyKind::Error => any::<i32>().prop_map(Reply::Error).boxed(),
        ReplyKind::Ephemerals => texts().prop_map(Reply::Ephemerals).boxed(),
        ReplyKind::ChildrenNumber => any::<i32>().prop_map(Reply::ChildrenNumber).boxed(),
        ReplyKind::Identities => vec(identity, 0..4).prop_map(Reply::Identities).boxed(),
        ReplyKind::Token => buffer().prop_map(Reply::Token).boxed(),
    }
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
