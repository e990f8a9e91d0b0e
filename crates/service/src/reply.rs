//! The answer of a call that was carried out, and the zxid at which it is true.

use lockkeeper_api::Answer;
use lockkeeper_api::watch::ChangeKind;
use lockkeeper_core::{NodeEventKind, Zxid};

use crate::failure::Failure;

/// The result of a call, with its own answer or with that of any call.
pub type Answered<T = Answer> = Result<Reply<T>, Failure>;

/// An answer with its status and zxid.
#[derive(Debug)]
pub struct Reply<T = Answer> {
    /// 200, or what the row of the call says.
    pub status: u16,
    /// The zxid at which it is true, if it has one.
    pub zxid: Option<Zxid>,
    /// The answer.
    pub body: T,
}

impl<T> Reply<T> {
    /// An answer that is true at a zxid.
    pub fn ok(zxid: Zxid, body: T) -> Self {
        Self { status: 200, zxid: Some(zxid), body }
    }

    pub(crate) fn timeless(body: T) -> Self {
        Self { status: 200, zxid: None, body }
    }
}

/// A change of a node, as watches over HTTP and on streams name it.
pub fn kind_out(kind: NodeEventKind) -> ChangeKind {
    match kind {
        NodeEventKind::Created => ChangeKind::Created,
        NodeEventKind::Deleted => ChangeKind::Deleted,
        NodeEventKind::DataChanged => ChangeKind::DataChanged,
        NodeEventKind::ChildrenChanged => ChangeKind::ChildrenChanged,
    }
}
