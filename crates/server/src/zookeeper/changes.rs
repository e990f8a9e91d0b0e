//! Requests that change something, as operations of the state, and its answers as replies.

use std::net::IpAddr;

use bytes::Bytes;
use lockkeeper_core::{NodeData, NodeKind, NodePath, Op, Refusal, Reply as Done, Sequential};
use lockkeeper_zookeeper::request::{CreateRequest, CreateTtlRequest, PathVersion, SetAclRequest, SetDataRequest};
use lockkeeper_zookeeper::{CreateMode, ErrorCode, MultiOp, MultiResult, Reply, Request};

use super::auth::Known;
use super::special::{Special, stat_of_root};
use super::values::{code, kind, path, path_seen, stat, version};

/// An operation, and in which form it is answered.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) op: Op,
    form: Form,
}

/// In which form a change is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// create: the path.
    Path,
    /// The other creates: path and stat.
    Created,
    /// The bare header.
    Empty,
    /// The stat after it.
    Stat {
        /// Of the root, which has a child that the tree does not have.
        of_root: bool,
    },
    /// A multi.
    Multi {
        /// Each operation in its own form.
        forms: Vec<Form>,
        /// The first that makes no sense, and why.
        senseless: Option<(usize, ErrorCode)>,
    },
}

/// The change that a request asks for; none if it asks for none.
///
/// # Errors
/// The request makes no sense.
pub(super) fn change(request: &Request, known: &Known) -> Option<Result<Change, ErrorCode>> {
    Some(match request {
        Request::Create(create) => self::create(create, Makes::Node, known).map(|op| Change { op, form: Form::Path }),
        Request::Create2(create) => {
            self::create(create, Makes::Node, known).map(|op| Change { op, form: Form::Created })
        }
        Request::CreateContainer(create) => {
            self::create(create, Makes::Container, known).map(|op| Change { op, form: Form::Created })
        }
        Request::CreateTtl(create) => create_ttl(create, known).map(|op| Change { op, form: Form::Created }),
        Request::Delete(delete) => self::delete(delete).map(|op| Change { op, form: Form::Empty }),
        Request::SetData(set) => set_data(set).map(|op| Change { op, form: stat_of(&set.path) }),
        Request::SetAcl(set) => set_acl(set, known).map(|op| Change { op, form: stat_of(&set.path) }),
        Request::Check(check) => self::check(check).map(|op| Change { op, form: Form::Empty }),
        Request::Multi(ops) => Ok(multi(ops, known)),
        _ => return None,
    })
}

/// What a create makes: the operation says more than the flags, as in ZooKeeper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Makes {
    Node,
    Container,
}

fn create(request: &CreateRequest, makes: Makes, known: &Known) -> Result<Op, ErrorCode> {
    let (kind, sequential) = kind(request.flags, None)?;
    let kind = match (makes, kind) {
        (Makes::Container, _) => NodeKind::Container,
        (Makes::Node, NodeKind::Container) => NodeKind::Persistent,
        (Makes::Node, kind) => kind,
    };
    make(&request.path, request.data.as_ref(), kind, sequential, known.fix_up(&request.acl))
}

fn create_ttl(request: &CreateTtlRequest, known: &Known) -> Result<Op, ErrorCode> {
    let (kind, sequential) = kind(request.flags, Some(request.ttl_ms))?;
    make(&request.path, request.data.as_ref(), kind, sequential, known.fix_up(&request.acl))
}

/// In the order in which ZooKeeper finds fault: with what is no path at all, with the list, with the path.
fn make(
    at: &str,
    data: Option<&Bytes>,
    kind: NodeKind,
    sequential: bool,
    acl: Result<Vec<lockkeeper_core::AclEntry>, ErrorCode>,
) -> Result<Op, ErrorCode> {
    if is_no_path(at) {
        return Err(ErrorCode::BadArguments);
    }
    let acl = acl?;
    let (path, sequential) = match sequential {
        true => Sequential::parse_prefix(at).map_err(|_| ErrorCode::BadArguments)?,
        false => (path(at)?, Sequential::No),
    };
    not_reserved(&path)?;
    Ok(Op::Create { path, data: bytes(data), kind, sequential, acl })
}

