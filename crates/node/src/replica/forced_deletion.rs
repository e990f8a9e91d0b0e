//! Reports of lock requests and gates that were deleted by force.

use lockkeeper_core::{FencingToken, LockName, NodePath, Principals, RequestId, SessionId, State, Zxid};

/// A lock request or a gate that an operation on nodes deleted although another session owned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedDeletion {
    /// When.
    pub zxid: Zxid,
    /// The lock; `None` for a gate.
    pub lock: Option<LockName>,
    /// The deleted node.
    pub path: NodePath,
    /// Its fencing token.
    pub token: FencingToken,
    /// The session that deleted it, if it was done on behalf of one.
    pub session: Option<SessionId>,
    /// The request id of the deletion.
    pub request_id: Option<RequestId>,
    /// Who deleted it.
    pub principals: Principals,
}

/// Called for each forced deletion, with the state after its batch. It is called under the state's lock: it must not
/// wait, and must not call the node.
pub type ForcedDeletionHook = Box<dyn Fn(ForcedDeletion, &State) + Send + Sync>;
