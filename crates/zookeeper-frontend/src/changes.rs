//! Translates requests that change something into operations of the state, and its outcomes into replies.

use std::net::IpAddr;

use bytes::Bytes;
use lockkeeper_core::{NodeData, NodeKind, NodeOp, NodePath, Op, Refusal, Reply as CoreReply, Sequential};
use lockkeeper_service::system_nodes::is_reserved;
use lockkeeper_zookeeper::request::{
    ChangeRequest, CreateRequest, CreateTtlRequest, PathVersion, SetAclRequest, SetDataRequest,
};
use lockkeeper_zookeeper::{CreateMode, ErrorCode, MultiOp, MultiResult, Reply};

use super::auth::Identity;
use super::system_nodes::{SystemNodes, stat_of_root};
use super::values::{code, kind, path, path_to_read, stat, version};

/// An operation and the form of its reply.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) op: Op,
    form: ReplyForm,
}

/// Form of the reply to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReplyForm {
    /// The path (create).
    Path,
    /// Path and stat (the other creates).
    Created,
    /// Only the header.
    Empty,
    /// The new stat.
    Stat {
        /// The root has the extra child `/zookeeper`.
        of_root: bool,
    },
    Multi {
        /// One per operation.
        forms: Vec<ReplyForm>,
        /// The first invalid operation, and its error.
        invalid: Option<(usize, ErrorCode)>,
    },
}

/// The change that a request asks for.
///
/// # Errors
/// The request is invalid.
pub(super) fn change(request: ChangeRequest<'_>, identity: &Identity) -> Result<Change, ErrorCode> {
    let (op, form) = match request {
        ChangeRequest::Create(create) => (self::create(create, CreateAs::Node, identity), ReplyForm::Path),
        ChangeRequest::Create2(create) => (self::create(create, CreateAs::Node, identity), ReplyForm::Created),
        ChangeRequest::CreateContainer(create) => {
            (self::create(create, CreateAs::Container, identity), ReplyForm::Created)
        }
        ChangeRequest::CreateTtl(create) => (create_ttl(create, identity), ReplyForm::Created),
        ChangeRequest::Delete(delete) => (self::delete(delete), ReplyForm::Empty),
        ChangeRequest::SetData(set) => (set_data(set), stat_of(&set.path)),
        ChangeRequest::SetAcl(set) => (set_acl(set, identity), stat_of(&set.path)),
        ChangeRequest::Check(check) => (self::check(check), ReplyForm::Empty),
        ChangeRequest::Multi(ops) => return Ok(multi(ops, identity)),
    };
    Ok(Change { op: op?.into(), form })
}

/// The kind that a create's opcode selects. It overrides the flags, as in ZooKeeper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CreateAs {
    Node,
    Container,
}

fn create(request: &CreateRequest, create_as: CreateAs, identity: &Identity) -> Result<NodeOp, ErrorCode> {
    let (kind, sequential) = kind(request.flags, None)?;
    let kind = match (create_as, kind) {
        (CreateAs::Container, _) => NodeKind::Container,
        (CreateAs::Node, NodeKind::Container) => NodeKind::Persistent,
        (CreateAs::Node, kind) => kind,
    };
    create_op(&request.path, request.data.as_ref(), kind, sequential, identity.fix_up(&request.acl))
}

fn create_ttl(request: &CreateTtlRequest, identity: &Identity) -> Result<NodeOp, ErrorCode> {
    let (kind, sequential) = kind(request.flags, Some(request.ttl_ms))?;
    create_op(&request.path, request.data.as_ref(), kind, sequential, identity.fix_up(&request.acl))
}

/// Checks in ZooKeeper's order: text that is not a path, then the ACL, then the path.
fn create_op(
    at: &str,
    data: Option<&Bytes>,
    kind: NodeKind,
    sequential: bool,
    acl: Result<Vec<lockkeeper_core::AclEntry>, ErrorCode>,
) -> Result<NodeOp, ErrorCode> {
    if is_not_a_path(at) {
        return Err(ErrorCode::BadArguments);
    }
    let acl = acl?;
    let (path, sequential) = match sequential {
        true => Sequential::parse_prefix(at).map_err(|_| ErrorCode::BadArguments)?,
        false => (path(at)?, Sequential::No),
    };
    not_reserved(&path)?;
    Ok(NodeOp::Create { path, data: bytes(data), kind, sequential, acl })
}