/// What is no path at all is told so; what is one and cannot be there is not there.
fn delete(request: &PathVersion) -> Result<Op, ErrorCode> {
    if is_no_path(&request.path) || request.path == "/" || Special::is_shown(&request.path) {
        return Err(ErrorCode::BadArguments);
    }
    let path = path_seen(&request.path)?;
    not_reserved(&path)?;
    Ok(Op::Delete { path, version: version(request.version) })
}

fn is_no_path(text: &str) -> bool {
    !text.contains('/') || text.contains('\0')
}

/// What lies below `/zookeeper` is not for clients to change.
fn not_reserved(path: &NodePath) -> Result<(), ErrorCode> {
    if Special::is_reserved(path.as_str()) { Err(ErrorCode::NoAuth) } else { Ok(()) }
}

fn check(request: &PathVersion) -> Result<Op, ErrorCode> {
    Ok(Op::Check { path: path(&request.path)?, version: version(request.version) })
}

fn set_data(request: &SetDataRequest) -> Result<Op, ErrorCode> {
    let path = path(&request.path)?;
    not_reserved(&path)?;
    Ok(Op::SetData { path, data: bytes(request.data.as_ref()), version: version(request.version) })
}

fn set_acl(request: &SetAclRequest, known: &Known) -> Result<Op, ErrorCode> {
    let path = path(&request.path)?;
    not_reserved(&path)?;
    Ok(Op::SetAcl { path, acl: known.fix_up(&request.acl)?, version: version(request.version) })
}

/// Null stays null.
fn bytes(data: Option<&Bytes>) -> NodeData {
    data.map(|data| &data[..]).into()
}

/// An operation that makes no sense fails in its place, behind those before it: a check that cannot succeed stands for it.
fn multi(ops: &[MultiOp], known: &Known) -> Change {
    let (mut parts, mut forms) = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
    let mut senseless = None;
    for op in ops {
        let (part, form) = part(op, known);
        match part {
            _ if senseless.is_some() => {}
            Ok(part) => parts.push(part),
            Err(code) => {
                senseless = Some((parts.len(), code));
                parts.push(Op::Check { path: NodePath::root(), version: Some(NEVER) });
            }
        }
        forms.push(form);
    }
    Change { op: Op::Multi(parts), form: Form::Multi { forms, senseless } }
}

/// No node ever has this version.
const NEVER: i32 = i32::MIN;

/// One operation of a multi. ZooKeeper goes by a create's flags there, whatever its number.
fn part(op: &MultiOp, known: &Known) -> (Result<Op, ErrorCode>, Form) {
    match op {
        MultiOp::Create(create) | MultiOp::Create2(create) | MultiOp::CreateContainer(create) => {
            match CreateMode::from_number(create.flags).is_some_and(CreateMode::is_container) {
                true => (self::create(create, Makes::Container, known), Form::Created),
                false => (self::create(create, Makes::Node, known), Form::Path),
            }
        }
        MultiOp::CreateTtl(create) => (create_ttl(create, known), Form::Created),
        MultiOp::Delete(delete) => (self::delete(delete), Form::Empty),
        MultiOp::SetData(set) => (set_data(set), stat_of(&set.path)),
        MultiOp::Check(check) => (self::check(check), Form::Empty),
    }
}

impl Change {
    /// Takes the operation out; the rest knows how to answer it.
    pub(super) fn into_parts(self) -> (Op, Answering) {
        (self.op, Answering(self.form))
    }
}

/// Knows how a change is answered.
#[derive(Debug)]
pub(super) struct Answering(Form);

impl Answering {
    /// What the client is told. None as in [`reply`](Self::reply).
    pub(super) fn answer(&self, answered: Result<Done, Refusal>) -> Option<Result<Reply, ErrorCode>> {
        match answered {
            Ok(done) => self.reply(done).map(Ok),
            Err(refusal) => Some(self.refused(&refusal)),
        }
    }

