//! Requests that change something, as operations of the state, and its answers as replies.

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::{NodeKind, Op, Refusal, Reply as Done, Sequential};
use lockkeeper_zookeeper::request::{CreateRequest, CreateTtlRequest, PathVersion, SetDataRequest};
use lockkeeper_zookeeper::{ErrorCode, MultiOp, MultiResult, Reply, Request};

use super::auth::Known;
use super::values::{code, kind, path, stat, version};

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
    Stat,
    /// Each operation of a multi, in its own form.
    Multi(Vec<Form>),
}

/// The change that a request asks for; none if it asks for none.
///
/// # Errors
/// The request makes no sense.
pub(super) fn change(request: &Request, known: &Known) -> Option<Result<Change, ErrorCode>> {
    Some(match request {
        Request::Create(create) => self::create(create, known).map(|op| Change { op, form: Form::Path }),
        Request::Create2(create) | Request::CreateContainer(create) => {
            self::create(create, known).map(|op| Change { op, form: Form::Created })
        }
        Request::CreateTtl(create) => create_ttl(create, known).map(|op| Change { op, form: Form::Created }),
        Request::Delete(delete) => self::delete(delete).map(|op| Change { op, form: Form::Empty }),
        Request::SetData(set) => set_data(set).map(|op| Change { op, form: Form::Stat }),
        Request::SetAcl(set) => {
            let op = || {
                Ok(Op::SetAcl { path: path(&set.path)?, acl: known.fix_up(&set.acl)?, version: version(set.version) })
            };
            op().map(|op| Change { op, form: Form::Stat })
        }
        Request::Check(check) => self::check(check).map(|op| Change { op, form: Form::Empty }),
        Request::Multi(ops) => multi(ops, known),
        _ => return None,
    })
}

fn create(request: &CreateRequest, known: &Known) -> Result<Op, ErrorCode> {
    let (kind, sequential) = kind(request.flags, None)?;
    make(&request.path, request.data.as_ref(), kind, sequential, known.fix_up(&request.acl))
}

fn create_ttl(request: &CreateTtlRequest, known: &Known) -> Result<Op, ErrorCode> {
    let (kind, sequential) = kind(request.flags, Some(request.ttl_ms))?;
    make(&request.path, request.data.as_ref(), kind, sequential, known.fix_up(&request.acl))
}

fn make(
    at: &str,
    data: Option<&Bytes>,
    kind: NodeKind,
    sequential: bool,
    acl: Result<Vec<lockkeeper_core::AclEntry>, ErrorCode>,
) -> Result<Op, ErrorCode> {
    let (path, sequential) = match sequential {
        true => Sequential::parse_prefix(at).map_err(|_| ErrorCode::BadArguments)?,
        false => (path(at)?, Sequential::No),
    };
    Ok(Op::Create { path, data: bytes(data), kind, sequential, acl: acl? })
}

fn delete(request: &PathVersion) -> Result<Op, ErrorCode> {
    Ok(Op::Delete { path: path(&request.path)?, version: version(request.version) })
}

fn check(request: &PathVersion) -> Result<Op, ErrorCode> {
    Ok(Op::Check { path: path(&request.path)?, version: version(request.version) })
}

fn set_data(request: &SetDataRequest) -> Result<Op, ErrorCode> {
    Ok(Op::SetData {
        path: path(&request.path)?,
        data: bytes(request.data.as_ref()),
        version: version(request.version),
    })
}

fn bytes(data: Option<&Bytes>) -> Arc<[u8]> {
    data.map_or_else(|| Arc::from([]), |data| Arc::from(&data[..]))
}

/// ZooKeeper looks at the flags of a create in a multi, not at its number.
fn multi(ops: &[MultiOp], known: &Known) -> Result<Change, ErrorCode> {
    let (mut parts, mut forms) = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
    for op in ops {
        let (part, form) = match op {
            MultiOp::Create(create) | MultiOp::Create2(create) | MultiOp::CreateContainer(create) => {
                let op = self::create(create, known)?;
                let form = match &op {
                    Op::Create { kind: NodeKind::Container, .. } => Form::Created,
                    _ => Form::Path,
                };
                (op, form)
            }
            MultiOp::CreateTtl(create) => (create_ttl(create, known)?, Form::Created),
            MultiOp::Delete(delete) => (self::delete(delete)?, Form::Empty),
            MultiOp::SetData(set) => (set_data(set)?, Form::Stat),
            MultiOp::Check(check) => (self::check(check)?, Form::Empty),
        };
        parts.push(part);
        forms.push(form);
    }
    Ok(Change { op: Op::Multi(parts), form: Form::Multi(forms) })
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
            (Form::Stat, Done::DataSet(stat) | Done::AclSet(stat)) => Reply::Stat(self::stat(&stat)),
            (Form::Multi(forms), Done::Multi(parts)) if forms.len() == parts.len() => {
                let results = forms.iter().zip(parts).map(|(form, part)| result(form, part));
                Reply::Multi(results.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// The answer to a change that was refused: a multi says so among its results, and not in its header.
    fn refused(&self, refusal: &Refusal) -> Result<Reply, ErrorCode> {
        match (&self.0, refusal) {
            (Form::Multi(forms), Refusal::MultiFailed { index, cause }) => {
                let failed = usize::try_from(*index).unwrap_or(usize::MAX);
                Ok(Reply::Multi(MultiResult::of_failure(forms.len(), failed, code(cause))))
            }
            _ => Err(code(refusal)),
        }
    }
}

fn result(form: &Form, part: Done) -> Option<MultiResult> {
    Some(match (form, part) {
        (Form::Path, Done::Created { path, .. }) => MultiResult::Create(path.as_str().to_owned()),
        (Form::Created, Done::Created { path, stat }) => {
            MultiResult::Create2 { path: path.as_str().to_owned(), stat: self::stat(&stat) }
        }
        (Form::Empty, Done::Deleted) => MultiResult::Delete,
        (Form::Empty, Done::Checked) => MultiResult::Check,
        (Form::Stat, Done::DataSet(stat)) => MultiResult::SetData(self::stat(&stat)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::{NodePath, Stat};
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
        for (path, flags) in [("a", 0), ("", 0), ("/a//b", 0), ("/a/", 0), ("/a", 9), ("/a/../b", 0)] {
            let refused = changed(&Request::Create(request(path, flags)));
            assert_eq!(refused.unwrap_err(), ErrorCode::BadArguments, "{path} {flags}");
        }
        let bare = CreateRequest { acl: Vec::new(), ..request("/a", 0) };
        assert_eq!(changed(&Request::Create(bare)).unwrap_err(), ErrorCode::InvalidAcl);
        assert!(change(&Request::Ping, &known()).is_none());
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
