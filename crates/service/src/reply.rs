//! The answer of a call that was carried out, and the zxid at which it is true.

use lockkeeper_api::Answer;
use lockkeeper_api::watch::ChangeKind;
use lockkeeper_core::{NodeEventKind, Zxid};

use crate::failure::Failure;

/// The result of every call.
pub type Answered = Result<Reply, Failure>;

/// An answer with its status and zxid.
#[derive(Debug)]
pub struct Reply {
    /// 200, or 201 where something was made.
    pub status: u16,
    /// The zxid at which it is true, if it has one.
    pub zxid: Option<Zxid>,
    /// The answer.
    pub body: Answer,
}

impl Reply {
    /// An answer that is true at a zxid.
    pub fn ok(zxid: Zxid, body: Answer) -> Self {
        Self { status: 200, zxid: Some(zxid), body }
    }

    /// The same, to a call that made something.
    pub fn created(zxid: Zxid, body: Answer) -> Self {
        Self { status: 201, zxid: Some(zxid), body }
    }

    pub(crate) fn timeless(body: Answer) -> Self {
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