    /// The reply to a change that was made. None if the state answered something else than was asked: this program contradicts itself.
    fn reply(&self, done: Done) -> Option<Reply> {
        Some(match (&self.0, done) {
            (Form::Path, Done::Created { path, .. }) => Reply::Path(path.as_str().to_owned()),
            (Form::Created, Done::Created { path, stat }) => {
                Reply::Created { path: path.as_str().to_owned(), stat: self::stat(&stat) }
            }
            (Form::Empty, Done::Deleted | Done::Checked) => Reply::Empty,
            (Form::Stat { of_root }, Done::DataSet(stat) | Done::AclSet(stat)) => Reply::Stat(shown(&stat, *of_root)),
            (Form::Multi { forms, .. }, Done::Multi(parts)) if forms.len() == parts.len() => {
                let results = forms.iter().zip(parts).map(|(form, part)| result(form, part));
                Reply::Multi(results.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// The answer to a change that was refused: a multi says so among its results, and not in its header.
    fn refused(&self, refusal: &Refusal) -> Result<Reply, ErrorCode> {
        match (&self.0, refusal) {
            (Form::Multi { forms, senseless }, Refusal::MultiFailed { index, cause }) => {
                let failed = usize::try_from(*index).unwrap_or(usize::MAX);
                let why = senseless.filter(|(at, _)| *at == failed).map_or_else(|| code(cause), |(_, code)| code);
                Ok(Reply::Multi(MultiResult::of_failure(forms.len(), failed, why)))
            }
            _ => Err(code(refusal)),
        }
    }
}

/// The protocol has a number for a refusal and no words: those are for the operator.
pub(super) fn log_foreign_names(refusal: &Refusal, from: IpAddr) {
    match refusal {
        Refusal::ForeignNames { .. } => tracing::warn!(client = %from, "a lock request was refused: {refusal}"),
        Refusal::MultiFailed { cause, .. } => log_foreign_names(cause, from),
        _ => {}
    }
}

fn stat_of(path: &str) -> Form {
    Form::Stat { of_root: path == "/" }
}

fn shown(stat: &lockkeeper_core::Stat, of_root: bool) -> lockkeeper_zookeeper::Stat {
    if of_root { stat_of_root(self::stat(stat)) } else { self::stat(stat) }
}

fn result(form: &Form, part: Done) -> Option<MultiResult> {
    Some(match (form, part) {
        (Form::Path, Done::Created { path, .. }) => MultiResult::Create(path.as_str().to_owned()),
        (Form::Created, Done::Created { path, stat }) => {
            MultiResult::Create2 { path: path.as_str().to_owned(), stat: self::stat(&stat) }
        }
        (Form::Empty, Done::Deleted) => MultiResult::Delete,
        (Form::Empty, Done::Checked) => MultiResult::Check,
        (Form::Stat { of_root }, Done::DataSet(stat)) => MultiResult::SetData(shown(&stat, *of_root)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Stat;
    use lockkeeper_zookeeper::Acl;

    fn known() -> Known {
        Known::at("127.0.0.1".parse().unwrap())
    }

    fn request(path: &str, flags: i32) -> CreateRequest {
        CreateRequest { path: path.into(), data: None, acl: vec![Acl::open()], flags }
    }

    fn changed(request: &Request) -> Result<Change, ErrorCode> {
        change(request, &known()).expect("it asks for a change")
    }

    #[test]
    fn creates_are_answered_in_their_own_forms() {
        let done = || Done::Created { path: NodePath::parse("/a").unwrap(), stat: Stat::default() };
        let (_, one) = changed(&Request::Create(request("/a", 0))).unwrap().into_parts();
        assert_eq!(one.reply(done()), Some(Reply::Path("/a".into())));
        let (_, two) = changed(&Request::Create2(request("/a", 0))).unwrap().into_parts();
        assert!(matches!(two.reply(done()), Some(Reply::Created { .. })));
        assert_eq!(two.reply(Done::Deleted), None, "an answer of another kind");
    }

    #[test]
    fn senseless_arguments_are_told_before_anything_is_done() {
        for (path, flags) in [("a", 0), ("", 0), ("/a//b", 0), ("/a/", 0), ("/a", 9), ("/a/../b", 0), ("/\0", 0)] {
            let refused = changed(&Request::Create(request(path, flags)));
            assert_eq!(refused.unwrap_err(), ErrorCode::BadArguments, "{path} {flags}");
        }
        let bare = CreateRequest { acl: Vec::new(), ..request("/a", 0) };
        assert_eq!(changed(&Request::Create(bare)).unwrap_err(), ErrorCode::InvalidAcl);
        assert!(change(&Request::Ping, &known()).is_none());
    }

    #[test]
    fn what_is_made_is_for_the_operation_to_say_and_in_a_multi_for_the_flags() {
        let kind = |request: &Request| match changed(request).unwrap().op {
            Op::Create { kind, .. } => kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(kind(&Request::Create2(request("/a", 4))), NodeKind::Persistent);
        assert_eq!(kind(&Request::CreateContainer(request("/a", 0))), NodeKind::Container);
        let Op::Multi(parts) = changed(&Request::Multi(vec![MultiOp::Create(request("/a", 4))])).unwrap().op else {
            panic!("a multi")
        };
        assert!(matches!(parts[..], [Op::Create { kind: NodeKind::Container, .. }]));
    }

    #[test]
    fn a_part_that_makes_no_sense_fails_in_its_place() {
        let delete = || MultiOp::Delete(PathVersion { path: "/a".into(), version: -1 });
        let ops = vec![delete(), MultiOp::Create(request("/b", 99)), delete()];
        let (op, answering) = changed(&Request::Multi(ops)).unwrap().into_parts();
        let Op::Multi(parts) = op else { panic!("a multi") };
        assert!(matches!(parts[..], [Op::Delete { .. }, Op::Check { version: Some(NEVER), .. }]));
        let failed = |index, cause| answering.refused(&Refusal::MultiFailed { index, cause: Box::new(cause) }).unwrap();
        let root = NodePath::root();
        let never = Refusal::BadVersion { path: root.clone(), expected: NEVER, actual: 0 };
        assert_eq!(failed(1, never), Reply::Multi(MultiResult::of_failure(3, 1, ErrorCode::BadArguments)));
        assert_eq!(failed(0, Refusal::NoNode(root)), Reply::Multi(MultiResult::of_failure(3, 0, ErrorCode::NoNode)));
    }

    #[test]
    fn a_sequential_name_may_be_its_sequence_alone() {
        let asked = |path: &str, flags| match changed(&Request::Create(request(path, flags))).map(|change| change.op) {
            Ok(Op::Create { path, sequential, .. }) => Ok((path.as_str().to_owned(), sequential)),
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
    fn a_multi_that_failed_says_so_among_its_results() {
        let delete = || MultiOp::Delete(PathVersion { path: "/a".into(), version: -1 });
        let create = MultiOp::Create(request("/b", 4));
        let (op, answering) = changed(&Request::Multi(vec![delete(), create, delete()])).unwrap().into_parts();
        assert!(matches!(op, Op::Multi(parts) if parts.len() == 3));
        let cause = Box::new(Refusal::NodeExists(NodePath::parse("/b").unwrap()));
        let refused = answering.refused(&Refusal::MultiFailed { index: 1, cause }).unwrap();
        let codes = [ErrorCode::Ok, ErrorCode::NodeExists, ErrorCode::RuntimeInconsistency];
        assert_eq!(refused, Reply::Multi(codes.map(MultiResult::error).to_vec()));
        let created = Done::Created { path: NodePath::parse("/b").unwrap(), stat: Stat::default() };
        let Some(Reply::Multi(results)) = answering.reply(Done::Multi(vec![Done::Deleted, created, Done::Deleted]))
        else {
            panic!("it was done");
        };
        assert!(matches!(results[..], [MultiResult::Delete, MultiResult::Create2 { .. }, MultiResult::Delete]));
        assert_eq!(
            answering.refused(&Refusal::SessionMoved(lockkeeper_core::SessionId(1))),
            Err(ErrorCode::SessionMoved)
        );
    }
}