/// Text that is not a path is refused with `BadArguments`, an invalid path with `NoNode`.
fn delete(request: &PathVersion) -> Result<NodeOp, ErrorCode> {
    if is_not_a_path(&request.path) || request.path == "/" || SystemNodes::is_shown(&request.path) {
        return Err(ErrorCode::BadArguments);
    }
    let path = path_to_read(&request.path)?;
    not_reserved(&path)?;
    Ok(NodeOp::Delete { path, version: version(request.version) })
}

fn is_not_a_path(text: &str) -> bool {
    !text.contains('/') || text.contains('\0')
}

/// Clients may not change `/zookeeper` or nodes below it.
fn not_reserved(path: &NodePath) -> Result<(), ErrorCode> {
    if is_reserved(path.as_str()) { Err(ErrorCode::NoAuth) } else { Ok(()) }
}

fn check(request: &PathVersion) -> Result<NodeOp, ErrorCode> {
    Ok(NodeOp::Check { path: path(&request.path)?, version: version(request.version) })
}

fn set_data(request: &SetDataRequest) -> Result<NodeOp, ErrorCode> {
    let path = path(&request.path)?;
    not_reserved(&path)?;
    Ok(NodeOp::SetData { path, data: bytes(request.data.as_ref()), version: version(request.version) })
}

fn set_acl(request: &SetAclRequest, identity: &Identity) -> Result<NodeOp, ErrorCode> {
    let path = path(&request.path)?;
    not_reserved(&path)?;
    Ok(NodeOp::SetAcl { path, acl: identity.fix_up(&request.acl)?, version: version(request.version) })
}

fn bytes(data: Option<&Bytes>) -> NodeData {
    data.map(|data| &data[..]).into()
}

/// An invalid operation must fail at its place, after those before it: a check that cannot succeed replaces it.
fn multi(ops: &[MultiOp], identity: &Identity) -> Change {
    let (mut parts, mut forms) = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
    let mut invalid = None;
    for op in ops {
        let (part, form) = part(op, identity);
        match part {
            _ if invalid.is_some() => {}
            Ok(part) => parts.push(part),
            Err(code) => {
                invalid = Some((parts.len(), code));
                parts.push(NodeOp::Check { path: NodePath::root(), version: Some(IMPOSSIBLE_VERSION) });
            }
        }
        forms.push(form);
    }
    Change { op: Op::Multi(parts), form: ReplyForm::Multi { forms, invalid } }
}

/// A version that no node has.
const IMPOSSIBLE_VERSION: i32 = i32::MIN;

/// One operation of a multi. There, ZooKeeper goes by a create's flags and ignores its opcode.
fn part(op: &MultiOp, identity: &Identity) -> (Result<NodeOp, ErrorCode>, ReplyForm) {
    match op {
        MultiOp::Create(create) | MultiOp::Create2(create) | MultiOp::CreateContainer(create) => {
            match CreateMode::from_number(create.flags).is_some_and(CreateMode::is_container) {
                true => (self::create(create, CreateAs::Container, identity), ReplyForm::Created),
                false => (self::create(create, CreateAs::Node, identity), ReplyForm::Path),
            }
        }
        MultiOp::CreateTtl(create) => (create_ttl(create, identity), ReplyForm::Created),
        MultiOp::Delete(delete) => (self::delete(delete), ReplyForm::Empty),
        MultiOp::SetData(set) => (set_data(set), stat_of(&set.path)),
        MultiOp::Check(check) => (self::check(check), ReplyForm::Empty),
    }
}

impl Change {
    /// The operation, and the encoder of its reply.
    pub(super) fn into_parts(self) -> (Op, ReplyEncoder) {
        (self.op, ReplyEncoder(self.form))
    }
}

/// Turns the outcome of a change into its reply.
#[derive(Debug)]
pub(super) struct ReplyEncoder(ReplyForm);

impl ReplyEncoder {
    /// The reply to an outcome; `None` as in [`reply`](Self::reply).
    pub(super) fn answer(&self, answered: Result<CoreReply, Refusal>) -> Option<Result<Reply, ErrorCode>> {
        match answered {
            Ok(done) => self.reply(done).map(Ok),
            Err(refusal) => Some(self.refused(&refusal)),
        }
    }

    /// The reply to a change that succeeded; `None` if the outcome is not that of the operation, which is a bug.
    fn reply(&self, done: CoreReply) -> Option<Reply> {
        Some(match (&self.0, done) {
            (ReplyForm::Path, CoreReply::Created { path, .. }) => Reply::Path(path.as_str().to_owned()),
            (ReplyForm::Created, CoreReply::Created { path, stat }) => {
                Reply::Created { path: path.as_str().to_owned(), stat: self::stat(&stat) }
            }
            (ReplyForm::Empty, CoreReply::Deleted | CoreReply::Checked) => Reply::Empty,
            (ReplyForm::Stat { of_root }, CoreReply::DataSet(stat) | CoreReply::AclSet(stat)) => {
                Reply::Stat(shown(&stat, *of_root))
            }
            (ReplyForm::Multi { forms, .. }, CoreReply::Multi(parts)) if forms.len() == parts.len() => {
                let results = forms.iter().zip(parts).map(|(form, part)| result(form, part));
                Reply::Multi(results.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// The reply to a change that was refused. A multi reports it among its results, not in the header.
    fn refused(&self, refusal: &Refusal) -> Result<Reply, ErrorCode> {
        match (&self.0, refusal) {
            (ReplyForm::Multi { forms, invalid }, Refusal::MultiFailed { index, cause }) => {
                let failed = usize::try_from(*index).unwrap_or(usize::MAX);
                let why = invalid.filter(|(at, _)| *at == failed).map_or_else(|| code(cause), |(_, code)| code);
                Ok(Reply::Multi(MultiResult::of_failure(forms.len(), failed, why)))
            }
            _ => Err(code(refusal)),
        }
    }
}

/// Logs a refusal for the operator: the protocol carries only its number.
pub(super) fn log_foreign_names(refusal: &Refusal, from: IpAddr) {
    match refusal {
        Refusal::ForeignNames { .. } => tracing::warn!(client = %from, "refused a lock request: {refusal}"),
        Refusal::MultiFailed { cause, .. } => log_foreign_names(cause, from),
        _ => {}
    }
}

fn stat_of(path: &str) -> ReplyForm {
    ReplyForm::Stat { of_root: path == "/" }
}

fn shown(stat: &lockkeeper_core::Stat, of_root: bool) -> lockkeeper_zookeeper::Stat {
    if of_root { stat_of_root(self::stat(stat)) } else { self::stat(stat) }
}

fn result(form: &ReplyForm, part: CoreReply) -> Option<MultiResult> {
    Some(match (form, part) {
        (ReplyForm::Path, CoreReply::Created { path, .. }) => MultiResult::Create(path.as_str().to_owned()),
        (ReplyForm::Created, CoreReply::Created { path, stat }) => {
            MultiResult::Create2 { path: path.as_str().to_owned(), stat: self::stat(&stat) }
        }
        (ReplyForm::Empty, CoreReply::Deleted) => MultiResult::Delete,
        (ReplyForm::Empty, CoreReply::Checked) => MultiResult::Check,
        (ReplyForm::Stat { of_root }, CoreReply::DataSet(stat)) => MultiResult::SetData(shown(&stat, *of_root)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use lockkeeper_zookeeper::request::RequestGroup;
    use lockkeeper_zookeeper::{Acl, Request};

    use super::*;
    use lockkeeper_core::Stat;

    fn identity() -> Identity {
        Identity::of(lockkeeper_service::principals::from_address("127.0.0.1".parse().unwrap()))
    }

    fn request(path: &str, flags: i32) -> CreateRequest {
        CreateRequest { path: path.into(), data: None, acl: vec![Acl::open()], flags }
    }

    fn changed(request: &Request) -> Result<Change, ErrorCode> {
        let RequestGroup::ChangeRequest(request) = request.group() else { panic!("it asks for a change") };
        change(request, &identity())
    }

    #[test]
    fn each_create_has_its_own_form_of_reply() {
        let done = || CoreReply::Created { path: NodePath::parse("/a").unwrap(), stat: Stat::default() };
        let (_, one) = changed(&Request::Create(request("/a", 0))).unwrap().into_parts();
        assert_eq!(one.reply(done()), Some(Reply::Path("/a".into())));
        let (_, two) = changed(&Request::Create2(request("/a", 0))).unwrap().into_parts();
        assert!(matches!(two.reply(done()), Some(Reply::Created { .. })));
        assert_eq!(two.reply(CoreReply::Deleted), None, "an outcome of another kind");
    }

    #[test]
    fn invalid_arguments_are_refused_before_the_state_is_asked() {
        for (path, flags) in [("a", 0), ("", 0), ("/a//b", 0), ("/a/", 0), ("/a", 9), ("/a/../b", 0), ("/\0", 0)] {
            let refused = changed(&Request::Create(request(path, flags)));
            assert_eq!(refused.unwrap_err(), ErrorCode::BadArguments, "{path} {flags}");
        }
        let bare = CreateRequest { acl: Vec::new(), ..request("/a", 0) };
        assert_eq!(changed(&Request::Create(bare)).unwrap_err(), ErrorCode::InvalidAcl);
    }

    #[test]
    fn the_opcode_selects_the_kind_and_in_a_multi_the_flags_do() {
        let kind = |request: &Request| match changed(request).unwrap().op {
            Op::Node(NodeOp::Create { kind, .. }) => kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(kind(&Request::Create2(request("/a", 4))), NodeKind::Persistent);
        assert_eq!(kind(&Request::CreateContainer(request("/a", 0))), NodeKind::Container);
        let Op::Multi(parts) = changed(&Request::Multi(vec![MultiOp::Create(request("/a", 4))])).unwrap().op else {
            panic!("a multi")
        };
        assert!(matches!(parts[..], [NodeOp::Create { kind: NodeKind::Container, .. }]));
    }

    #[test]
    fn an_invalid_part_of_a_multi_fails_at_its_place() {
        let delete = || MultiOp::Delete(PathVersion { path: "/a".into(), version: -1 });
        let ops = vec![delete(), MultiOp::Create(request("/b", 99)), delete()];
        let (op, encoder) = changed(&Request::Multi(ops)).unwrap().into_parts();
        let Op::Multi(parts) = op else { panic!("a multi") };
        assert!(matches!(parts[..], [NodeOp::Delete { .. }, NodeOp::Check { version: Some(IMPOSSIBLE_VERSION), .. }]));
        let failed = |index, cause| encoder.refused(&Refusal::MultiFailed { index, cause: Box::new(cause) }).unwrap();
        let root = NodePath::root();
        let never = Refusal::BadVersion { path: root.clone(), expected: IMPOSSIBLE_VERSION, actual: 0 };
        assert_eq!(failed(1, never), Reply::Multi(MultiResult::of_failure(3, 1, ErrorCode::BadArguments)));
        assert_eq!(failed(0, Refusal::NoNode(root)), Reply::Multi(MultiResult::of_failure(3, 0, ErrorCode::NoNode)));
    }

    #[test]
    fn a_sequential_name_may_be_only_its_sequence() {
        let asked = |path: &str, flags| match changed(&Request::Create(request(path, flags))).map(|change| change.op) {
            Ok(Op::Node(NodeOp::Create { path, sequential, .. })) => Ok((path.as_str().to_owned(), sequential)),
            Ok(other) => panic!("{other:?}"),
            Err(code) => Err(code),
        };
        assert_eq!(asked("/a/", 2), Ok(("/a".into(), Sequential::Alone)));
        assert_eq!(asked("/a/n-", 3), Ok(("/a/n-".into(), Sequential::Suffix)));
        assert_eq!(asked("/", 2), Ok(("/".into(), Sequential::Suffix)));
        for (path, flags) in [("/a/", 0), ("/a//", 2), ("//", 2), ("", 2)] {
            assert_eq!(asked(path, flags), Err(ErrorCode::BadArguments), "{path} {flags}");
        }
    }

    #[test]
    fn a_failed_multi_reports_it_among_its_results() {
        let delete = || MultiOp::Delete(PathVersion { path: "/a".into(), version: -1 });
        let create = MultiOp::Create(request("/b", 4));
        let (op, encoder) = changed(&Request::Multi(vec![delete(), create, delete()])).unwrap().into_parts();
        assert!(matches!(op, Op::Multi(parts) if parts.len() == 3));
        let cause = Box::new(Refusal::NodeExists(NodePath::parse("/b").unwrap()));
        let refused = encoder.refused(&Refusal::MultiFailed { index: 1, cause }).unwrap();
        let codes = [ErrorCode::Ok, ErrorCode::NodeExists, ErrorCode::RuntimeInconsistency];
        assert_eq!(refused, Reply::Multi(codes.map(MultiResult::error).to_vec()));
        let created = CoreReply::Created { path: NodePath::parse("/b").unwrap(), stat: Stat::default() };
        let Some(Reply::Multi(results)) =
            encoder.reply(CoreReply::Multi(vec![CoreReply::Deleted, created, CoreReply::Deleted]))
        else {
            panic!("it was done");
        };
        assert!(matches!(results[..], [MultiResult::Delete, MultiResult::Create2 { .. }, MultiResult::Delete]));
        assert_eq!(
            encoder.refused(&Refusal::SessionMoved(lockkeeper_core::SessionId(1))),
            Err(ErrorCode::SessionMoved)
        );
    }
}
